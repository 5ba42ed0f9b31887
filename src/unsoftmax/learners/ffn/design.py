"""Which further points tell most about a network that is already roughly known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from unsoftmax.learners.ffn.hinges import Hinges, design_at
from unsoftmax.learners.ffn.normal_equations import NormalEquations
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats


def choose_points(
    hinges: Hinges,
    system: NormalEquations,
    pool: Floats,
    noise: Floats,
    goal: float,
    most: int,
    *,
    least: int = 0,
    rng: np.random.Generator,
) -> NDArray[np.intp]:
    """Greedily pick the points of ``pool`` whose answers are predicted worst, until none is predicted worse than ``goal``.

    A pivoted Cholesky factorisation of the covariance of the predictions: its remaining diagonal is what is still unknown after the
    picks so far. Returns ``least`` to ``most`` indices; ``goal`` and ``noise`` are in units of the answers.
    """
    mix = rng.normal(size=hinges.out.shape[1])
    rows = design_at(hinges, system.centre, pool, pool, np.ones(len(pool)))
    outputs = hinges.out.shape[1]
    combined = (mix / np.linalg.norm(mix)) @ rows.reshape(outputs, -1)
    spread = _spread(system, combined.reshape(len(pool), -1))
    covariance = spread.T @ spread
    picks: list[int] = []
    columns = np.zeros((len(pool), most))
    unknown = np.diag(covariance).copy()
    for step in range(most):
        best = int(np.argmax(unknown))
        if unknown[best] <= goal**2 and step >= least:
            break
        column = covariance[:, best] - columns[:, :step] @ columns[best, :step]
        columns[:, step] = column / np.sqrt(unknown[best] + noise[best] ** 2)
        unknown = np.maximum(unknown - columns[:, step] ** 2, 0.0)
        unknown[best] = min(unknown[best], noise[best] ** 2)
        picks.append(best)
    return np.array(picks, dtype=np.intp)


def predicted_error(hinges: Hinges, system: NormalEquations, points: Floats) -> Floats:
    """Standard error of what is predicted at ``points``, all outputs together, ``(n,)``."""
    rows = design_at(hinges, system.centre, points, points, np.ones(len(points)))
    squares = np.sum(_spread(system, rows) ** 2, axis=0)
    return np.asarray(np.sqrt(squares.reshape(-1, len(points)).sum(axis=0)))


def telling(rows: Floats, count: int) -> NDArray[np.intp]:
    """Which ``count`` answers determine most, of ``rows (n, outputs, unknowns)`` in expected errors; the unknowns are of order 1.

    One by one the answer that tells most of what is unknown so far. With several outputs the last ones must fit what is left, so
    that each is then exchanged for the one that tells most beside all others.
    """
    picks: list[int] = []
    left = rows
    for _ in range(min(count, len(rows))):
        picks.append(_most(left, picks))
        left = _beside(rows, left, left[picks[-1]])
    if rows.shape[1] > 1:
        for i in [*range(len(picks)), *range(len(picks))]:
            others = picks[:i] + picks[i + 1 :]
            picks[i] = _most(_beside(rows, rows, rows[others].reshape(-1, rows.shape[2])), others)
    return np.array(picks, dtype=np.intp)


def _most(left: Floats, taken: list[int]) -> int:
    told = np.linalg.slogdet(np.eye(left.shape[1]) + left @ left.transpose(0, 2, 1))[1]
    told[taken] = -1.0
    return int(np.argmax(told))


def _beside(rows: Floats, left: Floats, known: Floats) -> Floats:
    """What is ``left`` of the rows beside those that are ``known``; of that, what rounding leaves is nothing."""
    _, sizes, directions = np.linalg.svd(known, full_matrices=False)
    directions = directions[sizes > RELU.nothing * float(np.abs(rows).max())]
    return np.asarray(left - (left @ directions.T) @ directions)


def _spread(system: NormalEquations, rows: Floats) -> Floats:
    """Errors of the predictions of ``rows (n, parameters)``, ``(parameters, n)``: their products are the covariance."""
    scaled = (rows / system.scales).T
    return np.asarray(solve_triangular(system.factor[0], scaled, lower=True, check_finite=False, overwrite_b=True))
