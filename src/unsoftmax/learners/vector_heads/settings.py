"""Numbers that the learner of several heads goes by, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of several heads goes by. What no comment derives was measured by ``benchmarks/trained_layer.py``."""

    fewer: float = 0.94  # of the keys that outputs can tell apart: then weights do not take up all that answers tell
    # of a head's part: two that pass for one leave about half of it beside sums of all parts, rounding a millionth
    merged: float = 2.0**-10
    loose: int = 2  # combinations of values that may all but cancel, or the most dependent head is asked for in all directions
    mixtures: int = 8  # for each weak combination of weights: then what they tell errs twice as much as what answers tell (MiniLM)
    together: int = 6  # directions that share a question; of more, many are met by no position
    unnamed: int = 24  # directions that share a question where no name is wanted: a head looks at half of them
    closer: float = 0.5  # their distance from the base, of that of slices: then no other head changes its side
    beside: int = 192  # last tokens for each head then, at most
    all_beside: int = 1536  # and for all: attention takes the square of them
    aside: float = 2.0  # length of their steps aside: shorter ones leave a head with one direction, longer ones change its side


SEVERAL = Settings()
