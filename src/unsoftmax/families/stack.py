"""Pre-norm stacks: every head of every layer, MLPs unknown."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, cast, get_args
from weakref import WeakKeyDictionary

import numpy as np

from unsoftmax.bills import Bill, Phases, total
from unsoftmax.desk import Desk
from unsoftmax.errors import NotInFamilyError, RefusalError, Sign, TargetError, TooNoisyError, tried
from unsoftmax.families.base import Family, Learner, Size, Test
from unsoftmax.families.settings import LAWS
from unsoftmax.learners.stack.recognition import Recognised, acts_by_direction, behind_a_norm, clipped_at, recognised
from unsoftmax.learners.stack.settings import EXACT, SINGLE, STACK, Settings, Sight, settings_for
from unsoftmax.models import Model, Stack
from unsoftmax.models.stack import Activation, Norm
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.oracles.local import CallableOracle
from unsoftmax.precision.law import Floor
from unsoftmax.proof.compare import Compared
from unsoftmax.proof.fresh import Fresh
from unsoftmax.proof.limits import LIMITS
from unsoftmax.results import Fact, Learned

SEEN: WeakKeyDictionary[Desk, Recognised] = WeakKeyDictionary()  # what the law found out, so that no learner asks it again


def law_of(desk: Desk) -> Floor:
    """How coarse the answers are as numbers: those of a stack follow no line that the first look could test them by."""
    return desk.first_look().grid


def settings_of(desk: Desk) -> Settings | None:
    """What suits the target's number format and the longest tokens that may be sent; None where nothing does."""
    reach = None if desk.max_norm is None else desk.max_norm / np.sqrt(desk.width)
    found = tried(lambda: settings_for(law_of(desk), reach), TooNoisyError)
    return None if isinstance(found, RefusalError) else found


class HiddenState:
    """As many numbers as a token has, not affine in one token: nothing is asked."""

    name = "answers are a hidden state"

    def price(self, width: int) -> int:
        """The first look has asked already."""
        return 0

    def examine(self, desk: Desk) -> Fact:
        """Compare the shapes, and the bend of one-token answers."""
        look = desk.first_look()
        bent = look.bend > LAWS.straight or desk.max_norm is not None  # long first tokens hide what bends at small ones
        passed = look.outputs == desk.width >= LAWS.narrowest and bent and settings_of(desk) is not None
        words = "Answers are as long as tokens and not affine in one." if passed else "Answers are no hidden state behind a norm."
        return Fact(self.name, float(look.bend), LAWS.straight, bool(passed), words)


class PassedOn:
    """A very long last token comes through unchanged, and nothing else of the answer grows: one question."""

    name = "long tokens pass through"

    def price(self, width: int) -> int:
        """One sequence of two tokens."""
        return 1

    def examine(self, desk: Desk) -> Fact:
        """Ask one long key and one long sparse token."""
        settings = settings_of(desk)
        assert settings is not None  # the first test has asked
        scale = settings.scale
        rng = np.random.default_rng(desk.rng.integers(2**63))
        x = np.zeros(desk.width)
        x[rng.choice(desk.width, size=2, replace=False)] = [1.0, -1.0]
        key = rng.normal(size=desk.width)
        answers = tried(lambda: desk.last(scale * np.stack([key, x])[None]), TargetError)
        if isinstance(answers, RefusalError):
            return Fact(self.name, np.inf, LAWS.bounded, False, "Very long tokens get no answer.")
        answer = np.asarray(answers)[0]
        rest, most = float(np.abs(answer[x == 0]).max()), min(LAWS.bounded, scale / 2**6)
        grown = float(np.abs(answer[x != 0] / (scale * x[x != 0]) - 1).max())
        passed = rest < most and grown < 1e-3
        words = "A very long last token is passed on as it is, and the rest of the answer stays bounded."
        return Fact(self.name, rest, most, passed, words if passed else "Very long tokens do not pass through as in a stack.")


class ActsByDirection:
    """Very long tokens act by their direction, in any order, as behind norms; which norm it is."""

    name = "long tokens act by their direction"

    def price(self, width: int) -> int:
        """A dozen sequences of up to four tokens."""
        return STACK.price

    def examine(self, desk: Desk) -> Fact:
        """Ask two scales, other orders, doubled sequences."""
        phase(desk, "recognition")
        seen = tried(lambda: recognised(desk.last, rng=desk.rng, settings=settings_of(desk) or EXACT), TargetError)
        if isinstance(seen, RefusalError):
            return Fact(self.name, np.inf, 0.0, False, "Very long tokens get no answer.")
        SEEN[desk] = seen
        return Fact(self.name, seen.number, seen.threshold, seen.holds, f"{seen.words[:1].upper()}{seen.words[1:].rstrip('.')}.")


