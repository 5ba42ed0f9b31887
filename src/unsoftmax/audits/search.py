"""The weakest noise that stops an extraction, by bisection on its logarithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from unsoftmax.audits.cells import Cell
from unsoftmax.audits.defences import Defence
from unsoftmax.audits.verdict import Verdict, outcome, whole_part


def weakest_noise(run: Callable[[Defence], Cell], base: Defence, spread: float, *, steps: int = 7) -> list[Cell]:
    """Search the noise that, added to ``base``, keeps a close copy from coming out.

    Returns:
        The rows that bracket it: the strongest noise tried that does not stop the extraction (unless the least does) and the
        weakest that does (unless the most does not). Between them lies the least noise that helps, within a factor of 1.1 after
        seven halvings of five decades.
    """
    low, high = 1e-4 * spread, 10.0 * spread  # below, nobody is disturbed; above, nobody is served
    weak, strong = run(_noisy(base, low)), run(_noisy(base, high))
    if stops(weak):
        return [weak]
    if not stops(strong):
        return [strong]
    for _ in range(steps):
        middle = (low * high) ** 0.5
        cell = run(_noisy(base, middle))
        if stops(cell):
            high, strong = middle, cell
        else:
            low, weak = middle, cell
    return [weak, strong]


def stops(cell: Cell) -> bool:
    """Whether no close copy came out; a rough one is no success of the attacker."""
    return outcome(cell) not in (Verdict.EXTRACTABLE, Verdict.INCONCLUSIVE) and not whole_part(cell)


def _noisy(base: Defence, noise: float) -> Defence:
    noise = float(f"{noise:.3g}")
    name = f"noise {noise:g}" if base.base else f"{base.name}, noise {noise:g}"
    return replace(base, name=f"{name} (search)", noise=noise)
