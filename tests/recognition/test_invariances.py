"""What no model of the family can notice: order, repeats, doubled tokens; and the names of those that do."""

import numpy as np
import pytest
from hypothesis import given, settings
from tests.recognition.targets import D, case_of, head, heads, passed, relu_network, scores_of, through, weighted
from tests.strategies import seeds

from unsoftmax.recognition.case import Shape, Verdict
from unsoftmax.recognition.invariances import invariances

LAYER = head(seed=7)


def softmax_of(scores, X):
    return weighted(scores, X) @ LAYER.V[0]


def kind_of(target, shape=Shape.AFFINE, seed=0):
    found = invariances(case_of(target, seed=seed), shape, 1.0)
    return found.family.removeprefix("outside: ") if isinstance(found, Verdict) else found


@settings(max_examples=10)
@given(seed=seeds)
def test_layers_of_heads_and_networks_behind_them_notice_nothing(seed):
    seed %= 1000
    for target in (head(seed=seed), heads(3, seed=seed), through(head(seed=seed), relu_network(seed=seed))):
        case = case_of(target, seed=seed)
        assert invariances(case, Shape.AFFINE, 1.0) is True
        assert case.asked <= 30
        assert all(passed(case, test) for test in ("order", "constant sequence", "doubled tokens"))


@pytest.mark.parametrize("seed", range(3))
def test_positions_added_to_tokens_are_named(seed):
    table = np.random.default_rng(seed).normal(size=(600, D))
    assert kind_of(lambda X: LAYER(X + table[: X.shape[1]]), seed=seed) == "positions"


def test_a_bias_towards_the_last_tokens_is_named():
    assert kind_of(lambda X: softmax_of(scores_of(LAYER, X) - 0.1 * np.arange(X.shape[1])[::-1], X)) == "positions"


def test_rotary_positions_are_named():
    def turned(X):
        angles = 0.3 * np.arange(X.shape[1])
        Z = X.copy()
        Z[..., 0] = np.cos(angles) * X[..., 0] - np.sin(angles) * X[..., 1]
        Z[..., 1] = np.sin(angles) * X[..., 0] + np.cos(angles) * X[..., 1]
        return softmax_of(scores_of(LAYER, Z), X)

    assert kind_of(turned) == "RoPE"


def test_a_window_is_named():
    def near(X):
        scores = scores_of(LAYER, X)
        scores[:, : max(0, X.shape[1] - 4)] = -np.inf
        return softmax_of(scores, X)

    assert kind_of(near) in ("window", "positions")


def test_recurrences_are_named():
    A = 0.8 * np.linalg.qr(np.random.default_rng(0).normal(size=(D, D)))[0]

    def recurrent(X, bend):
        state = np.zeros((len(X), D))
        for i in range(X.shape[1]):
            state = bend(state @ A + X[:, i])
        return state @ LAYER.V[0]

    assert kind_of(lambda X: recurrent(X, lambda z: z)) == "recurrent"
    assert kind_of(lambda X: recurrent(X, np.tanh), Shape.SMOOTH) in ("recurrent", "positions")


def test_weights_that_do_not_add_up_to_one_are_named():
    values = LAYER.V[0]
    assert kind_of(lambda X: X.sum(axis=1) @ values) == "sum"
    assert kind_of(lambda X: np.einsum("bn,bnd->bd", 1 / (1 + np.exp(-scores_of(LAYER, X))), X) @ values) == "sigmoid attention"
    assert kind_of(lambda X: np.einsum("bn,bnd->bd", scores_of(LAYER, X), X) @ values) == "linear attention"


def test_a_sink_is_named():
    assert kind_of(lambda X: LAYER(np.concatenate([np.zeros_like(X[:, :1]), X], axis=1))) == "attention sink"


@pytest.mark.parametrize("keep", [3, 64])
def test_weights_of_the_largest_scores_alone_are_named(keep):
    def largest(X):
        scores = scores_of(LAYER, X)
        least = np.sort(scores, axis=1)[:, -min(keep, X.shape[1])]
        return softmax_of(np.where(scores >= least[:, None], scores, -np.inf), X)

    assert kind_of(largest) == "weights depend on the number of tokens"


def test_a_network_on_the_first_token_is_one():
    network = relu_network()
    case = case_of(lambda X: network(X[:, 0]))
    assert invariances(case, Shape.PIECEWISE, 1.0) is False
    assert passed(case, "first token only")
