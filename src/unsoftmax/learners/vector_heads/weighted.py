"""Low-rank matrices from scores of unequal precision: coarse answers know a small weight badly, so equations are weighted."""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import array_namespace

from unsoftmax.linalg import left_inverse
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """Scores ``z (heads, keys, n)`` of key steps ``U (keys, width)`` at ``n`` last tokens, without their bias, and their errors."""

    U: Floats
    z: Floats
    errors: Floats


def weighted_columns(whole: Sheet, part: Sheet, ranges: list[Floats], within: list[Floats]) -> tuple[list[Floats], list[Floats]]:
    """Ranges and coordinates of columns ``W_h x`` by weighted least squares, alternating between the two.

    Args:
        whole: a full set of keys at the first last tokens.
        part: some keys, more than the rank, at the others.
        ranges: a first estimate: orthonormal bases ``(width, rank)`` of the ranges.
        within: coordinates ``(rank, width)`` of the columns in them.
    """
    inverse = left_inverse(whole.U)
    found = [_one_head(whole, part, head, inverse, *first) for head, first in enumerate(zip(ranges, within, strict=True))]
    return [basis for basis, _ in found], [coordinates for _, coordinates in found]


def _one_head(whole: Sheet, part: Sheet, head: int, inverse: Floats, basis: Floats, coordinates: Floats) -> tuple[Floats, Floats]:
    xp, count = array_namespace(basis), whole.z.shape[2]
    for _ in range(2):  # a third pass moves W by a small part of its error
        seen = weighted_solve(coordinates[:, :count].T, whole.z[head].T, whole.errors[head].T)  # what each key sees of the range
        basis = xp.linalg.qr(inverse @ seen.T)[0]
        coordinates = xp.concat(
            [weighted_solve(sheet.U @ basis, sheet.z[head], sheet.errors[head]) for sheet in (whole, part)], axis=1
        )
    return basis, coordinates


def weighted_solve(A: Floats, told: Floats, errors: Floats) -> Floats:
    """``(unknowns, n)``: for each column of ``told (equations, n)`` the least squares solution, weighted by the errors."""
    xp = array_namespace(A)
    equations, unknowns = A.shape
    weights = errors**-2.0
    weights = weights / xp.max(weights, axis=0)
    squares = (A[:, :, None] * A[:, None, :]).reshape(equations, -1)
    normal = (weights.T @ squares).reshape(-1, unknowns, unknowns)
    solved: Floats = xp.linalg.solve(normal, ((weights * told).T @ A)[..., None])[..., 0].T
    return solved
