"""Sums of sigmoids in vector answers: free scores of every head at every reader, values eliminated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from unsoftmax.learners.stack.settings import STACK
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """``answers[b, k] = sum_h sigmoid(z[b, h] + log k) A[h]`` and what it leaves of them, relative."""

    z: Floats
    A: Floats
    residual: float


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Scores with the values that fit best to them."""

    z: Floats
    weights: Floats
    free: Floats  # projector on what no values reach
    A: Floats
    left: Floats
    cost: float


def sigmoids(z: Floats, ratios: Floats) -> Floats:
    """Weights ``(readers, ratios, heads)`` of keys that stand ``ratio`` times as often as the last token."""
    return np.asarray(expit(z[:, None, :] + np.log(ratios)[None, :, None]))


def fit_sigmoids(
    answers: Floats, ratios: Floats, z: Floats, *, floor: float, accept: float = STACK.rounded, near: Floats | None = None
) -> Fit:
    """Gauss-Newton over the scores ``z (readers, heads)`` with the values ``A (heads, outputs)`` eliminated (Kaufman, Levenberg).

    The normal matrix has a closed form, so that one step costs ``(readers * heads)^3 / 3`` and no Jacobian is ever built. With
    values ``near`` by, the first steps hold on to them, less and less.
    """
    flat = answers.reshape(-1, answers.shape[2])
    size = max(float(np.linalg.norm(flat)), 1e-300)
    if near is not None:
        for anchor in STACK.anchors:
            z = _descend(flat, ratios, z, near, anchor, STACK.warm, floor * size, accept).z
    state = _descend(flat, ratios, z, np.zeros((0, answers.shape[2])), 0.0, STACK.varpro_steps, floor * size, accept)
    return Fit(z=state.z, A=state.A, residual=state.cost / size)


def _descend(
    flat: Floats, ratios: Floats, z: Floats, near: Floats, anchor: float, steps: int, floor: float, accept: float
) -> _State:
    n, heads = z.shape
    times = len(ratios)
    damping, stalled = 1e-3, 0
    rounded = max(STACK.rounded, accept / 30) * float(np.linalg.norm(flat))
    state = _eliminated(flat, ratios, z, near, anchor)
    for _ in range(steps):
        if state.cost <= floor or stalled >= 4:
            break
        A = state.A
        slopes = (state.weights * (1 - state.weights)).reshape(n, times, heads)
        free = state.free.reshape(n, times, n, times)
        normal = np.einsum("bkh,bkcl,clg->bhcg", slopes, free, slopes, optimize=True)
        normal *= (A @ A.T)[None, :, None, :]
        normal = normal.reshape(n * heads, n * heads)
        gradient = np.einsum("bkh,bkh->bh", slopes, (state.left @ A.T).reshape(n, times, heads)).ravel()
        diagonal = np.diagonal(normal) + 1e-300
        for _ in range(12):
            try:
                step = _solved(normal, damping * diagonal, gradient).reshape(n, heads)
            except np.linalg.LinAlgError:
                damping = max(10 * damping, 1e-12)
                continue
            step *= min(1.0, STACK.longest / max(float(np.abs(step).max()), 1e-300))
            trial = _eliminated(flat, ratios, state.z + step, near, anchor)
            if trial.cost < state.cost:
                slow = 0.3 if trial.cost < rounded else 0.95  # at rounding, or nowhere
                stalled = stalled + (2 if slow < 0.5 else 1) if trial.cost > slow * state.cost else 0
                state, damping = trial, max(damping / 10, 1e-16)
                break
            damping = max(10 * damping, 1e-12)
            if state.cost < rounded:
                stalled += 2
                break
        else:
            break
    return state


def _solved(normal: Floats, damping: Floats, right: Floats) -> Floats:
    """``(normal + diag(damping))^-1 right`` of a symmetric matrix; LinAlgError where rounding has made it indefinite."""
    held = normal.copy()
    held[np.diag_indices_from(held)] += damping
    return np.asarray(cho_solve(cho_factor(held, lower=True, overwrite_a=True, check_finite=False), right, check_finite=False))


def _eliminated(flat: Floats, ratios: Floats, z: Floats, near: Floats, anchor: float) -> _State:
    weights = sigmoids(z, ratios).reshape(len(flat), -1)
    rows = np.concatenate([weights, anchor * np.eye(len(near), weights.shape[1])])
    Q, R = np.linalg.qr(rows)
    R = R + np.diag(np.where(np.abs(np.diag(R)) < 1e-300, 1e-300, 0.0))
    A = np.linalg.solve(R, Q.T @ np.concatenate([flat, anchor * near]))
    left, held = flat - weights @ A, anchor * (near - A[: len(near)])
    free = np.eye(len(flat)) - Q[: len(flat)] @ Q[: len(flat)].T
    return _State(z, weights, free, A, left, float(np.sqrt(np.sum(left**2) + np.sum(held**2))))
