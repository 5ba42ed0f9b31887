"""Targets in this process: any Python callable on arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from unsoftmax.errors import BudgetExceededError, RefusalError, Sign, TargetError, UnknownWidthError, tried
from unsoftmax.models import Floats
from unsoftmax.oracles.text import class_number, plain

SMALL = 2**16  # numbers in questions that are compared with a copy: a target that works in place does so from the first on


class CallableOracle:
    """Any callable that maps ``(batch, length, width)`` to numbers, with its answers checked.

    Args:
        target: the callable.
        width: token length; may be left out if the target carries ``.width``.
    """

    cheap_calls = True  # nothing is lost by asking in many calls
    local = True  # what fails here fails because of the question, not of the way to the target

    def __init__(self, target: Callable[[Floats], Any], width: int | None = None) -> None:
        self.target = target
        self._writes = False
        self._layout = Layout()
        self.batches = Batches()
        self._width = checked_width(target, width)

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self._width

    @property
    def vain(self) -> int:
        """Sequences sent beyond those that were wanted."""
        return self.batches.vain

    @property
    def outputs(self) -> int | None:
        """Length of an answer, where the target tells it."""
        told = getattr(self.target, "outputs", getattr(getattr(self.target, "__self__", None), "outputs", None))
        return told if isinstance(told, int) else None

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask the target and check shape and finiteness of what it says."""
        return self.batches.told(self._told, sequences)

    def _told(self, sequences: Floats) -> Floats:
        with blamed("target", f"sequences of shape {sequences.shape}", "arrays (batch, length, width) of this width"):
            raw = self._ask(sequences)
        return checked_answers(raw, sequences.shape, self._layout)

    def _ask(self, sequences: Floats) -> Any:
        """Ask with memory that the target cannot change; one that works in place gets a copy, from its first attempt on."""
        if self._writes or ("torch" in sys.modules and not sequences.flags.writeable):  # torch warns of memory it may not write to
            return self.target(sequences.copy())
        if "torch" in sys.modules:
            if sequences.size > SMALL:
                return self.target(sequences)
            kept = sequences.copy()
            raw = self.target(sequences)
            self._writes = not np.array_equal(kept, sequences)
            if self._writes:
                sequences[:] = kept
            return raw
        frozen = sequences.view()
        frozen.flags.writeable = False
        try:
            return self.target(frozen)
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            self._writes = True
            self.batches.vain += len(sequences)
            return self.target(sequences.copy())


class Batches:
    """Asks as many sequences at once as a target takes: where it raises, but takes the first alone, half as many from then on.

    Attributes:
        vain: sequences sent beyond those that were wanted, because a call that held them raised; they are billed, too.
        allowance: sequences that one call may send, however often it must be divided; None without a limit.
    """

    def __init__(self) -> None:
        self.vain = 0
        self.allowance: int | None = None
        self._most: int | None = None

    def told(self, ask: Callable[[Floats], Floats], sequences: Floats) -> Floats:
        """What ``ask`` says of all sequences, in the fewest calls that it takes."""
        parts: list[Floats] = []
        sent, at, count = 0, 0, len(sequences)
        try:
            while at < count or not parts:
                part = sequences[at : at + (self._most or count)]
                sent += len(part)
                answers = tried(partial(ask, part), TargetError)
                if isinstance(answers, TargetError):
                    if len(part) == 1 or Sign.RAISED not in answers.signs:
                        raise answers
                    self._affordable(sent + 1 + count - at, answers)
                    sent += 1
                    if isinstance(tried(partial(ask, part[:1]), TargetError), TargetError):
                        raise answers
                    self._most = len(part) // 2
                    continue
                parts.append(answers)
                at += len(part)
        except RefusalError as error:
            error.billed = min(sent, count)
            raise
        finally:
            self.vain += max(sent - count, 0)
        together: Floats = parts[0] if len(parts) == 1 else array_namespace(parts[0]).concat(parts)
        return together

    def _affordable(self, sent: int, error: TargetError) -> None:
        """Refuse to send as many sequences in all where that is more than the budget leaves."""
        if self.allowance is not None and sent > self.allowance:
            raise BudgetExceededError(
                f"{error} Asking it in smaller batches would take {sent} sequences for this step, where the budget leaves "
                f"{self.allowance}. Raise `budget`, or let the target take larger batches."
            ) from error


