"""Targets whose network is not learned: what ``recover`` makes of them, and says."""

from itertools import pairwise

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.models import FFN, Attention, Transformer


def head(d, rng):
    return Attention(rng.normal(size=(1, d, d)) / d, rng.normal(size=(1, d, d)) / np.sqrt(d), rng.normal(size=(1, d)) / np.sqrt(d))


def transformer(sizes, seed, *, residual=False):
    rng = np.random.default_rng(seed)
    weights = [1.3 * rng.normal(size=(b, a)) / np.sqrt(a) for a, b in pairwise(sizes)]
    network = FFN(weights, [0.7 * rng.normal(size=b) for b in sizes[1:]])
    return Transformer(head(sizes[0], rng), network, residual=residual)


def scores_apart(found, target):
    return us.distance(Attention(found.model.W, None, found.model.c), Attention(target.W, None, target.c))


@pytest.mark.parametrize(("sizes", "seed"), [((5, 9, 8, 1), 0), ((8, 14, 10, 9, 3), 1), ((12, 8, 16, 1), 2)])
def test_attention_before_a_deep_network_is_read_without_it(sizes, seed):
    target = transformer(sizes, seed)
    found = us.recover(target, seed=seed)
    assert found.status.name == "EXACT"
    assert found.facts["family"] == "attention-behind-network"
    assert scores_apart(found, target.attention) < 1e-9


def test_depth_that_only_the_learner_notices_ends_in_the_same_way():
    target = transformer((6, 10, 9, 1), 3)
    found = us.recover(lambda X: target(X).astype(np.float32).astype(float), width=6, on_failure="return")
    assert found.facts["family"] in ("attention-behind-network", "transformer")
    if found.status.success:
        assert scores_apart(found, target.attention) < 1e-2
    else:
        assert "hidden layer" in found.message
        assert "Nor could the attention be read" in found.message


def test_a_deep_network_told_to_be_a_transformer_is_refused_with_the_way_out():
    target = transformer((6, 10, 9, 1), 3)
    found = us.recover(target, family="transformer", on_failure="return")
    assert found.status.name == "NOT_IN_FAMILY"
    assert "`attention-behind-network`" in found.message
    assert us.recover(target, family="attention-behind-network").status.name == "EXACT"


def test_a_budget_that_ends_behind_the_network_is_named_as_such():
    target = transformer((6, 10, 9, 1), 3)
    found = us.recover(target, budget=500, on_failure="return")
    assert found.status.name == "BUDGET_SPENT"


@pytest.mark.parametrize("seed", [0, 1])
def test_a_residual_before_a_smooth_network_is_found_without_being_told(seed):
    rng = np.random.default_rng(seed)
    d = 6
    layer, first, last = head(d, rng), rng.normal(size=(2 * d, d)) / np.sqrt(d), rng.normal(size=(d, 2 * d)) / np.sqrt(2 * d)

    def target(X):
        return np.tanh((X[:, -1] + layer(X)) @ first.T) @ last.T

    found = us.recover(target, width=d, seed=seed)
    assert found.status.name == "EXACT"
    assert found.facts["evidence"]["residual"]
    assert scores_apart(found, layer) < 1e-8
    scalar = us.recover(lambda X: target(X)[:, 0], width=d, seed=seed, on_failure="return")
    assert scalar.status.name == "NOT_IN_FAMILY"


def test_two_heads_before_a_smooth_network_stay_outside():
    rng = np.random.default_rng(5)
    d = 6
    one, two, first, last = head(d, rng), head(d, rng), rng.normal(size=(2 * d, d)), rng.normal(size=(d, 2 * d)) / d
    found = us.recover(lambda X: np.tanh((one(X) + two(X)) @ first.T / 3) @ last.T, width=d, on_failure="return")
    assert found.status.name == "NOT_IN_FAMILY"
    assert "Nor could the attention be read" in found.message
