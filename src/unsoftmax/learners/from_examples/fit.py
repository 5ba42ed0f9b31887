"""One fit from one start: Levenberg-Marquardt on the scores, the values projected out, conjugate gradients inside.

Each outer step solves ``(J^T J + damping * scale * I) step = J^T error`` by conjugate gradients; nothing larger than the
features is ever stored. References: Golub & Pereyra 1973 (variable projection), Kaufman 1975 (its cheap Jacobian).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.from_examples.layer import Linearised, Point, Problem, evaluate
from unsoftmax.models import Floats

# From this many feature entries on, the inner steps run in single precision: they only propose, float64 disposes.
LARGE = 200_000


@dataclass(frozen=True, slots=True)
class Effort:
    """Bounds of one fit.

    Attributes:
        steps: outer steps at most.
        inner: conjugate-gradient steps per outer step at most.
        goal: relative error at which the fit is as good as the answers are.
        stall: stop when the last six steps together gained less than this share of the error.
        damping: where to start; far from the truth a small one jumps into poor basins.
    """

    steps: int = 120
    inner: int = 80
    goal: float = 1e-13
    stall: float = 1e-2
    damping: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Where a fit ended: ``error`` is relative to the answers' norm, ``steps`` and ``inner`` count the work."""

    point: Point
    error: float
    steps: int
    inner: int


def random_theta(problem: Problem, heads: int, rng: np.random.Generator) -> Floats:
    """Start: heads whose scores spread by about a half, in whitened coordinates."""
    rows, columns = problem.queries.shape[2], problem.keys.shape[2]
    theta = rng.normal(size=(rows, heads, columns))
    theta *= 0.5 / np.linalg.norm(theta, axis=(0, 2), keepdims=True)
    return theta.reshape(rows, heads * columns)


def fit_from(problem: Problem, theta: Floats, effort: Effort, rng: np.random.Generator) -> Fit:
    """Descend from ``theta`` until the goal, a stall, or the bounds of ``effort``."""
    size = float(np.linalg.norm(problem.answers)) or 1.0
    point = evaluate(problem, theta)
    damping, rise = effort.damping, 2.0
    history = [point.size]
    inner = 0
    linear: Linearised | None = None
    large = problem.answers.shape[0] * theta.shape[1] > LARGE
    precision: type[np.floating[Any]] = np.float32 if large else np.float64
    for step in range(1, effort.steps + 1):
        if point.size <= effort.goal * size:
            return Fit(point, point.size / size, step - 1, inner)
        if linear is None:
            linear = Linearised(problem, point, precision)
            gradient = linear.adjoint(point.error.astype(precision))
            scale = _mean_diagonal(linear, rng)
        accuracy = max(min(0.1, point.size / size), 1e-4 if precision is np.float32 else 0.0)
        change, used = _damped_step(linear, gradient, damping * scale, accuracy, effort.inner)
        inner += used
        trial = evaluate(problem, point.theta + change)
        if trial.size < point.size:
            damping *= 0.2 if trial.size < 0.9 * point.size else 0.5
            rise = 2.0
            point, linear = trial, None
        else:
            damping *= rise
            rise *= 2.0
            if precision is np.float32 and point.size < 1e-3 * size:
                precision, linear = np.float64, None  # rounding of the step may be what spoiled it
        history.append(point.size)
        if damping > 1e12 or (len(history) > 7 and history[-1] > (1.0 - effort.stall) * history[-7]):
            break
    return Fit(point, point.size / size, step, inner)


def _mean_diagonal(linear: Linearised, rng: np.random.Generator) -> float:
    """Mean of the diagonal of ``J^T J``, from one random probe."""
    probe = rng.choice([-1.0, 1.0], size=linear.shape).astype(linear.precision)
    moved = linear.forward(probe)
    return max(float(np.vdot(moved, moved)) / probe.size, np.finfo(float).tiny)


def _damped_step(linear: Linearised, gradient: NDArray[Any], shift: float, accuracy: float, limit: int) -> tuple[Floats, int]:
    """Conjugate gradients on the damped normal equations; returns the step and the iterations used."""
    step = np.zeros_like(gradient)
    remainder = gradient.copy()
    direction = remainder.copy()
    norm = start = float(np.vdot(remainder, remainder))
    used = 0
    while used < limit and norm > accuracy**2 * start:
        moved = linear.forward(direction)
        image = linear.adjoint(moved) + shift * direction
        length = norm / float(np.vdot(direction, image))
        step += length * direction
        remainder -= length * image
        previous, norm = norm, float(np.vdot(remainder, remainder))
        direction = remainder + (norm / previous) * direction
        used += 1
    return step.astype(np.float64), used
