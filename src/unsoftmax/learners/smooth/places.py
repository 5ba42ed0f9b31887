"""Points that lie in one hyperplane and far from all others, and points far from all."""

from __future__ import annotations

import numpy as np

from unsoftmax.models import Floats


def clear_directions(units: Floats, count: int, rng: np.random.Generator, pool: int = 4000) -> tuple[Floats, Floats]:
    """``count`` unit vectors, of ``pool`` random ones, farthest from the hyperplanes with these unit normals; their distances."""
    drawn = rng.normal(size=(pool, units.shape[1]))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    margins = np.abs(drawn @ units.T).min(axis=1, initial=np.inf)
    best = np.argsort(-margins, kind="stable")[:count]
    return drawn[best], margins[best]


def clear_place(
    units: Floats, j: int, rng: np.random.Generator, *, pool: int = 4000, rounds: int = 12, nearby: int = 48
) -> tuple[Floats, float]:
    """A unit vector in hyperplane ``j`` and its distance from the nearest other hyperplane, made as large as a search can.

    The best of ``pool`` random vectors, then of ``nearby`` ones around it in each of ``rounds``, with smaller and smaller steps.
    """
    others = np.delete(units, j, axis=0)
    width = units.shape[1]
    if width == 1 or len(others) == 0:
        return np.zeros(width), np.inf

    def margins(points: Floats) -> tuple[Floats, Floats]:
        inside = points - np.outer(points @ units[j], units[j])
        inside /= np.maximum(np.linalg.norm(inside, axis=1, keepdims=True), 1e-300)
        return inside, np.asarray(np.abs(inside @ others.T).min(axis=1))

    points, sizes = margins(rng.normal(size=(pool, width)))
    best = int(np.argmax(sizes))
    place, margin = points[best], float(sizes[best])
    for k in range(rounds):
        points, sizes = margins(place + 0.3 * 0.7**k * rng.normal(size=(nearby, width)) / np.sqrt(width))
        best = int(np.argmax(sizes))
        if sizes[best] > margin:
            place, margin = points[best], float(sizes[best])
    return place, margin
