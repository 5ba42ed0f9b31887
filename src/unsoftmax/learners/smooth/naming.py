"""Which activation a target has, without learning it: one bend, looked for and looked at on a line far out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.smooth.bends import best_bends
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Floats
from unsoftmax.oracles.base import LastPosition, Oracle
from unsoftmax.results import Fact


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Places on the line and their answers on one piece: as many as a polynomial of the piece's degree needs."""

    places: Floats
    values: Floats

    def __call__(self, t: Floats) -> Floats:
        """The piece continued."""
        centre, scale = self.places.mean(), np.ptp(self.places)
        matrix = np.vander((self.places - centre) / scale, len(self.places))
        return np.asarray(np.vander((np.asarray(t) - centre) / scale, len(self.places)) @ np.linalg.solve(matrix, self.values))


def named_activation(oracle: Oracle, *, degree: int, rng: np.random.Generator, lines: int = 3) -> Fact:
    """The activation of one neuron of a network whose pieces, seen from afar, are of ``degree`` one (plain) or two (gated).

    About ``(degree + 3) log2(neurons)`` queries and a dozen more; up to thrice as many, on ``lines`` of them.
    """
    fact = _untold("No single bend was found on a line, so that its activation is not told.")
    mix: list[Floats] = []
    for _ in range(lines):
        if fact.passed:
            break
        across, along = np.linalg.qr(rng.normal(size=(oracle.width, 2)))[0].T if oracle.width > 1 else (np.zeros(1), np.ones(1))

        def ask(t: Floats, across: Floats = across, along: Floats = along) -> Floats:
            points = BENDS.distance * across + np.asarray(t)[:, None] * along
            answers = LastPosition(oracle)(points[:, None]).reshape(len(points), -1)
            if not mix:  # one mixture of the numbers in an answer is as good as all
                mix.append(rng.normal(size=answers.shape[1]))
            return np.asarray(answers @ mix[0])

        found = _bend(ask, degree)
        if found is not None:
            fact = _looked_at(ask, *found)
    return fact


def _untold(words: str) -> Fact:
    return Fact("activation", np.inf, BENDS.naming_agree, None, words)


def _looked_at(ask: Callable[[Floats], Floats], left: Stretch, right: Stretch, place: float) -> Fact:
    """Which activation explains answers nearer and nearer to a bend."""
    steps, heights = np.zeros(0), np.zeros(0)
    for k in range(2):
        looks = np.arange(BENDS.looks)
        near = BENDS.clear * BENDS.shrink ** -(k * BENDS.looks + looks) * np.array([1.0, -1.0])[looks % 2]
        offered = (right(place + near) - left(place + near)) / near
        if not offered.all():
            return _untold("The pieces on both sides of a bend do not differ by more than rounding near by.")
        told = (ask(place + near) - left(place + near)) / offered
        steps, heights = np.concatenate([steps, near]), np.concatenate([heights, told])
        if np.sum(np.abs(told - np.maximum(near, 0.0)) > BENDS.round * np.abs(near)) >= 3:
            break
    best = best_bends(steps, heights)
    clear = best[0].misfit <= BENDS.naming_agree and best[1].misfit >= BENDS.bends_apart * best[0].misfit
    words = f"A neuron bends as {best[0].phi.name} does." if clear else "A neuron bends as no activation known here does."
    return Fact("activation", best[0].misfit, BENDS.naming_agree, clear or None, words)


def _bend(ask: Callable[[Floats], Floats], degree: int) -> tuple[Stretch, Stretch, float] | None:
    """The pieces on both sides of one bend and its place, or None where none was singled out."""

    def begun(t: float) -> Stretch:
        places = np.asarray(t + BENDS.clear / 2 * np.arange(degree + 1), dtype=np.float64)
        return Stretch(places, ask(places))

    left, right = begun(-2 * BENDS.distance), begun(2 * BENDS.distance)
    size = float(np.abs(np.concatenate([left.values, right.values])).max())
    for _ in range(24):
        for place in _crossings(left, right, degree, BENDS.clear):
            beside = np.array([place - BENDS.clear, place + BENDS.clear])
            values = ask(beside)
            if (
                abs(left(beside[:1])[0] - values[0]) <= BENDS.same * size
                and abs(right(beside[1:])[0] - values[1]) <= BENDS.same * size
            ):
                before, after = (
                    Stretch(np.append(side.places[:degree], beside[k]), np.append(side.values[:degree], values[k]))
                    for k, side in enumerate((left, right))
                )
                nearest = _crossings(before, after, degree, 0.0)
                return (before, after, nearest[0]) if nearest else None
        low, high = float(left.places[-1]), float(right.places[0])
        if high - low < 8 * BENDS.clear:
            return None
        middle = begun((low + high) / 2)
        if _differ(left, middle, size):
            right = middle
        else:
            left = middle
    return None


def _differ(left: Stretch, right: Stretch, size: float) -> bool:
    return bool(np.abs(left(right.places) - right.values).max() > BENDS.same * size)


def _crossings(left: Stretch, right: Stretch, degree: int, margin: float) -> list[float]:
    """Where two pieces meet between their places, and no nearer to them than ``margin``."""
    low, high = float(left.places.max()), float(right.places.min())
    if low >= high:
        return []
    t = np.linspace(low, high, degree + 1)
    unit = (t - low) / (high - low)
    roots = np.roots(np.linalg.solve(np.vander(unit, degree + 1), right(t) - left(t)))
    inside = [float(r.real) for r in roots if abs(r.imag) < 1e-12 and 0 < r.real < 1]
    return [low + (high - low) * r for r in inside if min(r, 1 - r) * (high - low) > margin]
