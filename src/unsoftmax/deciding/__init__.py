"""Which test or family comes next: one procedure for ``recover`` and ``diagnose``, decided on what was found."""

from unsoftmax.deciding.choices import (
    SETTLED,
    Reading,
    Step,
    after_closer,
    after_one_head,
    after_several,
    family_told,
    first_reading,
    stranger,
    undecided,
)
from unsoftmax.deciding.procedure import Decision, Try

__all__ = [
    "SETTLED",
    "Decision",
    "Reading",
    "Step",
    "Try",
    "after_closer",
    "after_one_head",
    "after_several",
    "family_told",
    "first_reading",
    "stranger",
    "undecided",
]
