"""Kinks of one hidden layer run straight on for ever; those of deeper networks do not."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recognition.targets import as_tested
from tests.strategies import seeds

import unsoftmax as us
from unsoftmax.models import FFN, Attention, Transformer
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.recognition.case import Case, Verdict
from unsoftmax.recognition.depth import refuse_jumps, several_layers
from unsoftmax.recognition.floor import measure_floor


def network(sizes, seed, biases=0.7):
    rng = np.random.default_rng(seed)
    weights = [1.3 * rng.normal(size=(b, a)) / np.sqrt(a) for a, b in pairwise(sizes)]
    return FFN(weights, [biases * rng.normal(size=b) for b in sizes[1:]])


def transformer(sizes, seed, residual=False):
    rng = np.random.default_rng([seed, 1])
    d = sizes[0]
    head = Attention(rng.normal(size=(1, d, d)) / d, rng.normal(size=(1, d, d)) / np.sqrt(d))
    return Transformer(head, network(sizes, seed), residual=residual)


def told(target, width, seed=0):
    case = Case(CallableOracle(target, width=width), np.random.default_rng(seed), None)
    measure_floor(case)
    return several_layers(case, 1.0)


def jumping(width, seed, size=1e-3):
    """A head whose answers jump by that much where the last token passes a plane."""
    rng = np.random.default_rng([seed, 2])
    layer, across = Attention(rng.normal(size=(1, width, width)) / width, rng.normal(size=(1, width, 2))), rng.normal(size=width)
    return lambda X: layer(X) + size * (X[:, -1] @ across > 0.3)[:, None]


def test_a_jump_is_no_kink():
    told = {True: 0, False: 0}
    for seed in range(12):
        for jumps, target in ((True, jumping(4, seed)), (False, transformer((4, 6, 2), seed))):
            case = Case(CallableOracle(target, width=4), np.random.default_rng(seed), None)
            measure_floor(case)
            found = case.tried(lambda case=case: refuse_jumps(case, 1.0))
            told[jumps] += isinstance(found, Verdict) and found.family == "outside: not piecewise linear"
    assert told[True] >= 9  # some lines do not cross the plane
    assert told[False] == 0


def test_jumps_beside_a_head_are_no_transformer_to_either_command():
    for seed in range(4):
        target = jumping(4, seed, 0.1)
        assert not us.diagnose(target, width=4, seed=seed).inside
        assert not us.recover(target, width=4, seed=seed, on_failure="return").status.success


def diagnosed(target, width, seed=0):
    return as_tested(CallableOracle(target, width=width), seed)


@settings(max_examples=60)
@given(d=st.integers(2, 24), m=st.integers(2, 40), p=st.integers(1, 3), biases=st.sampled_from([0.0, 0.7]), seed=seeds)
def test_one_hidden_layer_is_never_called_deep(d, m, p, biases, seed):
    net = network([d, m, p], seed, biases)
    if np.ptp(net(np.random.default_rng(0).normal(size=(50, d)))) < 1e-6:  # dead, nothing to follow
        return
    assert not told(lambda X: net(X[:, -1]), d, seed)


def test_deep_networks_are_told_nearly_always():
    right = 0
    for seed in range(20):
        net = network([3 + seed % 9, 8 + seed, 20 - seed // 2, 1 + seed % 3], seed)
        right += told(lambda X, net=net: net(X[:, -1]), net.width, seed) is True
    assert right >= 18


def test_coarse_answers_do_not_tell():
    net = network([6, 10, 8, 1], 0)
    assert told(lambda X: net(X[:, -1]).astype(np.float32), 6) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_deep_network_is_outside_and_a_shallow_one_inside(seed):
    deep, shallow = network([6, 12, 9, 2], seed), network([6, 12, 2], seed)
    assert diagnosed(lambda X: deep(X[:, -1]), 6).family == "outside: deep network"
    result = diagnosed(lambda X: shallow(X[:, -1]), 6)
    assert result.family == "ffn"
    assert "one hidden layer." in result.reason


@pytest.mark.parametrize(
    ("outputs", "residual", "family"),
    [
        (1, False, "attention-behind-network"),
        (2, True, "outside: deep network behind a residual"),
        (12, True, "outside: inconclusive (residual)"),
    ],
)
def test_attention_before_a_deep_network_is_what_can_be_recovered_of_it(outputs, residual, family):
    target = transformer([12, 20, 15, outputs], 4, residual)
    meter = Metered(CallableOracle(target, width=12))
    result = as_tested(meter, 1)
    assert result.family == family
    assert result.residual is None
    assert meter.spent <= 200 + 4 * 12
    assert diagnosed(transformer([12, 20, outputs], 4, residual), 12).family == "transformer"
