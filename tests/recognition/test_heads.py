"""Several heads along one line: the fit is right about its derivatives, finds the number of heads, and refuses other targets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recognition.targets import D, case_of, head, heads, passed, scores_of, weighted
from tests.strategies import seeds

import unsoftmax as us
from unsoftmax.models import Attention
from unsoftmax.recognition.heads import _amplification, _counts, _design, _full_jacobian, several_heads
from unsoftmax.recognition.heads_design import Design, peaks
from unsoftmax.recognition.heads_fit import _distinct, _place


def drawn(seed, count):
    rng = np.random.default_rng(seed)
    return _design(rng, 256), rng.normal(size=(count, 2)), rng


@given(seed=seeds, count=st.integers(1, 4))
def test_shares_are_means_of_steps_and_their_derivatives_are_right(seed, count):
    design, theta, _ = drawn(seed, count)
    mean, by_height, by_pace = design.shares(theta[:, 0], theta[:, 1])
    assert (mean >= design.steps.min(axis=1) - 1e-12).all()
    assert (mean <= design.steps.max(axis=1) + 1e-12).all()
    h = 1e-6
    np.testing.assert_allclose((design.shares(theta[:, 0] + h, theta[:, 1])[0] - mean) / h, by_height, atol=1e-3, rtol=1e-3)
    np.testing.assert_allclose((design.shares(theta[:, 0], theta[:, 1] + h)[0] - mean) / h, by_pace, atol=1e-3, rtol=1e-3)


def test_without_scores_every_copy_counts_the_same():
    design = Design(np.array([[1.0, 0.0]]), np.array([[1.0, 3.0]]), np.array([0.5]))
    assert design.shares(np.zeros(1), np.zeros(1))[0][0, 0] == 0.25
    assert design.shares(np.full(1, 50.0), np.zeros(1))[0][0, 0] == pytest.approx(1.0)


@settings(max_examples=25)
@given(seed=seeds, count=st.integers(1, 3), outputs=st.integers(1, 3))
def test_the_values_of_given_heads_are_solved_for(seed, count, outputs):
    design, theta, rng = drawn(seed, count)
    A = rng.normal(size=(count, outputs))
    Y = design.shares(theta[:, 0], theta[:, 1])[0].T @ A
    here = _place(design, Y, theta[None])
    assert np.abs(here.rest).max() < 1e-6 * np.abs(Y).max()
    assert here.cost[0] >= 0


@settings(max_examples=15)
@given(seed=seeds)
def test_the_jacobian_is_that_of_the_answers(seed):
    design, theta, rng = drawn(seed, 2)
    A = rng.normal(size=(2, 2))
    J = _full_jacobian(design, theta[:, 0], theta[:, 1], A)

    def answers(parameters):
        B, height, pace = parameters[:4].reshape(2, 2), parameters[4:6], parameters[6:]
        return design.shares(height, pace)[0].T @ B

    at = np.concatenate([A.ravel(), theta[:, 0], theta[:, 1]])
    for k in range(8):
        step = 1e-6 * np.eye(8)[k]
        np.testing.assert_allclose((answers(at + step) - answers(at - step)) / 2e-6, J[:, :, k], atol=1e-4)


@settings(max_examples=10)
@given(seed=seeds)
def test_errors_of_answers_in_the_fit_grow_by_what_is_said(seed):
    design, theta, rng = drawn(seed, 1)
    blur, of_sum = _amplification(design, theta[:, 0], theta[:, 1], rng.normal(size=(1, 1)) + 2.0)
    assert blur.shape == (len(design.t), 1)
    assert (blur[:44] <= 1 + 1e-6).all()  # a fitted answer is known no worse than it was measured
    assert of_sum > 0


@given(seed=seeds)
def test_peaks_come_highest_first_and_arepeaks(seed):
    values = np.random.default_rng(seed).normal(size=(9, 7))
    spots = peaks(values)
    heights = [values[a, b] for a, b in spots]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] == values.max()
    for a, b in spots:
        assert values[a, b] == values[max(0, a - 1) : a + 2, max(0, b - 1) : b + 2].max()


@given(seed=seeds, copies=st.integers(1, 4))
def test_the_same_heads_in_another_order_are_not_kept_twice(seed, copies):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(3, 2))
    again = np.array([theta[rng.permutation(3)] for _ in range(copies)])
    assert len(_distinct(again)) == 1
    assert len(_distinct(np.concatenate([again, again + 1.0]))) == 2


@given(seed=seeds, rank=st.integers(1, 5))
def test_vector_answers_tell_how_many_heads_are_worth_trying(seed, rank):
    rng = np.random.default_rng(seed)
    Y = rng.normal(size=(44, rank)) @ rng.normal(size=(rank, 7))
    assert _counts(Y, 1e-12)[0] == rank
    assert _counts(rng.normal(size=(44, 1)), 1e-12)[0] == 1


@pytest.mark.parametrize(("count", "outputs"), [(1, None), (2, None), (2, 3), (4, 4)])
def test_the_number_of_heads_is_found(count, outputs):
    found = 0
    for seed in range(2):
        case = case_of(heads(count, seed=seed, outputs=outputs), seed=seed)
        told = several_heads(case, 0.8)
        assert told.heads in (None, count)
        assert not told.residual
        found += told.heads == count
    assert found >= 1


def test_a_residual_beside_heads_shows():
    layer = heads(2, seed=1)
    skip = np.random.default_rng(3).normal(size=D)
    told = several_heads(case_of(lambda X: layer(X) + X[:, -1] @ skip), 0.8)
    assert told.heads is None or told.residual


def test_what_is_no_sum_of_heads_is_fitted_by_none():
    layer = head(seed=2)
    case = case_of(lambda X: weighted(3 * np.tanh(scores_of(layer, X) / 3), X) @ layer.V[0])
    found = several_heads(case, 1.5)
    assert found.heads is None  # the dearest refusal: every number of heads is tried
    assert passed(case, "heads fit") is False
    assert not found.nearly


@pytest.mark.parametrize("gap", [1e-6, 1e-4, 1e-3])
@pytest.mark.parametrize("outputs", [None, 3])
def test_heads_almost_alike_are_never_called_other_scores(gap, outputs):
    one, other = heads(1, seed=3, outputs=outputs), heads(2, seed=4, outputs=outputs)
    pair = Attention(one.W + gap * other.W, other.V)
    for seed in range(3):
        told = several_heads(case_of(pair, seed=seed), 0.8)
        assert told.heads in (1, 2) or told.nearly


@pytest.mark.parametrize("effect", [1e-8, 1e-7])
def test_what_heads_almost_alike_do_not_explain_is_no_layer_of_heads(effect):
    layer = head(seed=5)

    def bent(X):
        scores = scores_of(layer, X)
        return weighted(scores + effect * scores**2, X) @ layer.V[0]

    case = case_of(bent)
    told = several_heads(case, 0.8)
    assert told.heads is None
    assert not told.nearly
    fact = next(fact for fact in case.evidence if fact.test == "almost alike")
    assert fact.number > 100 * fact.threshold


@given(seed=seeds)
def test_shares_beside_a_head_hold_those_of_its_neighbours(seed):
    design, theta, _ = drawn(seed, 1)
    theta /= 4
    beside = design.beside(theta[:, 0], theta[:, 1])
    left = []
    for gap in (1e-2, 1e-3):
        near = theta[0] + gap * np.array([0.6, 0.8])
        Y = design.shares(near[:1], near[1:])[0][0]
        left.append(np.abs(Y - beside @ np.linalg.lstsq(beside, Y, rcond=None)[0]).max())
    assert left[1] <= 1e-3 * left[0] + 1e-13


@pytest.mark.parametrize("outputs", [None, 3])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_heads_whose_values_cancel_are_no_strangers(seed, outputs):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(1, 6, outputs) if outputs else (1, 6))
    layer = Attention(rng.normal(size=(2, 6, 6)) / np.sqrt(6), np.concatenate([values, -values]))
    told = us.diagnose(layer)
    assert told.inside
    assert told.heads == 2
