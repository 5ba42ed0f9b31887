"""Decoder language models: embeddings in, logits out; every head of every layer, MLPs unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from unsoftmax.bills import Bill
from unsoftmax.desk import Desk
from unsoftmax.errors import NotInFamilyError, RefusalError, TargetError, tried
from unsoftmax.families.base import Family, Learner, Size, Test
from unsoftmax.learners.decoder.limit import FAR, are_log_probabilities, centred
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.oracles.local import CallableOracle
from unsoftmax.precision.law import Floor
from unsoftmax.proof.compare import Compared
from unsoftmax.proof.fresh import Fresh
from unsoftmax.proof.run import COARSE_FACTOR
from unsoftmax.results import Fact, Learned

STRAIGHT = 1e-9  # one-token answers nearer to an affine function than that have no norm in them
ROUNDING = 2.0**-40  # differences of answers, relative, that rounding inside the target explains
SPREAD = 8.0  # largest error of some hundred fresh sequences, long ones among them, over that of the learner's few
TOKENS = {"heads": 96, "values": 25, "scores": 11, "layers": 42, "check": 16}  # of a sequence, zero tokens included, on average
LEAST = 12  # width below which there is no room for the first design and its outputs


class Logits:
    """At least as many numbers as a token has, not affine in one token: nothing is asked."""

    name = "answers may be logits"

    def price(self, width: int) -> int:
        """The first look has asked already."""
        return 0

    def examine(self, desk: Desk) -> Fact:
        """Compare the shapes, and the bend of one-token answers."""
        look = desk.first_look()
        enough = look.outputs >= desk.width >= LEAST and desk.max_norm is None
        passed = enough and look.grid.exact and look.steady and look.bend > STRAIGHT
        words = "Answers are long enough to be logits, and not affine in one token." if passed else "Answers are no logits."
        return Fact(self.name, float(look.bend), STRAIGHT, bool(passed), words)


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
        p, x = rng.normal(size=(2, desk.width))
        questions = np.stack([x, 2 * x])[:, None], np.array([[p, x], [3 * p, 2 * x]])
        answers = tried(lambda: [np.asarray(desk.last(FAR * asked)) for asked in questions], TargetError)
        if isinstance(answers, RefusalError):
            return Fact(self.name, np.inf, ROUNDING, False, "Very long tokens get no answer.")
        one, two = answers
        off = max(float(np.abs(a[0] - a[1]).max() / max(np.abs(a).max(), 1e-300)) for a in (one, two))
        alone = float(np.abs(one[0] - two[0]).max() / max(np.abs(one).max(), 1e-300))
        passed = off <= ROUNDING and alone <= ROUNDING
        words = (
            "Very long tokens are answered by the direction of the last one: a final norm stands behind a residual path."
            if passed
            else "Very long tokens are not answered by the direction of the last one alone."
        )
        return Fact(self.name, max(off, alone), ROUNDING, passed, words)


class NoBias:
    """The zero token has logits of zero, and a very long token and its opposite have opposite ones: two questions."""

    name = "a decoder without biases"

    def price(self, width: int) -> int:
        """One token and its opposite."""
        return 2

    def examine(self, desk: Desk) -> Fact:
        """Ask a token and its opposite; the zero token was in the first look."""
        rng = np.random.default_rng(desk.rng.integers(2**63))
        x = rng.normal(size=desk.width)
        answers = np.asarray(desk.last(FAR * np.stack([x, -x])[:, None]))
        log = are_log_probabilities(answers)
        zero = centred(np.asarray(desk.first_look().zero_answer).reshape(1, -1)[:, -answers.shape[1] :], log)
        answers = centred(answers, log)
        size = float(np.abs(answers).max())
        off = max(float(np.abs(zero).max()), float(np.abs(answers.sum(axis=0)).max())) / max(size, 1e-300)
        words = (
            "The zero token is answered with zero and opposite tokens with opposite answers: no norm, key, value or MLP has a bias."
            if off <= ROUNDING
            else "The zero token or two opposite tokens show a bias of a norm, of keys, values or MLPs (as in GPT-2 or Qwen2), "
            "or LayerNorm: such decoders are not covered yet."
        )
        return Fact(self.name, off, ROUNDING, off <= ROUNDING, words)


class DecoderFamily(Family):
    """Decoders with RMSNorm, rotary positions, grouped keys and gated MLPs, answered with logits or log-probabilities."""

    name: ClassVar[str] = "decoder"
    unknown: ClassVar[str] = (
        "the MLPs; per head one complex number for each rotary frequency between queries and keys, and an invertible matrix "
        "between values and output; how gains are split between norms and weights"
    )
    law: ClassVar[tuple[Test, ...]] = (Logits(), FinalNorm(), NoBias())
    network: ClassVar[bool] = True
    decisive: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("decoder",)
    demo: ClassVar[dict[str, int]] = {
        "layers": 2,
        "heads": 2,
        "groups": 0,
        "width": 32,
        "rank": 8,
        "vocabulary": 64,
        "log": 0,
        "positions": 0,
        "seed": 0,
    }

    def demo_oracle(self, settings: dict[str, int]) -> Oracle:
        """A random decoder; ``groups=0`` gives every head keys and values of its own."""
        from unsoftmax.models.decoder import random_decoder

        for name in ("layers", "heads", "width", "rank", "vocabulary"):
            if settings[name] < 1:
                raise ValueError(f"demo:decoder has {name}={settings[name]}; it must be at least 1.")
        target = random_decoder(
            settings["layers"],
            settings["heads"],
            settings["width"],
            settings["rank"],
            np.random.default_rng([2026, settings["seed"]]),
            groups=settings["groups"] or None,
            vocabulary=settings["vocabulary"],
            log=bool(settings["log"]),
        )
        if settings["positions"]:
            return CallableOracle(lambda sequences: target(sequences, "all"), width=target.width)
        return CallableOracle(target)

    def settled(self, desk: Desk) -> RefusalError | None:
        """A decoder with biases: what stands behind a final norm is no other family's either."""
        passed = {fact.test: fact for fact in desk.facts}
        if NoBias.name in passed and passed[NoBias.name].passed is False:
            return NotInFamilyError(passed[NoBias.name].sentence, evidence={"bias": passed[NoBias.name].number})
        return None

    def learner(self, desk: Desk) -> Learner:
        """Limit answers of very long tokens, through the final norm."""
        from unsoftmax.learners.decoder import DecoderLearner

        desk.known(desk.first_look().grid)
        return DecoderLearner(floor=desk.precision, max_norm=desk.max_norm, longest=desk.longest)

    def asked(self, desk: Desk) -> Oracle:
        """The last position alone."""
        return LastPosition(desk)

    def bill(self, size: Size) -> Bill:
        """For exact answers, where nothing has to be asked twice."""
        from unsoftmax.learners.decoder import DecoderLearner

        formula = "4 answers for every limit: 2 to 3 queries per parameter of the attention"
        if size.heads is None or size.rank is None:
            return Bill(None, None, formula, assumptions=("Give heads (of all layers together) and rank for a number.",))
        price = DecoderLearner().price(size.width, size.heads, size.rank)
        phases = tuple((name, count, TOKENS.get(name, 1) * count) for name, count in price)
        whole = sum(count for _, count, _ in phases)
        return Bill(whole, 2 * whole, formula, phases, ("MLPs are not learned.",))

    def precision(self, desk: Desk, learned: Learned) -> Floor:
        """Scores are known less well than answers are; the learner's own check tells how well."""
        return replace(desk.precision, relative=max(desk.precision.relative, SPREAD * learned.entry_error / COARSE_FACTOR))

    def compare(self, desk: Desk, learned: Learned, batches: list[Fresh]) -> Compared:
        """What contexts change in the answers of very long tokens, against the heads; two limit answers each."""
        from unsoftmax.learners.decoder.certificate import compared_limit

        answers, predicted, price = compared_limit(
            LastPosition(desk.checked), learned, [batch.sequences for batch in batches], desk.fresh
        )
        desk.notes.append(
            "The check compares what contexts change in the hidden state behind very long tokens, read through the unembedding and "
            "with some zero tokens in front: it is what all heads of all layers do together. MLPs are not compared."
        )
        return Compared(answers, predicted, tuple(batches), price=price)


DECODER = DecoderFamily()
