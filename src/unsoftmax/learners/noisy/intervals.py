"""Interval arithmetic for answers that are only right within a tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """Arrays of lower and upper ends; the truth lies between them."""

    low: Floats
    high: Floats

    @classmethod
    def unknown(cls, shape: tuple[int, ...]) -> Interval:
        """Nothing is known."""
        return cls(np.full(shape, -np.inf), np.full(shape, np.inf))

    @property
    def middle(self) -> Floats:
        """Midpoints; 0 where an end is infinite."""
        finite = self.finite
        return np.where(finite, (np.where(finite, self.low, 0.0) + np.where(finite, self.high, 0.0)) / 2, 0.0)

    @property
    def half(self) -> Floats:
        """Half-widths, rounded up."""
        return (self.high - self.low) / 2 * (1 + NOISY.rounding)

    @property
    def finite(self) -> np.ndarray:
        """Where both ends are finite."""
        return np.isfinite(self.low) & np.isfinite(self.high)

    @property
    def largest(self) -> Floats:
        """Largest magnitude that the truth may have."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    def __getitem__(self, index: Any) -> Interval:
        return Interval(self.low[index], self.high[index])

    def times(self, factor: Floats | float) -> Interval:
        """Scale by known numbers."""
        factor = np.asarray(factor, dtype=np.float64)
        with np.errstate(invalid="ignore"):  # 0 times infinity: a zero coefficient drops the term
            one, other = (np.where(factor == 0, 0.0, self.low * factor), np.where(factor == 0, 0.0, self.high * factor))
        return Interval(np.minimum(one, other), np.maximum(one, other)).widened(0.0)

    def plus(self, other: Interval) -> Interval:
        """The sum of two unknowns."""
        return Interval(self.low + other.low, self.high + other.high).widened(0.0)

    def widened(self, by: Floats | float) -> Interval:
        """Allow ``by`` more on either side, and the rounding of the sum that led here."""
        return Interval(self.low - by - NOISY.rounding * _size(self.low), self.high + by + NOISY.rounding * _size(self.high))

    def meet(self, other: Interval, what: str) -> Interval:
        """What both allow; raises if they exclude each other."""
        low, high = np.maximum(self.low, other.low), np.minimum(self.high, other.high)
        # an end at the wrong infinity: the answer lies outside what any weighting of the tokens' values can give
        empty = (low > high) | (low == np.inf) | (high == -np.inf)
        if empty.any():
            finite = empty & np.isfinite(low) & np.isfinite(high)
            gap = float((low[finite] - high[finite]).max()) if finite.any() else np.inf
            raise NotInFamilyError(
                f"The answers contradict each other: two ways to compute {what} exclude each other by {gap:.3g}. "
                "No single head without biases answers like this within the tolerance, so the tolerance is too small or the "
                "target is another model. "
                "Raise `tolerance`, or run `unsoftmax diagnose`.",
                evidence={"contradiction": what, "gap": gap},
            )
        return Interval(low, high)


def _size(end: Floats) -> Floats:
    return np.where(np.isfinite(end), np.abs(end), 0.0)


def log_odds(answer: Interval, last: Interval, key: Interval) -> Interval:
    """Score of a key minus that of the last token, from a two-token answer between the values ``last < key``."""
    low_top, low_bottom = answer.low - last.high, key.high - answer.low
    high_top, high_bottom = answer.high - last.low, key.low - answer.high
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.where(low_top > 0, np.log(low_top / low_bottom), -np.inf)
        high = np.where(high_bottom > 0, np.log(high_top / high_bottom), np.inf)
    return Interval(low, high).widened(NOISY.rounding)


def key_score(answer: Interval, plus: Floats, minus: Floats, own: Interval, key: Interval, last: Interval) -> Interval:
    """Score ``s`` of a key from an answer to ``plus`` copies of it, ``minus`` of its negative and a last token.

    For a fixed answer the root ``s`` is monotone in each of the last token's own score ``own`` and the two values, and it
    rises with the answer as long as ``key > |last|``; so its extremes lie at corners of the box.
    """
    hopeless = (own.largest > NOISY.intervals_largest_score) | ~(key.low > last.largest)
    low, high = np.full(plus.shape, np.inf), np.full(plus.shape, -np.inf)
    for own_end in (own.low, own.high):
        weight = np.exp(np.clip(own_end, -NOISY.intervals_largest_score, NOISY.intervals_largest_score))
        for key_end in (key.low, key.high):
            for last_end in (last.low, last.high):
                low = np.minimum(low, _root(answer.low, plus, minus, weight, key_end, last_end))
                high = np.maximum(high, _root(answer.high, plus, minus, weight, key_end, last_end))
    found = Interval(np.where(hopeless, -np.inf, low), np.where(hopeless, np.inf, high))
    return found.widened(NOISY.rounding)


def _root(answer: Floats, plus: Floats, minus: Floats, weight: Floats, key: Floats, last: Floats) -> Floats:
    """Solve ``plus (key - y) E^2 - weight (y - last) E - minus (key + y) = 0`` for ``log E``, without cancellation."""
    square, linear, constant = plus * (key - answer), weight * (answer - last), minus * (key + answer)
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.hypot(linear, 2 * np.sqrt(np.maximum(square * constant, 0.0)))
        solution = np.where(linear < 0, 2 * constant / (root - linear), (linear + root) / (2 * square))
        score = np.log(np.maximum(solution, 0.0))
    return np.where(square <= 0, np.inf, np.where(constant <= 0, -np.inf, score))
