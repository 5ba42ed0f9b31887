"""Which family next: one loop over what is known about a target, cheapest first."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

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
from unsoftmax.precision.law import Floor
from unsoftmax.recognition.diagnosis import RESIDUAL, Diagnosis, diagnose_oracle
from unsoftmax.recognition.heads_or_not import blind_to_order, clipped, plainly_several
from unsoftmax.recognition.quick_relu import quick_look
from unsoftmax.results import Outcome

NEARLY = 2.0**24  # what a fit of heads may miss by, in units of what rounding explains; other targets miss by 1e10 or so
BENT = 0.01  # of the answers' size: no rounding or noise of steady float64 answers bends them so far
BENT_SINGLE = 0.05  # the same for float32 numbers, among which those of half precision are: four of them miss by 0.016 at most
COMPUTED = 4.0  # numbers inside a float32 target may be that much larger than its answers
VOUCHED = 4 * (1 + 2.0**-30)  # answers in the first look's test of straightness, each within the tolerance vouched for


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
    vouched = wishes.tolerance is not None and look.bend * look.size <= VOUCHED * wishes.tolerance
    if not look.floor.unclear or vouched:
        return True
    rounded = look.grid.step is not None and look.bend * look.size <= 2 * look.grid.step and look.repeats
    if rounded and wishes.max_norm is None:  # plainly rounded: long tokens beat that without further questions
        desk.known(look.grid)
        return True
    if wishes.family == "auto" and look.bend > BENT and look.steady and look.grid.exact:
        return False
    if wishes.family == "auto" and look.bend > BENT_SINGLE and look.calm and look.grid.single:
        desk.known(replace(look.grid, relative=COMPUTED * look.grid.relative))
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


def _after_one_head(desk: Desk) -> Generator[Family, None, bool]:
    """What one head's failure says; returns whether all is said, so that several heads need not be tried."""
    one = desk.outcomes[-1]
    if (
        Sign.ONE_HEAD in one.signs and desk.wishes.family == "auto"
    ):  # copies of keys counted as copies: one softmax, of other scores
        told = _told(desk)
        if _stranger(told):
            yield from _as_told(desk, told)
            return True
        return False
    if one.learned is not None or not isinstance(one.refusal, NotInFamilyError):
        return Sign.ONE_HEAD not in one.signs
    if desk.precision.random:  # long tokens beat the noise only without a query bias
        yield NOISY_HEAD
        return True
    long = desk.max_norm is None and desk.record(clipped(desk)) is not False  # answers to long tokens are as short ones foretell
    if Sign.NO_MEAN not in one.signs and not (long and desk.precision.exact) and _coarser(desk):
        yield from _heads(desk)
        return True
    if desk.wishes.heads == 1:
        return True
    if desk.wishes.family == "auto" and not {Sign.OFF_COPIES, Sign.NO_MEAN} & set(one.signs):  # stranger than several heads
        told = _told(desk)
        if _stranger(told) and Sign.SATURATED in one.signs:  # several heads with biases do that too
            told = _told(desk)
        if _stranger(told):
            yield from _as_told(desk, told)
            return True
    return False


def _after_several(desk: Desk, several: bool) -> Iterator[Family]:
    """What the failure of several heads says: another family, coarser answers, or the refusal as it stands."""
    refusal = desk.outcomes[-1].refusal
    plain = isinstance(refusal, NotInFamilyError | NotIdentifiableError)
    settled = {Sign.POORLY_KNOWN, Sign.TOO_MANY, Sign.ALMOST_ALIKE} & set(desk.outcomes[-1].signs)
    told = None if not plain or settled or desk.wishes.family != "auto" else _told(desk)
    if told is not None and told.family != "attention" and not _nearly_heads(told):
        yield from _as_told(desk, told)
        return
    untried = several and desk.wishes.heads is None and isinstance(refusal, NotInFamilyError)
    if untried and _coarser(desk):
        yield from _heads(desk)
    elif not settled and isinstance(refusal, NotIdentifiableError) and any(Sign.ONE_HEAD in o.signs for o in desk.outcomes):
        words = f"One head does not explain fresh sequences, and several could not be told apart: {refusal}"
        desk.outcomes.append(Outcome(refusal=NotInFamilyError(words, model=refusal.model, evidence=refusal.evidence)))


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


