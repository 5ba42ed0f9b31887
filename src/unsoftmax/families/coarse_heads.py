"""One head through answers that scale cannot beat: by statistics, or within a tolerance that the caller vouches for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from unsoftmax.desk import Desk
from unsoftmax.errors import RefusalError, TooNoisyError, rounding_inside
from unsoftmax.families.base import attempt
from unsoftmax.families.layer_of_heads import AttentionFamily, Scalar, Through
from unsoftmax.families.settings import LAWS
from unsoftmax.models import Attention
from unsoftmax.results import Outcome


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
