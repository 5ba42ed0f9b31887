"""Many tokens per question: what is asked before last tokens, and the scores that follow from the answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.vector_heads.answers import Answers
from unsoftmax.learners.vector_heads.demixing import Totals
from unsoftmax.learners.vector_heads.keys import Keys, copies_for
from unsoftmax.linalg import on_host
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Scores ``z (heads, keys, last tokens)`` per unit step, their ``errors``, those of a whole head, and what is unexplained."""

    z: Floats
    errors: Floats
    noise: Floats
    residual: float


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Answers ``told (n, groups, outputs)`` per unit step, less those to the last tokens alone, and the error of an answer."""

    told: Floats
    length: float
    magnitude: float

    def with_(self, other: Asked) -> Asked:
        """Both, of the same keys."""
        told = array_namespace(self.told).concat([self.told, other.told])
        return Asked(told, self.length, max(self.magnitude, other.magnitude))

    def scores(self, answers: Answers, keys: Keys) -> Scores | None:
        """What they tell of all scores. None where a weight is not positive: the tokens are too long, or a head was missed."""
        return self.of(answers, keys, *keys.weights(self.told))

    def of(self, answers: Answers, keys: Keys, p: Floats, off: float) -> Scores | None:
        """The scores behind weights ``p (heads, groups, size, n)``."""
        xp, (groups, size, _) = array_namespace(self.told), keys.U.shape
        rest = 1 - xp.sum(p, axis=2, keepdims=True)
        if not float(xp.min(p)) > 0 or not float(xp.min(rest)) > 0:
            return None
        z = (xp.log(p / rest) + float(np.log(copies_for(size)))).reshape(len(p), groups * size, len(self.told))
        error = answers.floor.of(self.magnitude) / self.length
        return Scores(
            z=z / self.length,
            errors=error * score_errors(keys, p, rest) / self.length,
            noise=typical_noise(keys, p) * error / self.length,
            residual=off * self.length / self.magnitude,
        )


def ask_scores(answers: Answers, totals: Totals, keys: Keys, length: float, x: Floats) -> Asked:
    """Ask for all key steps, ``length`` times the unit ones, at all last tokens ``x (n, width)``: one query per group and token."""
    xp = array_namespace(x)
    groups, size, _ = keys.U.shape
    copies = copies_for(size)
    steps = length * keys.U

    def build(start: int, stop: int) -> Floats:
        shape = (stop - start, groups, size + copies, steps.shape[2])
        sequences: Floats = xp.empty(shape, dtype=steps.dtype, device=device(steps))
        sequences[...] = x[start:stop, None, None]
        sequences[:, :, :size] += steps  # in place: what is asked fills memory, and once will do
        return sequences.reshape(-1, size + copies, steps.shape[2])

    alone = totals.of(x)
    told = answers.stream(build, len(x), groups * (size + copies)).reshape(len(x), groups, -1) - alone[:, None]
    magnitude = float(xp.max(xp.abs(told)) + xp.max(xp.abs(alone)))
    return Asked(told / length, length, magnitude)


def read_scores(answers: Answers, totals: Totals, keys: Keys, length: float, x: Floats) -> Scores | None:
    """Scores ``u·(W_h x + c_h)`` of all key steps at all last tokens, asked and worked out; None where they cannot be."""
    return ask_scores(answers, totals, keys, length, x).scores(answers, keys)


def score_errors(keys: Keys, p: Floats, rest: Floats) -> Floats:
    """Errors ``(heads, keys, n)`` of log-odds for an error 1 of each output, from the weights ``p (heads, groups, size, n)``.

    ``rest (heads, groups, 1, n)`` is the weight of the last token, or of all short ones.
    """
    errors: Floats = array_namespace(p).sqrt((keys.alone[..., None] / p) ** 2 + (keys.together[..., None] / rest) ** 2)
    return errors.reshape(len(p), -1, p.shape[3])


def typical_noise(keys: Keys, p: Floats) -> Floats:
    """The error ``(heads,)``, on the host, of a head's log-odds at its worst key for an error 1 of each output."""
    xp = array_namespace(p)
    return on_host(xp.max(keys.alone, axis=(1, 2))) * 2 * _median(1 / p)


def _median(numbers: Floats) -> float:
    """The median of an array of any kind; of many numbers, that of some."""
    flat = numbers.reshape(-1)
    flat = array_namespace(flat).sort(flat[:: max(1, len(flat) // 10_000)])
    return float(flat[len(flat) // 2])


def demand(told: Scores | None) -> Scores:
    """Refuse where weights came out negative."""
    if told is None:
        raise NotInFamilyError(
            "Answers to several keys are no mixture of the heads found: a weight came out negative. "
            "A head was missed, two heads are nearly equal, or the answers are too coarse.",
        )
    return told
