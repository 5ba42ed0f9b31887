"""Smooth networks from short tokens, and bounded neurons."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.errors import NotIdentifiableError, NotInFamilyError
from unsoftmax.learners.smooth import NearNetworkLearner
from unsoftmax.oracles import CallableOracle, Metered


def drawn(width, neurons, outputs, kind, seed):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=(neurons, width)) / np.sqrt(width), rng.normal(size=(outputs, neurons))]
    return us.FFN(weights, [rng.normal(size=neurons), rng.normal(size=outputs)], activation=kind)


def off(found, network, seed=0):
    X = 2 * np.random.default_rng(seed).normal(size=(1000, network.width))
    return np.abs(found(X) - network(X)).max() / network(X).std()


@pytest.mark.parametrize(("kind", "outputs"), [("gelu", 1), ("tanh", 2), ("softplus", 1)])
def test_rows_are_the_rank_one_matrices_among_second_derivatives(kind, outputs):
    network = drawn(5, 6, outputs, kind, 4)
    longest = []

    def target(X):
        longest.append(np.linalg.norm(X, axis=2).max())
        return network(X[:, 0])

    meter = Metered(CallableOracle(target, width=5))
    found = NearNetworkLearner(max_norm=12.0).run(meter, rng=np.random.default_rng(1))
    assert (found.evidence["activation"], found.evidence["neurons"]) == (kind, 6)
    assert off(found.model, network) < 1e-10
    assert max(longest) <= 12.0
    for name, (low, high), _ in NearNetworkLearner().price(5, 6, outputs):
        assert low <= meter.phases[name].queries <= high


@pytest.mark.parametrize(("options", "kind"), [({"max_norm": 100.0}, "silu"), ({"family": "ffn"}, "tanh")])
def test_recover_learns_from_short_tokens_where_it_must(options, kind):
    network = drawn(5, 4, 1, kind, 8)
    found = us.recover(lambda X: network(X[:, -1]), width=5, seed=1, **options)
    assert found.status is us.Status.EXACT
    assert found.facts["family"] == "near-ffn"
    assert found.model.activation == kind
    assert off(found.model, network) < 1e-10


@pytest.mark.parametrize("bend", [np.tanh, lambda z: 1 / (1 + np.exp(-z))])
def test_bounded_neurons_are_refused_by_name_and_early(bend):
    network = drawn(5, 4, 1, "gelu", 8)
    (B, A), (b, c) = network.weights, network.biases
    found = us.recover(lambda X: bend(np.clip(X[:, -1] @ B.T + b, -500, 500)) @ A.T + c, width=5, seed=1, on_failure="return")
    assert "bounded neurons (tanh, sigmoid)" in found.message
    assert found.queries < 80


def test_too_many_neurons_and_two_layers_are_refused():
    wide = drawn(4, 9, 1, "gelu", 3)
    with pytest.raises(NotIdentifiableError, match=r"6 can be told apart|more than 6"):
        NearNetworkLearner().run(CallableOracle(lambda X: wide(X[:, 0]), width=4), rng=np.random.default_rng(0))
    deep = drawn(4, 4, 4, "gelu", 3), drawn(4, 4, 1, "gelu", 4)
    with pytest.raises((NotIdentifiableError, NotInFamilyError), match=r".{60}"):
        NearNetworkLearner().run(CallableOracle(lambda X: deep[1](deep[0](X[:, 0])), width=4), rng=np.random.default_rng(0))
