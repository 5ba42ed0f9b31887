"""Scores rounded inside a float64 target are named; smooth ones never are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import seeds

import unsoftmax as us
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.recognition.stepwise import answered_alike, judged, keys_stand_still, pairs_in_steps, scores_in_steps


def rounded_scores(kind, seed, d=5):
    rng = np.random.default_rng(seed)
    W, v = rng.normal(size=(d, d)) / np.sqrt(d), rng.normal(size=d)

    def answer(X):
        scores = np.einsum("bnd,de,be->bn", X, W, X[:, -1]).astype(kind).astype(np.float64)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("bn,bnd,d->b", weights / weights.sum(axis=1, keepdims=True), X, v)

    return answer


def test_half_precision_scores_are_named_in_the_refusal():
    found = us.recover(rounded_scores(np.float16, 0), width=5, seed=0, on_failure="return")
    assert found.status is us.Status.NOT_IN_FAMILY
    assert "half precision" in found.message


def test_float32_scores_that_depend_on_the_batch_are_named():
    rng = np.random.default_rng(0)
    W, v = rng.normal(size=(5, 5)) / np.sqrt(5), rng.normal(size=5)

    def answer(X):
        scores = np.einsum("bnd,de,be->bn", X, W, X[:, -1])
        scores = (scores * (1 + 2.0**-24 * (len(X) % 3))).astype(np.float32).astype(np.float64)  # another order of summing
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("bn,bnd,d->b", weights / weights.sum(axis=1, keepdims=True), X, v)

    for _ in range(8):
        found = us.recover(answer, width=5, on_failure="return")
        assert not found.status.success
        assert "float32" in found.message
        assert not us.diagnose(answer, width=5).inside


@pytest.mark.parametrize(("kind", "word"), [(np.float32, "float32"), (np.float16, "half precision")])
def test_the_kind_of_the_steps_is_told(kind, word):
    fact = scores_in_steps(as_oracle(rounded_scores(kind, 1), 5), np.random.default_rng(1), None)
    assert fact.passed is False
    assert word in fact.sentence


def test_smooth_scores_have_no_steps():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        d, heads = int(rng.integers(2, 20)), int(rng.integers(1, 4))
        layer = us.Attention(rng.normal(size=(heads, d, d)), rng.normal(size=(heads, d)), rng.normal(size=(heads, d)))
        assert scores_in_steps(as_oracle(layer, d), np.random.default_rng(seed), None).passed


@pytest.mark.parametrize(("kind", "seed"), [(np.float32, 2)])
def test_diagnose_and_recover_agree_that_rounded_scores_are_outside(kind, seed):
    target = rounded_scores(kind, seed)
    told = us.diagnose(target, width=5)
    assert not told.inside
    assert told.queries <= 200 + 4 * 5
    assert not us.recover(target, width=5, seed=0, on_failure="return").status.success


def test_noise_is_not_taken_for_steps():
    rng, head = np.random.default_rng(0), us.Attention.single(np.eye(5), np.arange(1.0, 6.0))
    assert us.diagnose(lambda X: head(X) + 1e-6 * rng.normal(size=len(X)), width=5).family == "attention"


@given(seed=seeds, outputs=st.integers(1, 3))
def test_slopes_of_smooth_answers_are_the_same_at_every_step(seed, outputs):
    X = pairs_in_steps(4, np.random.default_rng(seed), None)
    A, B = np.random.default_rng([seed, 1]).normal(size=(2, 8, outputs))
    flat = X.reshape(*X.shape[:2], 8)
    assert judged(np.tanh(0.2 * flat @ A) + 0.3 * flat @ B).passed


@given(seed=seeds, jumps=st.integers(0, 6))
def test_so_many_jumps_are_counted(seed, jumps):
    X = pairs_in_steps(4, np.random.default_rng(seed), None)
    answers = X.sum(axis=(2, 3))[..., None]
    answers[:jumps, -1] += 1.0  # the tiniest step changes the answer by as much as a large one
    fact = judged(answers)
    assert fact.number == jumps
    assert fact.passed == (jumps < 2)


@given(seed=seeds, radius=st.floats(0.1, 5.0))
def test_pairs_in_steps_fit_into_a_ball(seed, radius):
    X = pairs_in_steps(6, np.random.default_rng(seed), radius)
    assert np.linalg.norm(X, axis=-1).max() <= radius
    np.testing.assert_array_equal(X[:, 0, 1], X[:, -1, 1])  # the last token stays where it is


@pytest.mark.parametrize("seed", range(20))
def test_answers_that_are_cut_are_no_keys_that_stand_still(seed):
    rng = np.random.default_rng(seed)
    layer = us.Attention.single(rng.normal(size=(3, 3)) / np.sqrt(3), rng.normal(size=3))
    fact = keys_stand_still(as_oracle(lambda X: np.clip(layer(X), -0.8, 0.8), 3), rng, None)
    assert fact.passed


@given(seed=seeds)
def test_what_is_rounded_by_chance_is_not_answered_alike(seed):
    rng = np.random.default_rng(seed)
    layer = us.Attention.single(rng.normal(size=(4, 4)) / 2, rng.normal(size=4))
    for step in (1e-8, 1e-3):
        by_chance = as_oracle(lambda X, step=step: step * np.floor(layer(X) / step + rng.random(len(X))), 4)
        assert not answered_alike(by_chance, rng, 2.0).passed
    assert answered_alike(as_oracle(lambda X: np.round(layer(X), 6), 4), rng, None).passed


def test_what_is_rounded_by_chance_drifts_and_is_of_no_other_family():
    rng = np.random.default_rng(8)
    layer = us.Attention.single(rng.normal(size=(5, 5)) / np.sqrt(5), rng.normal(size=5))
    said = [
        us.recover(lambda X: 8e-9 * np.floor(layer(X) / 8e-9 + rng.random(len(X))), width=5, seed=seed, on_failure="return")
        for seed in range(8)
    ]
    assert sum(found.status is us.Status.DRIFTING for found in said) >= 6
    assert all("move in steps" not in found.message for found in said)
