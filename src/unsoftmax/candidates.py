"""The families that come into question, one after the other: the one procedure, and somebody to ask what it wants to know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unsoftmax.deciding import Decision, Try, choices
from unsoftmax.deciding.choices import family_told
from unsoftmax.desk import Desk
from unsoftmax.errors import NotInFamilyError, RefusalError, Sign, tried
from unsoftmax.families.base import Family
from unsoftmax.recognition.case import most_asked
from unsoftmax.recognition.walk import OfCase, OfDesk
from unsoftmax.results import Outcome


def candidates(desk: Desk, *, learners: bool = True) -> Iterator[Family]:
    """Families to try, in turn, as long as none explains the answers; ``desk.outcomes`` tells what became of the last.

    When it ends, ``refusal_of(desk)`` is the reason to report. Without ``learners`` the tests decide alone, and the first family
    is what they tell.
    """
    decision = Decision(desk.wishes, desk.width, table=desk.embeddings is not None, learners=learners)
    walk = decision.whole()
    found: Any = None
    while True:
        try:
            step = walk.send(found)
        except StopIteration as end:
            if end.value is not None:
                desk.outcomes.append(Outcome(refusal=end.value))
            return
        if isinstance(step, Try):
            yield step.family
            found = desk.outcomes[-1]
        else:
            found = made(desk, step)


def weighed(desk: Desk, refusal: RefusalError, *, proven: bool) -> RefusalError:
    """A refusal as far as it is shown; where it excludes one model and not every family, a diagnosis decides, if affordable.

    Fixed probes exclude none: they do not tell how coarse answers are.
    """
    wishes, left, told = desk.wishes, desk.left(), desk.told
    if wishes.heads is not None:
        return refusal
    if not wishes.adaptive:
        refusal = choices.of_some_models(refusal)
    family = None if told is None else family_told(told)
    askable = desk.look is not None and desk.embeddings is None and wishes.adaptive and wishes.auto
    askable = askable and wishes.tolerance is None  # errors that a caller allows may look like anything
    if told is None and Sign.OPEN in refusal.signs and askable and (left is None or left >= most_asked(desk.width)):
        found = tried(lambda: next(candidates(desk, learners=False), None), RefusalError)
        if isinstance(found, RefusalError):  # the target fails by now, or contradicts itself
            return found
        family = found
    return choices.weighed(refusal, desk.told, family, proven=proven)


def made(desk: Desk, step: OfDesk[Any] | OfCase[Any]) -> Any:
    """What a test finds: one of a diagnosis, or its verdict where it ends that; or one at the desk."""
    if isinstance(step, OfDesk):
        return step.made(desk)
    case = desk.case
    assert case is not None, "a diagnosis is opened before its tests are made"
    return case.tried(lambda: step.made(case))


def refusal_of(desk: Desk) -> RefusalError:
    """The reason why no family explains the answers: the last one given."""
    refusals = [outcome.refusal for outcome in desk.outcomes if outcome.refusal is not None]
    return refusals[-1] if refusals else NotInFamilyError("No family explains the answers. `unsoftmax diagnose` tells more.")
