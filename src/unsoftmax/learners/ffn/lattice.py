"""Subset sums of real vectors by lattice reduction (Lenstra, Lenstra and Lovász 1982)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats


def subset_sum(terms: Floats, goal: Floats, *, error: float) -> NDArray[np.bool_] | None:
    """The choice of rows of ``terms (n, size)`` that adds up to ``goal (size,)`` within ``error``, or None if none is found.

    With signs ``e = 2 choice - 1`` the vector ``(e, 1, 0 …)`` is very short in the lattice of the rows ``(unit_j, 0, terms_j)`` and
    ``(0, 1, sum - 2 goal)``, the last block scaled up to integers; it is unique as long as the digits of the terms outnumber the
    choices.
    """
    count = len(terms)
    if count > RELU.lattice_largest:
        return None
    scaled = np.rint(np.concatenate([terms, [terms.sum(axis=0) - 2 * goal]]) * (10 / error))
    if np.abs(scaled).max() > 2.0**48:
        return None
    basis = np.concatenate([np.eye(count + 1), scaled], axis=1)
    for row in reduced(basis):
        signs = row[: count + 1] * row[count]
        if np.all(np.abs(signs) == 1):
            choice = np.asarray(signs[:count] > 0)
            if np.linalg.norm(choice @ terms - goal) <= error:
                return choice
    return None


def reduced(basis: Floats) -> Floats:
    """A reduced basis of the lattice spanned by the integer rows (held as floats below 2**53, so that every sum is exact)."""
    rows = basis.copy()
    count = len(rows)
    across, shares, lengths = np.zeros_like(rows), np.zeros((count, count)), np.zeros(count)
    across[0], lengths[0] = rows[0], rows[0] @ rows[0]
    k = 1
    for _ in range(RELU.steps):
        if k == count:
            break
        _shorten(rows, across, shares, lengths, k)
        if lengths[k] >= (RELU.swap - shares[k, k - 1] ** 2) * lengths[k - 1]:
            k += 1
            continue
        rows[[k - 1, k]] = rows[[k, k - 1]]
        if k == 1:
            across[0], lengths[0] = rows[0], rows[0] @ rows[0]
        k = max(k - 1, 1)
    return rows


def _shorten(rows: Floats, across: Floats, shares: Floats, lengths: Floats, k: int) -> None:
    """Take multiples of the rows before it off row ``k``, and find the part of it that is orthogonal to them."""
    for _ in range(4):  # rounding of large shares is imperfect the first time
        shares[k, :k] = across[:k] @ rows[k] / lengths[:k]
        changed = False
        for j in range(k - 1, -1, -1):
            multiple = np.rint(shares[k, j])
            if multiple:
                rows[k] -= multiple * rows[j]
                shares[k, :j] -= multiple * shares[j, :j]
                shares[k, j] -= multiple
                changed = True
        if not changed:
            break
    left = rows[k] - shares[k, :k] @ across[:k]
    left -= (across[:k] @ left / lengths[:k]) @ across[:k]  # once more: the first pass loses digits
    across[k], lengths[k] = left, max(float(left @ left), 1e-300)
