"""Every number that the looks at the precision of answers go by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the looks at the precision of answers go by.

    What no comment derives was measured by ``benchmarks/noise.py``.
    """

    # calibration
    grid: int = 8  # tokens are multiples of 1/8: exact in half precision
    modest: int = 3  # of them are asked at once; the others would overflow a half-precision target and are left out for one
    clip_ratio: float = 0.03  # how far the last two powers may miss their ratio of 8
    share_full: float = 0.6  # answers that must use all decimals, or else the answers merely happen to be short
    exact: float = 1e-13
    full_digits: int = 12  # decimal digits from which on answers are not rounded, so that equal ones are equal for another reason
    dyadic: int = 24  # places of two that products of tokens and round weights have
    eight_bits: tuple[tuple[str, int], ...] = (("fp8 (e5m2)", 3), ("fp8 (e4m3)", 4))  # bits of their mantissas
    moved: int = 4  # entries of a token that are moved to see whether it is rounded
    # tokens whose answers are followed over tiny steps and a large one; those that must run otherwise, by what share of their slope
    # (answers that bend by an eighth at most do so nowhere), and how far the tiny ones must agree
    slopes: int = 6
    slopes_off: int = 4
    tiny: float = 2.0**-16
    tinier: float = 2.0**-20
    other_slope: float = 0.3
    same_slope: float = 0.05
    # of a short number format: residuals of affine answers computed in it, for numbers inside are larger than they are
    units: float = 64.0
    smooth: float = 0.05  # residuals near a zero of the answers, against those far off: noise does not shrink, curvature does

    # first look
    single: float = 2.0**-22  # what a float32 evaluation is good for, relative to the largest number in it
    double: float = 2.0**-50
    steady: float = 2.0**-46  # last bits of float64 answers, relative to the largest
    decimals: int = 11  # answers with fewer decimals than this count as rounded
    constant: float = 2.0**-30  # one-token answers that differ by less, relative to their size, are one number
    few_bits: int = 20  # what is left of values that cancel is a few bits of rounding, fewer than those of float32
    bent: float = 2.0**-6  # and no line at all,
    # repetitions that differ by less than this are float64 in another order of summation, or of another replica
    jittery: float = 2.0**-30
    versions: int = 4  # different answers, at most, to so many repetitions that are those of a few models
    of_batch: float = 2.0**-40  # what the order of summation in another batch does not explain
    bent_by_jitter: float = 32.0  # of such differences: a bend of four answers that is larger has another cause
    repeats: int = 8  # further repetitions that tell by how much
    deviations: float = 4.0  # of them that an answer may be off
    far: float = 16.0  # times as long are the single tokens that wake sleeping neurons
    faint: float = 2.0**-30  # or very small; where it is neither, half precision explains the few bits

    # formats
    most_decimals: int = 11
    most_digits: int = 12
    most_digits_float32: int = 6
    few_digits: int = 3  # whole numbers of half precision have more where its steps are of their size
    subnormal: float = 2.0**-25  # half a step of the smallest numbers in half precision
    many: int = 512  # numbers that show a format

    # law
    largest_noise: float = 8.0  # standard deviations that the largest of some hundred errors may have
    largest_error: float = 2.0  # the same for errors that are bounded, as those of rounding are
    # how much farther than each number rounded once a target's arithmetic may err: the square root of the most roundings that one
    # number meets, which are four. A score: query, key, scaling, product; a value: projection, mixture, output, constant. Sums are
    # kept in longer numbers while they are taken, on every processor with half precision
    safety: float = 2.0


READING = Settings()
