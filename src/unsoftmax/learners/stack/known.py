"""What the first steps tell: values of every head on a subspace, and with them the ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Values on a subspace: for unit rows ``basis (n, width)``, ``values (heads, n, outputs)``, right at ``outputs`` only.

    Attributes:
        basis: orthonormal rows.
        values: what each head makes of each row of the basis.
        T: coordinates whose sparse tokens lie in the subspace.
        ranks: rank of each head's values, as far as they show in the subspace.
        exceeded: the subspace is larger than every rank by enough to trust them.
        sure: smallest cost of another assignment of heads, over that of the best.
        tokens: ``(m, width)``: sparse tokens in the subspace, zero at ``outputs``, whose scores are known as well.
        columns: ``(m, heads, n)``: their ``W_h x + c_h``.
    """

    basis: Floats
    values: Floats
    T: NDArray[np.int_]
    ranks: tuple[int, ...]
    exceeded: bool
    sure: float
    tokens: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    columns: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))


def cliff(spectrum: Floats, below: float) -> int:
    """The rank: up to the largest drop of the spectrum among those that end below ``below``, relative; full if none does."""
    size = np.maximum(spectrum / max(float(spectrum[0]), 1e-300), 1e-300)
    drops = np.where(size[1:] < below, size[:-1] / size[1:], 0.0)
    return int(drops.argmax()) + 1 if len(drops) and drops.max() > 0 else len(spectrum)


def ranks_of(values: Floats, below: float) -> tuple[int, ...]:
    """Of the values ``(heads, n, outputs)`` of each head."""
    return tuple(cliff(np.linalg.svd(block, compute_uv=False), below) for block in values)
