"""A number of heads fitted to answers along a line, from many starts; pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    if 1 < Y.shape[1] >= heads and (heads <= rank_of(Y, noise) or heads > TESTS.most_scalar):  # a scan finds values that differ
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


def rank_of(Y: Floats, noise: float) -> int:
    """How many dimensions answers vary in by more than noise explains."""
    return int((np.linalg.svd(Y, compute_uv=False) > 20 * noise * np.sqrt(len(Y))).sum())


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


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Where descents stand: theta ``(starts, heads, 2)``, what ``shares`` says there, the best values and what they leave."""

    theta: Floats
    shares: Floats
    by_height: Floats
    by_pace: Floats
    A: Floats
    rest: Floats
    cost: Floats

    @property
    def parts(self) -> tuple[Floats, ...]:
        return (self.theta, self.shares, self.by_height, self.by_pace, self.A, self.rest, self.cost)

    def kept(self, starts: NDArray[np.intp]) -> _Place:
        return _Place(*(part[starts] for part in self.parts))

    def moved(self, there: _Place, better: NDArray[np.bool_]) -> _Place:
        wide = [better.reshape(-1, *(1 for _ in part.shape[1:])) for part in self.parts]
        return _Place(*(np.where(b, new, old) for b, new, old in zip(wide, there.parts, self.parts, strict=True)))


def _descend(design: Design, Y: Floats, starts: Floats, noise: float) -> Fit:
    """Levenberg-Marquardt from all starts at once; only the better ones go on."""
    here, damping = _place(design, Y, starts), np.full(len(starts), 1e-2)
    before = np.inf
    for step in range(160):
        here, damping = _improve(design, Y, here, damping)
        if step % 20 == 19:
            if here.cost.min() > 0.8 * before and np.sqrt(here.cost.min() / Y.size) > 20 * noise:
                break  # stuck: a number of heads that fits is found in a few dozen steps
            before = float(here.cost.min())
        if step in (5, 10, 20, 40) and len(here.theta) > 16:
            keep = np.argsort(here.cost, kind="stable")[: max(16, len(here.theta) // 2)]
            here, damping = here.kept(keep), damping[keep]
        if np.sqrt(here.cost.min() / Y.size) <= 0.1 * noise or damping.min() > 1e12:
            break
    best = here.kept(np.array([np.argmin(here.cost)]))
    for _ in range(12):  # a few plain Gauss-Newton steps through QR: normal equations stop early
        best = _polish(design, Y, best)
    survivors = _distinct(here.theta[np.argsort(here.cost, kind="stable")])
    return Fit(best.theta[0, :, 0], best.theta[0, :, 1], best.A[0], float(np.abs(best.rest).max()), survivors)


def _distinct(thetas: Floats) -> Floats:
    """Without repetitions (heads in any order), the first of each kept."""
    left = np.array([theta[np.lexsort((theta[:, 1], theta[:, 0]))] for theta in thetas])
    kept: list[Floats] = []
    while len(left):
        kept.append(left[0])
        left = left[np.abs(left - left[0]).max(axis=(1, 2)) > 1e-3 * (1 + np.abs(left[0]).max())]
    return np.array(kept)


def _place(design: Design, Y: Floats, theta: Floats) -> _Place:
    told = design.shares(theta[..., 0], theta[..., 1])
    shares = told[0].transpose(0, 2, 1)  # (starts, rows, heads)
    gram = shares.transpose(0, 2, 1) @ shares
    ridge = 1e-13 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(gram.shape[1])
    A = np.linalg.solve(gram + ridge, shares.transpose(0, 2, 1) @ Y)
    A += np.linalg.solve(gram + ridge, shares.transpose(0, 2, 1) @ (Y - shares @ A))
    rest = Y - shares @ A
    return _Place(theta, *told, A, rest, (rest**2).sum(axis=(1, 2)))


def _jacobian(here: _Place) -> Floats:
    """Variable projection (Kaufman): derivatives of the residual, ``(starts, rows * outputs, 2 heads)``."""
    basis = np.linalg.qr(here.shares.transpose(0, 2, 1))[0]
    slopes = np.concatenate([here.by_height, here.by_pace], axis=1).transpose(0, 2, 1)  # (starts, rows, 2 heads)
    slopes = slopes - basis @ (basis.transpose(0, 2, 1) @ slopes)
    full = slopes[:, :, None, :] * np.concatenate([here.A, here.A], axis=1).transpose(0, 2, 1)[:, None]
    return np.asarray(-full.reshape(len(here.theta), -1, full.shape[-1]))


def _improve(design: Design, Y: Floats, here: _Place, damping: Floats) -> tuple[_Place, Floats]:
    J = _jacobian(here)
    square = J.transpose(0, 2, 1) @ J
    diagonal = np.einsum("sii->si", square)
    square = square + (damping[:, None] * (diagonal + 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-300))[:, :, None] * np.eye(
        square.shape[1]
    )
    step = np.linalg.solve(square, J.transpose(0, 2, 1) @ here.rest.reshape(len(J), -1, 1))[..., 0]
    heads = here.theta.shape[1]
    theta = here.theta - np.clip(np.stack([step[:, :heads], step[:, heads:]], axis=-1), -2.0, 2.0)
    there = _place(design, Y, np.clip(theta, -TESTS.steepest, TESTS.steepest))
    better = there.cost < here.cost
    return here.moved(there, better), np.where(better, np.maximum(damping / 5, 1e-14), np.minimum(damping * 4, 1e13))


def _polish(design: Design, Y: Floats, here: _Place) -> _Place:
    step = np.linalg.lstsq(_jacobian(here)[0], here.rest.reshape(-1), rcond=1e-14)[0]
    heads = here.theta.shape[1]
    there = _place(design, Y, here.theta - np.stack([step[:heads], step[heads:]], axis=-1)[None])
    return there if there.cost < here.cost else here
