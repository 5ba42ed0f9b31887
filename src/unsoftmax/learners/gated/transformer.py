"""One-layer Transformers: attention, then a gated network (SwiGLU, GeGLU), with or without residual."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.gated.forms import AMBIGUITY, to_gated
from unsoftmax.learners.gated.learner import GatedNetworkLearner
from unsoftmax.learners.smooth.head import Amounts, HeadInFront
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Floor, Learned


@dataclass(frozen=True, slots=True)
class GatedTransformerLearner:
    """Recover ``network(residual * x_N + V^T sum_i a_i x_i)`` with softmax weights ``a`` and a gated network, all unknown.

    The one-token target is a gated network and is learned first; the head is read through it (``HeadInFront``).

    Price: that of ``GatedNetworkLearner`` with fewer random points, 8 for the residual (``+ d (d + 1) / p`` if there is one),
    ``r (2 d - r)`` for W of rank r plus a dozen, 3 or ``d`` for the query bias, up to ``16 + 0.5 P`` sequences for the fit
    and 16 for the check.

    Args:
        floor: how coarse the answers are.
        max_norm: no token longer than this is asked.
        amounts: sequences for the fit and the check.
        extra: random points for the network alone, as a share of ``P / outputs``: sequences tell as much.
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    amounts: Amounts = field(default_factory=lambda: Amounts(room=2.7))
    extra: float = 0.2

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the Transformer; the answers may be scalars or vectors."""
        found = GatedNetworkLearner(self.floor, self.max_norm, extra=self.extra).find(oracle, rng=rng)
        return HeadInFront(found, to_gated, AMBIGUITY, self.amounts, self.floor, self.max_norm).run(oracle, rng=rng)

    def price(
        self, width: int, neurons: int, outputs: int = 1, rank: int | None = None
    ) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """Queries and tokens by phase, each as (low, high)."""
        network = neurons * (2 * width + 1 + outputs) + outputs
        phases = GatedNetworkLearner(extra=self.extra).price(width, neurons, outputs)
        return [*phases, *self.amounts.price(network, outputs, width, rank)]
