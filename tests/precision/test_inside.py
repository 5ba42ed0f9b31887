"""Targets that round their tokens, values or keys inside and answer in float64 are named, early."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.precision.formats import to_bits
from unsoftmax.precision.inside import rounds_inside


def int8(x, axis=-1):
    """Whole steps, 127 of them up to the largest entry."""
    step = np.abs(x).max(axis=axis, keepdims=True) / 127 + 1e-300
    return np.round(x / step) * step


def fp8(x):
    return to_bits(np.asarray(x, dtype=np.float64), 4)


def head(seed, tokens=lambda x: x, values=lambda x: x, d=6):
    rng = np.random.default_rng(seed)
    W, V = rng.normal(size=(d, d)) / np.sqrt(d), rng.normal(size=(d, 3))

    def answer(X):
        x = tokens(X)
        scores = np.einsum("bnd,de,be->bn", x, W, x[:, -1])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("bn,bnm->bm", weights / weights.sum(axis=1, keepdims=True), values(x @ V))

    return answer


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({"tokens": int8}, "int8"),
        ({"tokens": lambda x: int8(x, (1, 2))}, "int8"),
        ({"tokens": lambda x: np.round(32 * x) / 32}, "int8"),
        ({"tokens": fp8}, "fp8"),
        ({"values": fp8}, "fp8"),
    ],
)
def test_what_is_rounded_inside_is_named(kind, words):
    for seed in range(3):
        found = us.recover(head(seed, **kind), width=6, seed=seed, on_failure="return", budget=20_000)
        assert not found.status.success
        assert words in found.message
        assert found.facts["queries"]["total"] < 400  # thousands before


@pytest.mark.parametrize("seed", range(5))
def test_nothing_smooth_or_noisy_is_taken_for_rounding(seed):
    rng, noise = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    smooth = head(seed)
    for target in (smooth, lambda X: smooth(X) + 1e-3 * noise.normal(size=(len(X), 3))):
        assert rounds_inside(as_oracle(target, 6), rng.normal(size=6)) == ""


def test_several_heads_in_half_precision_are_told_before_a_learner_is_paid():
    rng = np.random.default_rng(0)
    layer = us.Attention(rng.normal(size=(2, 6, 6)) / 6**0.5, rng.normal(size=(2, 6, 6)))
    found = us.recover(lambda X: layer(X).astype(np.float16).astype(np.float64), width=6, on_failure="return")
    assert found.status is us.Status.TOO_NOISY
    assert "several heads" in found.message
    assert found.facts["queries"]["total"] < 150


@pytest.mark.parametrize(("cast", "whole"), [(fp8, False), (lambda x: to_bits(x, 3), True), (int8, True)])
def test_short_keys_and_caches_are_named(cast, whole):
    rng = np.random.default_rng(4)
    query, key, project, out = *rng.normal(size=(3, 3, 6)) / 2, rng.normal(size=3)

    def answer(X):
        keys, values = cast(X @ key.T), X @ project.T
        scores = np.einsum("bnk,bk->bn", keys, X[:, -1] @ query.T)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("bn,bnk,k->b", weights / weights.sum(axis=1, keepdims=True), cast(values) if whole else values, out)

    found = us.recover(answer, width=6, seed=0, on_failure="return", budget=20_000)
    assert not found.status.success
    assert any(word in found.message for word in ("fp8", "int8"))


@pytest.mark.parametrize("seed", range(4))
def test_tokens_of_few_bits_may_be_answered_straight_though_others_are_not(seed):
    found = us.recover(head(seed, tokens=fp8), width=6, seed=17 + seed, on_failure="return")
    assert found.status is us.Status.NOT_IN_FAMILY
    assert "rounds inside" in found.message or "rounds its tokens" in found.message
