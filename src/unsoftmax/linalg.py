"""Numerical primitives: arrays in, arrays out."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, to_device
from numpy.typing import NDArray

from unsoftmax.models import Floats

INSIDE = 1 - 2.0**-30  # of the longest token allowed: no longer than that, however a norm is rounded


def orthonormal(size: int, rng: np.random.Generator, rows: int | None = None, like: Floats | None = None) -> Floats:
    """A random rotation ``(size, size)``, or some of its ``rows``: every structure of a target looks generic in it.

    Large ones are two Hartley transforms with random signs between, which mix as well and cost ``size^2 log(size)``. With
    ``like`` the rotation is an array of that kind, on its device.
    """
    if rows is not None or size <= 128:
        q, r = np.linalg.qr(rng.normal(size=(size, size if rows is None else rows)))
        return alike((q * np.sign(np.diag(r))).T, like)
    signs = alike(rng.choice([-1.0, 1.0], size=(2, size)), like)
    xp = array_namespace(signs)
    return _hartley(signs[0, :, None] * _hartley(xp.eye(size, dtype=signs.dtype, device=device(signs)) * signs[1]))


def _hartley(columns: Floats) -> Floats:
    """The orthonormal Hartley transform of each column: real and imaginary part of its Fourier transform, one less the other."""
    spectrum: Floats = array_namespace(columns).fft.fft(columns, axis=0, norm="ortho")
    return spectrum.real - spectrum.imag


def alike(array: NDArray[Any], like: Floats | None) -> Floats:
    """A host array as one of the kind of ``like``, on its device, or as floats of NumPy."""
    if like is None or isinstance(like, np.ndarray):
        return np.asarray(array, dtype=np.float64)
    xp = array_namespace(like)
    with warnings.catch_warnings():  # that nothing may write to memory of ours, which nothing does
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        there = xp.asarray(array, device=device(like))
    moved: Floats = xp.astype(there, like.dtype, copy=False)  # converted there: small numbers travel
    return moved


def on_host(array: Floats) -> Floats:
    """An array of any kind as one of NumPy's."""
    return np.asarray(array if isinstance(array, np.ndarray) else to_device(array, "cpu"))


def log_odds(answer: Floats, low: Floats, high: Floats) -> Floats:
    """``log((answer - low) / (high - answer))``: the score whose sigmoid lies between ``low`` and ``high``.

    Written with two differences, never as ``log(r / (1 - r))``: both ends keep full precision. Answers at or beyond an
    end give ``-inf`` or ``inf``.
    """
    xp = array_namespace(answer)
    sign = xp.where(high >= low, 1.0, -1.0)
    up, down = sign * (answer - low), sign * (high - answer)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # one logarithm: two of large numbers would cancel
        odds: Floats = xp.where(up <= 0, -np.inf, xp.where(down <= 0, np.inf, xp.log(up / down)))
    return odds
