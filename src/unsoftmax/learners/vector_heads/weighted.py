"""Low-rank matrices from scores of unequal precision: coarse answers know a small weight badly, so equations are weighted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Floats

PASSES = 2  # of columns, then rows; a third moves W by a small part of its error


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """Scores ``z (heads, keys, n)`` of key steps ``U (keys, width)`` at ``n`` last tokens, without their bias, and their errors."""

    U: Floats
    z: Floats
    errors: Floats


def weighted_columns(whole: Sheet, part: Sheet, columns: Floats, ranges: list[Floats]) -> Floats:
    """Columns ``W_h x (heads, width, width)`` by weighted least squares, alternating between their range and their coordinates.

    Args:
        whole: a full set of keys at the first last tokens.
        part: some keys, more than the rank, at the others.
        columns: a first estimate.
        ranges: orthonormal bases ``(width, rank)`` of its ranges.
    """
    return np.stack([_one_head(whole, part, head, columns[head], basis) for head, basis in enumerate(ranges)])


def _one_head(whole: Sheet, part: Sheet, head: int, columns: Floats, basis: Floats) -> Floats:
    count = whole.z.shape[2]
    inverse = np.linalg.pinv(whole.U)
    coordinates = basis.T @ columns
    for _ in range(PASSES):
        seen = weighted_solve(coordinates[:, :count].T, whole.z[head].T, whole.errors[head].T)  # what each key sees of the range
        basis = np.linalg.qr(inverse @ seen.T)[0]
        coordinates = np.concatenate(
            [weighted_solve(sheet.U @ basis, sheet.z[head], sheet.errors[head]) for sheet in (whole, part)], axis=1
        )
    return np.asarray(basis @ coordinates)


def weighted_solve(A: Floats, told: Floats, errors: Floats) -> Floats:
    """``(unknowns, n)``: for each column of ``told (equations, n)`` the least squares solution, weighted by the errors."""
    weights = errors**-2.0
    weights = weights / weights.max(axis=0)
    normal = np.einsum("er,en,es->nrs", A, weights, A, optimize=True)
    return np.asarray(np.linalg.solve(normal, ((weights * told).T @ A)[..., None])[..., 0].T)
