"""Packing whole numbers into one answer: digits of a large number, tiles of a matrix, and the spacing of a set of numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models import Floats

Integers = NDArray[np.int64]

ANSWER_BITS = 49.1  # of the 53 bits of an answer, what is left for digits; beyond, rounding reaches a quarter of a unit


SAFE_BITS = 43.0  # the same where the step itself was measured, and is known to a few units in its last place


def capacity(largest: int, bits: float = ANSWER_BITS) -> int:
    """How many digits between ``-largest`` and ``largest`` fit into one answer.

    >>> capacity(1), capacity(8), capacity(128)
    (30, 12, 6)
    """
    return max(1, int(bits / np.log2(base_of(largest))))


def base_of(largest: int) -> int:
    """The base whose balanced digits reach from ``-largest`` to ``largest``."""
    return 2 * largest + 1


def digits(numbers: Floats, base: int, count: int) -> tuple[Integers, Floats]:
    """Balanced digits ``(…, count)`` of nearly whole ``numbers``, lowest first, and what is left over (0 if they were whole).

    Digits of an odd base lie in ``[-(base - 1)/2, (base - 1)/2]``; a remainder of a unit or more means that a digit did not fit.

    >>> digits(np.array([5.0 + 17 * -3]), 17, 2)
    (array([[ 5, -3]]), array([0.]))
    """
    finite = np.isfinite(numbers)
    whole = np.rint(np.where(finite, numbers, 0.0))
    rest = np.where(finite, numbers, np.inf) - whole  # a saturated score is no number
    found = np.empty((*numbers.shape, count), dtype=np.int64)
    for place in range(count):
        digit = np.mod(whole + base // 2, base) - base // 2
        found[..., place] = digit
        whole = (whole - digit) / base
    return found, rest + np.rint(whole)


def strips(width: int, limit: int) -> list[tuple[int, int]]:
    """Cut a square matrix into strips, ``(columns, rows per tile)``, so that the tiles of at most ``limit`` entries are fewest.

    >>> sum(-(-32 // rows) for _, rows in strips(32, 6))
    171
    """
    fewest = [0] + [width * width + 1] * width
    choice = [0] * (width + 1)
    for columns in range(1, width + 1):
        for strip in range(1, min(columns, limit) + 1):
            price = fewest[columns - strip] + -(-width // (limit // strip))
            if price < fewest[columns]:
                fewest[columns], choice[columns] = price, strip
    cut, left = [], width
    while left:
        cut.append((choice[left], limit // choice[left]))
        left -= choice[left]
    return cut


def common_step(values: Floats, largest: int = 256, tolerance: float = 1e-9, fewest: int = 2) -> float | None:
    """The largest spacing of which all ``values`` are multiples, the smallest nonzero one at most ``largest`` times; or None.

    None also where fewer than ``fewest`` values are nonzero: too few to tell.

    >>> common_step(np.array([0.75, -1.25, 0.0, 2.0]))
    0.25
    """
    sizes = np.abs(values[values != 0])
    if len(sizes) < fewest:
        return None
    steps = sizes.min() / np.arange(1, largest + 1)
    ratios = sizes / steps[:, None]
    off = np.abs(ratios - np.rint(ratios)) / np.maximum(ratios, 1)
    good = np.flatnonzero((off <= tolerance).all(axis=1) & (np.abs(ratios - np.rint(ratios)) < 0.01).all(axis=1))
    if not len(good):
        return None
    multiples = np.rint(ratios[good[0]])
    return plain_number(float(sizes @ multiples / (multiples @ multiples)))


def exact_step(values: Floats, step: float) -> float:
    """The spacing next to ``step`` whose multiples are ``values`` bit for bit, if there is one; else ``step``."""
    multiples = np.rint(values / step)
    used = multiples != 0
    guesses = [step, *(values[used] / multiples[used])]
    for guess in guesses:
        for candidate in (guess, np.nextafter(guess, 0), np.nextafter(guess, np.inf)):
            if np.array_equal(multiples * candidate, values):
                return float(candidate)
    return step


def plain_number(value: float, tolerance: float = 3e-14) -> float:
    """The shortest decimal, or else the single-precision number, that ``value`` is up to rounding, if there is one."""
    for precision in range(1, 10):  # more digits would meet a random number by chance
        short = float(f"{value:.{precision}g}")
        if abs(short - value) <= tolerance * abs(value):
            return short
    single = float(np.float32(value))
    return single if abs(single - value) <= tolerance * abs(value) else value
