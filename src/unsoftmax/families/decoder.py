"""Decoder language models: embeddings in, logits out; every head of every layer, MLPs unknown."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from unsoftmax.bills import Bill
from unsoftmax.desk import Desk
from unsoftmax.errors import RefusalError, TargetError, TooNoisyError, tried
from unsoftmax.families.base import Family, Learner, Size, Test
from unsoftmax.families.settings import LAWS
from unsoftmax.learners.decoder.settings import LOGITS, SINGLE, settings_for
from unsoftmax.models import Floats, Model
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.oracles.local import CallableOracle
from unsoftmax.precision.law import Floor
from unsoftmax.proof.compare import Compared
from unsoftmax.proof.fresh import Fresh
from unsoftmax.proof.limits import LIMITS
from unsoftmax.results import Fact, Learned

TOKENS = {"heads": 96, "values": 25, "scores": 11, "layers": 42, "check": 16}  # of a sequence, zero tokens included, on average


class Logits:
    """At least as many numbers as a token has, not affine in one token: nothing is asked."""

    name = "answers may be logits"

    def price(self, width: int) -> int:
        """The first look has asked already."""
        return 0

    def examine(self, desk: Desk) -> Fact:
        """Compare the shapes, and the bend of one-token answers."""
        look = desk.first_look()
        enough = look.outputs >= desk.width >= LAWS.least and desk.max_norm is None
        passed = enough and settings_for(look.grid) is not None and (look.steady or look.grid.single) and look.bend > LAWS.straight
        words = "Answers are long enough to be logits, and not affine in one token." if passed else "Answers are no logits."
        return Fact(self.name, float(look.bend), LAWS.straight, bool(passed), words)


class FinalNorm:
    """Very long tokens are answered by their direction alone, whether they stand alone or behind another: four questions."""

    name = "a final norm"

    def price(self, width: int) -> int:
        """Two scales of one token and of two."""
        return 4

    def examine(self, desk: Desk) -> Fact:
        """Ask two scales."""
        phase(desk, "recognition")
        rng = np.random.default_rng(desk.rng.integers(2**63))
        settings = settings_for(desk.first_look().grid)
        assert settings is not None  # the first test has asked
        p, x = rng.normal(size=(2, desk.width))
        questions = np.stack([x, 2 * x])[:, None], np.array([[p, x], [3 * p, 2 * x]])
        answers = tried(lambda: [np.asarray(desk.last(settings.far * asked)) for asked in questions], TargetError)
        if isinstance(answers, RefusalError):
            return Fact(self.name, np.inf, settings.same, False, "Very long tokens get no answer.")
        one, two = answers
        off = max(float(np.abs(a[0] - a[1]).max() / max(np.abs(a).max(), 1e-300)) for a in (one, two))
        alone = float(np.abs(one[0] - two[0]).max() / max(np.abs(one).max(), 1e-300))
        passed = off <= settings.same and alone <= settings.same
        words = (
            "Very long tokens are answered by the direction of the last one: a final norm stands behind a residual path."
            if passed
            else "Very long tokens are not answered by the direction of the last one alone."
        )
        return Fact(self.name, max(off, alone), settings.same, passed, words)


def unsteady_norm(desk: Desk, rng: np.random.Generator) -> float | None:
    """By how much of their size answers vary, if very long tokens are answered by the last one's direction up to that; else None.

    Two questions where answers grow with the tokens, else ``4 * LAWS.again`` more. Ordinary tokens are asked too: what is dropped
    inside a layer does not show beside very long ones. Answers that are sampled hold little but noise, whatever the direction.
    """
    phase(desk, "recognition")
    x, other, p = SINGLE.far * rng.normal(size=(3, desk.width))
    kinds = np.array([[x, x], [3 * p, 2 * x], [other, other], [p / SINGLE.far, x / SINGLE.far]])

    def asked(kinds: Floats, times: int) -> Floats:
        return np.asarray(desk.last(np.repeat(kinds, times, axis=0))).reshape(len(kinds), times, -1)

    first = tried(lambda: asked(kinds[:2], 1), TargetError)
    if isinstance(first, RefusalError) or _rms(first) > LAWS.grown * desk.first_look().size:
        return None
    told = asked(kinds, LAWS.again)
    noise = np.sqrt(np.mean(np.var(told, axis=1, ddof=1), axis=1))
    one, same, another = told[:3].mean(axis=1)
    off = max(float(noise[:3].max()) * np.sqrt(2 / LAWS.again), SINGLE.same * _rms(told[:3]))  # of a difference of two means
    drowned = float(noise.min()) > LAWS.near * float(np.std(told))
    if _rms(one - same) > LAWS.within * off or not (drowned or _rms(one - another) > 2 * LAWS.within * off):
        return None
    return float(noise.max()) / _rms(told)


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2)))


class DecoderFamily(Family):
    """Decoders with rotary positions and no biases (Llama), or learned positions and biases (GPT-2), answered with logits."""

    name: ClassVar[str] = "decoder"
    unknown: ClassVar[str] = (
        "the MLPs; per head one complex number for each rotary frequency between queries and keys, and an invertible matrix "
        "between values and output; how gains are split between norms and weights"
    )
    law: ClassVar[tuple[Test, ...]] = (Logits(), FinalNorm())
    network: ClassVar[bool] = True
    decisive: ClassVar[bool] = True
    compares_parts: ClassVar[bool] = True
    many_heads: ClassVar[bool] = True
    part_error: ClassVar[float] = 1e-8
    models: ClassVar[tuple[str, ...]] = ("decoder",)
    demo: ClassVar[dict[str, int]] = {
        "layers": 2,
        "heads": 2,
        "groups": 0,
        "width": 32,
        "rank": 8,
        "vocabulary": 64,
        "log": 0,
        "learned": 0,
        "positions": 0,
        "seed": 0,
    }

    def demo_oracle(self, settings: dict[str, int]) -> Oracle:
        """A random decoder; ``groups=0`` gives every head its own keys and values, ``learned=1`` learned positions and biases."""
        from unsoftmax.models.decoder import random_decoder, random_gpt

        for name in ("layers", "heads", "width", "rank", "vocabulary"):
            if settings[name] < 1:
                raise ValueError(f"demo:decoder has {name}={settings[name]}; it must be at least 1.")
        sizes = settings["layers"], settings["heads"], settings["width"], settings["rank"]
        rng, vocabulary, log = np.random.default_rng([2026, settings["seed"]]), settings["vocabulary"], bool(settings["log"])
        if settings["learned"]:
            target = random_gpt(*sizes, rng, vocabulary=vocabulary, log=log, places=256)
        else:
            target = random_decoder(*sizes, rng, groups=settings["groups"] or None, vocabulary=vocabulary, log=log)
        if settings["positions"]:
            return CallableOracle(partial(target, positions="all"), width=target.width)
        return CallableOracle(target)

    def learner(self, desk: Desk) -> Learner:
        """Limit answers of very long tokens, through the final norm."""
        from unsoftmax.learners.decoder import DecoderLearner

        desk.known(desk.first_look().grid)
        return DecoderLearner(floor=desk.precision, max_norm=desk.max_norm, longest=desk.longest)

    def settled(self, desk: Desk) -> RefusalError | None:
        """Answers behind a final norm that do not repeat: no other family has the norm, and no learner can read them."""
        look = desk.first_look()
        repeats = look.calm if look.grid.single else look.steady
        if repeats or look.outputs < desk.width or desk.width < LAWS.least or desk.max_norm is not None:
            return None
        varies = unsteady_norm(desk, np.random.default_rng(desk.rng.integers(2**63)))
        if varies is None:
            return None
        return TooNoisyError(
            "Answers do not grow with the tokens, like those of a decoder behind a final norm, but the same question is answered "
            f"differently each time, by {varies:.1e} of the answers' size: noise, dropout or sampling. A decoder is read from "
            "answers that repeat: switch dropout off (`model.eval()`), ask for logits instead of samples.",
            evidence={"varies": varies},
        )

    def bill(self, size: Size) -> Bill:
        """For exact answers, where nothing has to be asked twice."""
        from unsoftmax.learners.decoder import DecoderLearner

        formula = "4 answers for every limit: 2 to 3.5 queries per parameter of the attention, 0.7 to 0.9 with every position"
        if size.heads is None or size.rank is None:
            return Bill(None, None, formula, assumptions=("Give heads (of all layers together) and rank for a number.",))
        price = DecoderLearner().price(size.width, size.heads, size.rank, everywhere=size.everywhere)
        phases = tuple((name, count, TOKENS.get(name, 1) * count) for name, count in price)
        whole = sum(count for _, count, _ in phases)
        return Bill(whole, 2 * whole, formula, phases, ("MLPs are not learned.",))

    def precision(self, desk: Desk, learned: Learned) -> Floor:
        """Scores are known less well than answers are; the learner's own check tells how well."""
        return replace(desk.precision, relative=max(desk.precision.relative, LAWS.spread * learned.entry_error / LIMITS.coarse))

    def compare(self, desk: Desk, learned: Learned, batches: list[Fresh]) -> Compared:
        """What contexts change in the answers of very long tokens, against the heads; two limit answers each."""
        from unsoftmax.learners.decoder.certificate import compared_limit

        answers, predicted, price = compared_limit(
            LastPosition(desk.checked),
            learned.model,
            [batch.sequences for batch in batches],
            desk.fresh,
            settings_for(desk.precision) or LOGITS,
        )
        desk.notes.append(
            "The check compares what contexts change in the hidden state behind very long tokens, read through the unembedding and "
            "behind some zero tokens where nothing has a bias: what all heads of all layers do together. MLPs are not compared."
        )
        return Compared(answers, predicted, tuple(batches), price=price)

    def compare_part(self, oracle: Oracle, model: Model, batches: list[Fresh], law: Floor, rng: np.random.Generator) -> Compared:
        """The attention of a decoder without its MLPs: what contexts change in the answers of very long tokens."""
        from unsoftmax.learners.decoder.certificate import compared_limit

        answers, predicted, price = compared_limit(
            LastPosition(oracle), model, [batch.sequences for batch in batches], rng, settings_for(law) or LOGITS
        )
        return Compared(answers, predicted, tuple(batches), price=price)


DECODER = DecoderFamily()
