"""Deviations of an endpoint from a checkpoint, taken apart: what rounding does to an answer, and what other weights do to it.

For a sequence and its twin, the deviations that other weights cause are alike and those of rounding are independent. So the mean
product of the two is the energy of a change of weights, and half the mean square of their difference is the energy of rounding;
neither needs to be known beforehand, and a change far below the rounding of a single answer shows in the mean of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Floats

SURE = 6.0  # standard errors; a thousand checks with a hundred tests each are wrong less than once in ten thousand
EXPLAINED = (
    0.1  # coherent share that another order of operations explains; measured 0.04 at most (benchmarks/deployments.py, honest)
)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Products and differences of the deviations of twins, in units of the checkpoint's own float32 rounding, one entry a pair."""

    product: Floats
    rough: Floats
    energy: Floats  # of single answers, sequences and twins in order

    @property
    def noise(self) -> float:
        """Rounding of an answer, in units of float32 rounding on this machine; a median, which a few bad answers do not move."""
        return float(np.sqrt(np.median(self.rough)))

    @property
    def size(self) -> float:
        """Size of the coherent deviation, in the same units; 0 where rounding hides it."""
        return float(np.sqrt(max(0.0, float(np.mean(self.product)))))


def paired(deviations: Sequence[Floats], noise: Sequence[Floats]) -> Pairs:
    """Take deviations apart, call by call ``(2 * PAIRS, outputs)``; ``noise`` is the rms rounding of each answer."""
    product, rough, energy = [], [], []
    for deviation, level in zip(deviations, noise, strict=True):
        scaled = deviation / level[:, None]
        one, twin = scaled[0::2], scaled[1::2]
        product.append(np.mean(one * twin, axis=1))
        rough.append(np.mean((one - twin) ** 2, axis=1) / 2)
        energy.append(np.mean(scaled**2, axis=1))
    return Pairs(np.concatenate(product), np.concatenate(rough), np.concatenate(energy))


@dataclass(frozen=True, slots=True, eq=False)
class Coherence:
    """Coherent deviation against rounding, for every way to weigh the pairs.

    Attributes:
        share: energy of the coherent deviation over that of rounding ``(weightings,)``.
        error: its standard error.
        allowed: share up to which nothing is said.
    """

    share: Floats
    error: Floats
    allowed: Floats

    @property
    def excess(self) -> Floats:
        """Shares over what is explained and what chance may add; above 1 the endpoint differs."""
        return np.asarray(self.share / (self.allowed + SURE * self.error))

    @property
    def differs(self) -> bool:
        """Whether any weighting shows a change of weights."""
        return bool(np.any(self.excess > 1.0))


def coherence(pairs: Pairs, weightings: Floats, honest: Floats | float = 0.0) -> Coherence:
    """Judge pairs under weightings ``(weightings, pairs)``; ``honest`` is the share that this machine's own rounding has."""
    weights = weightings / weightings.sum(axis=1, keepdims=True)
    rough = weights @ pairs.rough
    rough = np.maximum(rough, np.finfo(float).tiny)
    mean = weights @ pairs.product
    share = mean / rough
    seen = np.sqrt(np.sum((weights * (pairs.product[None] - mean[:, None])) ** 2, axis=1))
    chance = np.sqrt(np.sum((weights * pairs.rough[None]) ** 2, axis=1))  # of rounding alone, were all numbers of an answer one
    error = np.minimum(seen, chance) / rough  # a large deviation that varies from pair to pair must not hide behind its own spread
    return Coherence(share, error, EXPLAINED + 2.0 * np.maximum(honest, 0.0) * np.ones(len(share)))
