"""Adapters to targets, and wrappers around them that nest."""

from unsoftmax.oracles.base import LastPosition, Oracle, Wrapper, ask_in_chunks, phase
from unsoftmax.oracles.local import CallableOracle, checked_answers, checked_width
from unsoftmax.oracles.meter import Budgeted, Count, Metered

__all__ = [
    "Budgeted",
    "CallableOracle",
    "Count",
    "LastPosition",
    "Metered",
    "Oracle",
    "Wrapper",
    "ask_in_chunks",
    "checked_answers",
    "checked_width",
    "phase",
]
