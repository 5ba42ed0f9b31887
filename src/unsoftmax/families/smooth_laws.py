"""What the answers of smooth networks show: curved near by, straight or quadratic from afar, deaf to earlier tokens or not."""

from __future__ import annotations

import numpy as np

from unsoftmax.desk import Desk
from unsoftmax.families.settings import LAWS
from unsoftmax.learners.smooth.recognition import bends_smoothly, hears_earlier_tokens, quadratic_from_afar, straight_from_afar
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.oracles.base import phase
from unsoftmax.recognition.smooth_head import NAME, one_head_before
from unsoftmax.results import Fact


def alone(wished: str) -> bool:
    """Whether a network alone was wished for, by one of their families' names: nothing is said about longer sequences then."""
    return wished.endswith("ffn")


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
        passed = look.bend > LAWS.curved and look.steady and look.grid.exact and (short or alone(desk.wishes.family))
        return Fact(self.name, look.bend, LAWS.curved, passed, "A curved target, of which only what is near may be asked.")


class BendsSmoothly:
    """Second differences at two places."""

    name = "bends smoothly"

    def price(self, width: int) -> int:
        """Three where the first place is straight; five at each of four places where answers are coarse."""
        return 3 * BENDS.places + 2

    def examine(self, desk: Desk) -> Fact:
        """Ask tokens of unit variance, or as long as is allowed."""
        phase(desk, "smooth?")
        return bends_smoothly(desk, rng=desk.rng, relative=desk.first_look().grid.relative, max_norm=desk.max_norm)


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
        if alone(desk.wishes.family):
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
        if alone(desk.wishes.family) or desk.longest < LAWS.copies:
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
        """One line: about twelve queries, and four for every halving of it."""
        return 12 + 4 * 8

    def examine(self, desk: Desk) -> Fact:
        """Ask very long tokens."""
        from unsoftmax.learners.smooth.naming import named_activation

        phase(desk, "activation?")
        return named_activation(desk, degree=1, rng=desk.rng, lines=1)


class OneHeadBefore:
    """What its learner proves, told by questions of a diagnosis."""

    name = NAME

    def price(self, width: int) -> int:
        """A line, then a plane; precision and scale before."""
        return 140

    def examine(self, desk: Desk) -> Fact:
        """Ask for the law of one head, near by and far out."""
        return one_head_before(desk)
