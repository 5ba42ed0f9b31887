"""Networks of smooth neurons, and Transformers that end in one."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from unsoftmax.bills import Bill, Phases, total
from unsoftmax.desk import Desk
from unsoftmax.errors import NotInFamilyError, RefusalError
from unsoftmax.families.base import Family, Learner, Size, Test
from unsoftmax.families.smooth_laws import (
    BendsSmoothly,
    Copies,
    Deaf,
    Hears,
    KnownActivation,
    LooksCurved,
    LooksFineAndCurved,
    NotFromAfar,
    OneHeadBefore,
    OnlyNear,
    QuadraticFromAfar,
    StraightFromAfar,
    alone,
)
from unsoftmax.models import Model
from unsoftmax.models.activations import BOUNDED, SMOOTH
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.results import Fact


class SmoothTransformer(Family):
    """One softmax head, with or without residual, then one hidden layer of smooth neurons."""

    name: ClassVar[str] = "smooth-transformer"
    kin: ClassVar[str] = "transformer"
    models: ClassVar[tuple[str, ...]] = ("transformer",)
    needs: ClassVar[tuple[str, ...]] = ("neurons",)
    many_heads: ClassVar[bool] = True
    degree: ClassVar[int] = 1  # of its pieces, seen from afar
    unknown: ClassVar[str] = "the order of the neurons; without residual, the values apart from the network"
    law: ClassVar[tuple[Test, ...]] = (LooksCurved(), BendsSmoothly(), StraightFromAfar(), Copies(), Hears())
    confirmed_by: ClassVar[tuple[Test, ...]] = (KnownActivation(), OneHeadBefore())

    gates: ClassVar[bool] = False

    def made(self, model: Model) -> bool:
        """Of smooth neurons, gated or not."""
        smooth = model.settings.get("activation") in (*SMOOTH, *BOUNDED)
        return super().made(model) and smooth and ("gated.gate" in model.blocks) == self.gates

    def asked(self, desk: Desk) -> Oracle:
        """The last position alone."""
        return LastPosition(desk)

    def learner(self, desk: Desk) -> Learner:
        """The network first, then the scores through it."""
        from unsoftmax.learners.smooth import SmoothTransformerLearner

        desk.known(desk.first_look().grid)
        return SmoothTransformerLearner(floor=desk.precision, max_norm=desk.max_norm)

    def named_more(self, desk: Desk) -> tuple[Fact, ...]:
        """The activation, from one bend on a line far out, unless it is known."""
        from unsoftmax.learners.smooth.naming import named_activation

        if any(fact.test == KnownActivation.name for fact in desk.facts):
            return ()
        phase(desk, "activation?")
        return (named_activation(desk, degree=self.degree, rng=desk.rng),)

    def bill(self, size: Size) -> Bill:
        """For exact answers."""
        from unsoftmax.learners.smooth import SmoothTransformerLearner

        learner, heads = SmoothTransformerLearner(), size.heads or 1
        bill = network_bill(size, learner.price(size.width, neurons_of(size), size.outputs, size.rank, heads))
        if heads == 1:
            return bill
        words = f"{heads} heads without residual, which are read where the network can be asked through."
        return replace(bill, assumptions=(*bill.assumptions, words))


class SmoothNetwork(SmoothTransformer):
    """One hidden layer of smooth neurons, of the last token alone."""

    name: ClassVar[str] = "smooth-ffn"
    kin: ClassVar[str] = "ffn"
    models: ClassVar[tuple[str, ...]] = ("ffn",)
    many_heads: ClassVar[bool] = False
    unknown: ClassVar[str] = "the order of the neurons, and which way a neuron with a linear path beside it points"
    law: ClassVar[tuple[Test, ...]] = (LooksFineAndCurved(), BendsSmoothly(), StraightFromAfar(), Copies(), Deaf())
    confirmed_by: ClassVar[tuple[Test, ...]] = ()

    def longest(self, desk: Desk) -> int:
        """One token where that family was wished for: nothing is said about longer sequences then."""
        return 1 if alone(desk.wishes.family) else desk.longest

    def learner(self, desk: Desk) -> Learner:
        """Corners from afar, bends from near by, one fit."""
        from unsoftmax.learners.smooth import SmoothNetworkLearner

        desk.known(desk.first_look().grid)
        return SmoothNetworkLearner(floor=desk.precision, max_norm=desk.max_norm)

    def settled(self, desk: Desk) -> RefusalError | None:
        """What bends smoothly, hears no earlier token and does not grow from afar is no other family's either."""
        facts = {fact.test: fact for fact in desk.facts}
        afar = [facts.get(test.name) for test in (BendsSmoothly, StraightFromAfar, QuadraticFromAfar)]
        if [fact.passed if fact else None for fact in afar] != [True, False, False] or not Deaf().examine(desk).passed:
            return None
        assert afar[1] is not None
        return NotInFamilyError(
            f'One-token answers bend smoothly, and earlier tokens do not matter. {afar[1].sentence} `family="ffn"` learns one '
            "hidden layer of tanh or sigmoid from answers near by.",
            evidence={"straight_from_afar": afar[1].number},
        )

    def bill(self, size: Size) -> Bill:
        """For exact answers."""
        from unsoftmax.learners.smooth import SmoothNetworkLearner

        return network_bill(size, SmoothNetworkLearner().price(size.width, neurons_of(size), size.outputs))


