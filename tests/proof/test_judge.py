"""Judging fresh answers is a pure function of numbers: tolerances follow the law of the answers, refusals say why."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import seeds

import unsoftmax as us
from unsoftmax.errors import DriftingError, InconclusiveError, NotIdentifiableError, NotInFamilyError, TooNoisyError
from unsoftmax.oracles import CallableOracle
from unsoftmax.proof import refusals
from unsoftmax.proof.compare import Compared
from unsoftmax.proof.doubts import beside_ties, doubts, faintest_output, moved, scores_in_doubt
from unsoftmax.proof.drawn import plain
from unsoftmax.proof.fresh import Fresh, afforded
from unsoftmax.proof.judge import carries_noise, checked, relative_errors, tolerance_of, unnoticed, varies
from unsoftmax.proof.limits import LIMITS
from unsoftmax.proof.noisy import NoisyCheck
from unsoftmax.results import Bounds, Check, Floor, Learned

D = 4


def layer(seed=0, heads=1):
    rng = np.random.default_rng(seed)
    return us.Attention(rng.normal(size=(heads, D, D)), rng.normal(size=(heads, D)))


def compared(seed=0, error=0.0, outputs=1, natural=10, sized=20):
    """Random answers, and predictions that miss them by ``error`` of their spread at one sequence of each kind."""
    rng = np.random.default_rng(seed)
    answers = rng.normal(size=(sized + natural, outputs))
    predicted = answers.copy()
    predicted[0, 0] += error
    if natural:
        predicted[-1, 0] += error
    batches = [Fresh(rng.normal(size=(sized, 3, D)))]
    if natural:
        batches.append(Fresh(rng.normal(size=(natural, 9, D)), natural=True))
    return Compared(answers, predicted, tuple(batches))


def learned(model=None, **settings):
    return Learned(model=model or layer(), ambiguity="", **settings)


@given(relative=st.floats(2.0**-52, 0.1), kind=st.sampled_from(["float32", "jittering", "digits", "rounded", "coarse"]))
def test_tolerances_follow_the_precision_of_the_answers_and_end_somewhere(relative, kind):
    tolerance = tolerance_of(Floor(kind=kind, relative=relative), network=False)
    assert LIMITS.exact <= tolerance <= LIMITS.loosest
    assert tolerance == pytest.approx(np.clip(LIMITS.coarse * relative, LIMITS.exact, LIMITS.loosest))


def test_exact_answers_are_held_to_the_contract():
    assert tolerance_of(Floor(), network=False) == 1e-8
    assert tolerance_of(Floor(relative=1e-9), network=True) > 1e-8


@given(noise=st.floats(0.0, 2.0), step=st.floats(0.01, 1.0), fresh=st.booleans())
def test_rounded_answers_hide_noise_of_about_their_step(noise, step, fresh):
    found = carries_noise(Floor(kind="rounded", step=step, absolute=step / 2, fresh=fresh), noise)
    assert found == (noise > LIMITS.hidden_noise * step and (fresh or noise <= step))
    assert not carries_noise(Floor(), noise)
    assert carries_noise(Floor(kind="noisy", absolute=0.1), noise) == (noise > 0)
    assert not carries_noise(Floor(kind="noisy", absolute=0.1, given=True), noise)


@given(seed=seeds, error=st.floats(0.0, 1.0), explained=st.floats(0.0, 1.0))
def test_errors_are_told_in_spreads_of_their_kind_less_what_is_explained(seed, error, explained):
    seen = compared(seed, error)
    errors, rest = relative_errors(seen), relative_errors(seen, explained)
    assert errors.all == max(errors.sized, errors.natural)
    assert errors.sized == pytest.approx(error / seen.answers[:20].std())
    assert rest.all <= errors.all
    assert explained < error or rest.all < 1e-12  # of adding and taking off again


@given(seed=seeds, constant=st.floats(0.0, 1e6))
def test_a_constant_in_the_answers_hides_no_error(seed, constant):
    seen = compared(seed, 0.3)
    shifted = Compared(seen.answers + constant, seen.predicted + constant, seen.batches)
    assert relative_errors(shifted).all == pytest.approx(relative_errors(seen).all, rel=1e-6)


@given(seed=seeds)
def test_answers_that_hardly_vary_prove_nothing(seed):
    seen = compared(seed)
    assert varies(seen, 2.0**-50)
    flat = Compared(1.0 + 1e-14 * seen.answers, 1.0 + 1e-14 * seen.predicted, seen.batches)
    assert not varies(flat, 2.0**-50)
    assert not varies(Compared(np.ones((30, 1)), np.ones((30, 1)), seen.batches), 2.0**-50)
    assert isinstance(refusals.hardly_varies(flat, learned()), NotIdentifiableError)


@given(count=st.integers(1, 10_000))
def test_more_sequences_leave_less_unnoticed(count):
    assert 0 < unnoticed(count + 1) < unnoticed(count) < 1
    assert (1 - unnoticed(count)) ** count == pytest.approx(0.01)


@given(seed=seeds, error=st.floats(1e-9, 1.0))
def test_a_check_tells_errors_by_length(seed, error):
    seen = compared(seed, error)
    check = checked(seen, "words")
    assert check.max_abs_error == pytest.approx(error)
    assert set(check.by_length) == {3, 9}
    assert max(check.by_length.values()) == check.relative_error
    assert checked(compared(seed, error, natural=0), "").natural_error is None


@given(seed=seeds, most=st.integers(1, 60))
def test_a_budget_shortens_the_check_and_leaves_sized_sequences_in(seed, most):
    rng = np.random.default_rng(seed)
    batches = [Fresh(rng.normal(size=(int(n), int(n) + 1, D)), natural=bool(n % 2)) for n in rng.integers(1, 9, size=8)]
    batches[0] = Fresh(batches[0].sequences)
    kept = afforded(batches, most, rng)
    assert sum(len(batch.sequences) for batch in kept) <= max(most, 1)
    assert any(not batch.natural for batch in kept)


@given(seed=seeds, faint=st.floats(1e-9, 1e-3), error=st.floats(0.01, 0.5))
def test_a_faint_output_is_judged_by_its_own_spread(seed, faint, error):
    seen = compared(seed, 0.0, outputs=3)
    answers, predicted = seen.answers.copy(), seen.predicted.copy()
    answers[:, 2] *= faint
    predicted[:, 2] = answers[:, 2]
    predicted[4, 2] += error * faint
    worst, output = faintest_output(Compared(answers, predicted, seen.batches))
    assert output == 2
    assert worst == pytest.approx(error / seen.answers[:20, 2].std(), rel=0.01)
    assert faintest_output(seen) == (0.0, -1)
    assert refusals.faint_output(output, worst, learned()).evidence == {"output": 2, "own_error": worst}


@given(seed=seeds, size=st.floats(1e-9, 1e-2))
def test_doubts_grow_with_what_is_not_known(seed, size):
    model, rng = layer(seed % 97), np.random.default_rng(seed)
    X = rng.normal(size=(20, 3, D))
    seen = Compared(model.answer(X), model.answer(X), (Fresh(X),))
    assert not moved(seen, model, model).any()
    assert doubts(seen, learned(model), rng) is None
    little, much = (doubts(seen, learned(model, known_to=known), np.random.default_rng(seed)) for known in (size, 10 * size))
    assert (little >= 0).all()
    assert much.max() > little.max()


@given(width=st.floats(0.0, 1e-3))
def test_scores_are_in_doubt_where_the_bars_exceed_what_exact_answers_allow(width):
    bounds = Bounds(kind="estimated", W=np.full((1, D, D), width))
    assert scores_in_doubt(learned(), bounds, LIMITS.exact) == (width * D > LIMITS.exact / 4)
    assert not scores_in_doubt(learned(), None, LIMITS.exact)
    assert scores_in_doubt(learned(known_to=1e-12), None, LIMITS.exact)


def test_ties_show_what_the_bars_leave_open():
    model, rng = layer(3), np.random.default_rng(0)
    narrow, wide = (Bounds(kind="estimated", W=np.full((1, D, D), width), V=np.zeros((1, D))) for width in (1e-10, 1e-3))
    small, large = (beside_ties(learned(model), bounds, rng, None, None) for bounds in (narrow, wide))
    assert small < 1e-6 < large
    assert beside_ties(learned(model), None, rng, None, None) == 0.0
    endless = replace(wide, W=np.full(np.shape(wide.W), np.inf))
    assert beside_ties(learned(model), endless, rng, None, None) == np.inf
    assert model.within(endless, rng) is None
    samples = rng.normal(size=(50, D))
    assert beside_ties(learned(model), wide, rng, samples, 0.5) < large  # short tokens have small scores
    assert isinstance(refusals.open_beside_ties(compared(), large, learned()), TooNoisyError)


def test_ties_are_judged_by_each_output_and_by_the_scores_alone():
    rng = np.random.default_rng(0)
    V = rng.normal(size=(1, D, 2))
    model, even = us.Attention(layer(3).W, V * [1.0, 1e-6]), us.Attention(layer(3).W, V)
    of_scores, of_values = (
        Bounds(kind="estimated", W=np.full((1, D, D), scores), V=np.full((1, D, 2), values))
        for scores, values in ((1e-6, 0.0), (0.0, 1e-6))
    )
    faint, loud = (beside_ties(learned(of), of_scores, np.random.default_rng(1), None, None) for of in (model, even))
    assert np.isclose(faint, loud)  # however faint an output is
    assert loud > 1e-7
    assert beside_ties(learned(model), of_values, rng, None, None) == 0.0  # every answer shows those, and a check meets them


@pytest.mark.parametrize("like", [None, "tensor"])
@pytest.mark.parametrize("outputs", [None, 2])
def test_a_share_of_all_scores_moves_answers_as_two_predictions_tell(like, outputs):
    rng = np.random.default_rng(0)
    W, V, c = rng.normal(size=(3, D, D)), rng.normal(size=(3, D) if outputs is None else (3, D, outputs)), rng.normal(size=(3, D))
    model = us.Attention(W, V, c, b=1e6 if outputs is None else [1e6, 0.0])
    place = pytest.importorskip("torch").tensor(W) if like else None
    told, small = (
        beside_ties(learned(model, known_to=known), None, np.random.default_rng(1), None, None, place) for known in (1e-3, 1e-30)
    )
    draws = np.random.default_rng(1)
    other = model.shaken(1e-3, draws)
    X = np.asarray(plain((LIMITS.ties, LIMITS.shared, D), draws, place))
    centre, other = (of.answer(X) for of in (model, other))
    assert told == pytest.approx(np.abs(other - centre).max() / centre.std(axis=0).max(), rel=1e-3)
    assert small == pytest.approx(1e-27 * told, rel=0.1)  # no difference of two answers would show that


@pytest.mark.parametrize("size", [1e-60, 1e60])
def test_numbers_that_four_bytes_do_not_hold_are_predicted_in_eight(size):
    model = layer(3, heads=2)
    large = us.Attention(model.W, size * np.asarray(model.V))
    told, usual = (beside_ties(learned(of, known_to=1e-6), None, np.random.default_rng(1), None, None) for of in (large, model))
    assert usual / 4 < told < 4 * usual
    hard = us.Attention(1e60 * model.W, model.V)  # one token takes all
    assert beside_ties(learned(hard, known_to=1e-6), None, np.random.default_rng(1), None, None) < 1e-3


@pytest.mark.parametrize(
    ("heads", "kind", "error", "status"),
    [
        (2, "exact", 1e-6, NotIdentifiableError),
        (2, "exact", 1e-2, NotInFamilyError),
        (2, "float32", 1e-3, TooNoisyError),
        (1, "exact", 1e-6, NotInFamilyError),
        (1, "float32", 1e-3, NotInFamilyError),
    ],
)
def test_a_mismatch_has_the_reason_that_fits(heads, kind, error, status):
    seen = compared(0, error)
    allowed = 1e-8 * seen.spreads[:, None]
    check = checked(seen, "")
    reason = refusals.mismatch(
        seen, check, learned(layer(0, heads)), Floor(kind=kind), heads=heads, asked=99, allowed=allowed, rank=None
    )
    assert type(reason) is status
    assert reason.model is not None
    assert ("99" in str(reason)) == (status is NotInFamilyError)


def test_what_else_may_explain_a_misfit_is_said():
    assert "rank=2" in refusals.or_else(1, Floor(), 2)
    assert "several heads" in refusals.or_else(1, Floor(kind="float32"), None)
    assert refusals.or_else(1, Floor(), None) == "The target is not a model of this family."


def test_a_question_that_is_answered_otherwise_when_asked_again_is_drift():
    model = layer(1)
    X = np.random.default_rng(0).normal(size=(20, 3, D))
    answers = model.answer(X)
    seen = Compared(answers + 0.5, answers, (Fresh(X),))
    assert isinstance(refusals.answered_otherwise(CallableOracle(model), seen, Floor(), learned(model)), DriftingError)
    assert refusals.answered_otherwise(CallableOracle(lambda Z: model(Z) + 0.5, width=D), seen, Floor(), learned(model)) is None


def test_answers_that_jitter_leave_a_faint_misfit_open_and_steady_ones_do_not():
    model, chance = layer(1), np.random.default_rng(2)
    X = np.random.default_rng(0).normal(size=(20, 3, D))
    seen = Compared(model.answer(X) * (1 + 1e-10), model.answer(X), (Fresh(X),))
    jittering = CallableOracle(lambda X: model(X) * (1 + 1e-10 + 1e-12 * chance.normal(size=len(X))), width=D)
    refusal = refusals.answered_otherwise(jittering, seen, Floor(), learned(model))
    assert isinstance(refusal, InconclusiveError)
    assert "when asked again" in str(refusal)
    steady = CallableOracle(lambda X: model(X) * (1 + 1e-10), width=D)
    assert refusals.answered_otherwise(steady, seen, Floor(), learned(model)) is None


@given(constant=st.floats(1e3, 1e12))
def test_a_large_constant_excuses_what_its_rounding_explains(constant):
    seen = compared(2, 0.5 * LIMITS.constant * constant)
    seen = Compared(seen.answers + constant, seen.predicted + constant, seen.batches)
    check = Check(sequences=30, max_abs_error=1.0, relative_error=0.1)
    reason = refusals.hidden_by_constant(seen, check, learned(ranks=(D,)), 1e-8)
    explained = relative_errors(seen).natural <= LIMITS.loosest
    assert (reason is not None) == explained


@given(slope=st.floats(-2.0, 3.0), error=st.floats(1e-3, 1.0), excess=st.floats(0.1, 3.0), missed=st.floats(0.0, 1.0))
def test_noise_is_judged_by_slope_excess_and_what_bars_alone_explain(slope, error, excess, missed):
    found = NoisyCheck(compared(), excess, slope, error, missed)
    reason = refusals.through_noise(found, checked(compared(), ""), learned(), noise=0.1, asked=50)
    if not found.agrees:
        assert isinstance(reason, NotInFamilyError)
        assert excess > 1 or abs(slope - 1) > 4 * error
    elif missed > LIMITS.half:
        assert isinstance(reason, TooNoisyError)
        assert "only its error bars explain" in str(reason)
    elif not found.conclusive:
        assert isinstance(reason, TooNoisyError)
        assert reason.evidence["queries"] > 0
    else:
        assert reason is None


def test_bounds_say_whether_they_are_certain():
    assert Bounds(kind="certified").certified
    assert not Bounds(kind="estimated").certified
