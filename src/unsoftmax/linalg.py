"""Numerical primitives: arrays in, arrays out."""

from __future__ import annotations

import numpy as np

from unsoftmax.models import Floats


def orthonormal(size: int, rng: np.random.Generator, rows: int | None = None) -> Floats:
    """A random rotation ``(size, size)``, or some of its ``rows``: every structure of a target looks generic in it.

    Large ones are two Hartley transforms with random signs between, which mix as well and cost ``size^2 log(size)``.
    """
    if rows is not None or size <= 128:
        q, r = np.linalg.qr(rng.normal(size=(size, size if rows is None else rows)))
        return np.asarray((q * np.sign(np.diag(r))).T)
    signs = rng.choice([-1.0, 1.0], size=(2, size))
    return _hartley(signs[0, :, None] * _hartley(np.diag(signs[1])))


def _hartley(columns: Floats) -> Floats:
    """The orthonormal Hartley transform of each column: real and imaginary part of its Fourier transform, one less the other."""
    spectrum = np.fft.fft(columns, axis=0, norm="ortho")
    return np.asarray(spectrum.real - spectrum.imag)


def without(basis: Floats, direction: Floats) -> Floats:
    """Orthonormal columns ``(size, k - 1)`` that span what ``basis (size, k)`` does, less the unit ``direction`` within."""
    mirror = basis.T @ direction
    mirror[0] += 1.0 if mirror[0] >= 0 else -1.0  # the reflection that takes the direction to the first column
    return np.asarray(basis[:, 1:] - np.outer(basis @ mirror, mirror[1:] * (2.0 / (mirror @ mirror))))


def log_odds(answer: Floats, low: Floats, high: Floats) -> Floats:
    """``log((answer - low) / (high - answer))``: the score whose sigmoid lies between ``low`` and ``high``.

    Written with two differences, never as ``log(r / (1 - r))``: both ends keep full precision. Answers at or beyond an
    end give ``-inf`` or ``inf``.
    """
    sign = np.where(high >= low, 1.0, -1.0)
    up, down = sign * (answer - low), sign * (high - answer)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # one logarithm: two of large numbers would cancel
        return np.asarray(np.where(up <= 0, -np.inf, np.where(down <= 0, np.inf, np.log(up / down))))


def relative_frobenius(found: Floats, true: Floats) -> float:
    """``|found - true| / |true|``; the absolute error where ``true`` is zero."""
    size = float(np.linalg.norm(true))
    return float(np.linalg.norm(found - true)) / (size if size > 0 else 1.0)
