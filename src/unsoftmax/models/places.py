"""Where arrays are: on this machine or on a device, and how they get from one to the other."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, to_device
from numpy.typing import NDArray

from unsoftmax.models.base import Floats

LARGE = (2**18, 2**22)  # numbers for which the way of an array from a device matters; beyond, memory that stays in place costs more
PART = 2**20  # numbers of such a large array that one thread copies at a time


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


def on_host(array: Any) -> Floats:
    """An array of any kind as one of NumPy's."""
    if isinstance(array, np.ndarray):
        return array
    if not getattr(array, "is_cuda", False) or array.numel() < LARGE[0]:
        return np.asarray(to_device(array, "cpu"))
    if array.numel() < LARGE[1]:  # memory that stays in place is copied to many times faster
        return np.asarray(array.new_empty(array.shape, device="cpu", pin_memory=True).copy_(array))
    return _by_parts(array)


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
