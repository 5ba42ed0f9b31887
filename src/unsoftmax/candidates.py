"""Which family next: one loop over what is known about a target, cheapest first."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from enum import Enum

from unsoftmax.desk import Desk
from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, RefusalError, Sign, TooNoisyError
from unsoftmax.families import extra_families, named, settled
from unsoftmax.families.attention import (
    FIXED_HEAD,
    GRID_HEAD,
    NOISY_HEAD,
    ONE_HEAD,
    SEVERAL_HEADS,
    TOKENS_HEAD,
    VOUCHED_HEAD,
)
from unsoftmax.families.base import Family
from unsoftmax.families.networks import BEHIND_NETWORK, RELU_NETWORK, RELU_TRANSFORMER
from unsoftmax.families.settings import LAWS
from unsoftmax.precision.law import Floor
from unsoftmax.recognition.diagnosis import Diagnosis, diagnose_oracle
from unsoftmax.recognition.heads_or_not import blind_to_order, clipped, plainly_several
from unsoftmax.recognition.quick_relu import quick_look
from unsoftmax.results import Outcome
from unsoftmax.wishes import Wishes

SETTLED = {Sign.POORLY_KNOWN, Sign.TOO_MANY, Sign.ALMOST_ALIKE}  # signs of heads, with which no other family need be looked for


def candidates(desk: Desk) -> Iterator[Family]:
    """Families to try, in turn, as long as none explains the answers; ``desk.outcomes`` tells what became of the last.

    When it ends, ``refusal_of(desk)`` is the reason to report.
    """
    if desk.embeddings is not None:
        yield TOKENS_HEAD
        return
    if not desk.wishes.adaptive:
        yield FIXED_HEAD
        return
    desk.first_look()
    for family in extra_families(desk):
        yield family
        if family.decisive:
            return
    certain = settled(desk)
    if certain is not None:
        desk.outcomes.append(Outcome(refusal=certain))
        return
    if _straight(desk):
        yield from _heads(desk)
    else:
        yield from _bent(desk)


def refusal_of(desk: Desk) -> RefusalError:
    """The reason why no family explains the answers: the last one given."""
    refusals = [outcome.refusal for outcome in desk.outcomes if outcome.refusal is not None]
    return refusals[-1] if refusals else NotInFamilyError("No family explains the answers. `unsoftmax diagnose` tells more.")


def _straight(desk: Desk) -> bool:
    """Whether one-token answers are affine, as those of attention are; a closer look where they may merely be coarse."""
    look, wishes = desk.first_look(), desk.wishes
    if wishes.family not in ("auto", "attention"):
        return False
    # four answers, each within the tolerance that the caller vouches for
    vouched = wishes.tolerance is not None and look.bend * look.size <= LAWS.vouched * wishes.tolerance
    if not look.floor.unclear or vouched:
        return True
    rounded = look.grid.step is not None and look.bend * look.size <= 2 * look.grid.step and look.repeats
    if rounded and wishes.max_norm is None:  # plainly rounded: long tokens beat that without further questions
        desk.known(look.grid)
        return True
    if wishes.auto and look.bend > LAWS.bent and look.steady and look.grid.exact:
        return False
    if wishes.auto and look.bend > LAWS.bent_single and look.calm and look.grid.single:
        desk.known(replace(look.grid, relative=LAWS.computed * look.grid.relative))
        return False
    calibration = desk.look_closer()
    desk.known(calibration.floor)
    return calibration.affine or wishes.family == "attention"


def _heads(desk: Desk) -> Iterator[Family]:
    """A layer of heads: as the wishes ask, by statistics, or first as one head and then as several."""
    wishes = desk.wishes
    if wishes.max_norm is None and desk.calibration is not None and desk.calibration.clip_norm is not None:
        desk.clip = 0.9 * desk.calibration.clip_norm
    if wishes.tolerance is not None:
        desk.known(Floor(kind="noisy", relative=0.0, absolute=wishes.tolerance, given=True))
        if wishes.grid is None:
            yield VOUCHED_HEAD
            if desk.max_norm is not None:
                return
    if wishes.grid is not None:
        yield GRID_HEAD
        return
    if desk.precision.needs_statistics(desk.max_norm):
        yield NOISY_HEAD
        return
    several = desk.first_look().cancelled or desk.record(plainly_several(desk)) is False
    if wishes.heads == 1 or (wishes.heads is None and not several):
        yield ONE_HEAD
        if (yield from _after_one_head(desk)):
            return
    order = blind_to_order(desk)
    if desk.record(order) is False:
        desk.outcomes.append(Outcome(refusal=NotInFamilyError(order.sentence, evidence={"order_deviation": order.number})))
    else:
        yield SEVERAL_HEADS
    yield from _after_several(desk, several)


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


def _after_one_head(desk: Desk) -> Generator[Family, None, bool]:
    """Do what one head's failure says; returns whether all is said, so that several heads need not be tried."""
    one = desk.outcomes[-1]
    step = after_one_head(one, desk.wishes, desk.precision)
    if step is Step.NOISY:
        yield NOISY_HEAD
        return True
    if step is Step.CLOSER:
        long = desk.max_norm is None and desk.record(clipped(desk)) is not False  # long tokens are answered as short ones foretell
        if Sign.NO_MEAN not in one.signs and not (long and desk.precision.exact) and _coarser(desk):
            yield from _heads(desk)
            return True
        step = after_closer(one, desk.wishes)
    if step is Step.DIAGNOSE:
        told = _told(desk)
        if _stranger(told) and Sign.SATURATED in one.signs:  # several heads with biases do that too
            told = _told(desk)
        if _stranger(told):
            yield from _as_told(desk, told)
            return True
    return step is Step.STOP


