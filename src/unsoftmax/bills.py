"""The bill: what a recovery asks, by phase."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

Phases = list[tuple[str, int, int]]  # name, queries, tokens


@dataclass(frozen=True, slots=True)
class Bill:
    """What a run asks: ``low`` to ``high`` queries, the check on fresh sequences included.

    Attributes:
        low: for the cheapest case that fits what is known; None where the formula holds an unknown.
        high: for the most expensive case; equal where rank and heads are given.
        formula: in words.
        phases: ``(name, queries, tokens)``, where they are counted one by one.
        assumptions: sentences: what the numbers take for granted.
    """

    low: int | None
    high: int | None
    formula: str = ""
    phases: tuple[tuple[str, int, int], ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def queries(self) -> int:
        """The cheapest case, of a bill that counts."""
        return self.low or 0

    @property
    def queries_max(self) -> int:
        """The most expensive case, of a bill that counts."""
        return self.high or 0

    def with_check(self, sequences: int) -> Bill:
        """The same with so many fresh sequences in the held-out check, and the one that tells how long they may be."""
        phases, more = [], 0
        for name, queries, tokens in self.phases:
            if name == "held-out check":
                more = sequences + 1 - queries
                tokens = round(tokens * (sequences + 1) / queries)
                queries = sequences + 1
            phases.append((name, queries, tokens))
        low, high = (None if end is None else end + more for end in (self.low, self.high))
        return replace(self, low=low, high=high, phases=tuple(phases))

    def record(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "phases": [{"name": name, "queries": queries, "tokens": tokens} for name, queries, tokens in self.phases],
            "queries": self.queries,
            "queries_max": self.queries_max,
            "assumptions": list(self.assumptions),
        }


def total(phases: Phases) -> int:
    """Queries of all phases."""
    return sum(queries for _, queries, _ in phases)
