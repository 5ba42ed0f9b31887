"""Many heads at once: on half a circle of last tokens every head changes sides exactly once, and alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from unsoftmax.linalg import orthonormal
from unsoftmax.models import Floats

ROUNDS = 24  # each halves the arcs; two of a hundred heads rarely change sides within 2**-12 of each other
BINARY_SLACK = 1e-3  # exact patterns are zeros and ones; anything further off is no pattern

AskSums = Callable[[Floats], Floats]
"""Last tokens ``(n, width)`` of length one to the sums over the heads that look at the base direction, ``(n, outputs)``."""


def patterns_on_half_circle(
    ask: AskSums, sums: Floats, heads: int, eps: float, width: int, rng: np.random.Generator
) -> Floats | None:
    """The 0/1 matrix ``(answers, heads)`` behind subset sums ``(answers, outputs)``, whose first row sums all heads.

    From x to -x every head changes sides once. Arcs in which the sum changes are halved until there are as many as heads: then
    each change is what one head adds, but for its sign, which the sum of all tells. About ``10 * heads`` questions, in a few
    rounds; no search over subsets. Returns None where the changes do not explain all sums.
    """
    x, y = orthonormal(width, rng, rows=2)
    angles = np.linspace(0.0, np.pi, 4 * heads + 1)

    def on(at: Floats) -> Floats:
        return ask(np.cos(at)[:, None] * x + np.sin(at)[:, None] * y)

    told = on(angles)
    for _ in range(ROUNDS):
        steps = np.diff(told, axis=0)
        size = np.linalg.norm(steps, axis=1)
        arcs = np.flatnonzero(size > 64 * eps * np.sqrt(len(steps)) * size.max(initial=0.0))
        if len(arcs) >= heads:
            break
        middle = (angles[arcs] + angles[arcs + 1]) / 2
        angles, told = np.insert(angles, arcs + 1, middle), np.insert(told, arcs + 1, on(middle), axis=0)
    if len(arcs) != heads:
        return None
    found = sums @ np.linalg.pinv(steps[arcs])
    patterns: Floats = np.round(found * np.sign(found[0]))
    exact = np.abs(np.abs(found[0]) - 1).max() < BINARY_SLACK and np.abs(found * np.sign(found[0]) - patterns).max() < BINARY_SLACK
    return patterns if exact and np.isin(patterns, (0.0, 1.0)).all() else None
