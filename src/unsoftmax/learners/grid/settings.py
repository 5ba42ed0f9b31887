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
    # a step for each row
    of_row: int = 6  # entries of one row, which show the range of the others
    rows_tried: int = 4  # rows most of whose entries are zero are left for others
    room: float = 1.5  # of a packed digit, over its range: the digits of 32 wrong numbers all stay within it once in 10^5
    smalls: int = 3  # packed numbers whose ratios tell the step: all share a divisor beyond 32 once in a thousand
    small_bits: int = 18  # of each of them: few enough that no ratio is whole by chance
    ratio: float = 2.0**-43  # to which a ratio of two numbers is known: each to 2^-50 of the size it is asked for, and see faint
    faint: float = 16.0  # times smaller than expected a number may be without being asked again
    packed: float = 2.0**-48  # of the range of a packed number: its error in units of a step that such a ratio told
    shares: int = 32  # the largest divisor that they may share
    readings: int = 8  # of rows that do not come out whole, at most: of rows half of whose entries are zero a third a time
    worth: float = 0.25  # share of rows that come out whole, below which a reading costs more than their entries one by one
    singly: float = 0.5  # share of the rows that may be left then: they are read entry by entry


ON_GRID = Settings()
