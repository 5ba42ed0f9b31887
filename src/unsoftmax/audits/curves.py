"""Error against queries: what an attacker of each budget ends with, defence by defence, over several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from unsoftmax.audits.cells import Cell
from unsoftmax.audits.defences import Defence

Run = Callable[[Defence, int, int], Cell]  # a defence, a budget, a seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What extractions of one budget achieved.

    Attributes:
        budget: sequences that each might ask.
        queries: sequences that the median one asked while learning.
        error: median error of the copies; None where fewer than half of the runs brought one.
        low: least error among the runs, None without any.
        high: largest error among the runs; None where one of them brought no copy.
        runs: how many there were.
    """

    budget: int
    queries: int
    error: float | None
    low: float | None
    high: float | None
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The points of one defence, by growing budget."""

    name: str
    points: tuple[Point, ...]


def budgets_up_to(budget: int, count: int = 5, factor: int = 3) -> tuple[int, ...]:
    """Budgets for a curve: the whole one and ``count - 1`` below, each a third of the next.

    >>> budgets_up_to(100_000)
    (1234, 3703, 11111, 33333, 100000)
    """
    return tuple(sorted({max(1, budget // factor**k) for k in range(count)}))


def curves(run: Run, defences: Sequence[Defence], budgets: Sequence[int], seeds: Sequence[int]) -> Iterator[Curve]:
    """Measure each defence at each budget, once for each seed; a rate limit changes no error and is left out."""
    for defence in defences:
        if defence.rate is None:
            yield Curve(name=defence.name, points=tuple(_point([run(defence, b, s) for s in seeds], b) for b in sorted(budgets)))


def _point(cells: list[Cell], budget: int) -> Point:
    errors = sorted(cell.error for cell in cells if cell.error is not None)
    missing = len(cells) - len(errors)
    ranked: list[float | None] = [*errors, *([None] * missing)]
    return Point(
        budget=budget,
        queries=int(median(cell.queries for cell in cells)),
        error=ranked[(len(ranked) - 1) // 2],
        low=errors[0] if errors else None,
        high=None if missing or not errors else errors[-1],
        runs=len(cells),
    )
