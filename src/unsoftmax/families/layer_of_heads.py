"""What all ways to an attention layer share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from unsoftmax.bills import Bill
from unsoftmax.desk import Desk
from unsoftmax.errors import NotIdentifiableError
from unsoftmax.families.base import Family, Size
from unsoftmax.families.settings import LAWS
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import LastPosition, Oracle
from unsoftmax.proof.compare import Compared, Predict, compared, predictor
from unsoftmax.proof.fresh import Fresh
from unsoftmax.results import Learned


class AttentionFamily(Family):
    """A layer of heads, however it is learned."""

    name: ClassVar[str] = "attention"
    made_of_heads: ClassVar[bool] = True
    many_heads: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("attention",)
    unknown: ClassVar[str] = "queries and keys apart, a key bias, the order of heads, the split of heads with equal W and c"

    def bill(self, size: Size) -> Bill:
        """For exact answers without a norm limit."""
        from unsoftmax.planning import plan_attention

        return plan_attention(size.width, outputs=size.outputs, rank=size.rank, heads=size.heads)

    def estimate(self, size: Size) -> Bill | None:
        """As ``bill`` for any rank, a little more or less as the answers demand; in words by the counting formulas."""
        from unsoftmax.planning import CHECK

        d, m, several = size.width, size.outputs, size.heads != 1
        words = f"1 to 3 times the parameters H (d^2 + 2d) + 1, over {m} outputs, and about 250 to check"
        if not several:
            few = "d + r (2d - r)" if m == 1 else f"d + r ceil((2d - r) / {m})"
            words = f"{few} for rank r, and about 260 to begin and to check"
        most = self.bill(replace(size, rank=None)).queries_max + 2 * d * bool(size.bias)
        most += LAWS.some + several * most // 10
        least = self.bill(replace(size, rank=None if several else 0)).queries - LAWS.some // 2
        least -= several * least // 10
        if size.everywhere:  # each sequence then counts for as many as it has tokens
            least = LAWS.some + sum(queries for _, queries, _ in CHECK)
        return Bill(least, max(least, most), words)

    def like(self, desk: Desk) -> Floats | None:
        """The device of the target, where its answers are exact."""
        return desk.like if desk.precision.exact else None

    def compare(self, desk: Desk, learned: Learned, batches: list[Fresh]) -> Compared:
        """The model against fresh answers, on the target's device where it can be."""
        ahead = desk.ahead
        together = ahead.together if ahead is not None and batches is ahead.fresh else None
        return compared(desk.checked, learned.model, batches, self.like(desk), together)

    def predictor(self, desk: Desk, learned: Learned) -> Predict | None:
        """The model as a function of batches; the one that had to predict already, if any."""
        return desk.predict or predictor(learned.model, self.like(desk))

    def certify(self, desk: Desk, learned: Learned, *, held_out: float, tolerance: float, rounding: float) -> tuple[str, ...]:
        """Several heads: a small error on fresh sequences is not enough, since empty or split heads answer alike."""
        from unsoftmax.proof.certificate import certificate

        model = cast(Attention, learned.model)
        if not model.can_answer or model.heads == 1:
            return ()
        found = certificate(model, held_out=held_out, tolerance=tolerance, rounding=rounding)
        if not found.holds:
            raise NotIdentifiableError(" ".join(found.reasons), model=model, evidence={"condition": found.condition})
        return found.reasons


class Scalar(LastPosition):
    """Answers of one number as plain numbers."""

    def __call__(self, sequences: Any, /) -> Any:
        """Answer with ``(batch,)``."""
        answers = super().__call__(sequences)
        return answers.reshape(len(answers))


@dataclass(frozen=True, slots=True)
class Through:
    """A learner of scalar answers, run on vector answers by a function that mixes them."""

    mixed: Callable[[Any, Oracle, np.random.Generator], Learned]
    learner: Any

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Mix the outputs and learn."""
        return self.mixed(self.learner, oracle, rng)
