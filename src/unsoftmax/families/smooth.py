"""Networks of smooth neurons, Transformers that end in one, and gated networks."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from unsoftmax.bills import Bill, Phases, total
from unsoftmax.desk import Desk
from unsoftmax.errors import NotInFamilyError, RefusalError
from unsoftmax.families.base import Family, Learner, Size, Test
from unsoftmax.families.settings import LAWS
from unsoftmax.learners.smooth.recognition import bends_smoothly, hears_earlier_tokens, quadratic_from_afar, straight_from_afar
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Attention, GatedFFN, Model, Transformer
from unsoftmax.models.activations import NAMES
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.oracles.local import CallableOracle
from unsoftmax.recognition.smooth_head import NAME, one_head_before
from unsoftmax.results import Fact

ONE_TOKEN = (
    "ffn",
    "smooth-ffn",
    "gated-ffn",
    "near-ffn",
)  # names of ``family=`` under which nothing is said about longer sequences


class LooksCurved:
    """By the first look alone: not affine, float64, and tokens may be long."""

    name = "curved"

    def price(self, width: int) -> int:
        """Nothing: the first look has been asked."""
        return 0

    def examine(self, desk: Desk) -> Fact:
        """Ask nothing."""
        look = desk.first_look()
        long = desk.max_norm is None or desk.max_norm >= BENDS.nearest * BENDS.room * desk.width**0.5
        passed = look.bend > LAWS.curved and look.steady and look.grid.exact and long
        return Fact(self.name, look.bend, LAWS.curved, passed, "One-token answers are not affine, steady and of full precision.")


class LooksFineAndCurved:
    """The same, of targets that may also compute in float32."""

    name = "curved, in float32 or better"

    def price(self, width: int) -> int:
        """Nothing: the first look has been asked."""
        return 0

    def examine(self, desk: Desk) -> Fact:
        """Ask nothing. Answers in float32 may differ in their last bits from batch to batch."""
        plain, look = LooksCurved().examine(desk), desk.first_look()
        long = desk.max_norm is None or desk.max_norm >= BENDS.nearest * BENDS.room * desk.width**0.5
        single = look.bend > LAWS.curved and look.grid.single and long
        return Fact(self.name, plain.number, plain.threshold, bool(plain.passed or single), plain.sentence)


class OnlyNear:
    """By the first look and the wishes: curved, of a known precision, and to be learned from short tokens."""

    name = "only near"

    def price(self, width: int) -> int:
        """Nothing: the first look has been asked."""
        return 0

    def examine(self, desk: Desk) -> Fact:
        """Without a bound on tokens, only where such a network was wished for: it takes many questions."""
        look = desk.first_look()
        short = desk.max_norm is not None and desk.max_norm < BENDS.nearest * BENDS.room * desk.width**0.5
        passed = look.bend > LAWS.curved and look.steady and look.grid.exact and (short or desk.wishes.family in ONE_TOKEN)
        return Fact(self.name, look.bend, LAWS.curved, passed, "A curved target, of which only what is near may be asked.")


class BendsSmoothly:
    """Second differences at two places."""

    name = "bends smoothly"

    def price(self, width: int) -> int:
        """Three where the first place is straight; five at each of four places where answers are coarse."""
        return 3 * BENDS.places + 2

    def examine(self, desk: Desk) -> Fact:
        """Ask tokens of unit variance."""
        phase(desk, "smooth?")
        return bends_smoothly(desk, rng=desk.rng, relative=desk.first_look().grid.relative)


class StraightFromAfar:
    """A second difference very far out."""

    name = "straight from afar"

    def price(self, width: int) -> int:
        """Three points, or six; of coarse answers up to three times as many."""
        return 6

    def examine(self, desk: Desk) -> Fact:
        """Ask very long tokens."""
        phase(desk, "smooth?")
        return straight_from_afar(desk, rng=desk.rng, relative=desk.first_look().grid.relative)


class QuadraticFromAfar:
    """Growth with the square of the distance."""

    name = "quadratic from afar"

    def price(self, width: int) -> int:
        """Four points."""
        return 4

    def examine(self, desk: Desk) -> Fact:
        """Ask very long tokens."""
        phase(desk, "smooth?")
        return quadratic_from_afar(desk, rng=desk.rng)


class NotFromAfar:
    """Nothing to be seen from afar: short tokens, or a target that neither grows in proportion nor with the square."""

    name = "not from afar"

    def price(self, width: int) -> int:
        """What the families from afar ask, which come first."""
        return StraightFromAfar().price(width) + QuadraticFromAfar().price(width)

    def examine(self, desk: Desk) -> Fact:
        """Ask nothing: the families from afar have."""
        seen = [fact for fact in desk.facts if fact.test in (StraightFromAfar.name, QuadraticFromAfar.name) and fact.passed]
        return Fact(self.name, float(len(seen)), 0.0, not seen, "Seen from afar the target is none of the smooth families.")


class Hears:
    """Whether earlier tokens matter."""

    name = "hears earlier tokens"

    def price(self, width: int) -> int:
        """One sequence of two tokens that the first look asked one by one."""
        return 1

    def examine(self, desk: Desk) -> Fact:
        """Ask both together; a target that takes one token alone hears no other."""
        look = desk.first_look()
        if desk.longest < len(look.pair):
            return Fact(self.name, 0.0, 0.0, False, "Only sequences of one token are asked.")
        phase(desk, "smooth?")
        return hears_earlier_tokens(desk, look.pair, look.pair_answers[1], relative=look.grid.relative)


class Deaf:
    """The opposite, asked once."""

    name = "deaf to earlier tokens"

    def price(self, width: int) -> int:
        """Nothing after the question whether it hears them."""
        return 1

    def examine(self, desk: Desk) -> Fact:
        """Nothing is asked where one-token answers alone were wished for."""
        if desk.wishes.family in ONE_TOKEN:
            return Fact(self.name, 0.0, 0.0, True, "Only sequences of one token were wished for.")
        known = [fact for fact in desk.facts if fact.test == Hears().name]
        heard = known[0] if known else Hears().examine(desk)
        if not known:
            desk.record(heard)
        return Fact(self.name, heard.number, heard.threshold, not heard.passed, heard.sentence)


class Copies:
    """Copies of a token are answered as the token alone, by whatever mixes tokens with weights that add up to one."""

    name = "copies of a token"

    def price(self, width: int) -> int:
        """One sequence: the token alone was asked by the first look."""
        return 1

    def examine(self, desk: Desk) -> Fact:
        """Nothing is asked where one-token answers alone were wished for, or are all that the target takes."""
        look = desk.first_look()
        if desk.wishes.family in ONE_TOKEN or desk.longest < LAWS.copies:
            return Fact(self.name, 0.0, LAWS.alike, True, "Only sequences of one token are asked.")
        phase(desk, "smooth?")
        told = desk.last(np.repeat(look.pair[:1], LAWS.copies, axis=0)[None])[0].reshape(-1)
        off = float(np.abs(told - look.pair_answers[0]).max()) / max(float(np.abs(look.pair_answers).max()), 1e-300)
        alike = max(LAWS.alike, 4 * look.grid.relative)
        return Fact(self.name, off, alike, off <= alike, "Copies of a token are answered as the token alone.")


class KnownActivation:
    """The activation, from one bend on a line far out; a norm bends as none does."""

    name = "activation"

    def price(self, width: int) -> int:
        """Three lines, about twelve queries for each and four for every halving of them."""
        return 3 * (12 + 4 * 8)

    def examine(self, desk: Desk) -> Fact:
        """Ask very long tokens."""
        from unsoftmax.learners.smooth.naming import named_activation

        phase(desk, "activation?")
        return named_activation(desk, degree=1, rng=desk.rng)


class OneHeadBefore:
    """What its learner proves, told by questions of a diagnosis."""

    name = NAME

    def price(self, width: int) -> int:
        """A line, then a plane; precision and scale before."""
        return 140

    def examine(self, desk: Desk) -> Fact:
        """Ask for the law of one head, near by and far out."""
        return one_head_before(desk)


class SmoothTransformer(Family):
    """One softmax head, with or without residual, then one hidden layer of smooth neurons."""

    name: ClassVar[str] = "smooth-transformer"
    kin: ClassVar[str] = "transformer"
    models: ClassVar[tuple[str, ...]] = ("transformer",)
    needs: ClassVar[tuple[str, ...]] = ("neurons",)
    degree: ClassVar[int] = 1  # of its pieces, seen from afar
    unknown: ClassVar[str] = "the order of the neurons; without residual, the values apart from the network"
    law: ClassVar[tuple[Test, ...]] = (LooksCurved(), BendsSmoothly(), StraightFromAfar(), Copies(), Hears())
    confirmed_by: ClassVar[tuple[Test, ...]] = (KnownActivation(), OneHeadBefore())

    gates: ClassVar[bool] = False

    def made(self, model: Model) -> bool:
        """Of neurons that are not ReLU, gated or not."""
        return super().made(model) and "activation" in model.settings and ("gated.gate" in model.blocks) == self.gates

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

        return _bill(size, SmoothTransformerLearner().price(size.width, _neurons(size), size.outputs, size.rank))


class SmoothNetwork(SmoothTransformer):
    """One hidden layer of smooth neurons, of the last token alone."""

    name: ClassVar[str] = "smooth-ffn"
    kin: ClassVar[str] = "ffn"
    models: ClassVar[tuple[str, ...]] = ("ffn",)
    unknown: ClassVar[str] = "the order of the neurons, and which way a neuron with a linear path beside it points"
    law: ClassVar[tuple[Test, ...]] = (LooksFineAndCurved(), BendsSmoothly(), StraightFromAfar(), Copies(), Deaf())
    confirmed_by: ClassVar[tuple[Test, ...]] = ()

    def longest(self, desk: Desk) -> int:
        """One token where that family was wished for: nothing is said about longer sequences then."""
        return 1 if desk.wishes.family in ONE_TOKEN else desk.longest

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

        return _bill(size, SmoothNetworkLearner().price(size.width, _neurons(size), size.outputs))


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

        return _bill(size, NearNetworkLearner().price(size.width, _neurons(size), size.outputs))


class GatedNetwork(SmoothNetwork):
    """One hidden layer of gates (SwiGLU, GeGLU), of the last token alone."""

    name: ClassVar[str] = "gated-ffn"
    degree: ClassVar[int] = 2
    gates: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("gatedffn",)
    unknown: ClassVar[str] = "the order of the gates, and a factor that what a gate lets through shares with its output weights"
    law: ClassVar[tuple[Test, ...]] = (LooksCurved(), BendsSmoothly(), QuadraticFromAfar(), Copies(), Deaf())
    demo: ClassVar[dict[str, int]] = {"width": 8, "hidden": 16, "outputs": 1, "bias": 0, "activation": 3, "seed": 0}

    def demo_oracle(self, settings: dict[str, int]) -> Oracle:
        """A random network of that many gates; ``activation`` by its place in ``unsoftmax.models.activations.NAMES``."""
        model = _random_gates(settings, np.random.default_rng([2026, settings["seed"]]))
        return CallableOracle(model.respond, width=model.width)

    def learner(self, desk: Desk) -> Learner:
        """Bends on a half circle from afar, biases from beyond the bends, one fit."""
        from unsoftmax.learners.gated import GatedNetworkLearner

        desk.known(desk.first_look().grid)
        return GatedNetworkLearner(floor=desk.precision, max_norm=desk.max_norm)

    def bill(self, size: Size) -> Bill:
        """For exact answers."""
        from unsoftmax.learners.gated import GatedNetworkLearner

        return _bill(size, GatedNetworkLearner().price(size.width, _neurons(size), size.outputs))


class GatedTransformer(SmoothTransformer):
    """One softmax head, with or without residual, then one hidden layer of gates (SwiGLU, GeGLU)."""

    name: ClassVar[str] = "gated-transformer"
    degree: ClassVar[int] = 2
    gates: ClassVar[bool] = True
    unknown: ClassVar[str] = (
        "the order of the gates, and a factor that what a gate lets through shares with its output weights; without residual, the "
        "values apart from the network"
    )
    law: ClassVar[tuple[Test, ...]] = (LooksCurved(), BendsSmoothly(), QuadraticFromAfar(), Copies(), Hears())
    demo: ClassVar[dict[str, int]] = {**GatedNetwork.demo, "residual": 0}

    def demo_oracle(self, settings: dict[str, int]) -> Oracle:
        """A random head in front of a random gated network."""
        rng = np.random.default_rng([2026, settings["seed"]])
        d = settings["width"]
        W, V = rng.normal(size=(2, 1, d, d)) / np.sqrt(d)
        model = Transformer(Attention(W, V), _random_gates(settings, rng), residual=bool(settings["residual"]))
        return CallableOracle(model.respond, width=d)

    def learner(self, desk: Desk) -> Learner:
        """The network first, then the scores through it."""
        from unsoftmax.learners.gated import GatedTransformerLearner

        desk.known(desk.first_look().grid)
        return GatedTransformerLearner(floor=desk.precision, max_norm=desk.max_norm)

    def bill(self, size: Size) -> Bill:
        """For exact answers."""
        from unsoftmax.learners.gated import GatedTransformerLearner

        return _bill(size, GatedTransformerLearner().price(size.width, _neurons(size), size.outputs, size.rank))


def _random_gates(settings: dict[str, int], rng: np.random.Generator) -> GatedFFN:
    d, m, p = settings["width"], settings["hidden"], max(1, settings["outputs"])
    gate, up = rng.normal(size=(2, m, d)) / np.sqrt(d)
    shift, lift = rng.normal(size=(2, m)) if settings["bias"] else (None, None)
    down, constant = rng.normal(size=(p, m)) / np.sqrt(m), rng.normal(size=p)
    return GatedFFN(gate, up, down, shift, lift, constant, activation=NAMES[settings["activation"]])


def _neurons(size: Size) -> int:
    if size.neurons is None:
        raise ValueError("The bill of a network grows with its hidden units: tell `neurons`.")
    return size.neurons


def _bill(size: Size, prices: list[tuple[str, tuple[int, int], tuple[int, int]]]) -> Bill:
    """The first look, the law, the learner's phases and the check."""
    from unsoftmax.planning import CHECK, FIRST_LOOK, SENTINELS

    low, high = ([(name, queries[end], tokens[end]) for name, queries, tokens in prices] for end in (0, 1))
    law: tuple[Phases, Phases] = ([("smooth?", 12, 12)], [("smooth?", 20, 23)])  # of a family that is told, or found out
    low, high = [*FIRST_LOOK, *law[0], *low, *CHECK], [*FIRST_LOOK, *law[1], *high, *SENTINELS, *CHECK]
    words = f"One hidden layer of {size.neurons} smooth neurons, and answers of {size.outputs} number{'s'[: size.outputs != 1]}."
    return Bill(phases=tuple(high), low=total(low), high=total(high), assumptions=(words,))


FAMILIES: tuple[Family, ...] = (SmoothNetwork(), SmoothTransformer(), GatedNetwork(), GatedTransformer(), NearNetwork())
