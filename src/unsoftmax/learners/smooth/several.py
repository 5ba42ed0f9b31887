"""Several softmax heads in front of a network that is known from its answers to one token, and that can be asked through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, cast

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.smooth.inverse import Through, loss
from unsoftmax.learners.smooth.joint import Kind
from unsoftmax.learners.smooth.learner import Found
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.learners.transformer.model import Sequences
from unsoftmax.learners.transformer.shared import ask_random, token_sizes
from unsoftmax.learners.vector_heads import VectorHeadsLearner
from unsoftmax.learners.vector_heads.learner import price
from unsoftmax.models import FFN, Attention, GatedFFN, Transformer
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned


def price_of_heads(width: int, heads: int, rank: int | None) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
    """Queries and tokens by phase beyond those of the network, each as (low, high): plain heads take up to twice fewer."""
    plain = price(width, width, heads, rank)
    ranges = [(name, (queries // 2, queries), (tokens // 2, tokens)) for name, queries, tokens in plain]
    checks = 4 * BENDS.heads_checks
    return [*ranges, ("check of the whole", (checks, checks), (18 * BENDS.heads_checks, 18 * BENDS.heads_checks))]


@dataclass(frozen=True, slots=True, eq=False)
class HeadsInFront(Generic[Kind]):
    """Learns ``network(sum_h V_h^T sum_i a_hi x_i)`` behind a network of at least as many outputs as the width, without residual.

    One token shows the network behind the sum of the values, which becomes part of it: in front stand heads whose values add up to
    the identity. Every answer is inverted to the point that the network was shown, and those points are the answers of plain heads.

    Price: that of ``VectorHeadsLearner`` with as many outputs as the width, and 16 for the check.

    Args:
        found: the target on one token.
        public: its network in the form that is handed out.
        ambiguity: what cannot be known of the neurons.
        floor: how coarse the answers are.
        notes: on the network, for the report.
    """

    found: Found[Kind]
    public: Callable[[Kind], FFN | GatedFFN]
    ambiguity: str
    floor: Floor
    notes: tuple[str, ...] = ()

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the heads and hold the whole against fresh sequences."""
        found, width, own = self.found, oracle.width, np.random.default_rng(rng.integers(2**32))
        lost = loss(found.network, width, (found.length, BENDS.heads_far), own)
        if np.isinf(lost):
            raise NotInFamilyError(
                f"On one token the target is a network of {found.network.neurons} {found.network.phi.name} neurons. One softmax "
                "head in front of it does not explain sequences, and several cannot be read: the network gives different points "
                "the same values, or nearly so, and cannot be asked through.",
                evidence={"neurons": found.network.neurons, "activation": found.network.phi.name},
            )
        through = Through(oracle, found.network, BENDS.heads_questions * (width + 4) ** 2, own)
        heads = VectorHeadsLearner(floor=Floor(relative=max(BENDS.through, 4 * lost))).run(through, rng=rng)
        plain = cast(Attention, heads.model)  # what that learner learns
        attention = Attention(plain.W, plain.V, plain.c if plain.has_c else None)
        model = Transformer(attention, self.public(found.network))
        phase(oracle, "check of the whole")
        sizes = token_sizes(attention.W[0], found.length)
        asked = ask_random(Sequences(oracle, floor=self.floor, max_norm=None), sizes, BENDS.heads_checks, rng, keep=False)
        error = max(float(np.linalg.norm(answers - model.answer(X), axis=1).max()) for X, answers in asked) / found.spread
        evidence = {
            "neurons": found.network.neurons,
            "activation": found.network.phi.name,
            "heads": len(attention.W),
            "check_error": error,
            "misfit": found.misfit,
        }
        if not error <= BENDS.heads_accept:
            raise NotInFamilyError(
                f"On one token the target is a network of {found.network.neurons} {found.network.phi.name} neurons, but "
                f"{len(attention.W)} softmax heads in front of it miss fresh sequences by {error:.1e} of their spread.",
                evidence=evidence,
                model=model,
            )
        words = (
            "; the sum of the value matrices and the network's first layer only as their product (here that sum is the identity)"
        )
        return Learned(
            model=model, ambiguity=self.ambiguity + words, evidence=evidence, notes=(*self.notes, *heads.notes), ranks=heads.ranks
        )
