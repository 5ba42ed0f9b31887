"""Attention layers: one head, several, or one through noise; answers of any precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from unsoftmax.bills import Bill
from unsoftmax.desk import Desk
from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, RefusalError, Sign, TooNoisyError, rounding_inside
from unsoftmax.families.base import Family, Learner, Size, attempt
from unsoftmax.families.settings import LAWS
from unsoftmax.learners.one_head import OneHeadLearner
from unsoftmax.linalg import on_host
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.proof.compare import Compared, Predict, compared, predictor
from unsoftmax.proof.fresh import COUNT, Fresh, sized
from unsoftmax.results import Learned, Outcome

# learners other than the one for one head are imported where they are needed: a run pays for the one that it uses


class AttentionFamily(Family):
    """What all ways to an attention layer share."""

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
        return compared(desk.checked, learned.model, batches, self.like(desk))

    def predictor(self, desk: Desk, learned: Learned) -> Predict | None:
        """The model as a function of batches; the one that had to predict already, if any."""
        return desk.predict or predictor(learned.model, self.like(desk))

    def certify(self, desk: Desk, learned: Learned, *, held_out: float, tolerance: float, rounding: float) -> tuple[str, ...]:
        """Several heads: a small error on fresh sequences is not enough, since empty or split heads answer alike."""
        from unsoftmax.proof.certificate import certificate

        model = cast(Attention, learned.model)
        if model.V is None or model.heads == 1:
            return ()
        found = certificate(model, held_out=held_out, tolerance=tolerance, rounding=rounding)
        if not found.holds:
            raise NotIdentifiableError(" ".join(found.reasons), model=model, evidence={"condition": found.condition})
        return found.reasons


class OneHead(AttentionFamily):
    """One softmax head, answered exactly or in float32; rounding and noise are drowned by long tokens."""

    def learner(self, desk: Desk) -> Learner:
        """The exact learner, with what the first look asked already."""
        look = desk.first_look()
        return OneHeadLearner(
            rank=desk.wishes.rank,
            max_norm=desk.max_norm,
            floor=desk.precision,
            zero_answer=look.zero_answer,
            known=(look.pair, look.pair_answers),
        )

    def learn(self, desk: Desk) -> Outcome:
        """Learn, then see whether one head explains more than it was learned from."""
        state = desk.rng.bit_generator.state
        outcome = super().learn(desk)
        if outcome.learned is not None and desk.precision.absolute:
            outcome = self._beyond_noise(desk, outcome.learned)
        elif outcome.learned is not None:
            outcome = Outcome(learned=self._with_bars(desk, outcome.learned, state))
        if outcome.learned is None or desk.wishes.heads == 1:
            return outcome
        misfit = self._misfit(desk, outcome.learned)
        if not misfit:
            return outcome
        words = "One head explains the questions that it was learned from, but not fresh sequences of four tokens."
        everywhere = desk.first_look().zero_answer.ndim == 3
        sign = Sign.OFF_COPIES if everywhere and not desk.precision.absolute and desk.max_norm is None else Sign.ONE_HEAD
        signs = (sign, Sign.LAST_BITS) if misfit <= LAWS.single_misfit else (sign,)
        refusal = NotInFamilyError(words, model=outcome.learned.model, signs=signs, evidence={"misfit": misfit})
        return Outcome(learned=outcome.learned if sign is Sign.ONE_HEAD else None, refusal=refusal)

    def _with_bars(self, desk: Desk, learned: Learned, state: Any) -> Learned:
        """The same with error bars from rehearsals, which ask nothing of the target; of coarse values, from some asked again."""
        if desk.meter.spent * desk.width > LAWS.rehearsed or learned.ranks == (0,):  # what does not show has the bars that say so
            return learned
        from unsoftmax.learners.one_head.values_again import price, values_bars
        from unsoftmax.learners.rehearsal import rehearsed

        learner, look = cast(OneHeadLearner, self.learner(desk)), desk.first_look()

        def run(oracle: Oracle, rng: np.random.Generator) -> Learned:
            zero, known = oracle(np.zeros((1, 1, desk.width))), oracle(look.pair[:, None]).reshape(look.pair_answers.shape)
            return replace(learner, zero_answer=zero, known=(look.pair, known)).run(oracle, rng=rng)

        learned = rehearsed(learned, run, ndim=look.zero_answer.ndim, relative=desk.precision.relative, state=state)
        left = desk.left()
        affords = left is None or left >= price(look.outputs) + COUNT
        if desk.precision.exact or not learned.rehearsals or learned.bounds is None or not affords:
            return learned
        phase(desk, "values")
        model = cast(Attention, learned.model)
        V = values_bars(desk, model, learner.axis_length(look.zero_answer), desk.precision, desk.rng)
        return replace(learned, bounds=replace(learned.bounds, V=V), values_again=True)

    def _beyond_noise(self, desk: Desk, learned: Learned) -> Outcome:
        """One head that long tokens gave exactly in spite of noise or rounding: all but its constant, and all but a query bias."""
        from unsoftmax.learners.noisy import with_constant

        model = cast(Attention, learned.model)
        if model.has_c:  # long tokens saturate through it
            return NOISY_HEAD.learn(desk)
        if model.has_b or desk.precision.noisy:
            learned = with_constant(desk, learned, desk.precision, desk.rng)
        return Outcome(learned=learned)

    def _misfit(self, desk: Desk, learned: Learned) -> float:
        """By how much one head misses a sequence of four tokens, of its size, as several heads that pass for one do; 0 if not.

        1 query, 2 where an answer is one number.
        """
        floor, look = desk.precision, desk.first_look()
        coarse = floor.fine and look.outputs > 1  # several heads can still be read then
        if not (floor.exact or coarse) or desk.wishes.rank is not None:
            return 0.0  # left to the held-out check
        phase(desk, "one head?")
        (batch,) = sized(
            learned.model.token_sizes, [(LAWS.four, 2 if look.outputs == 1 else 1)], desk.width, desk.rng, desk.max_norm
        )
        told = desk.last(batch)
        predict = predictor(learned.model, desk.like)
        size = np.abs(told - look.zero_answer.reshape(-1)).max()  # without the constant, which every model gets right
        rounding = LAWS.rounded * floor.relative * np.abs(told).max()
        off = np.abs(on_host(predict([batch])).reshape(told.shape) - told).max()
        if not off <= max((LAWS.coarsely * floor.relative if coarse else LAWS.fits) * size, rounding):
            return float(off / max(size, np.finfo(float).tiny))
        if not coarse:
            desk.predict = predict
        return 0.0


class NoisyHead(AttentionFamily):
    """One head whose answers carry errors that scale cannot beat: statistics, with error bars."""

    def learn(self, desk: Desk) -> Outcome:
        """A statistical run; vector answers through one mixture of them. What rounds inside is no noise, and told at once."""
        from unsoftmax.learners.noisy import learn_vector

        stranger = self._stranger(desk)
        if stranger is not None:
            return Outcome(refusal=stranger)
        learner = self.learner(desk)
        if desk.first_look().outputs == 1:
            outcome = attempt(learner, Scalar(desk), desk)
        else:
            outcome = attempt(Through(learn_vector, learner), desk, desk)
        return self._with_zero(desk, outcome) if desk.precision.half else outcome

    def _stranger(self, desk: Desk) -> RefusalError | None:
        """Errors that are no noise of one head: a target that rounds its tokens, or several heads in half precision."""
        from unsoftmax.recognition.heads_or_not import several_in_half

        if desk.calibration is not None and desk.calibration.rounds:
            return rounding_inside(desk.calibration.rounds)
        if not desk.precision.half or desk.record(told := several_in_half(desk)) is not False:
            return None
        return TooNoisyError(
            f"{told.sentence} There are several heads, or none: answers in {desk.precision.kind} are too coarse to tell them "
            "apart. Ask for answers in float32 or float64.",
            evidence={"off_line": told.number},
        )

    def _with_zero(self, desk: Desk, outcome: Outcome) -> Outcome:
        """The constant as the zero token tells it: nothing else enters that answer, which is rounded once."""
        learned = outcome.learned
        if learned is None or learned.bounds is None or learned.bounds.b is None:
            return outcome
        model, law = cast(Attention, learned.model), replace(desk.precision, cast=True)
        b = desk.first_look().zero_answer.reshape(np.shape(model.b))
        bars = 0.95 * 3**0.5 * law.written(b)  # 95% of an error that is spread evenly
        exact = Attention(model.W, model.V, model.c if model.has_c else None, b)
        return replace(outcome, learned=replace(learned, model=exact, bounds=replace(learned.bounds, b=bars)))

    def learner(self, desk: Desk) -> Any:
        """The statistical learner, with as many questions as the budget allows."""
        from unsoftmax.learners.noisy import NoisyHeadLearner

        wishes = desk.wishes
        plenty = max(LAWS.generous * (desk.width**2 + desk.width), LAWS.plenty)
        most, reserve = plenty, LAWS.noisy_check_reserve + LAWS.first_questions
        if wishes.budget is not None:
            check = min(LAWS.noisy_check_reserve, int(LAWS.largest_check_share * wishes.budget))
            left = wishes.budget - check - LAWS.first_questions
            if check < LAWS.noisy_check_reserve:  # a small budget: what was asked is known, and little is asked beside
                outputs = 2 * desk.width + 8 if desk.first_look().outputs > 1 else 0
                left = wishes.budget - check - desk.meter.spent - desk.checked.spent - outputs - LAWS.spare
            most = max(1, min(left, int((wishes.budget - LAWS.first_questions) / (1 + LAWS.check_share))))
        queries = None if wishes.budget is None else most if wishes.accuracy is not None else min(most, plenty)
        return NoisyHeadLearner(
            max_norm=desk.max_norm,
            queries=queries,
            most=None if wishes.accuracy is not None else most,
            already=LAWS.asked_before,
            beside=reserve,
            accuracy=wishes.accuracy,
            rank=wishes.rank,
            floor=desk.precision,
        )


class VouchedHead(AttentionFamily):
    """One head whose answers are within a tolerance that the caller vouches for: certified intervals."""

    def learn(self, desk: Desk) -> Outcome:
        """A run that certifies; vector answers through their loudest output."""
        from unsoftmax.learners.noisy import CertifiedHeadLearner, certify_long, certify_vector

        assert desk.wishes.tolerance is not None
        if desk.max_norm is None:
            return attempt(Through(certify_long, desk.wishes.tolerance), desk, desk)
        learner = CertifiedHeadLearner(desk.wishes.tolerance, desk.max_norm, biases=True)
        if desk.first_look().outputs == 1:
            return attempt(learner, desk, desk)
        return attempt(Through(certify_vector, learner), desk, desk)


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


ONE_HEAD, NOISY_HEAD, VOUCHED_HEAD, SEVERAL_HEADS = OneHead(), NoisyHead(), VouchedHead(), SeveralHeads()
GRID_HEAD, TOKENS_HEAD, FIXED_HEAD = GridHead(), TokensHead(), FixedHead()