@contextmanager
def blamed(target: str, asked: str, takes: str) -> Iterator[None]:
    """Turn whatever a target raises into a ``TargetError`` that says what it was asked and what it should take."""
    try:
        yield
    except (RefusalError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a target that ends the program, or cancels its own task, fails
        raise TargetError(
            f"The {target} raised {type(error).__name__} on {asked}: {plain(error).rstrip('.')}. "
            f"Check that it takes {takes}; nothing that it answered before is lost.",
            signs=(Sign.RAISED,),
        ) from error


def checked_width(target: object, width: int | None) -> int:
    """The token length: as given, or as the target tells it."""
    told: Any = getattr(target, "width", None)
    size = told if width is None else width
    if size is None:
        raise UnknownWidthError(
            "The target does not tell its width (no `.width`). Pass `width=` (--width), the length of a token vector."
        )
    if isinstance(size, bool) or not isinstance(size, int | float | np.integer) or not size >= 1 or size % 1 != 0:
        raise ValueError(f"width is {size!r}; it must be a whole number of at least 1, the length of a token vector.")
    if isinstance(told, int) and told != size:
        raise ValueError(f"width={size} was given, but the target says that its width is {told}. Leave `width` out.")
    return int(size)


class Layout:
    """How a target answered first: at the last position or at all, with how many numbers; it must stay so."""

    def __init__(self) -> None:
        self._first: tuple[bool, int] | None = None

    def keep(self, told: tuple[int, ...]) -> None:
        """Refuse answers of shape ``told`` that are of another kind than the first ones; one number may have an axis or none."""
        now = len(told) == 3, 1 if len(told) == 1 else told[-1]
        self._first = self._first or now
        if now != self._first:
            first, then = (
                f"{n} number{'s' * (n != 1)} {'at every position' if everywhere else 'a sequence'}"
                for everywhere, n in (self._first, now)
            )
            raise TargetError(
                f"The target answered with {first} at first, and now with {then}. Its answers must keep their shape. If one "
                "may have been the reply to somebody else, run the same command with --repair: it asks again what a journal holds."
            )


def checked_answers(raw: Any, asked: tuple[int, ...], layout: Layout | None = None) -> Floats:
    """Answers as float64, of a legal shape for sequences of shape ``asked``, and finite; else a ``TargetError``."""
    try:
        answers = _as_array(raw)
        if answers.dtype.kind in "UO" and all(isinstance(name, str) for name in answers.flat):
            answers = np.array([class_number(name) for name in answers.flat]).reshape(answers.shape)
        if answers.dtype.kind not in "fiub":
            raise TypeError(f"dtype {answers.dtype}")
        answers = answers.astype(np.float64)  # a copy: a target may write its next answers into the same memory
    except (TypeError, ValueError, RuntimeError) as error:
        raise TargetError(
            f"The target answered with {type(raw).__name__} that is no array of real numbers ({error}). "
            "It must return (batch,), (batch, outputs) or (batch, length, outputs)."
        ) from error
    check_shape(answers.shape, asked, layout)
    finite = np.isfinite(answers)
    if not finite.all():
        where = int(np.argwhere(~finite)[0][0])
        raise TargetError(
            f"The target answered {answers[~finite][0]} to sequence {where} of a batch of shape {asked}. "
            "Answers must be finite; if large inputs overflow inside the target, limit them with `max_norm`.",
            signs=(Sign.OVERFLOWS,),
        )
    return answers


def _as_array(raw: Any) -> NDArray[Any]:
    """As an array of NumPy: also PyTorch's tensors that carry gradients, lie on a device, or are of bfloat16."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(raw, torch.Tensor):
        raw = raw.detach().cpu()
        raw = raw.to(torch.float64) if raw.is_floating_point() else raw
    return np.asarray(raw)


def check_shape(told: tuple[int, ...], asked: tuple[int, ...], layout: Layout | None = None) -> None:
    """Refuse answers whose shape is none that sequences of shape ``asked`` may have, or another than that of earlier answers."""
    batch, length = asked[0], asked[1]
    legal = len(told) in (1, 2, 3) and told[0] == batch and 0 not in told and (len(told) < 3 or told[1] == length)
    if batch and not legal:
        raise TargetError(
            f"The target answered sequences of shape {asked} with an array of shape {tuple(told)}. "
            f"It must return ({batch},), ({batch}, outputs) or ({batch}, {length}, outputs)."
        )
    if batch and layout is not None:
        layout.keep(tuple(told))
