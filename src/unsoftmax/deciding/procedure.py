"""From the first answers to a family that explains them all: the walk that ``recover`` and ``diagnose`` share; it asks nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from unsoftmax.deciding.choices import (
    SETTLED,
    Step,
    after_closer,
    after_one_head,
    after_several,
    family_told,
    first_reading,
    of_some_models,
    refused,
    stranger,
    undecided,
)
from unsoftmax.desk import Desk
from unsoftmax.errors import InconclusiveError, NotIdentifiableError, NotInFamilyError, RefusalError, Sign, TooNoisyError
from unsoftmax.families import by_law, fact_of, named, settled
from unsoftmax.families.attention import (
    FIXED_HEAD,
    GRID_HEAD,
    NOISY_HEAD,
    ONE_HEAD,
    SEVERAL_HEADS,
    TOKENS_HEAD,
    VOUCHED_HEAD,
)
from unsoftmax.families.base import Family, Test
from unsoftmax.families.networks import BEHIND_NETWORK, RELU_NETWORK, RELU_TRANSFORMER
from unsoftmax.precision.first_look import FirstLook
from unsoftmax.precision.law import Floor
from unsoftmax.recognition import standing
from unsoftmax.recognition.case import outside
from unsoftmax.recognition.decide import by_tests
from unsoftmax.recognition.diagnosis import Diagnosis, Findings, diagnosis_of
from unsoftmax.recognition.heads_or_not import blind_to_order, chooses, clipped, plainly_several
from unsoftmax.recognition.quick_relu import quick_look
from unsoftmax.recognition.reach import cut
from unsoftmax.recognition.walk import Walk, of_case, of_desk
from unsoftmax.results import Fact, Outcome
from unsoftmax.wishes import Wishes

Ending = RefusalError | None  # why no family explains the answers; None where nobody said


@dataclass(frozen=True, slots=True)
class Try:
    """A family that is not excluded, to be learned next, or named."""

    family: Family


@dataclass
class Decision:
    """From the first answers to a family that explains them all, or to the reason why none does.

    ``whole()`` is a walk: it yields a test to make, or a family to ``Try``, and goes on with what that found. With ``learners`` a
    cheap learner stands in for the tests of its family, which are made after it failed; without, the tests decide, and the first
    family that they leave is the answer.

    Attributes:
        wishes: what the caller asked for.
        width: of a token.
        table: the target takes known tokens only.
        learners: whether what is tried is also learned.
        tried: what became of the families that were.
        told: what the family tests said last.
        doubt: what could not be told of a family whose law holds.
    """

    wishes: Wishes
    width: int
    table: bool = False
    learners: bool = True
    tried: list[Outcome] = field(default_factory=list)
    told: Diagnosis | None = None
    doubt: Fact | None = None

    def whole(self) -> Walk[Ending]:
        """The whole procedure."""
        if self.learners and (self.table or not self.wishes.adaptive):
            one = (yield from self._try(TOKENS_HEAD if self.table else FIXED_HEAD)).refusal
            return one if self.table else of_some_models(one)
        look = None if self.table else (yield from of_desk(standing.looked, strict=self.learners))
        if isinstance(look, str):
            return (yield from self._as_changed(look))
        if look is None:  # it takes other tokens, or sequences of another length: the tests tell
            return (yield from self._as_tested())
        for family in by_law(self.wishes.family, self.width):
            if (yield from self._failing(family.law)) is not None:
                continue
            unproved = None if self.learners else (yield from self._failing(family.confirmed_by))
            if unproved is not None:
                self.doubt = unproved if unproved.passed is None else self.doubt
                continue
            outcome = yield from self._try(family)
            if family.decisive:
                return outcome.refusal
        if not self.learners:
            return (yield from self._as_tested())
        certain = yield from of_desk(settled)
        if certain is not None:
            return certain
        return (yield from (self._heads(look) if (yield from self._straight(look)) else self._bent(look)))

    def _try(self, family: Family) -> Walk[Outcome]:
        outcome: Outcome = yield Try(family)
        self.tried.append(outcome)
        return outcome

    def _failing(self, tests: tuple[Test, ...]) -> Walk[Fact | None]:
        """The first of some statements that does not hold, the last that is asked; None where all hold."""
        for test in tests:
            fact = yield from of_desk(fact_of, test)
            if fact.passed is not True:
                return fact
        return None

    def _tests(self, look: FirstLook | None, *, not_one: bool = False, deep: bool = False) -> Walk[Diagnosis]:
        """What the family tests tell, with what is known already, see ``by_tests``."""
        yield from of_desk(standing.opened, alone=not self.learners)
        self.told = told = yield from by_tests(look, not_one=not_one, deep=deep)
        yield from of_desk(standing.kept, told)
        return told

    def _told(self, look: FirstLook) -> Walk[Diagnosis]:
        """The same, asked again only where the tests could not decide."""
        if self.told is not None and (Sign.UNDECIDED not in self.told.signs or Sign.ALMOST_ALIKE in self.told.signs):
            return self.told
        return (yield from self._tests(look))

    def _as_tested(self) -> Walk[Ending]:
        told = yield from self._tests(None)
        if self.doubt is not None and not told.inside:
            told = undecided(told, self.doubt)
            yield from of_desk(standing.kept, told)
        family = family_told(told)
        if family is not None:
            yield from self._try(family)
        return refused(told, told.reason, {})

    def _as_changed(self, words: str) -> Walk[Ending]:
        yield from of_desk(standing.opened, alone=True)
        verdict = outside("changed while asked", words, Sign.CHANGED)
        self.told = yield from of_case(diagnosis_of, verdict, Findings())
        yield from of_desk(standing.kept, self.told)
        return refused(self.told, words, {})

    def _straight(self, look: FirstLook) -> Walk[bool]:
        """Whether one-token answers are affine; a closer look where they may merely be coarse."""
        straight, law = first_reading(look, self.wishes)
        if law is not None:
            yield from of_desk(standing.known, law)
        if straight is not None:
            return straight
        calibration = yield from of_desk(standing.closer)
        return calibration.affine or not self.wishes.auto

    def _heads(self, look: FirstLook) -> Walk[Ending]:
        """A layer of heads: as the wishes ask, by statistics, or first as one head and then as several."""
        wishes = self.wishes
        yield from of_desk(standing.bounded)
        if wishes.tolerance is not None:
            yield from of_desk(standing.known, Floor(kind="noisy", relative=0.0, absolute=wishes.tolerance, given=True))
        now = yield from of_desk(standing.standing)
        vouched = None
        if wishes.tolerance is not None and wishes.grid is None:
            vouched = yield from self._try(VOUCHED_HEAD)
            if now.max_norm is not None or Sign.QUERY_BIAS in vouched.signs:
                return of_some_models(vouched.refusal)
        if wishes.grid is not None:
            return of_some_models((yield from self._try(GRID_HEAD)).refusal)
        if now.precision.needs_statistics(now.max_norm):
            return (yield from self._try(NOISY_HEAD)).refusal
        several = look.cancelled or (yield from self._fact(plainly_several)).passed is False
        if wishes.heads == 1 or (wishes.heads is None and not several):
            one = vouched or (yield from self._try(ONE_HEAD))  # within a tolerance one head is certified, or is none
            step, ending = yield from self._after_one_head(one, look)
            if step is Step.STOP:
                return ending
        order = yield from self._fact(blind_to_order)
        if order.passed is False:
            last = Outcome(refusal=NotInFamilyError(order.sentence, evidence={"order_deviation": order.number}))
            return (yield from self._after_several(last, look, several))
        choice = yield from self._fact(chooses)
        if choice.passed is False and wishes.auto:
            told = yield from self._told(look)
            other = NotInFamilyError(choice.sentence)
            if family_told(told) is not ONE_HEAD:
                return (yield from self._as_told(told, other))
            if any(Sign.ONE_HEAD in outcome.signs for outcome in self.tried):  # scores are as large as heads need to choose
                return refused(told, f"One head does not explain fresh sequences. {other}", {})
        last = yield from self._try(SEVERAL_HEADS)
        return (yield from self._after_several(last, look, several))

    def _fact(self, test: Callable[[Desk], Fact]) -> Walk[Fact]:
        fact = yield from of_desk(test)
        yield from of_desk(standing.recorded, fact)
        return fact

    def _after_one_head(self, one: Outcome, look: FirstLook) -> Walk[tuple[Step, Ending]]:
        """Do what one head's failure says; SEVERAL is left to do, or nothing, with the reason."""
        now = yield from of_desk(standing.standing)
        step = after_one_head(one, self.wishes, now.precision)
        if step is Step.NOISY:
            return Step.STOP, (yield from self._try(NOISY_HEAD)).refusal
        if step is Step.CLOSER:
            # long tokens are answered as short ones foretell
            long = now.max_norm is None and (yield from self._fact(clipped)).passed is not False
            if Sign.NO_MEAN not in one.signs and not (long and now.precision.exact) and (yield from of_desk(standing.coarser)):
                return Step.STOP, (yield from self._heads(look))
            step = after_closer(one, self.wishes)
        if step is not Step.STOP and now.precision.exact and now.max_norm is None and (yield from of_desk(cut)):
            return Step.STOP, (yield from self._heads(look))
        if step is Step.DIAGNOSE:
            told = yield from self._tests(look, not_one=Sign.ONE_HEAD in one.signs)
            if stranger(told) and not told.inside and Sign.SATURATED in one.signs:  # several heads with biases do that too
                told = yield from self._tests(look)
            if stranger(told):
                return Step.STOP, (yield from self._as_told(told, one.refusal))
        return (Step.STOP, one.refusal) if step is Step.STOP else (Step.SEVERAL, None)

    def _after_several(self, last: Outcome, look: FirstLook, several: bool) -> Walk[Ending]:
        """Do what the failure of several heads says: shorter tokens, another family, coarser answers, or it stands."""
        untried = several and self.wishes.heads is None and isinstance(last.refusal, NotInFamilyError)
        if after_several(last, self.wishes) is Step.DIAGNOSE:
            told = yield from self._told(look)
            if Sign.CUT in told.signs and (yield from of_desk(cut)):
                return (yield from self._heads(look))
            if family_told(told) is not ONE_HEAD and Sign.ALMOST_ALIKE not in told.signs:
                return (yield from self._as_told(told, last.refusal))
        if untried and (yield from of_desk(standing.coarser)):
            return (yield from self._heads(look))
        merged = isinstance(last.refusal, NotIdentifiableError) and not SETTLED & set(last.signs)
        if merged and last.refusal is not None and any(Sign.ONE_HEAD in outcome.signs for outcome in self.tried):
            words = f"One head does not explain fresh sequences, and several could not be told apart: {last.refusal}"
            return NotInFamilyError(words, model=last.refusal.model, evidence=last.refusal.evidence)
        return last.refusal

    def _as_told(self, told: Diagnosis, last: Ending) -> Walk[Ending]:
        """The target is neither one head nor a layer of heads: go by what the family tests say it is."""
        yield from of_desk(standing.noted, told.reason)
        family = family_told(told)
        if family is None:
            return refused(told, f"{told.reason} ({last})", last.evidence if last else {})
        if family is not ONE_HEAD:
            yield from of_desk(standing.known, told.floor)
        return (yield from self._network(family))

    def _bent(self, look: FirstLook) -> Walk[Ending]:
        """Targets whose one-token answers are not affine."""
        refusals = [outcome.refusal for outcome in self.tried if outcome.refusal is not None]
        if not self.wishes.auto:
            if any(Sign.SHARP not in refusal.signs for refusal in refusals):
                return refusals[-1]  # its kin looked closely, and saw no ReLU network
            yield from of_desk(standing.known, look.grid)
            return (yield from self._network(named(self.wishes.family)))
        quick = yield from of_desk(quick_look)
        yield from of_desk(standing.recorded, *quick.facts)
        if quick.noise is not None:
            look = yield from of_desk(standing.sharpened, quick.noise)
        if quick.holds and quick.precision is not None:
            yield from of_desk(standing.known, quick.precision)
            yield from self._try(RELU_TRANSFORMER if quick.listens else RELU_NETWORK)
        told = yield from self._tests(look, deep=quick.deep)
        yield from of_desk(standing.noted, told.reason)
        yield from of_desk(standing.known, told.floor)
        if (
            Sign.UNDECIDED in told.signs and Sign.DEAF not in told.signs and told.floor.single
        ):  # the learner knows the network before it judges the head
            unsure = yield from self._try(RELU_TRANSFORMER)
            yield from of_desk(standing.noted, str(unsure.refusal))
        family = family_told(told)
        if Sign.RESIDUAL_OPEN in told.signs:
            refusal = InconclusiveError(told.reason, evidence={"diagnosis": told.family}, signs=told.signs)
            return (yield from self._unknown_network(refusal))
        if family is None:
            before = [str(outcome.refusal) for outcome in self.tried if outcome.refusal is not None]
            words = f"{told.reason} ({before[-1]})" if before else told.reason
            return refused(told, words, {})
        return (yield from (self._heads(look) if family is ONE_HEAD else self._network(family)))

    def _network(self, family: Family) -> Walk[Ending]:
        """A family with a network; where that cannot be learned whole, the attention before it alone."""
        outcome = yield from self._try(family)
        now = yield from of_desk(standing.standing)
        last_word = Sign.NETWORK_KNOWN in outcome.signs and now.precision.exact
        misfit = isinstance(outcome.refusal, NotInFamilyError | TooNoisyError)
        if family is not RELU_TRANSFORMER or not self.wishes.auto or last_word or not misfit or outcome.refusal is None:
            return outcome.refusal
        yield from of_desk(standing.noted, str(outcome.refusal))
        return (yield from self._unknown_network(outcome.refusal))

    def _unknown_network(self, refusal: RefusalError) -> Walk[Ending]:
        """The network was refused, or not learned at all: the attention in front of it alone, which any network shows."""
        other = (yield from self._try(BEHIND_NETWORK)).refusal
        if other is None:
            return refusal
        words = f"{refusal} Nor could the attention be read without knowing the network: {other}"
        left_open = isinstance(refusal, InconclusiveError)  # what was left open is excluded by that
        kind = NotInFamilyError if left_open and isinstance(other, NotInFamilyError) else type(refusal)
        return kind(words, evidence={**other.evidence, **refusal.evidence}, signs=refusal.signs)
