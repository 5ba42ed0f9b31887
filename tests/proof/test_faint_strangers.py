"""A foreign body that natural answers hardly show is refused, and `diagnose` says the same; heads that are heads are not."""

import re

import numpy as np
import pytest

import unsoftmax as us


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def head_with(kind, seed, d=5):
    """One head with a foreign body that changes natural answers by about 1e-9."""
    rng = np.random.default_rng(seed)
    W, v, second = rng.normal(size=(d, d)) / np.sqrt(d), rng.normal(size=d), rng.normal(size=(d, d)) / np.sqrt(d)

    def answer(X):
        scores = np.einsum("bnd,de,be->bn", X, W, X[:, -1])
        plain = np.einsum("bn,bnd,d->b", softmax(scores), X, v)
        if kind == "window" and X.shape[1] > 12:
            return plain + 1e-9 * (np.einsum("bn,bnd,d->b", softmax(scores[:, -12:]), X[:, -12:], v) - plain)
        if kind == "another head when long" and X.shape[1] > 30:
            other = np.einsum("bnd,de,be->bn", X, second, X[:, -1])
            return plain + 3e-9 * np.einsum("bn,bnd,d->b", softmax(other), X, v)
        return plain

    return answer


@pytest.mark.parametrize("kind", ["window", "another head when long"])
def test_what_natural_answers_hardly_show_is_refused_and_diagnosed(kind):
    target = head_with(kind, 3)
    found = us.recover(target, width=5, seed=0, on_failure="return")
    assert found.status is us.Status.NOT_IN_FAMILY
    assert found.check is None or found.check.relative_error < 1e-6
    assert "diagnose" in found.message
    assert not us.diagnose(target, width=5).inside


def test_the_way_out_that_a_refusal_names_leads_out():
    target = head_with("window", 3)
    refused = us.recover(target, width=5, seed=0, on_failure="return")
    assert refused.model is not None
    way = re.search(r"`tolerance=(\S+), max_norm=(\S+)`", refused.message)
    near = us.recover(target, width=5, tolerance=float(way[1]), max_norm=float(way[2]), seed=0)
    assert near.status is us.Status.WITHIN_TOLERANCE
    assert near.bounds.kind == "certified"


def test_a_tolerance_that_is_not_true_is_refused_and_gives_no_estimated_bounds():
    refused = us.recover(head_with("window", 3), width=5, tolerance=1e-10, seed=0, on_failure="return")
    assert not refused.status.success
    assert refused.bounds is None


@pytest.mark.parametrize("seed", range(3))
def test_a_large_query_bias_within_a_tolerance_is_certified(seed):
    rng = np.random.default_rng(seed)
    layer, tau = us.Attention.single(rng.normal(size=(4, 4)) / 2, rng.normal(size=4), c=20 * rng.normal(size=4)), 1e-7
    found = us.recover(lambda X: layer(X) + rng.uniform(-tau, tau, size=len(X)), width=4, tolerance=tau, seed=seed)
    assert found.bounds.kind == "certified"
    for block in "WVc":
        assert (np.abs(getattr(found.model, block) - getattr(layer, block)) <= getattr(found.bounds, block)).all()


@pytest.mark.parametrize("seed", range(3))
def test_heads_known_badly_are_not_taken_for_strangers(seed):
    rng = np.random.default_rng(seed)
    layer = us.Attention(rng.normal(size=(1, 6, 6)) / 2, rng.normal(size=(1, 6, 2)), c=30.0 * rng.normal(size=(1, 6)))
    assert us.recover(layer, seed=seed).status.success


def rounded_by_chance(seed, step, d=5):
    rng, noise = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    head = us.Attention.single(rng.normal(size=(d, d)) / np.sqrt(d), rng.normal(size=d))
    return lambda X: step * np.floor(head(X) / step + noise.random(len(X)))


@pytest.mark.parametrize(("step", "seed"), [(np.pi * 1e-8, 0), (np.pi * 1e-5, 1)])
def test_answers_rounded_by_chance_are_called_random(step, seed):
    found = us.recover(rounded_by_chance(seed, step), width=5, seed=seed, on_failure="return")
    assert found.status is us.Status.DRIFTING
    assert us.diagnose(rounded_by_chance(seed, step), width=5).family == "outside: random answers"


def test_answers_that_depend_on_the_question_before_are_called_random():
    head, last = us.Attention.single(np.eye(4), np.arange(1.0, 5.0)), [0.0]

    def stale(X):
        plain, before = head(X), last[0]
        last[0] = plain[-1]
        return plain + 1e-6 * (before - plain)

    assert us.diagnose(stale, width=4).family == "outside: random answers"


def scored_with_the_mean(seed, effect, d=3, outputs=2):
    """One head with a query bias; a share of the mean token takes part in its scores."""
    rng = np.random.default_rng(seed)
    W, V, c, A = (
        rng.normal(size=(d, d)) / d**0.5,
        rng.normal(size=(d, outputs)),
        rng.normal(size=d),
        rng.normal(size=(d, d)) / d**0.5,
    )

    def answer(X):
        scores = np.einsum("bnd,de,be->bn", X, W, X[:, -1]) + X @ c
        scores += effect * np.einsum("bnd,de,be->bn", X, A, X.mean(axis=1))
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("bn,bnm->bm", weights / weights.sum(axis=1, keepdims=True), X @ V)

    return answer


@pytest.mark.parametrize("seed", [0, 3, 4, 6])
def test_a_misfit_is_not_explained_by_errors_that_were_told_from_it(seed):
    """Where the learner of several heads finds one, it knows it as well as its own check says: that is the misfit itself."""
    assert not us.recover(scored_with_the_mean(seed, 3e-9), width=3, seed=seed, on_failure="return").status.success
    assert us.recover(scored_with_the_mean(seed, 0.0), width=3, seed=seed, heads=2).status.success
