"""A number of heads fitted to answers along a line, from many starts; pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.recognition.heads_design import Design, peaks
from unsoftmax.recognition.heads_scan import scan
from unsoftmax.recognition.settings import TESTS


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Height and pace ``(heads,)``, values A ``(heads, outputs)``, and the largest deviation."""

    height: Floats
    pace: Floats
    A: Floats
    worst: float
    survivors: Floats  # (starts, heads, 2): where the better starts ended


def fitted(design: Design, Y: Floats, heads: int, rng: np.random.Generator, noise: float, fewer: Floats | None) -> Fit:
    """Best fit of a number of heads: from a scan for vector answers, one head more than before for scalar ones."""
    if 1 < Y.shape[1] >= heads:
        found = scan(design, Y, heads)
        if len(found) >= heads:
            first = _descend(design, Y, found[None, :heads], noise)
            if first.worst <= 4 * noise or len(found) == heads:
                return first
            spare = found[heads : 2 * heads]
            swapped = np.array(
                [np.vstack([np.delete(found[:heads], h, axis=0), other]) for other in spare[:, None] for h in range(heads)]
            )
            return min(first, _descend(design, Y, swapped, noise), key=lambda fit: fit.worst)
    starts = rng.normal(size=(TESTS.random * heads, heads, 2)) * 2.0 ** rng.uniform(-3.0, 2.5, size=(TESTS.random * heads, 1, 1))
    if fewer is None:
        fewer = np.zeros((1, 0, 2))
    if fewer.shape[1] == heads - 1:
        starts = np.concatenate([starts, _grown(design, Y, fewer)])
    return _descend(design, Y, starts, noise)


def _grown(design: Design, Y: Floats, fewer: Floats) -> Floats:
    """Each of the better fits with one head less, and one more head where it explains most of what is left."""
    axis = np.sinh(np.linspace(-3.6, 3.6, TESTS.coarse)) * 0.8
    height, pace = (g.ravel() for g in np.meshgrid(axis, axis, indexing="ij"))
    shares = design.shares(height, pace)[0]
    starts = []
    for theta in fewer[: TESTS.branches]:
        rest, atoms = Y, shares
        if len(theta):
            basis = np.linalg.qr(design.shares(theta[:, 0], theta[:, 1])[0].T)[0]
            rest = Y - basis @ (basis.T @ Y)
            atoms = shares - (shares @ basis) @ basis.T
        size = (atoms**2).sum(axis=1)
        gain = ((atoms @ rest) ** 2).sum(axis=1) / np.maximum(size, 1e-12 * (shares**2).sum(axis=1))
        spots = peaks(gain.reshape(TESTS.coarse, TESTS.coarse))[: TESTS.spots]
        for a, b in spots:
            starts.append(np.vstack([theta, [[axis[a], axis[b]]]]))
    return np.array(starts)


def pruned(design: Design, Y: Floats, found: Fit, noise: float, limit: float) -> Fit:
    """Leave heads out as long as the rest fits as well: empty heads, and pairs that are one."""
    while len(found.height) > 1:
        theta = np.column_stack([found.height, found.pace])
        fewer = _descend(design, Y, np.array([np.delete(theta, h, axis=0) for h in range(len(theta))]), noise)
        if fewer.worst > limit * noise:
            break
        found = fewer
    return found


