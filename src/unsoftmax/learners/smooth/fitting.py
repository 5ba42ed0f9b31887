"""Gauss–Newton on all answers at once, with few factorisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from scipy.linalg import qr, solve_triangular
from scipy.linalg.lapack import dormqr

from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Floats

Model = TypeVar("Model")


def least_squares(matrix: Floats) -> Callable[[Floats], Floats]:
    """The solution of ``matrix @ step = gaps`` by QR with scaled columns, as a function of the gaps. Overwrites ``matrix``."""
    scales = np.sqrt(np.einsum("ij,ij->j", matrix, matrix))
    scales[scales == 0] = 1.0
    matrix /= scales
    rows, columns = matrix.shape
    if rows < columns:
        matrix = np.concatenate([matrix, BENDS.fitting_ridge * np.eye(columns)])
    (packed, tau), r = qr(matrix, mode="raw", check_finite=False)  # Q is kept as reflections: forming it costs as much again
    sizes = np.abs(np.diag(r))
    if rows >= columns and sizes.min() <= BENDS.fitting_ridge * sizes.max():
        (packed, tau), r = qr(np.concatenate([matrix, BENDS.fitting_ridge * np.eye(columns)]), mode="raw", check_finite=False)
    factor = r[:columns]

    def solve(gaps: Floats) -> Floats:
        padded = np.concatenate([gaps, np.zeros(len(packed) - rows)])[:, None]
        turned, _, info = dormqr("L", "T", packed, tau, padded, max(1, 64 * padded.shape[1]))
        assert info == 0
        return np.asarray(solve_triangular(factor, turned[:columns, 0], check_finite=False) / scales)

    return solve


def fitted(
    model: Model,
    gaps: Callable[[Model], Floats],
    derivatives: Callable[[Model], Floats],
    moved: Callable[[Model, Floats], Model],
    *,
    rounds: int = 40,
    factors_at_most: int = 12,
    halvings: int = 8,
    much: float = 0.2,
    little: float = 0.5,
) -> tuple[Model, float]:
    """The model moved to where its ``gaps``, in units of their expected errors, are least; and their root mean square there.

    A factorisation is used as long as its steps gain much: near the solution one gives several digits per step.
    A step that leaves more than ``much`` of the misfit wants a new one; one that leaves more than ``little`` ends the fit, if it is
    fresh or the gaps are already what rounding explains. A step that makes things worse is shortened, ``halvings`` times at most.
    """
    current, left = model, gaps(model)
    misfit = float(np.linalg.norm(left))
    solve: Callable[[Floats], Floats] | None = None
    fresh, factors = False, 0
    for _ in range(rounds):
        if solve is None:
            if factors == factors_at_most:
                break
            solve, fresh, factors = least_squares(derivatives(current)), True, factors + 1
        step = solve(left)
        share = 1.0
        for _ in range(halvings if fresh else 1):
            trial = moved(current, share * step)
            after = gaps(trial)
            size = float(np.linalg.norm(after))
            if size < misfit:
                break
            share /= 4
        better = size < misfit
        gain = size / misfit if misfit > 0 else 1.0
        if better:
            current, left, misfit = trial, after, size
        rounding = misfit <= np.sqrt(len(left))
        if (fresh and not better) or (gain > little and (rounding or (fresh and share == 1.0))):
            break
        if gain > much or not better:
            solve = None
        fresh = False
    return current, misfit / np.sqrt(max(1, len(left)))
