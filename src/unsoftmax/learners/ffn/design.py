"""Which further points tell most about a network that is already roughly known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from unsoftmax.learners.ffn.hinges import Hinges, design_at
from unsoftmax.learners.ffn.normal_equations import NormalEquations
from unsoftmax.models import Floats


def choose_points(
    hinges: Hinges, system: NormalEquations, pool: Floats, noise: Floats, goal: float, most: int, *, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Greedily pick the points of ``pool`` whose answers are predicted worst, until none is predicted worse than ``goal``.

    A pivoted Cholesky factorisation of the covariance of the predictions: its remaining diagonal is what is still unknown after the
    picks so far. Returns at most ``most`` indices; ``goal`` and ``noise`` are in units of the answers.
    """
    mix = rng.normal(size=hinges.out.shape[1])
    rows = design_at(hinges, system.centre, pool, pool, np.ones(len(pool)))
    outputs = hinges.out.shape[1]
    combined = (mix / np.linalg.norm(mix)) @ rows.reshape(outputs, -1)
    spread = solve_triangular(
        system.factor[0], (combined.reshape(len(pool), -1) / system.scales).T, lower=True, check_finite=False, overwrite_b=True
    )
    covariance = spread.T @ spread
    picks: list[int] = []
    columns = np.zeros((len(pool), most))
    unknown = np.diag(covariance).copy()
    for step in range(most):
        best = int(np.argmax(unknown))
        if unknown[best] <= goal**2:
            break
        column = covariance[:, best] - columns[:, :step] @ columns[best, :step]
        columns[:, step] = column / np.sqrt(unknown[best] + noise[best] ** 2)
        unknown = np.maximum(unknown - columns[:, step] ** 2, 0.0)
        unknown[best] = min(unknown[best], noise[best] ** 2)
        picks.append(best)
    return np.array(picks, dtype=np.intp)
