"""Numerical primitives: arrays in, arrays out."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.linalg
from array_api_compat import array_namespace, device, to_device
from numpy.typing import NDArray

from unsoftmax.models import Floats

LARGE = (2**18, 2**27)  # numbers for which the way of an array from a device matters; beyond, memory that stays in place costs more
STAGED = 2**16  # bytes up to which CUDA takes numbers over before it returns, however busy the device is
PART = 2**23  # numbers of such a large array that one thread copies at a time
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
    moved: Floats = array_namespace(like).astype(
        there(array, like), like.dtype, copy=False
    )  # converted there: small numbers travel
    return moved


def there(array: NDArray[Any], like: Floats | None) -> Any:
    """A host array on the device of ``like``, its numbers of the type they are; for a small one nobody waits until it is there."""
    if like is None or isinstance(like, np.ndarray):
        return array
    xp = array_namespace(like)
    with warnings.catch_warnings():  # that nothing may write to memory of ours, which nothing does
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        here = xp.asarray(array)
        if getattr(like, "is_cuda", False) and array.nbytes <= STAGED:  # copied at once to where a busy device fetches it later
            return here.to(device(like), non_blocking=True)
        return xp.asarray(here, device=device(like))


def normal(shape: tuple[int, ...], rng: np.random.Generator, like: Any = None) -> Floats:
    """Standard normal numbers; with ``like``, a tensor, they are drawn on its device, by a generator that ``rng`` seeds."""
    if like is None:
        return rng.normal(size=shape)
    import torch

    there = torch.Generator(like.device).manual_seed(int(rng.integers(2**63)))
    drawn: Any = torch.randn(shape, dtype=like.dtype, device=like.device, generator=there)
    return drawn  # type: ignore[no-any-return]  # a tensor stands for an array here


def on_host(array: Any) -> Floats:
    """An array of any kind as one of NumPy's."""
    if isinstance(array, np.ndarray):
        return array
    if not getattr(array, "is_cuda", False) or array.numel() < LARGE[0]:
        return np.asarray(to_device(array, "cpu"))
    if array.numel() < LARGE[1]:  # memory that stays in place is copied to many times faster
        return np.asarray(array.new_empty(array.shape, device="cpu", pin_memory=True).copy_(array))
    return _by_parts(array)


def all_on_host(arrays: list[Any]) -> list[Floats]:
    """Arrays of any kind as NumPy's; small tensors of one kind in a single copy: each waits for the device."""
    there = [i for i, array in enumerate(arrays) if not isinstance(array, np.ndarray)]
    if len(there) < 2 or len({(arrays[i].dtype, arrays[i].device) for i in there}) > 1:
        return [on_host(array) for array in arrays]
    some = [arrays[i] for i in there]
    whole = on_host(array_namespace(some[0]).concat([array.reshape(-1) for array in some]))
    parts = np.split(whole, np.cumsum([array.numel() for array in some])[:-1])
    told = dict(zip(there, (part.reshape(tuple(array.shape)) for part, array in zip(parts, some, strict=True)), strict=True))
    return [told.get(i, array) for i, array in enumerate(arrays)]


def _by_parts(array: Any) -> Floats:
    """A very large tensor from a device, by several threads: what takes time is to touch so much new memory."""
    whole = np.empty(tuple(array.shape), dtype=np.float64)
    flat, there = whole.reshape(-1), array.reshape(-1)

    def copy(start: int) -> None:
        part = there[start : start + PART]
        flat[start : start + PART] = part.new_empty(part.shape, device="cpu", pin_memory=True).copy_(part).numpy()

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        list(threads.map(copy, range(0, flat.size, PART)))
    return whole


def log_odds(answer: Floats, low: Floats, high: Floats) -> Floats:
    """``log((answer - low) / (high - answer))``: the score whose sigmoid lies between ``low`` and ``high``.

    Written with two differences, never as ``log(r / (1 - r))``: both ends keep full precision. Answers at or beyond an
    end give ``-inf`` or ``inf``, and NaN where the ends are one.
    """
    xp = array_namespace(answer)
    up, down = answer - low, high - answer
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # one logarithm: two of large numbers would cancel
        odds = xp.log(up / down)
        beyond = (xp.abs(up) - xp.abs(down)) * np.inf
    inside: Floats = xp.where(xp.isnan(odds), beyond, odds)
    return inside


def right_inverse(systems: Floats, *, careful: bool = False) -> Floats:
    """``(…, k, n)``: the least S with ``systems @ S = 1``, of systems ``(…, n, k)`` of full rank ``n <= k``.

    Through squares, which lose half of the digits, and one step that brings them back: a stack of them is a few products.
    ``careful`` takes the longer way for systems so badly conditioned that nothing could be brought back.
    """
    xp = array_namespace(systems)
    sizes = xp.clip(xp.linalg.vector_norm(systems, axis=-1, keepdims=True), min=1e-300)
    systems = systems / sizes  # a faint row counts as much as the others
    turned = systems.swapaxes(-1, -2)
    if careful:
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


def spectrum(columns: Floats) -> tuple[NDArray[np.float64], Floats]:
    """Singular values of ``columns (n, k)``, on the host, and the left singular vectors ``(n, min(n, k))``, where they are.

    Of the many numbers only a triangle of ``min(n, k)`` rows is decomposed, on the host: devices are slow at that.
    """
    xp = array_namespace(columns)
    n, k = columns.shape
    if n >= k:
        basis, triangle = xp.linalg.qr(columns)
        left, sizes, _ = np.linalg.svd(on_host(triangle))
        return sizes, basis @ alike(left, columns)
    triangle = on_host(xp.linalg.qr(columns.T)[1]).T
    left, sizes, _ = np.linalg.svd(triangle)
    return sizes, alike(left, columns)
