"""Attention layers: the ways to one, of which a decision takes the one that suits wishes and answers."""

from __future__ import annotations

from unsoftmax.desk import Desk
from unsoftmax.families.base import Learner
from unsoftmax.families.coarse_heads import NoisyHead, VouchedHead
from unsoftmax.families.layer_of_heads import AttentionFamily, Scalar
from unsoftmax.families.one_head import OneHead
from unsoftmax.oracles.base import Oracle

# learners other than the one for one head are imported where they are needed: a run pays for the one that it uses


class SeveralHeads(AttentionFamily):
    """Several heads behind scalar or vector answers."""

    def learner(self, desk: Desk) -> Learner:
        """By the shape of the answers."""
        from unsoftmax.learners.scalar_heads import ScalarHeadsLearner
        from unsoftmax.learners.vector_heads import VectorHeadsLearner

        wishes, floor = desk.wishes, desk.precision
        if desk.first_look().outputs == 1:
            told = [outcome.refusal.values for outcome in desk.outcomes if outcome.refusal is not None]
            values = next((values for values in told if values is not None), None)
            return ScalarHeadsLearner(heads=wishes.heads, max_norm=desk.max_norm, floor=floor, values=values)
        return VectorHeadsLearner(floor=floor, heads=wishes.heads, rank=wishes.rank, max_norm=desk.max_norm)

    def asked(self, desk: Desk) -> Oracle:
        """Plain numbers where answers are single ones."""
        return Scalar(desk) if desk.first_look().outputs == 1 else desk


class GridHead(AttentionFamily):
    """One head whose weights are whole multiples of a step."""

    def learner(self, desk: Desk) -> Learner:
        """Reads several entries off one answer."""
        from unsoftmax.learners.grid import GridLearner

        return GridLearner(grid=desk.wishes.grid, floor=desk.precision, max_norm=desk.max_norm)


class TokensHead(AttentionFamily):
    """One head that takes known tokens only."""

    def learner(self, desk: Desk) -> Learner:
        """Asks in rows of the table of embeddings."""
        from unsoftmax.learners.tokens import TokensLearner

        desk.notes.append("Only known tokens can be sent; everything said holds for sequences of them.")
        return TokensLearner()


class FixedHead(AttentionFamily):
    """One head from probes that are all drawn before the first answer."""

    def learner(self, desk: Desk) -> Learner:
        """Measures once, then solves."""
        from unsoftmax.learners.non_adaptive import NonAdaptiveLearner

        desk.notes.append("All probes were drawn before the first answer.")
        return NonAdaptiveLearner(rank=desk.wishes.rank, max_norm=desk.max_norm, method=desk.wishes.method or "factored")


ONE_HEAD, NOISY_HEAD, VOUCHED_HEAD, SEVERAL_HEADS = OneHead(), NoisyHead(), VouchedHead(), SeveralHeads()
GRID_HEAD, TOKENS_HEAD, FIXED_HEAD = GridHead(), TokensHead(), FixedHead()