class NearNetwork(SmoothNetwork):
    """One hidden layer of smooth neurons, tanh among them, of the last token alone, from short tokens."""

    name: ClassVar[str] = "near-ffn"
    models: ClassVar[tuple[str, ...]] = ()
    law: ClassVar[tuple[Test, ...]] = (OnlyNear(), BendsSmoothly(), NotFromAfar(), Copies(), Deaf())

    def settled(self, desk: Desk) -> RefusalError | None:
        """Nothing more than the family from afar says."""
        return None

    def learner(self, desk: Desk) -> Learner:
        """Second derivatives, the rank-one matrices in their span, one fit."""
        from unsoftmax.learners.smooth import NearNetworkLearner

        desk.known(desk.first_look().grid)
        return NearNetworkLearner(floor=desk.precision, max_norm=desk.max_norm)

    def bill(self, size: Size) -> Bill:
        """For exact answers."""
        from unsoftmax.learners.smooth import NearNetworkLearner

        return network_bill(size, NearNetworkLearner().price(size.width, neurons_of(size), size.outputs))


def neurons_of(size: Size) -> int:
    """How many neurons to count with; misuse where nobody told."""
    if size.neurons is None:
        raise ValueError("The bill of a network grows with its hidden units: tell `neurons`.")
    return size.neurons


def network_bill(size: Size, prices: list[tuple[str, tuple[int, int], tuple[int, int]]]) -> Bill:
    """The first look, the law, the learner's phases and the check."""
    from unsoftmax.planning import CHECK, FIRST_LOOK, SENTINELS

    low, high = ([(name, queries[end], tokens[end]) for name, queries, tokens in prices] for end in (0, 1))
    law: tuple[Phases, Phases] = ([("smooth?", 12, 12)], [("smooth?", 20, 23)])  # of a family that is told, or found out
    low, high = [*FIRST_LOOK, *law[0], *low, *CHECK], [*FIRST_LOOK, *law[1], *high, *SENTINELS, *CHECK]
    words = f"One hidden layer of {size.neurons} smooth neurons, and answers of {size.outputs} number{'s'[: size.outputs != 1]}."
    return Bill(phases=tuple(high), low=total(low), high=total(high), assumptions=(words,))


SMOOTH_NETWORK, SMOOTH_TRANSFORMER, NEAR_NETWORK = SmoothNetwork(), SmoothTransformer(), NearNetwork()
