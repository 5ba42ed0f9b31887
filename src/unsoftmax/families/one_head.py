"""One softmax head from exact answers, and what tells it from several that pass for one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from unsoftmax.desk import Desk
from unsoftmax.errors import NotInFamilyError, Sign, TargetError, tried
from unsoftmax.families.base import Learner
from unsoftmax.families.coarse_heads import NoisyHead
from unsoftmax.families.layer_of_heads import AttentionFamily
from unsoftmax.families.settings import LAWS
from unsoftmax.learners.one_head import OneHeadLearner
from unsoftmax.linalg import all_on_host, array_namespace
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.proof.ahead import Ahead, Foretold
from unsoftmax.proof.compare import Predict, predictor
from unsoftmax.proof.drawn import Part, tokens_of
from unsoftmax.proof.fresh import COUNT, Sized
from unsoftmax.proof.settings import PROOF
from unsoftmax.results import Learned, Outcome


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
        outcome = self._learned(desk)
        if not outcome.explains:
            desk.ahead = None
        return outcome

    def _learned(self, desk: Desk) -> Outcome:
        state = desk.rng.bit_generator.state
        wishes = desk.wishes
        plain = wishes.budget is None and desk.max_norm is None and wishes.natural is None and desk.precision.exact
        # asked in vain, where it is not this head, they cost no more than a check may
        if plain and desk.like is not None and PROOF.share * desk.width**2 >= 2 * COUNT:
            desk.foretold = partial(self._ask_ahead, desk)
        outcome = super().learn(desk)
        desk.foretold = None
        if outcome.learned is not None and desk.precision.absolute:
            outcome = self._beyond_noise(desk, outcome.learned)
        elif outcome.learned is not None:
            outcome = Outcome(learned=self._with_bars(desk, outcome.learned, state))
        if outcome.learned is None or desk.wishes.heads == 1:
            return outcome
        size = float(outcome.learned.model.token_sizes.max())
        if desk.precision.exact and desk.max_norm is None and size < LAWS.shortest:
            words = f"As one head its scores would saturate wherever tokens have entries beyond {size:.1g}, which no float64 tells."
            return Outcome(refusal=NotInFamilyError(words, signs=(Sign.SATURATED,)))
        predict = predictor(outcome.learned.model, desk.like)
        model = outcome.learned.model
        lengths = LAWS.lengths[: 2 if desk.first_look().outputs == 1 else 1]
        misfit = self._misfit(desk, desk.ahead.longer if desk.ahead else self._longer(desk, model, lengths), predict)
        if not misfit:
            desk.predict = predict if desk.precision.exact else None
            return outcome
        if desk.precision.exact and not self._misfit(desk, self._longer(desk, model, LAWS.lengths[1:]), predict):
            longer = self._longer(desk, model, LAWS.lengths[:1])
            if min(misfit, self._misfit(desk, longer, predict)) <= LAWS.faintly or _by_chance(desk, longer):
                return outcome  # a faint misfit, or one that comes and goes by chance: the held-out check tells
            words = (
                f"One head explains sequences of {LAWS.lengths[1]} tokens, but not one of {min(LAWS.lengths[0], desk.longest)}: "
                "attention to a window of the last tokens, or scores that know how many there are."
            )
            named = NotInFamilyError(words, model=outcome.learned.model, signs=(Sign.DIAGNOSED,), evidence={"misfit": misfit})
            return replace(outcome, refusal=named)
        words = "One head explains the questions that it was learned from, but not fresh sequences of more tokens."
        everywhere = desk.first_look().zero_answer.ndim == 3
        sign = Sign.OFF_COPIES if everywhere and not desk.precision.absolute and desk.max_norm is None else Sign.ONE_HEAD
        signs = (sign, Sign.LAST_BITS) if misfit <= LAWS.single_misfit else (sign,)
        refusal = NotInFamilyError(words, model=outcome.learned.model, signs=signs, evidence={"misfit": misfit})
        return Outcome(learned=outcome.learned if sign is Sign.ONE_HEAD else None, refusal=refusal)

    def _ask_ahead(self, desk: Desk, W: Floats) -> None:
        """Ask what follows while the device still answers.

        Only once: W told a second time means that some answers had to be asked for again, so that the first was not the head. What
        a target fails on is asked again when it is due.
        """
        if desk.ahead is not None:
            desk.ahead = desk.foretold = None
            return
        head, wishes = Foretold(W), desk.wishes

        def ask() -> Ahead:
            longer = self._longer(desk, head, LAWS.lengths) if wishes.heads != 1 else None
            desk.checked.begin_phase("held-out check")
            ahead = Ahead.of(desk.checked, head, desk.fresh, longest=self.longest(desk), count=wishes.check)
            return replace(ahead, longer=longer)

        asked = tried(ask, TargetError)
        desk.ahead = None if isinstance(asked, TargetError) else asked
        if desk.ahead is None:
            desk.foretold = None

    def _longer(self, desk: Desk, head: Sized, lengths: tuple[int, ...]) -> tuple[list[Floats], list[Floats]] | None:
        """A fresh sequence of each of these lengths, of a size that suits the head, and the answers; None where nothing is asked.

        Several heads that pass for one miss them. Coarse answers are asked for a short one alone.
        """
        floor, coarse = desk.precision, self._coarse(desk)
        if not (floor.exact or coarse) or desk.wishes.rank is not None:
            return None  # left to the held-out check
        phase(desk, "one head?")
        first = np.zeros(1, dtype=np.intp)
        parts = [Part(min(length, desk.longest), 1, first) for length in (lengths if floor.exact else LAWS.lengths[1:])]
        batches = tokens_of(parts, desk.width, head.token_sizes, desk.rng, desk.max_norm, like=desk.like)
        return batches, [desk.last(batch) for batch in batches]

    def _coarse(self, desk: Desk) -> bool:
        """Answers that are fine enough to read several heads from, though not exact."""
        return desk.precision.fine and desk.first_look().outputs > 1

    def _misfit(self, desk: Desk, asked: tuple[list[Floats], list[Floats]] | None, predict: Predict) -> float:
        """By how much one head misses the answers to fresh sequences, of their size; 0 if by no more than rounding.

        Sequences that suit a head whose scores are beyond all reason are so short that rounding hides them: wholly missed.
        """
        if asked is None:
            return 0.0
        floor, zero = desk.precision, desk.first_look().zero_answer
        batches, answers = asked
        predicted, *answers = all_on_host([predict(batches), *answers])
        told = np.concatenate([part.reshape(1, -1) for part in answers])
        off = float(np.abs(predicted.reshape(told.shape) - told).max())
        size = float(np.abs(told - zero.reshape(-1)).max())  # without the constant, which every model gets right
        rounding = LAWS.rounded * floor.relative * float(np.abs(told).max())
        if self._coarse(desk) and size <= rounding:
            return 1.0
        allowed = max((LAWS.coarsely * floor.relative if self._coarse(desk) else LAWS.fits) * size, rounding)
        return 0.0 if off <= allowed else off / max(size, np.finfo(float).tiny)

    def _with_bars(self, desk: Desk, learned: Learned, state: Any) -> Learned:
        """The same with error bars from rehearsals, which ask nothing of the target; of coarse values, from some asked again."""
        if desk.meter.spent * desk.width > LAWS.rehearsed or learned.ranks == (0,):  # what does not show has the bars that say so
            return learned
        from unsoftmax.learners.one_head.learner import unless_overflowing
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
        phase(desk, "error bars")
        model = cast(Attention, learned.model)
        V = unless_overflowing(
            lambda length: values_bars(desk, model, length, desk.precision, desk.rng), learner.axis_lengths(look.zero_answer)
        )
        return replace(learned, bounds=replace(learned.bounds, V=V), values_again=True)

    def _beyond_noise(self, desk: Desk, learned: Learned) -> Outcome:
        """One head that long tokens gave exactly in spite of noise or rounding: all but its constant, and all but a query bias."""
        from unsoftmax.learners.noisy import with_constant

        model = cast(Attention, learned.model)
        if model.has_c:  # long tokens saturate through it
            return NoisyHead().learn(desk)
        if model.has_b or desk.precision.noisy:
            learned = with_constant(desk, learned, desk.precision, desk.rng)
        return Outcome(learned=learned)


def _by_chance(desk: Desk, asked: tuple[list[Floats], list[Floats]] | None) -> bool:
    """Whether a sequence that is missed is answered otherwise when asked again: what strikes tokens at random does that."""
    if asked is None:
        return False
    (sequence,), (answer,) = asked
    told, again = all_on_host([answer, desk.last(array_namespace(sequence).concat([sequence] * LAWS.repeated))])
    rounding = LAWS.rounded * desk.precision.relative * float(np.abs(told).max())
    return float(np.abs(again - told).max()) > rounding
