"""Least squares for many small systems at once, wherever their arrays live."""

from __future__ import annotations

from collections.abc import Iterator

from array_api_compat import array_namespace, device

from unsoftmax.learners.stack.settings import STACK
from unsoftmax.models import Floats


def least_squares(design: Floats, right: Floats) -> tuple[Floats, Floats]:
    """``(..., k, j)``: the best X of ``design (..., n, k) X = right (..., n, j)``, and the inverse of ``design^T design``.

    By the normal equations, whose rounding two further steps on what is left take off: as exact as a QR decomposition where the
    condition is below 1e7, and products of matrices but for one inverse. Directions that no row shows stay near zero.
    """
    xp = array_namespace(design)
    sizes = xp.linalg.vector_norm(design, axis=-2, keepdims=True)
    sizes = xp.where(sizes > 0, sizes, xp.ones_like(sizes))
    scaled = design / sizes
    turned = scaled.swapaxes(-1, -2)
    one = xp.eye(design.shape[-1], dtype=design.dtype, device=device(design))
    inverse = xp.linalg.inv(turned @ scaled + STACK.ridge * one)
    solved = inverse @ (turned @ right)
    for _ in range(2):
        solved = solved + inverse @ (turned @ (right - scaled @ solved))
    sizes = sizes.swapaxes(-1, -2)
    return solved / sizes, inverse / sizes / sizes.swapaxes(-1, -2)


def pieces(count: int, numbers: int) -> Iterator[slice]:
    """Parts of ``count`` systems of so many ``numbers`` each, that memory holds at once."""
    each = max(1, int(STACK.memory // max(1, numbers)))
    for start in range(0, count, each):
        yield slice(start, min(count, start + each))
