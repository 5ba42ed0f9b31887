"""Variable projection: linear unknowns eliminated, damped Gauss-Newton steps on the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg as sl

from unsoftmax.learners.decoder.settings import LOGITS
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """A model ``answers = columns @ A + given`` at some nonlinear parameters.

    Attributes:
        columns: ``(rows, linear)``.
        given: ``(rows, outputs)``, the part that has no linear unknowns.
        slopes: ``A -> (rows, outputs, nonlinear)``: derivatives at fixed ``A``.
    """

    columns: Floats
    given: Floats | float
    slopes: Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Nonlinear parameters, the linear ones, and the root mean square of what is left over that of the answers."""

    theta: Floats
    A: Floats
    residual: float


def varpro(
    model: Callable[[Floats], Features], theta: Floats, answers: Floats, *, floor: float = 1e-13, steps: int = LOGITS.fitting_steps
) -> Fit:
    """Least squares of ``columns(theta) @ A + given(theta)`` to ``answers (rows, outputs)`` (Kaufman, Levenberg)."""
    size = max(float(np.linalg.norm(answers)), 1e-300)
    damping, stalled = 1e-3, 0
    features = model(theta)
    A, left, Q = _eliminated(features, answers)
    cost = float(np.linalg.norm(left))
    for _ in range(steps):
        if cost <= floor * size or stalled >= 4:
            break
        slopes = features.slopes(A)
        rows, outputs, unknowns = slopes.shape
        flat = slopes.reshape(rows, -1)
        flat = flat - Q @ (Q.T @ flat)
        J = flat.reshape(rows * outputs, unknowns)
        normal, gradient = J.T @ J, J.T @ left.ravel()
        diagonal = np.diag(normal) + 1e-14 * np.trace(normal) / unknowns + 1e-300
        for _ in range(12):
            step = sl.solve(normal + np.diag(damping * diagonal), gradient, assume_a="sym", check_finite=False)
            step *= min(1.0, 1.0 / max(float(np.abs(step).max()), 1e-300))
            trial = model(theta + step)
            if np.isfinite(trial.columns).all():
                B, rest, P = _eliminated(trial, answers)
                reached = float(np.linalg.norm(rest))
                if reached < cost:
                    stalled = stalled + 1 if reached > 0.95 * cost else 0
                    theta, features, A, left, Q, cost = theta + step, trial, B, rest, P, reached
                    damping = max(damping / 10, 1e-15)
                    break
            damping = max(10 * damping, 1e-12)
        else:
            break
    return Fit(theta, A, cost / size)


def _eliminated(features: Features, answers: Floats) -> tuple[Floats, Floats, Floats]:
    """The linear unknowns, what they leave, and an orthonormal basis of what they reach."""
    Q, R, order = sl.qr(features.columns, mode="economic", pivoting=True, check_finite=False)
    sizes = np.abs(np.diag(R))
    rank = int((sizes > 1e-14 * sizes[0]).sum()) if len(sizes) else 0
    Q, R = Q[:, :rank], R[:rank, :rank]
    wanted = answers - features.given
    A = np.zeros((features.columns.shape[1], answers.shape[1]))
    A[order[:rank]] = sl.solve_triangular(R, Q.T @ wanted, check_finite=False)
    return A, wanted - features.columns @ A, Q
