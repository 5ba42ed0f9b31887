"""Questions that are asked while a device still answers those before: host and device work at the same time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import array_namespace

from unsoftmax.linalg import alike
from unsoftmax.models import Floats
from unsoftmax.models.attention import SCORES
from unsoftmax.oracles.base import Oracle
from unsoftmax.proof.compare import ask
from unsoftmax.proof.fresh import Fresh, fresh_batches
from unsoftmax.proof.together import Together


@dataclass(frozen=True, slots=True, eq=False)
class Foretold:
    """One head without a query bias as its learner foretells it: W on a device, which nobody has looked at yet."""

    W: Floats

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return int(self.W.shape[0])

    @property
    def token_sizes(self) -> Floats:
        """As ``Attention.token_sizes``, on the device."""
        sizes: Floats = (alike(np.array(SCORES), self.W) / array_namespace(self.W).linalg.vector_norm(self.W)) ** 0.5
        return sizes

    @property
    def attentions(self) -> tuple[Foretold, ...]:
        """The head itself."""
        return (self,)

    def last_scores(self, sequences: Floats) -> Floats:
        """As ``Attention.last_scores``."""
        asked = sequences[:, -1] @ self.W.T
        scores: Floats = (asked[:, None] @ sequences.swapaxes(1, 2)).swapaxes(0, 1)
        return scores


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """What was asked before anybody had looked at what was learned; it stands if nothing had to be asked again.

    Attributes:
        fresh: sequences of the held-out check, with raw answers.
        together: the same as few arrays, for predictions.
        longer: sequences of more tokens than the learner's, and the answers to them: whether one head explains those as well.
    """

    fresh: list[Fresh]
    together: Together
    longer: tuple[list[Floats], list[Floats]] | None = None

    @classmethod
    def of(cls, oracle: Oracle, head: Foretold, rng: np.random.Generator, *, longest: int, count: int | None) -> Ahead:
        """Draw fresh sequences that suit a head, and ask them."""
        batches = fresh_batches(head, rng, longest=longest, like=head.W, count=count)
        together = Together.of([batch.sequences for batch in batches], head.W)
        told = ask(oracle, batches)
        return cls([replace(batch, told=raw) for batch, raw in zip(batches, told, strict=True)], together)
