"""Numerical primitives: arrays in, arrays out."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from array_api_compat import device

from unsoftmax.models import Floats
from unsoftmax.models.kinds import array_namespace as array_namespace
from unsoftmax.models.places import alike as alike
from unsoftmax.models.places import all_on_host as all_on_host
from unsoftmax.models.places import on_host as on_host
from unsoftmax.models.places import there as there

INSIDE = 1 - 2.0**-30  # of the longest token allowed: no longer than that, however a norm is rounded


def orthonormal(size: int, rng: np.random.Generator, rows: int | None = None, like: Floats | None = None) -> Floats:
    """A random rotation ``(size, size)``, or some of its ``rows``: every structure of a target looks generic in it.

    Large ones are two Hartley transforms with random signs between, which mix as well and cost ``size^2 log(size)``. With
    ``like`` the rotation is an array of that kind, on its device.
    """
    if rows is not None or size <= 128:
        drawn = alike(rng.normal(size=(size, size if rows is None else rows)), like)
        xp = array_namespace(drawn)
        q, r = xp.linalg.qr(drawn)
        turned: Floats = (q * xp.sign(xp.linalg.diagonal(r))).T
        return turned
    signs = alike(rng.choice([-1.0, 1.0], size=(2, size)), like)
    rotation: Floats = _hartley(_hartley_matrix(size, signs) * signs[0]) * signs[1]
    return rotation


def _hartley_matrix(size: int, like: Floats) -> Floats:
    """What the orthonormal Hartley transform multiplies by: cosines and sines, one plus the other."""
    angles, xp = np.arange(size) * (2 * np.pi / size), array_namespace(like)
    table, steps = alike((np.cos(angles) + np.sin(angles)) / np.sqrt(size), like), xp.arange(size, device=device(like))
    matrix: Floats = xp.take(table, (steps[:, None] * steps % size).reshape(-1)).reshape(size, size)
    return matrix


def _hartley(rows: Floats) -> Floats:
    """The orthonormal Hartley transform of each row: real and imaginary part of its Fourier transform, one less the other.

    On a device a product with its matrix, which takes less than to load the first Fourier transform of a size.
    """
    size = rows.shape[1]
    if not isinstance(rows, np.ndarray):
        transformed: Floats = rows @ _hartley_matrix(size, rows)
        return transformed
    spectrum = np.fft.rfft(rows, axis=1, norm="ortho")
    half, whole = spectrum.shape[1], np.empty_like(rows)
    np.subtract(spectrum.real, spectrum.imag, out=whole[:, :half])
    mirrored = spectrum[:, size - half : 0 : -1]
    np.add(mirrored.real, mirrored.imag, out=whole[:, half:])
    return whole


def normal(shape: tuple[int, ...], rng: np.random.Generator, like: Any = None) -> Floats:
    """Standard normal numbers; with ``like``, a tensor, they are drawn on its device, by a generator that ``rng`` seeds."""
    if like is None:
        return rng.standard_normal(shape)  # the same numbers as with a mean and a spread, in half the time
    import torch

    there = torch.Generator(like.device).manual_seed(int(rng.integers(2**63)))
    drawn: Any = torch.randn(shape, dtype=like.dtype, device=like.device, generator=there)
    return drawn  # type: ignore[no-any-return]  # a tensor stands for an array here


def short(array: Floats) -> Floats:
    """In numbers of half as many bytes, which a processor multiplies twice as fast; those on a device stay as they are."""
    shorter: Any = array.astype(np.float32, copy=False) if isinstance(array, np.ndarray) else array
    told: Floats = shorter
    return told


def log_odds(answer: Floats, low: Floats, high: Floats) -> Floats:
    """``log((answer - low) / (high - answer))``: the score whose sigmoid lies between ``low`` and ``high``.

    Written with two differences, never as ``log(r / (1 - r))``: both ends keep full precision. Answers at or beyond an
    end give ``-inf`` or ``inf``, and NaN where the ends are one.
    """
    xp = array_namespace(answer)
    up, down = answer - low, high - answer
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # one logarithm: two of large numbers would cancel
        odds = xp.log(up / down)
        if isinstance(odds, np.ndarray) and not np.isnan(odds).any():
            return odds
        beyond = (xp.abs(up) - xp.abs(down)) * np.inf
    inside: Floats = xp.where(xp.isnan(odds), beyond, odds)
    return inside


def right_inverse(systems: Floats, *, careful: bool = False) -> Floats:
    """``(…, k, n)``: the least S with ``systems @ S = 1``, of systems ``(…, n, k)`` of full rank ``n <= k``.

    Square ones are inverted as they are; others through squares, which lose half of the digits, and one step that brings them
    back: a stack of them is a few products. ``careful`` takes the longer way for systems so badly conditioned that nothing could
    be brought back.
    """
    xp = array_namespace(systems)
    sizes = xp.clip(xp.linalg.vector_norm(systems, axis=-1, keepdims=True), min=1e-300)
    systems = systems / sizes  # a faint row counts as much as the others
    turned = systems.swapaxes(-1, -2)
    if systems.shape[-2] == systems.shape[-1] and not careful:
        inverse = xp.linalg.inv(systems)
    elif careful:
        basis, triangle = xp.linalg.qr(turned)
        inverse = basis @ xp.linalg.inv(triangle).swapaxes(-1, -2)
    else:
        squares, one = systems @ turned, xp.eye(systems.shape[-2], dtype=systems.dtype, device=device(systems))
        least = 2.0**-52 * xp.linalg.trace(squares)[..., None, None]  # so that nothing is singular
        inverse = turned @ xp.linalg.inv(squares + least * one)
        inverse = inverse + inverse @ (one - systems @ inverse)
    scaled: Floats = inverse / sizes.swapaxes(-1, -2)
    return scaled


def left_inverse(systems: Floats) -> Floats:
    """``(…, k, n)``: the least S with ``S @ systems = 1``, of systems ``(…, n, k)`` of full rank ``k <= n``."""
    inverse: Floats = right_inverse(systems.swapaxes(-1, -2)).swapaxes(-1, -2)
    return inverse


def singular(matrix: Floats) -> tuple[Floats, Floats, Floats]:
    """Its thin singular value decomposition by QR steps.

    Divide and conquer does not always end where singular values beyond a rank are all rounding.
    """
    left, values, right = scipy.linalg.svd(matrix, full_matrices=False, lapack_driver="gesvd", check_finite=False)
    return left, values, right
