"""Fits from one or several starts: Levenberg-Marquardt on the scores, the values projected out, conjugate gradients inside.

Each outer step solves ``(J^T J + damping * scale * I) step = J^T error`` by conjugate gradients; nothing larger than the
features is ever stored. References: Golub & Pereyra 1973 (variable projection), Kaufman 1975 (its cheap Jacobian).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.from_examples.layer import Linearised, Point, Problem, evaluate
from unsoftmax.learners.from_examples.settings import EXAMPLES
from unsoftmax.learners.threads import one_thread
from unsoftmax.models import Floats


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


@dataclass(slots=True, eq=False)
class _Descent:
    """One start on its way down."""

    point: Point
    damping: float
    history: list[float]
    rise: float = 2.0
    steps: int = 0
    inner: int = 0
    ended: bool = False

    def advance(self, trial: Point, effort: Effort) -> bool:
        """Take the trial if it is better, and tell whether it was taken; end on a stall."""
        self.steps += 1
        better = trial.size < self.point.size
        if better:
            self.damping *= 0.2 if trial.size < 0.9 * self.point.size else 0.5
            self.rise = 2.0
            self.point = trial
        else:
            self.damping *= self.rise
            self.rise *= 2.0
        past = self.history
        past.append(self.point.size)
        self.ended = self.damping > 1e12 or (len(past) > 7 and past[-1] > (1.0 - effort.stall) * past[-7])
        return better


def fit_from(problem: Problem, theta: Floats, effort: Effort, rng: np.random.Generator) -> Fit:
    """Descend from ``theta`` until the goal, a stall, or the bounds of ``effort``."""
    return fit_together(problem, [theta], effort, rng)[0]


def fit_together(problem: Problem, thetas: list[Floats], effort: Effort, rng: np.random.Generator) -> list[Fit]:
    """Descend from several starts side by side, which shares the cost of small steps; the first at the goal ends all."""
    large = problem.answers.shape[0] * thetas[0].shape[1] > EXAMPLES.large
    with nullcontext() if large else one_thread():
        return _fit(problem, thetas, effort, rng, np.float32 if large else np.float64)


def _fit(
    problem: Problem, thetas: list[Floats], effort: Effort, rng: np.random.Generator, precision: type[np.floating[Any]]
) -> list[Fit]:
    size = float(np.linalg.norm(problem.answers)) or 1.0
    points = [evaluate(problem, theta) for theta in thetas]
    runs = [_Descent(point, effort.damping, [point.size]) for point in points]
    linear: Linearised | None = None
    for _ in range(effort.steps):
        active = [run for run in runs if not run.ended]
        if not active or min(run.point.size for run in runs) <= effort.goal * size:
            break
        if linear is None:
            linear = Linearised(problem, [run.point for run in active], precision)
            gradient = linear.adjoint(np.stack([run.point.error for run in active]).astype(precision))
            scale = _mean_diagonal(linear, rng)
        floor = 1e-4 if precision is np.float32 else 0.0
        accuracy = np.array([max(min(0.1, run.point.size / size), floor) for run in active])
        shift = np.array([run.damping for run in active]) * scale
        changes, used = damped_steps(linear, gradient, shift, accuracy, effort.inner)
        moved = False
        for i, run in enumerate(active):
            run.inner += int(used[i])
            moved |= run.advance(evaluate(problem, run.point.theta + changes[:, i]), effort)
            moved |= run.ended
            if precision is np.float32 and not moved and run.point.size < 1e-3 * size:
                precision, moved = np.float64, True  # rounding of the step may be what spoiled it
        linear = None if moved else linear
    return [Fit(run.point, run.point.size / size, run.steps, run.inner) for run in runs]


def _mean_diagonal(linear: Linearised, rng: np.random.Generator) -> Floats:
    """Mean of the diagonal of ``J^T J`` at each point, from one random probe."""
    probe = rng.choice([-1.0, 1.0], size=linear.shape).astype(linear.precision)
    moved = linear.forward(probe)
    sizes = np.einsum("pro,pro->p", moved, moved).astype(np.float64) / (linear.shape[0] * linear.shape[2])
    return np.asarray(np.maximum(sizes, np.finfo(float).tiny))


def damped_steps(
    linear: Linearised, gradient: NDArray[Any], shift: Floats, accuracy: Floats, limit: int
) -> tuple[Floats, NDArray[np.int64]]:
    """Conjugate gradients on the damped normal equations of every point; returns the steps and the iterations used."""
    step = np.zeros_like(gradient)
    remainder = gradient.copy()
    direction = remainder.copy()
    norm = _dots(remainder, remainder)
    goal = accuracy**2 * norm
    damping = shift.astype(gradient.dtype)[:, None]
    used = np.zeros(len(shift), dtype=np.int64)
    for _ in range(limit):
        going = norm > goal
        if not going.any():
            break
        image = linear.adjoint(linear.forward(direction))
        image += damping * direction
        length = np.divide(norm, _dots(direction, image), out=np.zeros_like(norm), where=going)
        stride = length.astype(gradient.dtype)[:, None]
        step += stride * direction
        remainder -= stride * image
        previous, norm = norm, _dots(remainder, remainder)
        share = np.divide(norm, previous, out=np.zeros_like(norm), where=going)
        direction = remainder + share.astype(gradient.dtype)[:, None] * direction
        used += going
    return step.astype(np.float64), used


def _dots(left: NDArray[Any], right: NDArray[Any]) -> Floats:
    """Inner products point by point."""
    return np.asarray(np.einsum("qpk,qpk->p", left, right), dtype=np.float64)
