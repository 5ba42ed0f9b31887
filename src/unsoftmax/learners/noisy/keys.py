"""Keys whose values never vanish, and how they combine to the axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.noisy.probes import of_norm
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """How two keys per axis combine to it: ``axis = shares[0] keys[one] + shares[1] keys[other]``, up to ``leftover``."""

    one: np.ndarray
    other: np.ndarray
    shares: Floats
    leftover: Floats


def axis_pairs(keys: Floats) -> list[Pair]:
    """The three pairs among the keys of each axis' plane: both bisectors, and the value direction with either."""
    width = keys.shape[1]
    first, second, third = np.zeros(width, dtype=int), 1 + np.arange(width), 1 + width + np.arange(width)
    pairs = []
    for one, other in ((second, third), (first, second), (first, third)):
        shares, leftover = np.empty((width, 2)), np.empty(width)
        for i, axis in enumerate(np.eye(width)):
            basis = keys[[one[i], other[i]]].T
            shares[i] = np.linalg.lstsq(basis, axis, rcond=1e-8)[0]
            leftover[i] = np.linalg.norm(axis - basis @ shares[i]) + np.finfo(float).eps
        pairs.append(Pair(one, other, shares, leftover))
    return pairs


def score_keys(v: Floats, norm: float) -> Floats:
    """Keys ``(2 width + 1, width)``: the value direction, and its bisectors with plus and minus each axis.

    Near an axis the second bisector vanishes; there it is tilted by 45 degrees in the same plane instead.
    """
    width = len(v)
    direction = v / np.linalg.norm(v)
    plus, minus = np.empty((width, width)), np.empty((width, width))
    for i in range(width):
        axis = np.eye(width)[i] * (1.0 if direction[i] >= 0 else -1.0)
        plus[i], minus[i] = direction + axis, direction - axis
        if np.linalg.norm(minus[i]) < 0.3:
            across = axis - (axis @ direction) * direction
            if np.linalg.norm(across) < 1e-13:  # the axis itself, to rounding: any direction across will do
                across = np.roll(axis, 1) - (np.roll(axis, 1) @ direction) * direction
            size = np.linalg.norm(across)
            minus[i] = direction - (across / size if width > 1 else 0.0)
    return of_norm(np.concatenate([direction[None], plus, minus]), norm)