class PreNormStack(Family):
    """Blocks ``h + attention(norm h)``, ``h + mlp(norm h)``, answered before any final norm."""

    name: ClassVar[str] = "stack"
    unknown: ClassVar[str] = (
        "MLPs that are not made of a few ReLU, GELU or SiLU neurons, then also constants beside them and the norms' epsilon; how "
        "gains are split between norms and weights"
    )
    law: ClassVar[tuple[Test, ...]] = (HiddenState(), PassedOn(), ActsByDirection())
    network: ClassVar[bool] = True
    compares_parts: ClassVar[bool] = True
    decisive: ClassVar[bool] = True  # nothing else passes a very long token on and stays bounded beside it
    models: ClassVar[tuple[str, ...]] = ("stack",)
    many_heads: ClassVar[bool] = True
    demo: ClassVar[dict[str, int]] = {
        "layers": 2,
        "heads": 4,
        "width": 32,
        "rank": 8,
        "hidden": 0,
        "activation": 1,
        "rms": 0,
        "positions": 0,
        "causal": 0,
        "seed": 0,
    }

    def settled(self, desk: Desk) -> RefusalError | None:
        """Random answers, or a norm behind the last block: nothing else of ours is like that."""
        seen = SEEN.get(desk)
        if seen is not None and seen.random:
            return TooNoisyError(
                f"{seen.words} Such a stack cannot be read; switch dropout off (`eval()`), or average the target's answers.",
                evidence={"repeated": seen.number},
            )
        short = _too_short(desk)
        if short is not None:
            return short
        passed_on = next((fact for fact in desk.facts if fact.test == PassedOn.name), None)
        if passed_on is None or passed_on.passed or not passed_on.number < LAWS.bounded:
            return None
        phase(desk, "recognition")
        level = None if desk.max_norm is not None else clipped_at(desk.last, rng=desk.rng)
        if level is not None:
            return NotInFamilyError(
                f"The target clips its inputs: entries of very long tokens come out as {level:.3g}. Give `max_norm={level:.3g}`; "
                "to read a pre-norm stack that has to be at least "
                f"{EXACT.nearest * np.sqrt(desk.width):.2g}.",
                evidence={"clipped": level},
                signs=(Sign.DIAGNOSED,),
            )
        off = behind_a_norm(desk.last, rng=desk.rng)
        words = "Answers to long tokens lie on an ellipsoid with axes along the outputs: a norm stands behind the last block."
        if desk.record(Fact("a norm comes last", off, LAWS.ellipsoid, off <= LAWS.ellipsoid, words)) is not True:
            return None
        return NotInFamilyError(
            "A LayerNorm or RMSNorm stands behind the last block (post-norm blocks, or a final norm): answers lie on an ellipsoid. "
            "Ask for the hidden state before that norm; post-norm blocks are not recovered.",
            evidence={"ellipsoid": off},
            signs=(Sign.DIAGNOSED,),
        )

    def demo_oracle(self, settings: dict[str, int]) -> Oracle:
        """A random stack with gains, biases and MLPs of ``hidden`` neurons (0: four times the width), GELU if nothing is said."""
        from unsoftmax.models.activations import NAMES
        from unsoftmax.models.stack import ACTIVATIONS, random_stack

        for name in ("layers", "heads", "width", "rank"):
            if settings[name] < 1:
                raise ValueError(f"demo:stack has {name}={settings[name]}; it must be at least 1.")
        if settings["hidden"] < 0:
            raise ValueError(f"demo:stack has hidden={settings['hidden']}; it must not be negative.")
        if settings["activation"] not in range(len(NAMES)) or NAMES[settings["activation"]] not in ACTIVATIONS:
            raise ValueError(f"demo:stack has activation={settings['activation']}; it must be one of {', '.join(ACTIVATIONS)}.")
        stack = random_stack(
            settings["layers"],
            settings["heads"],
            settings["width"],
            min(settings["rank"], settings["width"]),
            np.random.default_rng([2026, settings["seed"]]),
            norm="rms" if settings["rms"] else "layer",
            hidden=settings["hidden"] or None,
            activation=cast(Activation, NAMES[settings["activation"]]),
        )
        if not settings["positions"] and not settings["causal"]:
            return CallableOracle(stack)
        where, causal = "all" if settings["positions"] else "last", bool(settings["causal"])
        return CallableOracle(partial(stack, positions=where, causal=causal), width=stack.width)  # type: ignore[arg-type]

    def learner(self, desk: Desk) -> Learner:
        """Limit answers of very long tokens."""
        from unsoftmax.learners.stack import StackLearner

        desk.known(law_of(desk))
        return StackLearner(floor=desk.precision, max_norm=desk.max_norm, checks=LAWS.checks, seen=SEEN.get(desk), left=desk.left)

    def bill(self, size: Size) -> Bill:
        """For exact answers, where nothing has to be asked twice."""
        from unsoftmax.learners.stack import StackLearner
        from unsoftmax.planning import CHECK, FIRST_LOOK, SENTINELS

        formula = (
            "3 to 4 times heads * (2 r (2 d - r) + r) / d for heads of rank r in all layers; every position answered: half of it"
        )
        sight: Sight | None = "all" if size.everywhere else None

        def phases(heads: int, rank: int) -> Phases:
            both = [
                StackLearner(checks=LAWS.checks).price(size.width, heads, rank, norm=norm, sight=sight) for norm in get_args(Norm)
            ]
            learning = [(one[0], (one[1] + two[1]) // 2) for one, two in zip(*both, strict=True)]
            return [*FIRST_LOOK, *((name, count, 3 * count) for name, count in learning), *SENTINELS, *CHECK]

        words: tuple[str, ...] = (
            "The mean of a LayerNorm's and an RMSNorm's; a step that has to be asked again costs up to a fifth more.",
            "MLPs are learned only where they are small, and that is not counted here.",
        )
        if size.heads is not None and size.rank is not None:
            found = phases(size.heads, size.rank)
            learning = total(found) - total([*FIRST_LOOK, *SENTINELS, *CHECK])
            more = learning // 2 if size.everywhere else 0  # tokens that hardly see others are read alone
            return Bill(total(found), total(found) + more, formula, tuple(found), words)
        most = phases(size.heads or max(1, size.width // 2 - 5), size.rank or size.width)
        words = (
            *words,
            "The least is for one head of rank 1, the most for half as many heads as a token has numbers, of full rank.",
        )
        return Bill(total(phases(size.heads or 1, size.rank or 1)), total(most), formula, tuple(most), words)

    def precision(self, desk: Desk, learned: Learned) -> Floor:
        """Heads whose values or scores are weak are known less well than answers are; the learner's own check tells how well."""
        return replace(desk.precision, relative=max(desk.precision.relative, LAWS.spread * learned.entry_error / LIMITS.coarse))

    def compare(self, desk: Desk, learned: Learned, batches: list[Fresh]) -> Compared:
        """The whole function where MLPs are known; else what keys change in the answers of very long tokens, two queries each."""
        if learned.model.can_answer:
            return super().compare(desk, learned, batches)
        law = SEEN.get(desk)
        positions = law is not None and law.positions
        seen = _compared_limit(desk.checked, learned.model, batches, settings_of(desk) or EXACT, desk.fresh, positions)
        desk.notes.append(
            "The check compares answers to very long tokens, less that to the last token alone, where the last token is zero: "
            "they are what all heads of all layers do together. MLPs are not compared."
        )
        return seen

    def compare_part(self, oracle: Oracle, model: Model, batches: list[Fresh], law: Floor, rng: np.random.Generator) -> Compared:
        """Heads without MLPs: what keys change in the answers of very long tokens; two queries each."""
        return _compared_limit(oracle, model, batches, SINGLE if law.single else EXACT, rng, positions=True)


def _too_short(desk: Desk) -> RefusalError | None:
    """What to say where tokens of the longest length allowed act as in a stack, but are too short to read one."""
    look, law = desk.first_look(), law_of(desk)
    fits = look.outputs == desk.width >= LAWS.narrowest and (law.exact or law.single)
    if desk.max_norm is None or not fits or settings_of(desk) is not None:
        return None
    reach = float(desk.max_norm / np.sqrt(desk.width))
    phase(desk, "recognition")
    if tried(lambda: acts_by_direction(desk.last, 0.9 * reach, rng=desk.rng), TargetError) is not True:
        return None
    reason = tried(lambda: settings_for(law, reach), TooNoisyError)
    assert isinstance(reason, RefusalError)
    return TooNoisyError(
        f"Long tokens pass through the target and act by their direction, as in a pre-norm stack. {reason}",
        evidence={"reach": reach},
        signs=(Sign.DIAGNOSED,),
    )


def _compared_limit(
    oracle: Oracle, model: Model, batches: list[Fresh], settings: Settings, rng: np.random.Generator, positions: bool
) -> Compared:
    from unsoftmax.learners.stack.certificate import compared_limit

    stack = cast(Stack, model)
    sequences = [batch.sequences for batch in batches]
    answers, predicted = compared_limit(LastPosition(oracle), stack, positions, sequences, settings, rng)
    return Compared(answers, predicted, tuple(batches), price=2)


PRE_NORM_STACK = PreNormStack()
