"""One-layer Transformers: attention, then a network of smooth neurons, with or without residual."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from unsoftmax.errors import NotInFamilyError, tried
from unsoftmax.learners.smooth.forms import AMBIGUITY, to_network
from unsoftmax.learners.smooth.head import Amounts, HeadInFront
from unsoftmax.learners.smooth.learner import SmoothNetworkLearner
from unsoftmax.learners.smooth.pairs import notes_on_pairs
from unsoftmax.learners.smooth.several import HeadsInFront, price_of_heads
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Floor, Learned


@dataclass(frozen=True, slots=True)
class SmoothTransformerLearner:
    """Recover ``network(residual * x_N + V^T sum_i a_i x_i)`` with softmax weights ``a`` and a smooth network, all unknown.

    The one-token target is a smooth network and is learned first; the head is read through it (``HeadInFront``). Where one head
    does not explain the target, it has no bound on its tokens and at least as many outputs as the width, several heads without
    residual are (``HeadsInFront``).

    Price: that of ``SmoothNetworkLearner`` with fewer random points, 8 for the residual (``+ d (d + 1) / p`` if there is one),
    ``r (2 d - r)`` for W of rank r plus a dozen, 3 or ``d`` for the query bias, up to ``16 + 0.5 P`` sequences
    for the fit (fewer where that would make more than ``2.09 P`` in all) and 16 for the check.

    Args:
        floor: how coarse the answers are.
        max_norm: no token longer than this is asked.
        max_neurons: refuse a target with more bends on one line.
        amounts: sequences for the fit and the check.
        extra: random points for the network alone, as a share of ``P / outputs``: sequences tell as much.
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    max_neurons: int = 2048
    amounts: Amounts = field(default_factory=Amounts)
    extra: float = 0.12

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the Transformer; the answers may be scalars or vectors."""
        found = SmoothNetworkLearner(self.floor, self.max_norm, self.max_neurons, extra=self.extra).find(oracle, rng=rng)
        notes = notes_on_pairs(found.network, found.answers)
        one = HeadInFront(found, to_network, AMBIGUITY, self.amounts, self.floor, self.max_norm, notes)
        learned = tried(partial(one.run, oracle, rng=rng), NotInFamilyError)
        if not isinstance(learned, NotInFamilyError):
            return learned
        if found.network.out.shape[1] < oracle.width or self.max_norm is not None:
            raise learned
        return HeadsInFront(found, to_network, AMBIGUITY, self.floor, notes).run(oracle, rng=rng)

    def price(
        self, width: int, neurons: int, outputs: int = 1, rank: int | None = None, heads: int = 1
    ) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """Queries and tokens by phase, each as (low, high); of several heads with the questions that show that it is not one."""
        network = neurons * (width + 1 + outputs) + outputs
        phases = SmoothNetworkLearner(extra=self.extra).price(width, neurons, outputs)
        phases += self.amounts.price(network, outputs, width, rank)
        return phases if heads == 1 else [*phases, *price_of_heads(width, heads, rank)]
