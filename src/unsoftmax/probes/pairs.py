"""Sequences for every pair of a group of keys and a last token, a bounded number at a time."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from array_api_compat import device

from unsoftmax.models import Floats
from unsoftmax.models.kinds import array_namespace

BATCH_NUMBERS = 2**21  # numbers in one call: 16 MiB of probes
DEVICE_NUMBERS = 2**27  # the same where probes are built on a device: 1 GiB keeps it busy
BATCH_SEQUENCES = 4096
WORTH_SHARING = 192  # sequences in a call from which on sharing memory pays for asking in smaller calls
FEW = 16  # calls at least where sequences share memory, so that preparing it costs little beside them
UNSHARED = 2  # references to a buffer that only its owner and the call that counts them hold

Numbers = np.ndarray[Any, np.dtype[np.int_]]
Indices = slice | Numbers


def all_pairs(
    groups: Floats, tokens: Floats, copies: int, *, share: bool = False, few: int = FEW
) -> Iterator[tuple[Indices, Indices, Floats]]:
    """Every sequence ``[group g, then copies of token j]``, call by call: ``(tokens, groups, sequences)``.

    Args:
        groups: ``(g, n, width)``, an array of any kind.
        tokens: ``(k, width)``, the same kind.
        copies: how many times the last token stands at the end.
        share: calls are cheap. Where a side is long and a group is one key, sequences may then be windows on memory that they
            share: nothing is written per sequence. They are read-only, since a target that changed one would change others.
        few: calls at least where sequences share memory.
    """
    g, n, width = groups.shape
    local = isinstance(groups, np.ndarray)
    if share and local and n == copies == 1 and max(g, len(tokens)) >= WORTH_SHARING:
        yield from _windows(groups[:, 0], tokens, few)
        return
    most = max(1, (BATCH_NUMBERS if local else DEVICE_NUMBERS) // ((n + copies) * width))
    most = min(most, BATCH_SEQUENCES) if local else most
    step = max(1, most // g)
    for first in range(0, g, most):
        some = groups[first : first + most]
        buffer, untouched = None, False
        for at in range(0, len(tokens), step):
            last = tokens[at : at + step]
            if not untouched:
                shape = (min(step, len(tokens)), len(some), n + copies, width)
                buffer = array_namespace(groups).empty(shape, dtype=groups.dtype, device=device(groups))
                buffer[:, :, :n] = some
            assert buffer is not None
            buffer[: len(last), :, n:] = last[:, None, None]
            changes = getattr(buffer, "_version", 0)  # torch counts them
            yield slice(at, at + step), slice(first, first + most), buffer[: len(last)].reshape(-1, n + copies, width)
            # a target may store or change its questions: memory serves again only if nobody has it and its keys are as they were
            if local:
                untouched = sys.getrefcount(buffer) <= UNSHARED and np.array_equal(buffer[0, 0, :n], some[0])
            else:
                untouched = getattr(buffer, "_version", None) == changes


def _windows(keys: Floats, tokens: Floats, few: int) -> Iterator[tuple[Numbers, Numbers, Floats]]:
    """Pair number t is key t mod n with token t mod k, which meets every pair once where n and k have no common divisor.

    Both sides lie in memory once around and a call further, so that a call is one regular window on them. Tokens beyond the largest
    number without a common divisor take a round of their own.
    """
    n, width = keys.shape
    k = next(count for count in range(len(tokens), 0, -1) if math.gcd(n, count) == 1)
    call = min(max(1, BATCH_NUMBERS // (2 * width)), max(n, k, n * k // few))
    which, some = np.arange(call + k) % k, np.arange(call + n) % n
    memory = np.empty((len(some) + len(which), width))
    np.take(keys, some, axis=0, out=memory[: len(some)], mode="clip")  # no index is beyond; other modes would copy twice
    np.take(tokens, which, axis=0, out=memory[len(some) :], mode="clip")
    memory.flags.writeable = False
    row, number = memory.strides
    for at in range(0, n * k, call):
        key, token, count = at % n, at % k, min(call, n * k - at)
        apart = len(some) + token - key
        view = np.ndarray((count, 2, width), memory.dtype, memory, key * row, (row, apart * row, number))
        yield which[token : token + count], some[key : key + count], view
    if k < len(tokens):
        for others, with_keys, view in _windows(keys, tokens[k:], few):
            yield others + k, with_keys, view