def _stranger(told: Diagnosis) -> bool:
    """Whether a target is told to be other than a layer of heads."""
    return told.family != "attention" and "inconclusive" not in told.family and not _nearly_heads(told)


def _nearly_heads(told: Diagnosis) -> bool:
    """Whether a few heads explain the answers almost, but not quite, to rounding: the fit of heads almost alike ends there."""
    return any(fact.test == "heads fit" and not fact.passed and fact.number <= NEARLY for fact in told.evidence)


def _as_told(desk: Desk, told: Diagnosis) -> Iterator[Family]:
    """The target is neither one head nor a layer of heads: go by what the family tests say it is."""
    desk.notes.append(told.reason)
    last = desk.outcomes[-1].refusal
    if not told.inside:
        evidence = {**(last.evidence if last else {}), "diagnosis": told.family}
        reason = NotInFamilyError(f"{told.reason} ({last})", evidence=evidence, signs=(Sign.DIAGNOSED,))
        desk.outcomes.append(Outcome(refusal=reason))
        return
    if told.family != "attention":
        desk.known(told.floor)
    yield from _network(desk, named(told.family))


def _bent(desk: Desk) -> Iterator[Family]:
    """Targets whose one-token answers are not affine."""
    wished = desk.wishes.family
    if wished != "auto":
        refusals = [outcome.refusal for outcome in desk.outcomes if outcome.refusal is not None]
        if any("corner" not in refusal.evidence for refusal in refusals):  # its kin looked closely, and saw no ReLU network
            return
        desk.known(desk.first_look().grid)
        yield from _network(desk, named(wished))
        return
    quick = quick_look(desk)
    desk.facts.extend(quick.facts)
    if quick.facts[0].passed and desk.look is not None:  # the diagnosis need not measure that again
        desk.look = replace(desk.look, floor=Floor(relative=max(Floor().relative, quick.facts[0].number)))
    if quick.holds and quick.precision is not None:
        desk.known(quick.precision)
        yield RELU_TRANSFORMER if quick.listens else RELU_NETWORK
    told = _told(desk)
    desk.notes.append(told.reason)
    desk.known(told.floor)
    if "inconclusive" in told.family and desk.precision.single:  # the learner knows the network before it judges the head
        yield RELU_TRANSFORMER
        desk.notes.append(str(desk.outcomes[-1].refusal))
    if told.family == RESIDUAL:
        refusal = NotInFamilyError(told.reason, evidence={"diagnosis": told.family})
        desk.outcomes.append(Outcome(refusal=refusal))
        yield from _unknown_network(desk, refusal)
    elif not told.inside:
        said = [str(outcome.refusal) for outcome in desk.outcomes if outcome.refusal is not None]
        words = f"{told.reason} ({said[-1]})" if said else told.reason
        reason = NotInFamilyError(words, evidence={"diagnosis": told.family}, signs=(Sign.DIAGNOSED,))
        desk.outcomes.append(Outcome(refusal=reason))
    elif told.family == "attention":
        yield from _heads(desk)
    else:
        yield from _network(desk, named(told.family))


def _network(desk: Desk, family: Family) -> Iterator[Family]:
    """A family with a network; where that cannot be learned whole, the attention before it alone."""
    yield family
    refusal = desk.outcomes[-1].refusal
    settled = Sign.NETWORK_KNOWN in desk.outcomes[-1].signs and desk.precision.exact
    if family is not RELU_TRANSFORMER or desk.wishes.family != "auto" or settled:
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
        )
        desk.outcomes.append(Outcome(refusal=both))
