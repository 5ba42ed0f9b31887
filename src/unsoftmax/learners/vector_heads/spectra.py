"""Singular values of many narrow blocks at once, and what squares tell of them sooner."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from unsoftmax.learners.threads import one_thread
from unsoftmax.linalg import alike, on_host
from unsoftmax.models import Floats

SMALL = 64  # rows of a triangle up to which it is decomposed faster than threads start


def spectra(blocks: Sequence[Floats]) -> list[tuple[NDArray[np.float64], Floats]]:
    """Of each block ``(n, k)`` the singular values, on the host, and the left singular vectors ``(n, min(n, k))``, where it is.

    Of the many numbers only triangles of ``min(n, k)`` rows are decomposed, on the host, side by side: devices are slow at that.
    """
    xp = array_namespace(*blocks)
    bases: list[Floats | None] = []
    triangles: list[Floats] = []
    for block in blocks:
        tall = block.shape[0] >= block.shape[1]
        basis, triangle = xp.linalg.qr(block if tall else block.T)
        bases.append(basis if tall else None)
        triangles.append(triangle if tall else triangle.T)
    here = [on_host(triangle) for triangle in triangles]
    if len(here) == 1 or max(map(len, here)) <= SMALL:
        found = [np.linalg.svd(triangle) for triangle in here]
    else:
        with one_thread(), ThreadPoolExecutor(min(len(here), os.cpu_count() or 1)) as threads:
            found = list(threads.map(np.linalg.svd, here))
    lefts = [alike(left, block) for (left, _, _), block in zip(found, blocks, strict=True)]
    turned = [left if basis is None else basis @ left for basis, left in zip(bases, lefts, strict=True)]
    return [(sizes, left) for (_, sizes, _), left in zip(found, turned, strict=True)]


def least_singular(blocks: Floats) -> Floats:
    """Lower bounds ``(heads,)`` of the least singular values of ``blocks (heads, n, k)`` of rows; 0 where squares tell of none.

    The inverse of the trace of the inverse of their squares is at most the smallest square; what is added so that nothing is
    singular, far more than rounding, must be a small part of it.
    """
    xp, (_, n, k) = array_namespace(blocks), blocks.shape
    if n > k:
        return np.zeros(len(blocks))
    squares, one = blocks @ blocks.swapaxes(1, 2), xp.eye(n, dtype=blocks.dtype, device=device(blocks))
    least = 2.0**-40 * xp.linalg.trace(squares) + 1e-300
    inverse = xp.linalg.inv(squares + least[:, None, None] * one)
    bound, added = on_host(1 / xp.linalg.trace(inverse)), on_host(least)
    return np.sqrt(np.where(bound > 16 * added, bound - 2 * added, 0.0))
