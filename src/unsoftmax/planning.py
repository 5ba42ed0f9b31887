"""``plan``: the bill before it is paid, by phase, without asking the target anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unsoftmax.checks.held_out import LENGTHS, PER_LENGTH
from unsoftmax.learners.noisy_plan import queries_for
from unsoftmax.learners.non_adaptive import CHECK_LENGTH
from unsoftmax.learners.non_adaptive import price as fixed_price
from unsoftmax.learners.one_head import price as one_head_price
from unsoftmax.recorded import CHECKS

Phases = list[tuple[str, int, int]]
FIRST_LOOK: Phases = [("first look", 6, 6)]
SENTINELS: Phases = [("sentinels", 4, 8)]
CHECK: Phases = [("held-out check", PER_LENGTH * len(LENGTHS), PER_LENGTH * sum(LENGTHS))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run will ask.

    Attributes:
        phases: ``(name, queries, tokens)`` for the cheapest case that fits what is known.
        queries: their sum.
        queries_max: the same for the most expensive case; equal where rank and heads are given.
        assumptions: sentences: what the numbers take for granted.
    """

    phases: tuple[tuple[str, int, int], ...]
    queries: int
    queries_max: int
    assumptions: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "phases": [{"name": name, "queries": queries, "tokens": tokens} for name, queries, tokens in self.phases],
            "queries": self.queries,
            "queries_max": self.queries_max,
            "assumptions": list(self.assumptions),
        }


def plan_attention(width: int, *, outputs: int = 1, rank: int | None = None, heads: int | None = None) -> Plan:
    """The bill for an attention target without a norm limit, answered exactly."""
    low = _phases(width, outputs, rank if rank is not None else 1, heads or 1)
    high = _phases(width, outputs, rank if rank is not None else width, heads or 1)
    assumptions = [
        "Exact answers at the last position; no query bias (one adds about the width in queries).",
        f"Answers are {'single numbers' if outputs == 1 else f'vectors of {outputs} numbers'}.",
    ]
    if rank is None:
        assumptions.append("The rank is unknown: the least is for rank 1, the most for full rank.")
    if heads is None:
        assumptions.append("One head; several heads cost more.")
    return Plan(
        phases=tuple(low if rank is not None else high),
        queries=sum(queries for _, queries, _ in low),
        queries_max=sum(queries for _, queries, _ in high),
        assumptions=tuple(assumptions),
    )


def plan_noisy(width: int, *, accuracy: float, noise: float, max_norm: float) -> Plan:
    """How many queries an rms error of ``accuracy`` per entry of W takes, for this noise and norm limit."""
    for name, value in (("accuracy", accuracy), ("noise", noise), ("max_norm", max_norm)):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} is {value!r}; it must be a positive number.")
    learning = queries_for(accuracy, noise=noise, max_norm=max_norm, width=width)
    phases = [*FIRST_LOOK, ("calibration", 30, 30), ("values and scores", learning, learning * 65), *CHECK]
    total = sum(queries for _, queries, _ in phases)
    words = ("One head of full rank with values of size one and scores of moderate size; the run measures both and plans again.",)
    return Plan(phases=tuple(phases), queries=total, queries_max=total, assumptions=words)


def plan_fixed(width: int, *, rank: int | None = None) -> Plan:
    """The bill where all probes are drawn before the first answer; the check is exported with them."""
    phases = [*fixed_price(width, rank), ("held-out check", CHECKS, CHECKS * CHECK_LENGTH)]
    total = sum(queries for _, queries, _ in phases)
    assumptions = ["One round of scalar or vector answers, no query bias."]
    if rank is None:
        assumptions.append("The rank is unknown, so the probes suffice for full rank; --rank makes them fewer.")
    return Plan(phases=tuple(phases), queries=total, queries_max=total, assumptions=tuple(assumptions))


def _phases(width: int, outputs: int, rank: int, heads: int) -> Phases:
    learning = one_head_price(width, outputs=outputs, rank=rank)
    asked = sum(queries for _, queries, _ in learning)
    watch = SENTINELS if asked >= 400 else []
    return [*FIRST_LOOK, *learning, *watch, *CHECK]
