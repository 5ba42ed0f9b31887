"""Every number that the learner of weights on a grid goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of weights on a grid goes by.

    What no comment derives was measured by ``benchmarks/special_access.py``.
    """

    # reader
    key: float = 2.0**200  # size of keys, and of 1 / last tokens: the last token's own value and score vanish beside the key's
    tilt: float = 2.0**-60  # share of the strongest value in every key, so that none is worthless; too little to show in a digit
    long: float = 2.0**30  # size of single tokens
    copies: int = 8  # of the last token: they shift the log-odds down, where answers keep their relative precision
    top: float = 3.0  # largest score: beyond it the upper tail loses bits, below it the rounding takes them
    sample_largest: int = 2**19 - 1  # range allowed for the first entries, before the range is known
    ranges: tuple[int, ...] = (1, 8, 128, 2048, 32768, sample_largest)  # largest multiples: ternary, int4, int8, …
    left_over: float = 0.25  # a number this far from whole does not lie on the grid
    blank: float = 2.0**-40  # a score this far below the largest one that the scale allows is rounding
    smallest: float = 2.0**-80  # scale at which entries that never showed count as zero
    samples: int = 3  # queries of two entries each
    confirm: int = 2
    value_samples: int = 6  # six multiples all share a factor in 2% of the cases


ON_GRID = Settings()
