"""What one finding says about the next step: pure decisions, of which the procedure is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from unsoftmax.errors import DriftingError, InconclusiveError, NotIdentifiableError, NotInFamilyError, RefusalError, Sign
from unsoftmax.families import named
from unsoftmax.families.attention import ONE_HEAD
from unsoftmax.families.base import Family
from unsoftmax.families.settings import LAWS
from unsoftmax.precision.first_look import FirstLook
from unsoftmax.precision.law import Floor
from unsoftmax.recognition.case import inconclusive
from unsoftmax.recognition.diagnosis import Diagnosis
from unsoftmax.results import Fact, Outcome
from unsoftmax.wishes import Wishes

Refusal = TypeVar("Refusal", RefusalError, RefusalError | None)
SETTLED = {Sign.POORLY_KNOWN, Sign.TOO_MANY, Sign.ALMOST_ALIKE}  # signs of heads, with which no other family need be looked for


class Step(Enum):
    """What to do about a layer of heads after a learner came back with nothing that explains its answers."""

    STOP = "the refusal stands"
    SEVERAL = "try several heads"
    NOISY = "try one head by statistics"
    CLOSER = "see whether answers are coarser, or tokens cut, before anything else"
    DIAGNOSE = "ask the family tests, and try several heads unless these name a stranger"


def after_one_head(one: Outcome, wishes: Wishes, precision: Floor) -> Step:
    """What one head's failure says; nothing is asked."""
    found = Sign.ONE_HEAD in one.signs
    if found and wishes.auto:  # copies of keys counted as copies: one softmax, of other scores
        return Step.DIAGNOSE
    if one.learned is not None or not isinstance(one.refusal, NotInFamilyError):
        return Step.SEVERAL if found else Step.STOP
    return Step.NOISY if precision.random else Step.CLOSER  # long tokens beat noise only without a query bias


def after_closer(one: Outcome, wishes: Wishes) -> Step:
    """The same after answers turned out as precise as they had seemed."""
    if wishes.heads == 1:
        return Step.STOP
    stranger = wishes.auto and not {Sign.OFF_COPIES, Sign.NO_MEAN} & set(one.signs)  # than several heads are
    return Step.DIAGNOSE if stranger else Step.SEVERAL


def after_several(last: Outcome, wishes: Wishes) -> Step:
    """What the failure of several heads says before anything else is asked: the refusal stands, or another look is worth it."""
    plain = isinstance(last.refusal, NotInFamilyError | NotIdentifiableError)
    if plain and not SETTLED & set(last.signs) and wishes.auto:
        return Step.DIAGNOSE
    return Step.STOP


def family_told(told: Diagnosis) -> Family | None:
    """The family that the tests tell, of attention the one for one head; None outside."""
    return named(told.family) if told.inside else None


def stranger(told: Diagnosis) -> bool:
    """Whether a target is told, for certain, to be other than a layer of heads, or of heads almost alike."""
    return family_told(told) is not ONE_HEAD and not {Sign.UNDECIDED, Sign.ALMOST_ALIKE} & set(told.signs)


def refused(told: Diagnosis, words: str, evidence: Mapping[str, Any]) -> RefusalError:
    """The refusal that a diagnosis gives reason for: what answers by chance, or has changed, is no stranger to any family."""
    kind: type[RefusalError] = DriftingError if {Sign.RANDOM, Sign.CHANGED} & set(told.signs) else NotInFamilyError
    if Sign.UNDECIDED in told.signs:
        kind = InconclusiveError
        words += " So it stays open: another `seed`, longer tokens or more precise answers may decide; `family=` tries one family."
    return kind(words, evidence={**evidence, "diagnosis": told.family}, signs=(Sign.DIAGNOSED, *told.signs))


def of_some_models(refusal: Refusal) -> Refusal:
    """The refusal of a learner that knows some models of a family alone, as wished: heads that it excludes may be others."""
    if isinstance(refusal, NotInFamilyError):
        refusal.signs = (*refusal.signs, Sign.OPEN)
    return refusal


def weighed(refusal: RefusalError, told: Diagnosis | None, family: Family | None, *, proven: bool) -> RefusalError:
    """A refusal as of no family, as far as that is shown; nothing is asked.

    One learner's failure excludes what it learned, and nothing else: where the tests tell a ``family`` all the same, or nobody
    told, it stays open. What fresh answers deny is ``proven`` to be none of what was tried.
    """
    left_open = Sign.OPEN in refusal.signs
    if not isinstance(refusal, NotInFamilyError) or Sign.DIAGNOSED in refusal.signs or (proven and not left_open):
        return refusal
    if family is not None:
        reason = told.reason if told is not None else f"Its answers follow the law of the family {family.name!r}."
        words = f"By the family tests: {reason} But nothing that was learned explains the answers, so that it stays open. {refusal}"
        return InconclusiveError(words, evidence=refusal.evidence, model=refusal.model)
    if left_open and told is None:
        words = (
            f"{refusal} That excludes what was learned, not every family, so that it stays open: `family=` and `heads=` try others."
        )
        return InconclusiveError(words, evidence=refusal.evidence, model=refusal.model)
    return refused(told, f"{told.reason} ({refusal})", refusal.evidence) if left_open and told is not None else refusal


def undecided(told: Diagnosis, doubt: Fact) -> Diagnosis:
    """A stranger by the tests, unless it is of a family whose law holds and that was not excluded."""
    verdict = inconclusive("power", f"{told.reason} {doubt.sentence} `recover` tells.")
    return replace(told, family=verdict.family, reason=verdict.reason, signs=(*told.signs, *verdict.signs))


class Reading(NamedTuple):
    """Whether one-token answers are affine, None where only a closer look tells, and how coarse they are then, if that is new."""

    straight: bool | None
    law: Floor | None = None


def first_reading(look: FirstLook, wishes: Wishes) -> Reading:
    """What the first answers say about straightness; bends may come from coarse answers alone."""
    if not (wishes.auto or named(wishes.family).made_of_heads):
        return Reading(straight=False)
    # four answers, each within the tolerance that the caller vouches for
    vouched = wishes.tolerance is not None and look.bend * look.size <= LAWS.vouched * wishes.tolerance
    if not look.floor.unclear or vouched:
        return Reading(straight=True)
    rounded = look.grid.step is not None and look.bend * look.size <= 2 * look.grid.step and look.repeats
    if rounded and wishes.max_norm is None:  # plainly rounded: long tokens beat that without further questions
        return Reading(True, look.grid)
    if wishes.auto and look.bend > LAWS.bent and look.steady and look.grid.exact:
        return Reading(straight=False)
    if wishes.auto and look.bend > LAWS.bent_single and look.calm and look.grid.single:
        return Reading(False, replace(look.grid, relative=LAWS.computed * look.grid.relative))
    return Reading(straight=None)
