"""What one token alone does: straight, kinked or smooth; where scores are of order one; whether answers grow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recognition.targets import D, case_of, head, passed, relu_network, tanh_network, through, weighted
from tests.strategies import seeds

from unsoftmax.recognition.case import Shape, Verdict
from unsoftmax.recognition.one_token import _factor, grows, ignores_length, one_token, pilot, sharp


def last(network):
    return lambda X: network(X[:, -1])


@settings(max_examples=12)
@given(seed=seeds, outputs=st.sampled_from([None, 3]), constant=st.booleans())
def test_heads_are_affine_in_one_token(seed, outputs, constant):
    case = case_of(head(seed=seed % 1000, outputs=outputs, constant=constant), seed=seed % 1000)
    assert one_token(case, 0.3)[0] is Shape.AFFINE
    assert case.asked <= 20


@pytest.mark.parametrize("seed", range(4))
def test_kinks_and_smooth_bends_are_told_apart(seed):
    assert one_token(case_of(last(relu_network(seed=seed, hidden=6)), seed=seed), 1.0)[0] is Shape.PIECEWISE
    assert one_token(case_of(last(tanh_network(seed=seed)), seed=seed), 1.0)[0] is Shape.SMOOTH


def test_steps_are_no_network():
    case = case_of(lambda X: np.sign(X[:, -1]).sum(axis=1))
    found = case.tried(lambda: one_token(case, 1.0))
    assert isinstance(found, Verdict)
    assert found.family == "outside: piecewise constant"


@pytest.mark.parametrize("seed", range(5))
def test_a_kink_is_sharp_and_a_smooth_bend_is_not(seed):
    kinked = case_of(last(relu_network(seed=seed, hidden=3)), seed=seed)
    smooth = case_of(last(tanh_network(seed=seed)), seed=seed)
    assert sharp(kinked, 1.0)
    assert not sharp(smooth, 1.0)
    assert max(kinked.asked, smooth.asked) <= 32


def test_a_jump_is_no_kink():
    normal = np.random.default_rng(0).normal(size=D)
    assert not sharp(case_of(lambda X: X[:, -1] @ normal + 3.0 * (X[:, -1] @ normal > 0.3)), 1.0)


def test_relu_networks_grow_and_bounded_ones_do_not():
    assert grows(case_of(last(relu_network())), 1.0)
    assert not grows(case_of(last(tanh_network())), 1.0)
    assert not grows(case_of(lambda X: X[:, -1, 0] / np.linalg.norm(X[:, -1], axis=1)), 1.0)


def test_a_norm_before_attention_hides_the_length_of_tokens():
    layer = head()

    def normed(X):
        Z = X / np.sqrt((X**2).mean(axis=-1, keepdims=True) + 1e-12)
        return np.tanh(weighted(np.einsum("bnd,de,be->bn", Z, layer.W[0], Z[:, -1]), Z) @ layer.V[0])

    assert ignores_length(case_of(normed), 1.0)
    assert not ignores_length(case_of(through(layer, tanh_network())), 1.0)


@settings(max_examples=15)
@given(seed=seeds, size=st.sampled_from([1e-4, 1e-2, 1.0, 1e2, 1e4]))
def test_the_pilot_finds_tokens_whose_scores_are_of_order_one(seed, size):
    layer = head(seed=seed % 1000, size=size)
    case = case_of(layer, seed=seed % 1000)
    point = pilot(case)
    assert point.listens
    assert not point.hard
    tokens = point.scale * np.random.default_rng(seed).normal(size=(200, 2, D))
    typical = np.median(np.abs(np.einsum("bd,de,be->b", tokens[:, 0], layer.W[0], tokens[:, 1])))
    assert 0.02 < typical < 30
    assert case.asked <= 12 + 6 * 8


def test_the_pilot_knows_the_plain_mean_a_deaf_target_and_hard_attention():
    network = relu_network()
    assert pilot(case_of(lambda X: network(X.mean(axis=1)))).flat
    assert not pilot(case_of(last(network))).listens
    value = np.random.default_rng(2).normal(size=D)

    def hardest(X):
        best = np.argmax(np.einsum("bnd,bd->bn", X, X[:, -1]), axis=1)
        return X[np.arange(len(X)), best] @ value

    assert pilot(case_of(hardest)).hard


@given(strength=st.floats(1e-9, 1.0), heard=st.booleans())
def test_the_next_scale_goes_the_right_way(strength, heard):
    factor = _factor(strength, heard)
    assert (factor < 1) == (strength > 0.6 or (heard and strength > 0.4))
    assert factor <= 1e3


def test_a_target_that_overflows_on_long_tokens_is_looked_at_with_shorter_ones():
    layer = head()

    def fragile(X):
        if np.abs(X).max() > 3.0:
            raise OverflowError("too large")
        return layer(X)

    case = case_of(fragile)
    assert one_token(case, 1.0)[0] is Shape.AFFINE
    assert case.reach < 40
    assert passed(case, "one token affine")


@pytest.mark.parametrize("network", [relu_network, tanh_network])
def test_bends_show_behind_attention_as_well(network):
    case = case_of(through(head(), network()))
    shape, size = one_token(case, 1.0)
    assert shape in (Shape.PIECEWISE, Shape.SMOOTH, Shape.UNCLEAR)
    assert size > 0
    assert passed(case, "one token affine") is False
