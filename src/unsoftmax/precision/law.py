"""The law of the answers' errors, and what it explains of a deviation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.precision.settings import READING

EXACT, JITTER, SINGLE, HALVES, DECIMALS, DIGITS, NOISE, UNCLEAR = (
    "exact",
    "jittering",
    "float32",
    ("float16", "bfloat16"),
    "rounded",
    "digits",
    "noisy",
    "coarse",
)
BITS = {SINGLE: 24, "float16": 11, "bfloat16": 8, UNCLEAR: 24}  # of the mantissa, where it is short


@dataclass(frozen=True, slots=True)
class Floor:
    """How far an answer may lie from the real-number truth: ``absolute + relative * size`` for answers of that size.

    Attributes:
        kind: a word for people and files: "exact", "jittering" (float64 whose last digits differ from call to call), "float32",
            "float16", "bfloat16", "rounded", "digits", "noisy", or "coarse" where the law is not clear yet. Code asks the
            properties below.
        relative: error relative to the largest answer or value that enters the computation.
        absolute: error that does not shrink with the answers (half a rounding step, a noise level).
        step: rounding step of the answers, where they are rounded.
        fresh: repeating a question gives another answer.
        batch: an answer depends on the batch it rides in, beyond ``relative``.
        given: the caller vouched for it (``tolerance=``), so that it may certify bounds.
        cast: only the answers are of low precision, so that the error of each shrinks with it.
    """

    kind: str = EXACT
    relative: float = 2.0**-50
    absolute: float = 0.0
    step: float | None = None
    fresh: bool = False
    batch: bool = False
    given: bool = False
    cast: bool = False

    def of(self, size: float) -> float:
        """Error to expect of answers of magnitude ``size``."""
        return self.absolute + self.relative * size

    @property
    def exact(self) -> bool:
        """Nothing beyond float64 rounding."""
        return self.kind == EXACT

    @property
    def unclear(self) -> bool:
        """The first questions showed errors, but not of which law."""
        return self.kind == UNCLEAR

    @property
    def single(self) -> bool:
        """Computed or written in float32."""
        return self.kind == SINGLE

    @property
    def fine(self) -> bool:
        """Errors small against every answer, though not of float64: a learner of exact answers reads through them."""
        return self.kind in (SINGLE, JITTER)

    @property
    def half(self) -> bool:
        """Computed or written in 16 bits."""
        return self.kind in HALVES

    @property
    def float16(self) -> bool:
        """Of the two half precisions, the one with a short range."""
        return self.kind == HALVES[0]

    @property
    def decimals(self) -> bool:
        """Rounded to a number of decimals."""
        return self.kind == DECIMALS

    @property
    def digits(self) -> bool:
        """Rounded to a number of significant digits."""
        return self.kind == DIGITS

    @property
    def noisy(self) -> bool:
        """Errors of one size that follow no number format: random, or vouched for."""
        return self.kind == NOISE

    @property
    def random(self) -> bool:
        """Noise that was measured."""
        return self.noisy and not self.given

    @property
    def bits(self) -> int:
        """Length of the mantissa of the numbers that the target computes with, or of the digits that stay."""
        if self.kind == JITTER:
            return int(min(53, max(24, 2 - np.log2(self.relative))))
        return BITS.get(self.kind, 53)

    def rounding(self, largest: float) -> float:
        """Root mean square error that the format of the answers alone brings, for answers up to ``largest``."""
        if self.decimals:
            return (self.step or 0.0) / 12**0.5
        return 2.0**-self.bits * largest if self.single or self.float16 else 0.0

    @property
    def unit(self) -> float:
        """Root mean square error of one number that is written down in the target's format, relative to it, at most."""
        return float(2.0**-self.bits / 3**0.5)

    def explains(self, deviations: Floats, expected: Floats) -> bool:
        """Whether deviations are of this law: their mean square and the largest of them, each in errors to expect of its answer."""
        strayed = deviations / np.maximum(expected, np.finfo(float).tiny)
        return bool(np.sqrt(np.mean(strayed**2)) <= READING.safety and strayed.max() <= READING.safety * READING.largest_noise)

    @property
    def largest(self) -> float:
        """What the largest of some hundred answers may carry of errors that do not shrink with it."""
        return (READING.largest_noise if self.noisy else READING.largest_error) * self.absolute

    def off(self, answers: Floats) -> Floats:
        """What each answer may be off by its own format: a share of itself where only the answers are written coarsely."""
        own: Floats = self.relative * np.abs(answers) if self.digits or self.cast else np.zeros_like(answers)
        return own

    def written(self, answers: Floats) -> Floats:
        """Root mean square error that writing answers down brings: evenly spread over the last digit of each.

        Where numbers inside are as short, and larger than an answer may be, the last digit of a typical one counts for all.
        """
        if self.digits:
            sizes = np.floor(np.log10(np.maximum(np.abs(answers), np.finfo(float).tiny)))
            return np.asarray(2 * self.relative * 10.0**sizes / 12**0.5)
        sizes = np.abs(answers) if self.cast else np.full_like(answers, np.median(np.abs(answers)))
        last = np.ldexp(1.0, np.frexp(sizes)[1] - self.bits)
        return np.asarray(np.maximum(last, 2 * self.absolute) / 12**0.5)

    def needs_statistics(self, max_norm: float | None) -> bool:
        """Whether scale alone cannot beat the errors: they are relative, or tokens are bounded."""
        if self.exact or self.fine:
            return False
        return max_norm is not None or self.relative > 1e-6 or not self.absolute

    @property
    def words(self) -> str:
        """What answers are like, to follow "answers are"."""
        if self.noisy:
            return f"noisy, with a standard deviation of about {self.absolute / 1.5:.2g}"
        if self.decimals:
            return f"rounded to steps of {self.step:.2g}"
        if self.kind == JITTER:
            return f"jittering by about {self.relative:.1g} of their size from call to call"
        return f"{self.kind}, with an error of about {self.relative:.2g} of their size"
