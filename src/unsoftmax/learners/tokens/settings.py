"""Every number that the learner of known tokens goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of known tokens goes by.

    What no comment derives was measured by ``benchmarks/special_access.py``.
    """

    # hull
    safety: float = 50.0  # a disagreement counts from this many estimated errors on

    # reader
    # a score whose error is this many times that of a balanced one (|score| > 8) is replaced: another key is asked
    spare: float = 1000.0
    replacements: int = 12  # rounds of other keys in place of saturated ones
    retries: int = 4  # other check keys where one saturates
    sample: int = 8  # scores that show how many of a column saturate,
    crowded: float = 0.3  # and the share from which on other columns are taken first
    rounds: int = 5  # of companions: each reaches scores some ten higher
    beyond: float = 40.0  # stands for a score whose weight is 0 or 1 to the last digit
    tastes: int = 3  # tokens of which that many scores each are asked to choose the first column
    best_size: float = 2.5  # of the scores in it
    confident: int = 2  # consecutive columns that must stay in the known space before the rank counts as found
    checks: int = 2


KNOWN_TOKENS = Settings()
