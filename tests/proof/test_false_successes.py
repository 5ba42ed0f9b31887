"""Ways to a false success that were found from outside, each closed."""

from dataclasses import replace

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.errors import TooNoisyError
from unsoftmax.proof.fresh import Fresh
from unsoftmax.proof.judge import checked
from unsoftmax.proof.noisy import noisy_held_out
from unsoftmax.proof.refusals import through_noise
from unsoftmax.results import Bounds, Learned

D = 6


def head(seed=0, width=D, **settings):
    rng = np.random.default_rng(seed)
    return us.Attention.single(rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=width), **settings)


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def refused(target, width=D, **settings):
    found = us.recover(target, width=width, on_failure="return", **settings)
    assert not found.status.success, found.check
    return found


def test_a_check_whose_answers_do_not_vary_is_none():
    g = np.random.default_rng(0)
    W, v = g.normal(size=(3, 3)), g.normal(size=3)

    def gaussian_kernel(X):
        far = X - (X[:, -1] @ W.T)[:, None]
        return 1 + np.einsum("bn,bnd,d->b", softmax(-0.005 * (far**2).sum(axis=-1)), X, v)

    refused(gaussian_kernel, 3)


BEGINS_LATE = {
    "window": lambda X, one, other: one(X[:, -65:]),
    "truncation": lambda X, one, other: one(np.concatenate([X[:, :64], X[:, -1:]], axis=1) if X.shape[1] > 65 else X),
    "another head": lambda X, one, other: (one if X.shape[1] <= 64 else other)(X),
    "log-n temperature": lambda X, one, other: us.Attention(one.W * max(1.0, np.log(X.shape[1]) / np.log(64)), one.V)(X),
}


@pytest.mark.parametrize("name", list(BEGINS_LATE))
def test_what_begins_after_64_tokens_is_noticed(name):
    one, other = head(1), head(2)
    refused(lambda X: BEGINS_LATE[name](X, one, other))


def test_another_head_at_every_other_length_is_noticed():
    one, other = head(1), head(2)
    for seed in range(3):
        refused(lambda X: (one if X.shape[1] in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) else other)(X), seed=seed)


@pytest.mark.parametrize("causal", [False, True])
def test_positions_before_the_last_are_checked(causal):
    rng = np.random.default_rng(3)
    layer = us.Attention(rng.normal(size=(1, D, D)) / 2, rng.normal(size=(1, D, D)))

    def other_before(X):
        answers = layer(X, "all", causal=causal)
        if X.shape[1] < 40:
            answers[:, : X.shape[1] // 2] += 1e-3 * np.tanh(X[:, : X.shape[1] // 2, :1])
        return answers

    refused(other_before)
    assert us.recover(lambda X: layer(X, "all", causal=causal), width=D).status is us.Status.EXACT


@pytest.mark.parametrize("effect", [1e-6, 1e-9])
def test_a_tiny_misfit_of_float64_answers_is_not_called_float32(effect):
    one = head(4)

    def gated(X):
        return one(X) * (1 + effect * np.tanh(X[:, -1, 0]))

    found = us.recover(gated, width=D, on_failure="return")
    assert found.facts["floor"]["kind"] != "float32"
    assert found.status is not us.Status.EXACT or effect < 1e-8
    if found.status.success:
        fresh = np.random.default_rng(5).normal(size=(200, 12, D))
        off = np.abs(found.model(fresh) - gated(fresh)).max() / gated(fresh).std()
        assert off <= 3 * found.facts["tolerance"]


def test_a_target_of_few_tokens_is_recovered_for_as_many():
    one = head(6)

    def short(X):
        if X.shape[1] > 20:
            raise RuntimeError("at most 20 tokens")
        return one(X)

    found = us.recover(short, width=D)
    assert found.status is us.Status.EXACT
    assert "Longer sequences than 16 tokens were not asked" in found.check.covers
    told = us.recover(short, width=D, max_length=20)
    assert max(told.check.by_length) == 20


def test_the_check_says_what_it_covers():
    found = us.recover(head(7))
    assert found.check.sequences == 240
    assert "at the last position" in found.check.covers
    assert "1.9%" in found.check.covers  # of the 234 that were drawn; 6 were chosen
    assert "6 others were the most extreme" in found.check.covers
    assert "99%" in found.check.covers
    assert found.check.natural_error < 1e-12
    more = us.recover(head(7), check=1000)
    assert 900 <= more.check.sequences <= 1100


def test_natural_samples_of_the_caller_are_checked():
    one, other = head(8), head(9)
    table = 30.0 + np.random.default_rng(1).normal(size=(50, D))

    def differs_there(X):
        return np.where(np.abs(X).min(axis=(1, 2)) > 20, other(X), one(X))

    assert us.recover(differs_there, width=D).status is us.Status.EXACT
    refused(differs_there, natural=table)


def test_dropout_that_seldom_acts_is_named_as_chance():
    rng = np.random.default_rng(11)
    W, v = rng.normal(size=(D, D)) / 2, rng.normal(size=D)

    def dropping(X):
        scores = np.einsum("bnd,de,be->bn", X, W, X[:, -1])
        dropped = rng.random(scores.shape) < 3e-3
        dropped[:, -1] = False
        return np.einsum("bn,bnd,d->b", softmax(np.where(dropped, -1e30, scores)), X, v)

    for seed in range(3):
        found = refused(dropping, seed=seed)
        assert found.status is us.Status.DRIFTING or "random" in found.message or "noise" in found.message


def test_a_check_of_single_tokens_confirms_no_attention():
    """Scores with a term of the keys alone gave an absurd W, which sequences of one token cannot contradict."""
    rng = np.random.default_rng(0)
    W, v, A = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=(3, 3))

    def target(X):
        scores = np.einsum("bnd,de,be->bn", X, W, X[:, -1]) + np.einsum("bnd,de,bne->bn", X, A, X)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("bn,bnd,d->b", weights / weights.sum(axis=1, keepdims=True), X, v)

    found = us.recover(target, width=3, seed=1, max_length=1, on_failure="return")
    assert not found.status.success
    head = us.recover(us.Attention.single(W, v), seed=1, max_length=1, on_failure="return")
    assert head.status is us.Status.NOT_IDENTIFIABLE
    assert "Allow at least 2" in head.message
    assert us.recover(us.Attention.single(W, v), seed=1, max_length=2).status is us.Status.EXACT


