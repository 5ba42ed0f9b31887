"""Answers of two values as yes and no."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import NotInFamilyError, TooNoisyError
from unsoftmax.learners.labels.search import Flags
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle


class StrangeLabelError(NotInFamilyError):
    """Labels came that had not been seen before: ``strange``."""

    strange: tuple[float, ...] = ()


class LateFlipsError(TooNoisyError):
    """A share of the labels, ``rate``, is wrong, which the first ones did not show."""

    rate: float = 0.0


class Asker:
    """Asks for labels; a value that is none of those settled on is refused.

    Attributes:
        values: the labels there are, smallest first.
        yes: the label that means yes; all others mean no.
        rounds: calls made so far.
        hurried: whether calls are scarcer than labels.
    """

    def __init__(self, oracle: Oracle, values: tuple[float, ...], yes: float | None = None) -> None:
        self.oracle = oracle
        self.values = values
        self.yes = values[-1] if yes is None else yes
        self.rounds = 0
        self.hurried = False

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self.oracle.width

    def classes(self, sequences: Floats) -> Floats:
        """The labels as they come, ``(batch,)``."""
        self.rounds += 1
        answers = flat_labels(self.oracle(sequences), len(sequences))
        strange = np.setdiff1d(answers, self.values)
        if len(strange):
            refusal = StrangeLabelError(
                f"The target answered {strange[0]:g}, which is none of its labels so far ({listed(self.values)}). A target that "
                "answers with numbers, not labels, is asked without `labels`.",
                evidence={"labels": list(self.values), "strange": strange.tolist()},
            )
            refusal.strange = tuple(strange.tolist())
            raise refusal
        return answers

    def __call__(self, sequences: Floats) -> Flags:
        """Whether each label is yes."""
        told: Flags = self.classes(sequences) == self.yes
        return told


def flat_labels(answers: Floats, count: int) -> Floats:
    """One label a sequence as ``(count,)``."""
    if answers.size != count:
        raise NotInFamilyError(
            f"The target answers with {answers.size // max(count, 1)} numbers a sequence; a label is one. "
            "Leave `labels` out for targets that answer with numbers."
        )
    flat: Floats = np.asarray(answers, dtype=np.float64).reshape(count)
    return flat


def listed(values: tuple[float, ...]) -> str:
    """A few labels in words.

    >>> listed((0.0, 1.0))
    '0, 1'
    """
    return ", ".join(f"{value:g}" for value in values[:6]) + (" ..." if len(values) > 6 else "")
