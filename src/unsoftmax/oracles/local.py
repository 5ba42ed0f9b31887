"""Targets in this process: any Python callable on arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from unsoftmax.errors import RefusalError, TargetError
from unsoftmax.models import Floats


class CallableOracle:
    """Any callable that maps ``(batch, length, width)`` to numbers, with its answers checked.

    Args:
        target: the callable.
        width: token length; may be left out if the target carries ``.width``.
    """

    cheap_calls = True  # nothing is lost by asking in many calls

    def __init__(self, target: Callable[[Floats], Any], width: int | None = None) -> None:
        self.target = target
        self._writes = False
        self._width = checked_width(target, width)

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self._width

    @property
    def outputs(self) -> int | None:
        """Length of an answer, where the target tells it."""
        told = getattr(self.target, "outputs", None)
        return told if isinstance(told, int) else None

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask the target and check shape and finiteness of what it says."""
        try:
            raw = self._ask(sequences)
        except RefusalError:
            raise
        except (Exception, SystemExit) as error:  # a target that ends the program fails
            raise TargetError(
                f"The target raised {type(error).__name__} on sequences of shape {sequences.shape}: {error}. "
                "Check that it takes arrays (batch, length, width) of this width; nothing that it answered before is lost."
            ) from error
        return checked_answers(raw, sequences.shape)

    def _ask(self, sequences: Floats) -> Any:
        """Ask with memory that the target cannot change; one that works in place gets a copy, from its first attempt on."""
        if self._writes or ("torch" in sys.modules and not sequences.flags.writeable):  # torch warns of memory it may not write to
            return self.target(sequences.copy())
        if "torch" in sys.modules:
            return self.target(sequences)
        frozen = sequences.view()
        frozen.flags.writeable = False
        try:
            return self.target(frozen)
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            self._writes = True
            return self.target(sequences.copy())


def checked_width(target: object, width: int | None) -> int:
    """The token length: as given, or as the target tells it."""
    told = getattr(target, "width", None)
    if width is None:
        if told is None:
            raise ValueError("The target does not tell its width (no `.width`). Pass `width=`, the length of a token vector.")
        width = told
    if isinstance(width, bool) or int(width) != width or width < 1:
        raise ValueError(f"width is {width!r}; it must be a whole number of at least 1, the length of a token vector.")
    if isinstance(told, int) and told != width:
        raise ValueError(f"width={width} was given, but the target says that its width is {told}. Leave `width` out.")
    return int(width)


def checked_answers(raw: Any, asked: tuple[int, ...]) -> Floats:
    """Answers as float64, of a legal shape for sequences of shape ``asked``, and finite; else a ``TargetError``."""
    try:
        answers = np.asarray(raw)
        if answers.dtype.kind not in "fiub":
            raise TypeError(f"dtype {answers.dtype}")
        answers = answers.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise TargetError(
            f"The target answered with {type(raw).__name__} that is no array of real numbers ({error}). "
            "It must return (batch,), (batch, outputs) or (batch, length, outputs)."
        ) from error
    check_shape(answers.shape, asked)
    finite = np.isfinite(answers)
    if not finite.all():
        where = int(np.argwhere(~finite)[0][0])
        raise TargetError(
            f"The target answered {answers[~finite][0]} to sequence {where} of a batch of shape {asked}. "
            "Answers must be finite; if large inputs overflow inside the target, limit them with `max_norm`."
        )
    return answers


def check_shape(told: tuple[int, ...], asked: tuple[int, ...]) -> None:
    """Refuse answers whose shape is none that sequences of shape ``asked`` may have."""
    batch, length = asked[0], asked[1]
    legal = len(told) in (1, 2, 3) and told[0] == batch and 0 not in told and (len(told) < 3 or told[1] == length)
    if batch and not legal:
        raise TargetError(
            f"The target answered sequences of shape {asked} with an array of shape {tuple(told)}. "
            f"It must return ({batch},), ({batch}, outputs) or ({batch}, {length}, outputs)."
        )
