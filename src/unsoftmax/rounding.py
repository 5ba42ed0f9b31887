"""A better reason for a refusal: the target rounds scores, keys, tokens or values inside, although it answers in float64."""

from __future__ import annotations

from functools import partial

import numpy as np

from unsoftmax.desk import Desk
from unsoftmax.errors import (
    DriftingError,
    InconclusiveError,
    NotIdentifiableError,
    NotInFamilyError,
    RefusalError,
    Sign,
    rounding_inside,
    tried,
)
from unsoftmax.families.settings import LAWS
from unsoftmax.families.smooth_laws import BendsSmoothly
from unsoftmax.oracles.contradiction import BY_CHANCE
from unsoftmax.precision.inside import rounds_inside, values_in_steps
from unsoftmax.precision.settings import READING
from unsoftmax.recognition.heads_or_not import CHOICE
from unsoftmax.recognition.one_token import ONE_TOKEN
from unsoftmax.recognition.settings import TESTS
from unsoftmax.recognition.stepwise import PRICE, answered_alike, keys_stand_still, scores_in_steps


def unless_rounded(desk: Desk, refusal: RefusalError) -> RefusalError:
    """The refusal, or the reason that the target rounds inside; or that it answers by chance, which looks like steps as well."""
    reason = _rounded_inside(desk, _stepwise(desk, refusal))
    left = desk.left()
    if reason is refusal or (left is not None and left < 2 * TESTS.pairs_again):
        return reason
    again = tried(lambda: answered_alike(desk, desk.rng, desk.max_norm), RefusalError)
    if isinstance(again, RefusalError) or desk.record(again):
        return reason
    if isinstance(refusal, DriftingError):
        return refusal
    return DriftingError(
        f"{again.sentence[:-1]}: {BY_CHANCE} ({refusal})", evidence={"answers_changed": again.number}, model=refusal.model
    )


def _stepwise(desk: Desk, refusal: RefusalError) -> RefusalError:
    """The refusal, or a better reason: heads do not fit because the target rounds their scores.

    Those of float32 depend on the batch as well, which passes for a change of the target: one that float32 explains.
    """
    left, look, batch = desk.left(), desk.look, Sign.LAST_BITS in refusal.signs
    heads = isinstance(refusal, NotInFamilyError | InconclusiveError | NotIdentifiableError)
    heads = heads or (isinstance(refusal, DriftingError) and batch)
    heads = heads and look is not None and look.floor.exact and (look.cancelled or bool(np.ptp(look.pair_answers, axis=0).any()))
    named_so = bool({Sign.DIAGNOSED, Sign.RESIDUAL_OPEN} & set(refusal.signs))
    named_so = named_so and (Sign.DEAF in refusal.signs or not {Sign.OTHER_SCORES, Sign.UNDECIDED} & set(refusal.signs))
    # what float32 inside explains has no other name, whichever test met it
    named_so = named_so and not any(Sign.LAST_BITS in outcome.signs for outcome in desk.outcomes)
    bounded = any(fact.test == CHOICE and fact.passed is False for fact in desk.facts)  # which rounding does to no score
    if not heads or named_so or bounded or desk.embeddings is not None or desk.longest < 2 or (left is not None and left < PRICE):
        return refusal
    for test in (scores_in_steps, keys_stand_still):
        steps = tried(partial(test, desk, desk.rng, desk.max_norm), RefusalError)
        if isinstance(steps, RefusalError):  # the target fails by now
            return refusal
        if not desk.record(steps):
            break
    else:
        return refusal
    return NotInFamilyError(
        f"{steps.sentence} ({refusal})", evidence={**refusal.evidence, "jumps": steps.number}, model=refusal.model
    )


def _rounded_inside(desk: Desk, refusal: RefusalError) -> RefusalError:
    """The refusal, or a better reason: one-token answers miss a straight line by little because tokens are rounded."""
    left, look = desk.left(), desk.look
    outside = isinstance(refusal, NotInFamilyError | InconclusiveError) and Sign.ROUNDS not in refusal.signs
    if not outside or look is None or desk.embeddings is not None:
        return refusal
    others = any(fact.test == ONE_TOKEN and fact.passed is False for fact in desk.facts)  # tokens of the first look have few bits
    little = look.steady and look.grid.exact and look.bend <= LAWS.rounded_bend and (look.bend > READING.steady or others)
    smooth = any(fact.test == BendsSmoothly.name and fact.passed for fact in desk.facts)
    if not little or smooth or (left is not None and left <= 4 * READING.moved):
        return refusal
    rounds = tried(
        lambda: rounds_inside(desk.last, look.pair.sum(axis=0)) or values_in_steps(desk.last, desk.rng, desk.max_norm), RefusalError
    )
    return rounding_inside(rounds, refusal) if isinstance(rounds, str) and rounds else refusal