def _descend(design: Design, Y: Floats, starts: Floats, noise: float) -> Fit:
    """Levenberg-Marquardt from all starts at once; only the better ones go on."""
    current, damping = starts, np.full(len(starts), 1e-2)
    cost = _residual(design, Y, current)[2]
    before = np.inf
    for step in range(160):
        current, cost, damping = _improve(design, Y, current, cost, damping)
        if step % 20 == 19:
            if cost.min() > 0.8 * before and np.sqrt(cost.min() / Y.size) > 20 * noise:
                break  # stuck: a number of heads that fits is found in a few dozen steps
            before = float(cost.min())
        if step in (5, 10, 20, 40) and len(current) > 16:
            keep = np.argsort(cost, kind="stable")[: max(16, len(current) // 2)]
            current, cost, damping = current[keep], cost[keep], damping[keep]
        if np.sqrt(cost.min() / Y.size) <= 0.1 * noise or damping.min() > 1e12:
            break
    theta = current[np.argmin(cost)][None]
    for _ in range(12):  # a few plain Gauss-Newton steps through QR: normal equations stop early
        theta = _polish(design, Y, theta)
    A, rest, _ = _residual(design, Y, theta)
    return Fit(theta[0, :, 0], theta[0, :, 1], A[0], float(np.abs(rest).max()), _distinct(current[np.argsort(cost, kind="stable")]))


def _distinct(thetas: Floats) -> Floats:
    """Without repetitions (heads in any order), the first of each kept."""
    kept: list[Floats] = []
    for theta in thetas:
        ordered = theta[np.lexsort((theta[:, 1], theta[:, 0]))]
        if all(np.abs(ordered - k).max() > 1e-3 * (1 + np.abs(k).max()) for k in kept):
            kept.append(ordered)
    return np.array(kept)


def _residual(design: Design, Y: Floats, theta: Floats) -> tuple[Floats, Floats, Floats]:
    shares = design.shares(theta[..., 0], theta[..., 1])[0].transpose(0, 2, 1)  # (starts, rows, heads)
    gram = shares.transpose(0, 2, 1) @ shares
    ridge = 1e-13 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(gram.shape[1])
    A = np.linalg.solve(gram + ridge, shares.transpose(0, 2, 1) @ Y)
    A += np.linalg.solve(gram + ridge, shares.transpose(0, 2, 1) @ (Y - shares @ A))
    rest = Y - shares @ A
    return A, rest, (rest**2).sum(axis=(1, 2))


def _jacobian(design: Design, theta: Floats, A: Floats) -> Floats:
    """Variable projection (Kaufman): derivatives of the residual, ``(starts, rows * outputs, 2 heads)``."""
    shares, by_height, by_pace = design.shares(theta[..., 0], theta[..., 1])
    basis = np.linalg.qr(shares.transpose(0, 2, 1))[0]
    slopes = np.concatenate([by_height, by_pace], axis=1).transpose(0, 2, 1)  # (starts, rows, 2 heads)
    slopes = slopes - basis @ (basis.transpose(0, 2, 1) @ slopes)
    full = slopes[:, :, None, :] * np.concatenate([A, A], axis=1).transpose(0, 2, 1)[:, None]
    return np.asarray(-full.reshape(len(theta), -1, full.shape[-1]))


def _improve(design: Design, Y: Floats, theta: Floats, cost: Floats, damping: Floats) -> tuple[Floats, Floats, Floats]:
    A, rest, _ = _residual(design, Y, theta)
    J = _jacobian(design, theta, A)
    square = J.transpose(0, 2, 1) @ J
    diagonal = np.einsum("sii->si", square)
    square = square + (damping[:, None] * (diagonal + 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-300))[:, :, None] * np.eye(
        square.shape[1]
    )
    step = np.linalg.solve(square, J.transpose(0, 2, 1) @ rest.reshape(len(theta), -1, 1))[..., 0]
    heads = theta.shape[1]
    moved = theta - np.clip(np.stack([step[:, :heads], step[:, heads:]], axis=-1), -2.0, 2.0)
    moved = np.clip(moved, -TESTS.steepest, TESTS.steepest)
    there = _residual(design, Y, moved)[2]
    better = there < cost
    return (
        np.where(better[:, None, None], moved, theta),
        np.where(better, there, cost),
        np.where(better, np.maximum(damping / 5, 1e-14), np.minimum(damping * 4, 1e13)),
    )


def _polish(design: Design, Y: Floats, theta: Floats) -> Floats:
    A, rest, cost = _residual(design, Y, theta)
    J = _jacobian(design, theta, A)[0]
    step = np.linalg.lstsq(J, rest.reshape(-1), rcond=1e-14)[0]
    heads = theta.shape[1]
    moved = theta - np.stack([step[:heads], step[heads:]], axis=-1)[None]
    return moved if _residual(design, Y, moved)[2] < cost else theta