def _after_several(desk: Desk, several: bool) -> Iterator[Family]:
    """Do what the failure of several heads says: another family, coarser answers, or the refusal as it stands."""
    last = desk.outcomes[-1]
    step = after_several(last, desk.wishes)
    told = _told(desk) if step is Step.DIAGNOSE else None
    if told is not None and _family(told) is not ONE_HEAD and Sign.ALMOST_ALIKE not in told.signs:
        yield from _as_told(desk, told)
        return
    untried = several and desk.wishes.heads is None and isinstance(last.refusal, NotInFamilyError)
    if untried and _coarser(desk):
        yield from _heads(desk)
        return
    merged = isinstance(last.refusal, NotIdentifiableError) and not SETTLED & set(last.signs)
    if merged and last.refusal is not None and any(Sign.ONE_HEAD in outcome.signs for outcome in desk.outcomes):
        words = f"One head does not explain fresh sequences, and several could not be told apart: {last.refusal}"
        reason = NotInFamilyError(words, model=last.refusal.model, evidence=last.refusal.evidence)
        desk.outcomes.append(Outcome(refusal=reason))


def _coarser(desk: Desk) -> bool:
    """Heads do not fit: are tokens clipped, or answers coarser than they seemed? Looked for once; 30 queries."""
    if desk.calibration is not None:
        return False
    before, calibration = desk.precision, desk.look_closer()
    desk.precision = calibration.floor
    limit = desk.max_norm if calibration.clip_norm is None else calibration.clip_norm
    if calibration.affine and (calibration.clip_norm is not None or desk.precision.needs_statistics(limit)):
        return True
    desk.precision = before
    return False


def _told(desk: Desk) -> Diagnosis:
    return diagnose_oracle(desk, rng=desk.rng, max_norm=desk.max_norm, look=desk.look)


def _family(told: Diagnosis) -> Family | None:
    """The family that the tests tell, of attention the one for one head; None outside."""
    return named(told.family) if told.inside else None


