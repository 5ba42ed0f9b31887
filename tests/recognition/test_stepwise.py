"""Scores rounded inside a float64 target are named; smooth ones never are."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.desk import Desk
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.recognition.stepwise import scores_in_steps
from unsoftmax.wishes import Wishes


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

    for seed in range(4):
        found = us.recover(answer, width=5, seed=seed, on_failure="return")
        assert not found.status.success
        assert "float32" in found.message


@pytest.mark.parametrize(("kind", "word"), [(np.float32, "float32"), (np.float16, "half precision")])
def test_the_kind_of_the_steps_is_told(kind, word):
    fact = scores_in_steps(Desk(as_oracle(rounded_scores(kind, 1), 5), Wishes(seed=1)))
    assert fact.passed is False
    assert word in fact.sentence


def test_smooth_scores_have_no_steps():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        d, heads = int(rng.integers(2, 20)), int(rng.integers(1, 4))
        layer = us.Attention(rng.normal(size=(heads, d, d)), rng.normal(size=(heads, d)), rng.normal(size=(heads, d)))
        assert scores_in_steps(Desk(as_oracle(layer, d), Wishes(seed=seed))).passed
