"""Sums of sigmoids in vector answers: the scores of every head at every reader, each head by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from array_api_compat import array_namespace, device
from numpy.typing import NDArray
from scipy.special import expit

from unsoftmax.learners.stack.settings import STACK
from unsoftmax.linalg import alike, on_host
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """``answers[b, k] = sum_h sigmoid(z[b, h] + log k) A[h]`` and what it leaves of them, relative.

    Where fewer heads were found than there are, the residual is infinite and ``z, A`` are those of the heads found.
    """

    z: Floats
    A: Floats
    residual: float


def sigmoids(z: Floats, ratios: Floats) -> Floats:
    """Weights ``(readers, ratios, heads)`` of keys that stand ``ratio`` times as often as the last token."""
    return np.asarray(expit(z[:, None, :] + np.log(ratios)[None, :, None]))


def fit_sigmoids(
    answers: Floats,
    ratios: Floats,
    starts: Sequence[Floats],
    *,
    floor: float,
    accept: float,
    rng: np.random.Generator,
    like: Any = None,
) -> Fit:
    """Find the scores ``z (readers, heads)`` of every head from ``starts`` of that shape, then its values ``A (heads, outputs)``.

    Answers span as many dimensions as there are heads, and the weights of every head lie in that span, whatever the other heads
    are: ``readers * (ratios - 1)`` equations for as many unknowns as there are heads, one small problem per head. A step of all of
    them costs ``heads * readers^3 / 3``. A solution counts once however many starts lead to it; heads that no start led to are
    looked for from random ones around the first. With ``like`` all that happens on its device.
    """
    heads = starts[0].shape[1]
    flat = answers.reshape(-1, answers.shape[2])
    span = _Span.of(flat, ratios, heads, like)
    found = np.zeros((0, answers.shape[0]))
    for start, spread in [*((start.T, 0.0) for start in starts), *((starts[0].T, spread) for spread in STACK.spreads)]:
        some = start if spread == 0 else _around(start, found, spread, rng)
        z, cost = span.descended(some, floor, accept)
        found = _distinct(np.concatenate([found, z[cost <= accept]]), ratios, np.sqrt(accept))
        if len(found) >= heads:
            break
    if len(found) == heads and found.size <= STACK.joint:
        found = _joint(flat, ratios, found.T, floor).T
    weights = sigmoids(found.T, ratios).reshape(len(flat), -1)
    A = np.asarray(np.linalg.lstsq(weights, flat, rcond=None)[0])
    size = max(float(np.linalg.norm(flat)), 1e-300)
    residual = float(np.linalg.norm(flat - weights @ A)) / size if len(found) == heads else np.inf
    return Fit(z=found.T, A=A, residual=residual)


def _around(start: Floats, found: Floats, spread: float, rng: np.random.Generator) -> Floats:
    """Random scores near those of the heads of ``start (heads, readers)`` that no solution ``found (n, readers)`` is nearest to."""
    far = np.mean((found[:, None] - start[None]) ** 2, axis=2)
    missing = np.setdiff1d(np.arange(len(start)), scipy.optimize.linear_sum_assignment(far)[1])
    return np.asarray(start[missing] + spread * rng.normal(size=(len(missing), start.shape[1])))


def _distinct(z: Floats, ratios: Floats, near: float) -> Floats:
    """The scores ``(n, readers)`` whose weights differ by more than ``near``, relative; of those alike the first."""
    weights = sigmoids(z.T, ratios).reshape(-1, len(z)).T
    weights = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    far = 2 - 2 * weights @ weights.T  # the square of a distance; rounding leaves 1e-15
    alike = np.tril(far < max(near**2, 1e-13), -1)
    kept = np.ones(len(z), dtype=bool)
    for i in range(len(z)):
        kept[i] = not (alike[i] & kept).any()
    return z[kept]


def _joint(flat: Floats, ratios: Floats, z: Floats, floor: float) -> Floats:
    """Scores ``z (readers, heads)`` after a few steps of Gauss-Newton for all heads together, values eliminated (Kaufman).

    One by one, heads whose values are small beside the others' are found up to twice less exactly than the answers tell.
    """
    n, heads = z.shape
    size, best, kept = float(np.linalg.norm(flat)), np.inf, z
    for _ in range(STACK.joint_steps):
        weights = sigmoids(z, ratios).reshape(len(flat), -1)
        basis, triangle = np.linalg.qr(weights)
        A = np.linalg.lstsq(triangle, basis.T @ flat, rcond=None)[0]
        left = flat - weights @ A
        cost = float(np.linalg.norm(left))
        if cost < best:
            best, kept = cost, z
        if cost <= floor * size or cost > best:
            break
        slopes = (weights * (1 - weights)).reshape(n, -1, heads)
        free = (np.eye(len(flat)) - basis @ basis.T).reshape(n, slopes.shape[1], n, slopes.shape[1])
        normal = np.einsum("bkh,bkcl,clg->bhcg", slopes, free, slopes, optimize=True) * (A @ A.T)[None, :, None, :]
        normal = normal.reshape(n * heads, n * heads)
        pull = np.einsum("bkh,bkh->bh", slopes, (left @ A.T).reshape(slopes.shape)).ravel()
        scale = np.sqrt(np.diagonal(normal) + 1e-300)
        step = np.linalg.lstsq(normal / scale / scale[:, None], pull / scale, rcond=1e-15)[0] / scale
        z = z + step.reshape(n, heads)
    return kept


@dataclass(frozen=True, slots=True, eq=False)
class _Span:
    """Where the weights of heads must lie: ``free (readers, ratios, readers, ratios)`` projects on what answers never span."""

    free: Floats
    odds: Floats

    @classmethod
    def of(cls, flat: Floats, ratios: Floats, heads: int, like: Any) -> _Span:
        """The span of the columns of ``flat (readers * ratios, outputs)``."""
        there = alike(flat, like)
        xp = array_namespace(there)
        basis = xp.linalg.svd(there, full_matrices=False)[0][:, :heads]
        free = xp.eye(len(flat), dtype=there.dtype, device=device(there)) - basis @ basis.T
        times = len(ratios)
        return cls(xp.reshape(free, (len(flat) // times, times, len(flat) // times, times)), alike(np.log(ratios), like))

    def descended(self, start: Floats, floor: float, accept: float) -> tuple[Floats, NDArray[np.float64]]:
        """Levenberg-Marquardt for each row of ``start (m, readers)``: solutions, and the share of the weights outside the span."""
        z = alike(start, self.free)
        xp, n = array_namespace(z), z.shape[1]
        one = xp.eye(n, dtype=z.dtype, device=device(z))
        damping, stalled = xp.full(len(z), 1e-3, dtype=z.dtype, device=device(z)), xp.zeros(len(z), device=device(z))
        weights, left, cost = self._left(z)
        for _ in range(STACK.descent):
            if not bool(xp.any((cost > floor) & (stalled < STACK.patience))):
                break
            slopes = weights * (1 - weights)
            normal = self._normal(slopes)
            diagonal = xp.sum(normal * one, axis=2)
            held = damping[:, None] * diagonal + 1e-12 * xp.max(diagonal, axis=1, keepdims=True) + 1e-300
            step = -xp.linalg.solve(normal + held[:, :, None] * one, xp.sum(slopes * left, axis=2)[..., None])[..., 0]
            longest = xp.max(xp.abs(step), axis=1, keepdims=True)
            trial = z + step * xp.minimum(xp.ones_like(longest), STACK.longest / (longest + 1e-300))
            tried = self._left(trial)
            better = tried[2] < cost
            slow = xp.where(better, tried[2] > 0.5 * cost, cost < accept / 30)  # at rounding, or nowhere
            stalled = xp.where(better & ~slow, xp.zeros_like(stalled), stalled + xp.where(slow & ~better, 4.0, 1.0))
            damping = xp.where(better, xp.maximum(damping / 10, xp.full_like(damping, 1e-15)), 10 * damping + 1e-12)
            z = xp.where(better[:, None], trial, z)
            weights = xp.where(better[:, None, None], tried[0], weights)
            left = xp.where(better[:, None, None], tried[1], left)
            cost = xp.where(better, tried[2], cost)
        return on_host(z), on_host(cost)

    def _left(self, z: Floats) -> tuple[Floats, Floats, Floats]:
        """Weights and their part outside the span, ``(m, readers, ratios)`` each, and its share ``(m,)``."""
        xp = array_namespace(z)
        weights = 1 / (1 + xp.exp(-(z[:, :, None] + self.odds)))
        flat = xp.reshape(weights, (len(z), -1))
        left = flat @ xp.reshape(self.free, (flat.shape[1], flat.shape[1]))
        share = xp.linalg.vector_norm(left, axis=1) / (xp.linalg.vector_norm(flat, axis=1) + 1e-300)
        return weights, xp.reshape(left, weights.shape), share

    def _normal(self, slopes: Floats) -> Floats:
        """``(m, readers, readers)``: of the part outside the span by the scores."""
        times, total = slopes.shape[2], None
        for k in range(times):
            for other in range(times):
                part = slopes[:, :, None, k] * self.free[None, :, k, :, other] * slopes[:, None, :, other]
                total = part if total is None else total + part
        assert total is not None
        return total