def _stranger(told: Diagnosis) -> bool:
    """Whether a target is told, for certain, to be other than a layer of heads, or of heads almost alike."""
    return _family(told) is not ONE_HEAD and not {Sign.UNDECIDED, Sign.ALMOST_ALIKE} & set(told.signs)


def _as_told(desk: Desk, told: Diagnosis) -> Iterator[Family]:
    """The target is neither one head nor a layer of heads: go by what the family tests say it is."""
    desk.notes.append(told.reason)
    last = desk.outcomes[-1].refusal
    family = _family(told)
    if family is None:
        evidence = {**(last.evidence if last else {}), "diagnosis": told.family}
        reason = NotInFamilyError(f"{told.reason} ({last})", evidence=evidence, signs=(Sign.DIAGNOSED, *told.signs))
        desk.outcomes.append(Outcome(refusal=reason))
        return
    if family is not ONE_HEAD:
        desk.known(told.floor)
    yield from _network(desk, family)


def _bent(desk: Desk) -> Iterator[Family]:
    """Targets whose one-token answers are not affine."""
    wished = desk.wishes.family
    if not desk.wishes.auto:
        if any(Sign.SHARP not in outcome.signs for outcome in desk.outcomes if outcome.refusal is not None):
            return  # its kin looked closely, and saw no ReLU network
        desk.known(desk.first_look().grid)
        yield from _network(desk, named(wished))
        return
    quick = quick_look(desk)
    desk.facts.extend(quick.facts)
    if quick.noise is not None and desk.look is not None:  # the diagnosis need not measure that again
        desk.look = replace(desk.look, floor=Floor(relative=max(Floor().relative, quick.noise)))
    if quick.holds and quick.precision is not None:
        desk.known(quick.precision)
        yield RELU_TRANSFORMER if quick.listens else RELU_NETWORK
    told = _told(desk)
    desk.notes.append(told.reason)
    desk.known(told.floor)
    if Sign.UNDECIDED in told.signs and desk.precision.single:  # the learner knows the network before it judges the head
        yield RELU_TRANSFORMER
        desk.notes.append(str(desk.outcomes[-1].refusal))
    family = _family(told)
    if Sign.RESIDUAL_OPEN in told.signs:
        refusal = NotInFamilyError(told.reason, evidence={"diagnosis": told.family}, signs=told.signs)
        desk.outcomes.append(Outcome(refusal=refusal))
        yield from _unknown_network(desk, refusal)
    elif family is None:
        before = [str(outcome.refusal) for outcome in desk.outcomes if outcome.refusal is not None]
        words = f"{told.reason} ({before[-1]})" if before else told.reason
        reason = NotInFamilyError(words, evidence={"diagnosis": told.family}, signs=(Sign.DIAGNOSED, *told.signs))
        desk.outcomes.append(Outcome(refusal=reason))
    elif family is ONE_HEAD:
        yield from _heads(desk)
    else:
        yield from _network(desk, family)


def _network(desk: Desk, family: Family) -> Iterator[Family]:
    """A family with a network; where that cannot be learned whole, the attention before it alone."""
    yield family
    refusal = desk.outcomes[-1].refusal
    settled = Sign.NETWORK_KNOWN in desk.outcomes[-1].signs and desk.precision.exact
    if family is not RELU_TRANSFORMER or not desk.wishes.auto or settled:
        return
    if isinstance(refusal, NotInFamilyError | TooNoisyError):
        desk.notes.append(str(refusal))
        yield from _unknown_network(desk, refusal)


def _unknown_network(desk: Desk, refusal: RefusalError) -> Iterator[Family]:
    """The network was refused, or not learned at all: the attention in front of it alone, which any network shows."""
    yield BEHIND_NETWORK
    other = desk.outcomes[-1].refusal
    if other is not None:
        both = type(refusal)(
            f"{refusal} Nor could the attention be read without knowing the network: {other}",
            evidence={**other.evidence, **refusal.evidence},
            signs=refusal.signs,
        )
        desk.outcomes.append(Outcome(refusal=both))
