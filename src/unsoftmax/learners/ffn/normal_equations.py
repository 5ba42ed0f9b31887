"""The weighted normal equations of a fit of bends: squares and pulls of the derivatives, which are never formed as a whole.

Points of one linear piece share their activation pattern, so that a piece enters by the squares of its points alone: with a few
hundred pieces, squares of thousands of parameters cost no more than to write them down.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from unsoftmax.learners.ffn.hinges import Hinges, shifted
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class NormalEquations:
    """Column scales and Cholesky factor of the weighted normal equations at a model, around a centre."""

    scales: Floats
    factor: tuple[Floats, bool]
    centre: Floats

    def solve(self, right: Floats) -> Floats:
        """Solve for the step, undoing the column scales."""
        scaled = right / (self.scales if right.ndim == 1 else self.scales[:, None])
        solution = cho_solve(self.factor, scaled, check_finite=False)
        return np.asarray(solution / (self.scales if right.ndim == 1 else self.scales[:, None]))


def gram_of(hinges: Hinges, centre: Floats, points: Floats, references: Floats, weights: Floats) -> Floats:
    """``J^T J`` of the weighted answers; parameters in the order of ``design_at``."""
    local, extended = shifted(hinges, centre), _extended(points - centre, weights)
    patterns, squares = _pieces(hinges.before(references) > 0, extended)
    (neurons, outputs), side = hinges.out.shape, extended.shape[1]
    blocks, affine = neurons * side, (neurons + outputs) * side
    rows = np.concatenate([local.normal, local.shift[:, None]], axis=1)
    gram = np.zeros((affine + neurons * outputs * (outputs > 1),) * 2)
    for o in range(outputs):
        own = slice(blocks + o * side, blocks + (o + 1) * side)
        gram[own, own] = squares.sum(axis=0)
    for j in range(neurons):
        here, later = slice(j * side, (j + 1) * side), patterns[:, j:]
        shared = np.tensordot(patterns[:, j, None] * later, squares, axes=(0, 0))  # (neurons - j, side, side)
        both = shared * (hinges.out[j:] @ hinges.out[j])[:, None, None]
        gram[here, j * side : blocks] = both.transpose(1, 0, 2).reshape(side, -1)
        for o in range(outputs):
            gram[here, blocks + o * side : blocks + (o + 1) * side] = hinges.out[j, o] * shared[0]
        if outputs > 1:
            _lengths(gram, hinges.out, rows, shared, j)
    for row in range(len(gram)):
        gram[row + 1 :, row] = gram[row, row + 1 :]
    return gram


def _lengths(gram: Floats, out: Floats, rows: Floats, shared: Floats, j: int) -> None:
    """Write the squares of the derivatives in ``out[j]`` with all from bend ``j`` on, and of theirs with bend ``j`` itself."""
    (neurons, outputs), side = out.shape, rows.shape[1]
    blocks, first = neurons * side, (neurons + outputs) * side
    mine = rows[j] @ shared  # (neurons - j, side)
    theirs = np.einsum("ks,kst->kt", rows[j:], shared)
    for o in range(outputs):
        own = first + j * outputs + o
        others = slice(own, None, outputs)
        gram[own, others] = np.einsum("ks,ks->k", mine, rows[j:])
        gram[j * side : blocks, own] = (out[j:, o, None] * mine).ravel()
        gram[j * side : (j + 1) * side, others] = out[j, o] * theirs.T
        gram[blocks + o * side : blocks + (o + 1) * side, own] = mine[0]


def _pieces(active: NDArray[np.bool_], extended: Floats) -> tuple[Floats, Floats]:
    """The different rows of ``active``, and for each the sum of squares of its points ``(pieces, side, side)``."""
    _, first, piece = np.unique(np.packbits(active, axis=1), axis=0, return_index=True, return_inverse=True)
    order = np.argsort(piece.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(piece.ravel()))[:-1]
    squares = np.stack([part.T @ part for part in np.split(extended[order], ends)])
    return active[first].astype(np.float64), squares


def _extended(points: Floats, weights: Floats) -> Floats:
    return np.concatenate([points, np.ones((len(points), 1))], axis=1) * weights[:, None]


def pulled(hinges: Hinges, centre: Floats, points: Floats, references: Floats, weights: Floats, residual: Floats) -> Floats:
    """``J^T r`` for the weighted residuals ``(n, outputs)``."""
    local, extended = shifted(hinges, centre), _extended(points - centre, weights)
    active = hinges.before(references) > 0
    pulls = [(np.where(active, residual @ hinges.out.T, 0.0).T @ extended).ravel(), (residual.T @ extended).ravel()]
    if hinges.out.shape[1] > 1:
        heights = np.where(active, local.before(points - centre), 0.0) * weights[:, None]
        pulls.append((heights.T @ residual).ravel())
    return np.concatenate(pulls)


def gram_and_pull(hinges: Hinges, centre: Floats, points: Floats, weights: Floats, residual: Floats) -> tuple[Floats, Floats]:
    """``J^T J`` and ``J^T r``, every point in its own linear piece; the length of ``out`` is held."""
    gram = gram_of(hinges, centre, points, points, weights)
    hold_scale(gram, hinges)
    return gram, pulled(hinges, centre, points, points, weights, residual)


def pulled_each(hinges: Hinges, centre: Floats, points: Floats, weights: Floats, features: Floats, directions: Floats) -> Floats:
    """``J^T r`` ``(parameters, n)`` for each of ``n`` residuals ``features[:, k] directions[k]``, every point in its own piece."""
    return np.stack(
        [
            pulled(hinges, centre, points, points, weights, feature[:, None] * direction)
            for feature, direction in zip(features.T, directions, strict=True)
        ],
        axis=1,
    )


def hold_scale(gram: Floats, hinges: Hinges) -> None:
    """The length of ``out`` against that of ``normal`` is free: add equations that hold ``|out| = 1`` (several outputs only)."""
    neurons, outputs = hinges.out.shape
    if outputs == 1:
        return
    start = (neurons + outputs) * (hinges.normal.shape[1] + 1)
    typical = float(np.median(np.diag(gram)[start : start + neurons * outputs])) or 1.0
    for j in range(neurons):
        own = slice(start + j * outputs, start + (j + 1) * outputs)
        gram[own, own] += typical * np.outer(hinges.out[j], hinges.out[j])


def factored(gram: Floats, centre: Floats) -> NormalEquations:
    """Scale the columns and factor, in place; a faint ridge keeps undetermined directions where they are."""
    scales = np.sqrt(np.where(np.diag(gram) > 0, np.diag(gram), 1.0))
    gram /= scales[:, None]
    gram /= scales
    spare = gram.copy() if len(gram) < 4000 else gram  # the factorisation overwrites what it is given
    for ridge in (1e-15, 1e-13, 1e-11, 1e-9):
        trial = spare.copy() if spare is not gram else gram
        trial[np.diag_indices_from(trial)] += ridge * len(gram)
        try:
            return NormalEquations(scales, cho_factor(trial, lower=True, check_finite=False, overwrite_a=spare is not gram), centre)
        except LinAlgError:
            continue
    raise LinAlgError("the normal equations are not positive definite")
