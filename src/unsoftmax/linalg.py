"""Numerical primitives: arrays in, arrays out."""

from __future__ import annotations

import numpy as np

from unsoftmax.models import Floats


def orthonormal(size: int, rng: np.random.Generator) -> Floats:
    """A random rotation ``(size, size)``: every structure of the target looks generic in its rows and columns."""
    q, r = np.linalg.qr(rng.normal(size=(size, size)))
    return np.asarray(q * np.sign(np.diag(r)))


def complement(basis: Floats, rng: np.random.Generator) -> Floats:
    """Random orthonormal columns ``(size, size - k)`` orthogonal to the orthonormal columns of ``basis (size, k)``."""
    size, known = basis.shape
    rest = rng.normal(size=(size, size - known))
    for _ in range(2):  # twice is enough: one pass leaves errors of the size of the rounding times the condition
        rest -= basis @ (basis.T @ rest)
    return np.asarray(np.linalg.qr(rest)[0])


def log_odds(answer: Floats, low: Floats, high: Floats) -> Floats:
    """``log((answer - low) / (high - answer))``: the score whose sigmoid lies between ``low`` and ``high``.

    Written with two differences, never as ``log(r / (1 - r))``: both ends keep full precision. Answers at or beyond an
    end give ``-inf`` or ``inf``.
    """
    sign = np.where(high >= low, 1.0, -1.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(sign * (answer - low), 0.0)) - np.log(np.maximum(sign * (high - answer), 0.0)))


def relative_frobenius(found: Floats, true: Floats) -> float:
    """``|found - true| / |true|``; the absolute error where ``true`` is zero."""
    size = float(np.linalg.norm(true))
    return float(np.linalg.norm(found - true)) / (size if size > 0 else 1.0)