@pytest.mark.parametrize("length", [9, 23, 41, 58])
def test_another_head_at_one_moderate_length_is_met(length):
    one, other = head(4), head(5)
    refused(lambda X: other(X) if X.shape[1] == length else one(X))


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_error_bars_behind_rounding_allow_for_what_is_fainter_than_a_step(seed):
    """Edges keep one half each, whatever the truth is: another head on longer sequences moved W by thousands of its bars."""
    rng = np.random.default_rng(seed)
    W, V, c = rng.normal(size=(3, 3)) / 3**0.5, rng.normal(size=(3, 3)), rng.normal(size=3)
    one, other = us.Attention.single(W, V, c=c), us.Attention.single(rng.normal(size=(3, 3)), rng.normal(size=(3, 3)))

    def rounded(X, effect=1e-6):
        return np.round(one(X) + effect * (X.shape[1] > 11) * other(X), 4)

    found = us.recover(rounded, width=3, seed=seed, budget=20_000)
    assert np.all(np.abs(found.model.W[0] - W) <= 3 * found.bounds.W[0])
    plain = us.recover(lambda X: rounded(X, 0.0), width=3, seed=seed, budget=20_000)
    assert np.all(np.abs(plain.model.W[0] - W) <= plain.bounds.W[0])
    assert plain.bounds.W.max() < 1e-8


def test_a_kernel_whose_scores_have_no_size_is_refused():
    """Gaussian-kernel attention of four numbers: its heads would have scores of 1e105, with bars without end."""
    rng = np.random.default_rng([970290, 5])
    W, V = rng.normal(size=(6, 6)), rng.normal(size=(6, 4))

    def kernel(X):
        scores = -1.4e-3 * ((X - (X[:, -1:] @ W.T)) ** 2).sum(axis=-1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("bi,bid,dm->bm", weights / weights.sum(axis=1, keepdims=True), X, V)

    for seed in range(3):
        assert not us.recover(kernel, width=6, seed=seed, on_failure="return").status.success


@pytest.mark.parametrize("seed", range(4))
def test_error_bars_that_explain_whatever_is_answered_confirm_nothing(seed):
    """W = 0 was fitted where noise hid all scores: its bars let long tokens be answered anyhow."""
    rng = np.random.default_rng(seed)
    head = us.Attention.single(W=rng.normal(size=(3, 3)), v=rng.normal(size=3))
    none = us.Attention.single(W=np.zeros((3, 3)), v=head.V[0])
    bars = Bounds(kind="estimated", W=np.full((1, 3, 3), 5e-28), V=np.zeros((1, 3)))
    model = Learned(model=none, ambiguity="", bounds=bars, noise=(0.15, 31))
    oracle = us.oracles.CallableOracle(lambda X: head(X) + 0.15 * rng.normal(size=len(X)), width=3)
    batches = [Fresh(1e14 * rng.normal(size=(20, n, 3))) for n in (2, 5, 9)]
    found = noisy_held_out(oracle, model, batches, rng, noise=0.15, freedom=31)
    assert found.agrees
    refusal = through_noise(found, checked(found.seen, ""), model, noise=0.15, asked=50)
    assert isinstance(refusal, TooNoisyError)
    assert refusal.evidence["missed"] > 0.5

    right = noisy_held_out(
        oracle, replace(model, model=head, bounds=replace(bars, W=np.zeros((1, 3, 3)))), batches, rng, noise=0.15, freedom=31
    )
    assert right.missed < 1e-3
    assert through_noise(right, checked(right.seen, ""), model, noise=0.15, asked=50) is None
