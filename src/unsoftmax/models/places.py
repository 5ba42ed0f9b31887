"""Where arrays are: on this machine or on a device, and how they get from one to the other."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from array_api_compat import device, to_device
from numpy.typing import NDArray

from unsoftmax.models.base import Floats
from unsoftmax.models.kinds import array_namespace

LARGE = (2**18, 2**22)  # numbers for which the way of an array from a device matters; beyond, memory that stays in place costs more
STAGED = 2**16  # bytes up to which CUDA takes numbers over before it returns, however busy the device is
PART = 2**20  # numbers of such a large array that one thread copies at a time


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
    if array.nbytes <= STAGED:
        here = xp.asarray(array if array.flags.writeable else array.copy())  # torch warns of memory that it may not write to
        if getattr(like, "is_cuda", False):  # copied at once to where a busy device fetches it later
            return here.to(device(like), non_blocking=True)
        return xp.asarray(here, device=device(like))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return xp.asarray(xp.asarray(array), device=device(like))


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
