"""What comes after a learner's failure is decided on signs alone: pure functions, nothing is asked."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from unsoftmax.candidates import refusal_of
from unsoftmax.deciding.choices import SETTLED, Step, after_closer, after_one_head, after_several
from unsoftmax.desk import Desk
from unsoftmax.errors import BudgetExceededError, NotIdentifiableError, NotInFamilyError, Sign, TooNoisyError, tried
from unsoftmax.oracles import CallableOracle
from unsoftmax.results import Floor, Learned, Outcome
from unsoftmax.wishes import Wishes

MODEL = us.Attention.single([[1.0]], [1.0])
signs = st.lists(st.sampled_from(Sign), max_size=4, unique=True).map(tuple)
refusals = st.builds(
    lambda kind, signs: kind("why", signs=signs), st.sampled_from([NotInFamilyError, NotIdentifiableError, TooNoisyError]), signs
)
wishes = st.builds(Wishes, family=st.sampled_from(["auto", "attention"]), heads=st.sampled_from([None, 1, 2]))
floors = st.sampled_from([Floor(), Floor(kind="noisy", absolute=1e-3), Floor(kind="float32", relative=1e-7)])


@given(refusal=refusals, wish=wishes, floor=floors)
def test_no_word_of_a_refusal_matters(refusal, wish, floor):
    other = type(refusal)("other words", signs=refusal.signs, evidence={"corner": 1.0, "diagnosis": "scores", "found": "bias"})
    for decide in (lambda o: after_one_head(o, wish, floor), lambda o: after_closer(o, wish), lambda o: after_several(o, wish)):
        assert decide(Outcome(refusal=refusal)) is decide(Outcome(refusal=other))


@given(refusal=refusals, wish=wishes, floor=floors)
def test_a_named_family_is_never_diagnosed_away(refusal, wish, floor):
    steps = {after_one_head(Outcome(refusal=refusal), wish, floor), after_closer(Outcome(refusal=refusal), wish)}
    assert wish.auto or Step.DIAGNOSE not in steps


@given(refusal=refusals, wish=wishes, floor=floors)
def test_a_refusal_that_is_no_misfit_stands(refusal, wish, floor):
    if not isinstance(refusal, NotInFamilyError) and Sign.ONE_HEAD not in refusal.signs:
        assert after_one_head(Outcome(refusal=refusal), wish, floor) is Step.STOP


@given(refusal=refusals, wish=wishes)
def test_noise_sends_to_statistics(refusal, wish):
    noisy = after_one_head(Outcome(refusal=refusal), wish, Floor(kind="noisy", absolute=1e-3))
    misfit = isinstance(refusal, NotInFamilyError) and not (Sign.ONE_HEAD in refusal.signs and wish.auto)
    assert (noisy is Step.NOISY) == misfit


def test_one_head_that_explains_no_other_answers_leads_to_several_or_to_the_tests():
    found = Outcome(
        learned=Learned(model=MODEL, ambiguity=""), refusal=NotInFamilyError("not these", model=MODEL, signs=(Sign.ONE_HEAD,))
    )
    assert after_one_head(found, Wishes(), Floor()) is Step.DIAGNOSE
    assert after_one_head(found, Wishes(family="attention"), Floor()) is Step.SEVERAL


@pytest.mark.parametrize("sign", [Sign.OFF_COPIES, Sign.NO_MEAN])
def test_what_several_heads_do_as_well_is_tried_with_several(sign):
    outcome = Outcome(refusal=NotInFamilyError("off", signs=(sign,)))
    assert after_closer(outcome, Wishes()) is Step.SEVERAL
    assert after_closer(Outcome(refusal=NotInFamilyError("off")), Wishes()) is Step.DIAGNOSE
    assert after_closer(outcome, Wishes(heads=1)) is Step.STOP


@given(refusal=refusals, wish=wishes)
def test_heads_that_are_there_are_not_looked_for_in_other_families(refusal, wish):
    if SETTLED & set(refusal.signs):
        assert after_several(Outcome(refusal=refusal), wish) is Step.STOP


def test_the_last_reason_is_the_one_reported():
    desk = Desk(CallableOracle(MODEL), Wishes(seed=0))
    assert isinstance(refusal_of(desk), NotInFamilyError)
    for kind in (TooNoisyError, NotIdentifiableError):
        desk.outcomes.append(Outcome(refusal=kind(kind.__name__)))
    desk.outcomes.append(Outcome(learned=Learned(model=MODEL, ambiguity="")))
    assert str(refusal_of(desk)) == "NotIdentifiableError"


def test_a_step_that_refuses_is_a_value_and_others_are_not_caught():
    def spent():
        raise BudgetExceededError("spent")

    kinds = (NotInFamilyError, NotIdentifiableError, TooNoisyError, BudgetExceededError)
    for caught in itertools.combinations(kinds, 2):
        if BudgetExceededError in caught:
            assert isinstance(tried(spent, *caught), BudgetExceededError)
        else:
            with pytest.raises(BudgetExceededError):
                tried(spent, *caught)


@given(signs=signs)
def test_outcomes_carry_the_signs_of_their_refusal(signs):
    assert Outcome(refusal=NotInFamilyError("why", signs=signs)).signs == signs
    assert Outcome(learned=Learned(model=MODEL, ambiguity="")).signs == ()
    assert not Outcome(learned=Learned(model=MODEL, ambiguity=""), refusal=NotInFamilyError("why")).explains
