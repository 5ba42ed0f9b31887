import numpy as np
import pytest
from hypothesis import given

import unsoftmax as us
from tests.strategies import one_head, transformer

RNG = np.random.default_rng(3)
HEAD = us.Attention.single(RNG.normal(size=(6, 6)) / 2, RNG.normal(size=6))


@given(model=one_head())
def test_a_model_matches_itself(model):
    result = us.verify(model, model)
    assert result.matches
    assert result.sequences <= 256


@given(model=transformer())
def test_a_transformer_matches_itself(model):
    assert us.verify(model, model).matches


@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e-2])
def test_one_changed_entry_is_noticed(size):
    W = HEAD.W[0].copy()
    W[2, 3] += size
    result = us.verify(us.Attention.single(W, HEAD.V[0]), HEAD)
    assert not result.matches
    assert result.relative_deviation > result.threshold


def test_float32_is_not_accused_and_a_float32_change_is_noticed():
    single = us.oracles.LowPrecision(HEAD, "float32")
    assert us.verify(single, HEAD, width=6).matches
    other = us.Attention.single(HEAD.W[0] * 1.01, HEAD.V[0])
    assert not us.verify(single, other, width=6).matches


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="values were not learned"):
        us.verify(HEAD, us.Attention(HEAD.W, None))
    with pytest.raises(ValueError, match="width 6, the weights are for width 2"):
        us.verify(HEAD, us.Attention.single(np.eye(2), [1.0, 1.0]))


def test_a_network_is_compared_on_single_tokens():
    network = us.FFN([RNG.normal(size=(5, 3)), RNG.normal(size=(1, 5))], [RNG.normal(size=5), RNG.normal(size=1)])
    assert us.verify(network, network).matches
