"""ReLU networks, Transformers that end in one, and attention before a network that stays unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from unsoftmax.bills import Bill
from unsoftmax.desk import Desk
from unsoftmax.families.base import Family, Learner, Size
from unsoftmax.models import Model
from unsoftmax.oracles.base import LastPosition, Oracle
from unsoftmax.precision.law import Floor
from unsoftmax.proof.compare import Compared
from unsoftmax.proof.fresh import Fresh
from unsoftmax.results import Learned


class NetworkFamily(Family):
    """Targets whose one-token answers bend."""

    formula: ClassVar[str] = ""  # what recovery costs, in words

    def asked(self, desk: Desk) -> Oracle:
        """The last position alone."""
        return LastPosition(desk)

    def bill(self, size: Size) -> Bill:
        """For exact answers."""
        from unsoftmax.planning import plan_network

        return plan_network(self.name, size.width, neurons=size.neurons, outputs=size.outputs, rank=size.rank)

    def estimate(self, size: Size) -> Bill | None:
        """The formula: no diagnosis tells the number of neurons."""
        return Bill(None, None, self.formula)


class ReluNetwork(NetworkFamily):
    """A ReLU network with one hidden layer, of the last token alone."""

    name: ClassVar[str] = "ffn"
    models: ClassVar[tuple[str, ...]] = ("ffn",)
    needs: ClassVar[tuple[str, ...]] = ("neurons",)
    unknown: ClassVar[str] = "the order and the scale of the neurons, and which way a neuron with a linear path beside it points"
    formula: ClassVar[str] = "about 1.5 times n (d + 2) + 1 for n hidden units"

    def made(self, model: Model) -> bool:
        """Of ReLU neurons: smooth ones are a family of their own."""
        return super().made(model) and "activation" not in model.settings

    def longest(self, desk: Desk) -> int:
        """One token where that family was wished for: nothing is said about longer sequences then."""
        return 1 if desk.wishes.family == self.name else desk.longest

    def compare(self, desk: Desk, learned: Learned, batches: list[Fresh]) -> Compared:
        """As every model, or with the first token in the place of the last, whichever is nearer."""
        by_last = super().compare(desk, learned, batches)
        if by_last.causal is not None:
            return by_last
        first = np.concatenate([learned.model.answer(batch.sequences[:, :1]) for batch in by_last.batches])
        by_first = replace(by_last, predicted=first)
        if by_last.deviations.max() <= by_first.deviations.max():
            return by_last
        desk.notes.append("The network sees the first token of a sequence.")
        return by_first

    def learner(self, desk: Desk) -> Learner:
        """Kinks on a line, gradients beside them, one solve."""
        from unsoftmax.learners.ffn import FFNLearner

        return FFNLearner(floor=desk.precision, max_norm=desk.max_norm, seen=(desk.first_look().tokens, desk.first_look().answers))


class ReluTransformer(NetworkFamily):
    """One softmax head, with or without residual, then a ReLU network with one hidden layer."""

    name: ClassVar[str] = "transformer"
    models: ClassVar[tuple[str, ...]] = ("transformer",)
    needs: ClassVar[tuple[str, ...]] = ("neurons",)
    unknown: ClassVar[str] = "the order and the scale of the neurons; without residual, the values apart from the network"
    formula: ClassVar[str] = "about 1.6 (2 with residual) times d^2 + n (d + 2) + 1 for n hidden units"

    def made(self, model: Model) -> bool:
        """Of ReLU neurons: smooth ones are a family of their own."""
        return super().made(model) and "activation" not in model.settings

    def learner(self, desk: Desk) -> Learner:
        """The network first, then the scores through it."""
        from unsoftmax.learners.transformer import TransformerLearner

        return TransformerLearner(
            floor=desk.precision, max_norm=desk.max_norm, seen=(desk.first_look().tokens, desk.first_look().answers)
        )


class BehindNetwork(NetworkFamily):
    """One softmax head before any network at all: W and c; the network is not learned."""

    name: ClassVar[str] = "attention-behind-network"
    unknown: ClassVar[str] = "the network, and the values"
    network: ClassVar[bool] = True

    def estimate(self, size: Size) -> Bill | None:
        """From rank 0 with nothing asked twice to full rank with every search as long as it may be."""
        d = size.width
        words = "4 to 12 for each of the (r + 1) (2d + 1 - r) scores that rank r takes, and up to 900 to find a place and to check"
        return Bill(9 * d + 55, 12 * (d + 1) ** 2 + 28 * d + 900, words)

    def learner(self, desk: Desk) -> Learner:
        """The one-token target inverts itself."""
        from unsoftmax.learners.behind_network import BehindNetworkLearner

        return BehindNetworkLearner(floor=desk.precision, max_norm=desk.max_norm)

    def compare(self, desk: Desk, learned: Learned, batches: list[Fresh]) -> Compared:
        """Answers to sequences against the target's own answers to the one token that each is worth; two queries each."""
        from unsoftmax.learners.behind_network import mixed_tokens

        last = LastPosition(desk.checked)
        answers, predicted = [], []
        for batch in batches:
            count = len(batch.sequences)
            answers.append(last(batch.sequences).reshape(count, -1))
            predicted.append(last(mixed_tokens(learned, batch.sequences)[:, None]).reshape(count, -1))
        return Compared(np.concatenate(answers), np.concatenate(predicted), tuple(batches), price=2)

    def precision(self, desk: Desk, learned: Learned) -> Floor:
        """A flat network passes on only so many digits."""
        relative = max(desk.precision.relative, learned.entry_error)
        return replace(desk.precision, relative=relative)


RELU_NETWORK, RELU_TRANSFORMER, BEHIND_NETWORK = ReluNetwork(), ReluTransformer(), BehindNetwork()
