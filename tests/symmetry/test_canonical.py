"""Canonical forms: same function, and one form for all ways to write it."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.models import FFN, Attention, Transformer
from unsoftmax.symmetry import canonical, distance

seeds = st.integers(0, 2**32 - 1)


def layer(rng, heads, width, outputs=None, c=True, b=True):
    tail = () if outputs is None else (outputs,)
    return Attention(
        W=rng.normal(size=(heads, width, width)),
        V=rng.normal(size=(heads, width, *tail)),
        c=rng.normal(size=(heads, width)) if c else None,
        b=rng.normal(size=tail) if b else None,
    )


def network(rng, width, neurons, outputs, skip=False):
    return FFN(
        [rng.normal(size=(neurons, width)), rng.normal(size=(outputs, neurons))],
        [rng.normal(size=neurons), rng.normal(size=outputs)],
        rng.normal(size=(outputs, width)) if skip else None,
    )


def rewritten(rng, model):
    """The same heads in another order, one of them split in two, and an empty one added."""
    share = rng.normal(size=model.V[:1].shape)
    W = np.concatenate([model.W, model.W[:1], rng.normal(size=model.W[:1].shape)])
    V = np.concatenate([model.V[:1] - share, model.V[1:], share, np.zeros_like(share)])
    c = np.concatenate([model.c, model.c[:1], rng.normal(size=model.c[:1].shape)])
    order = rng.permutation(len(W))
    return Attention(W[order], V[order], c[order], model.b)


def rewritten_network(rng, model):
    """The same neurons scaled, reordered, some turned round, one split, a dead one and a constant one added."""
    first, last = model.weights
    shift, constant = model.biases
    skip = np.zeros((model.outputs, model.width)) if model.skip is None else model.skip
    away = rng.random(len(first)) < 0.5
    skip = skip + last[:, away] @ first[away]
    constant = constant + last[:, away] @ shift[away]
    sign = np.where(away, -1.0, 1.0)
    scale = rng.uniform(0.5, 2.0, size=len(first))
    B, s, A = first * (sign * scale)[:, None], shift * sign * scale, last / scale
    part = rng.normal(size=model.outputs)
    A = np.concatenate([A, part[:, None], np.zeros((model.outputs, 1)), part[:, None]], axis=1)
    A[:, 0] -= part * 2
    B = np.concatenate([B, B[:1] * 2, rng.normal(size=(1, model.width)), np.zeros((1, model.width))])
    s = np.append(s, [s[0] * 2, 1.0, 3.0])
    order = rng.permutation(len(B))
    return FFN([B[order], A[:, order]], [s[order], constant - 3.0 * part], skip)


@given(heads=st.integers(1, 4), width=st.integers(1, 5), outputs=st.sampled_from([None, 1, 3]), seed=seeds)
def test_rewriting_a_layer_within_its_symmetries_changes_nothing(heads, width, outputs, seed):
    rng = np.random.default_rng(seed)
    model = layer(rng, heads, width, outputs)
    other = rewritten(rng, model)
    assert canonical(other).heads == heads
    assert distance(model, other) < 1e-12
    X = rng.normal(size=(5, 4, width))
    np.testing.assert_allclose(canonical(other)(X), model(X), rtol=0, atol=1e-11)


@given(heads=st.integers(1, 4), width=st.integers(1, 5), seed=seeds, size=st.floats(1e-6, 0.5))
def test_distance_sees_the_error_of_one_block(heads, width, seed, size):
    rng = np.random.default_rng(seed)
    model = layer(rng, heads, width)
    nudge = np.zeros_like(model.W)
    nudge[-1] = size * model.W[-1]
    assert distance(model, Attention(model.W + nudge, model.V, model.c, model.b)) <= size
    far = Attention(model.W, model.V, model.c, model.b * (1 + size))
    assert distance(model, far) == pytest.approx(size / (1 + size), rel=1e-6)
    assert distance(far, model) == pytest.approx(distance(model, far), rel=1e-12)  # sums may run in another order


def test_absent_blocks_are_zeros_and_zeros_compare_absolutely():
    rng = np.random.default_rng(0)
    model = layer(rng, 2, 3, c=False, b=False)
    assert distance(model, Attention(model.W, model.V, np.full((2, 3), 1e-15), 1e-15)) < 1e-14
    W = np.stack([model.W[0], np.zeros((3, 3))])
    assert distance(Attention(W, model.V), Attention(W + 1e-15, model.V)) < 1e-13
    assert distance(Attention(W, model.V), Attention(W + 1e-3, model.V)) > 1e-3


def test_different_shapes_and_kinds_are_infinitely_far():
    rng = np.random.default_rng(1)
    model = layer(rng, 2, 3)
    assert distance(model, layer(rng, 3, 3)) == np.inf
    assert distance(model, layer(rng, 2, 4)) == np.inf
    assert distance(model, layer(rng, 2, 3, outputs=2)) == np.inf
    assert distance(model, network(rng, 3, 4, 1)) == np.inf
    assert distance(network(rng, 3, 4, 1), network(rng, 3, 5, 1)) == np.inf


def test_a_layer_without_answers_becomes_one_empty_head():
    rng = np.random.default_rng(2)
    model = layer(rng, 1, 3)
    nothing = Attention(
        np.concatenate([model.W, model.W]), np.concatenate([model.V, -model.V]), np.concatenate([model.c] * 2), model.b
    )
    form = canonical(nothing)
    assert form.heads == 1
    assert not form.W.any()
    assert not form.V.any()
    assert form.b == model.b


def test_values_not_learned_leave_w_and_c_to_compare():
    rng = np.random.default_rng(3)
    model = layer(rng, 2, 3, b=False)
    bare = Attention(model.W[::-1], None, model.c[::-1])
    assert canonical(bare).V is None
    assert distance(bare, model) == 0.0
    assert distance(bare, Attention(model.W, None)) > 0.1


@settings(deadline=None)
@given(width=st.integers(1, 4), neurons=st.integers(1, 5), outputs=st.integers(1, 3), skip=st.booleans(), seed=seeds)
def test_rewriting_a_network_within_its_symmetries_changes_nothing(width, neurons, outputs, skip, seed):
    rng = np.random.default_rng(seed)
    model = network(rng, width, neurons, outputs, skip)
    other = rewritten_network(rng, model)
    form = canonical(other)
    assert len(form.weights[0]) == neurons
    np.testing.assert_allclose(np.linalg.norm(form.weights[0], axis=1), 1.0)
    assert distance(model, other) < 1e-9  # a split neuron may be much larger than what is left of it
    x = rng.normal(size=(9, width))
    np.testing.assert_allclose(form(x), model(x), rtol=0, atol=1e-10)


def test_a_network_without_skip_keeps_its_sides():
    model = network(np.random.default_rng(4), 3, 5, 1)
    form = canonical(model)
    assert form.skip is None
    sides = form.weights[0] @ model.weights[0].T / np.linalg.norm(model.weights[0], axis=1)
    np.testing.assert_allclose(np.sort(sides.max(axis=1)), 1.0)


def test_opposite_neurons_leave_a_skip_and_dead_networks_are_linear():
    pair = FFN([[[2.0], [-2.0]], [[1.0, -1.0]]], [[1.0, -1.0], [0.5]])
    form = canonical(pair)
    assert len(form.weights) == 1
    np.testing.assert_allclose(form.weights[0], [[2.0]])
    np.testing.assert_allclose(form.biases[0], [1.5])
    assert distance(pair, FFN([[[2.0]]], [[1.5]])) < 1e-15


@given(width=st.integers(2, 4), seed=seeds)
def test_deep_networks_scale_and_sort(width, seed):
    rng = np.random.default_rng(seed)
    sizes = [width, 4, 3, 2]
    model = FFN([rng.normal(size=(b, a)) for a, b in itertools.pairwise(sizes)], [rng.normal(size=b) for b in sizes[1:]])
    scale = rng.uniform(0.5, 2, size=4)
    order = rng.permutation(4)
    A, B, C = model.weights
    other = FFN([(A * scale[:, None])[order], (B / scale)[:, order], C], [(model.biases[0] * scale)[order], *model.biases[1:]])
    assert distance(model, other) < 1e-12
    x = rng.normal(size=(9, width))
    np.testing.assert_allclose(canonical(other)(x), model(x), rtol=0, atol=1e-12)


@settings(deadline=None)
@given(width=st.integers(2, 4), residual=st.booleans(), skip=st.booleans(), seed=seeds)
def test_rewriting_a_transformer_changes_nothing(width, residual, skip, seed):
    rng = np.random.default_rng(seed)
    net = network(rng, width, 2 * width + 1, 2, skip)
    head = Attention(
        rng.normal(size=(1, width, width)), rng.normal(size=(1, width, width)), rng.normal(size=(1, width)), rng.normal(size=width)
    )
    model = Transformer(head, net, residual)
    mix = np.eye(width) if residual else np.linalg.qr(rng.normal(size=(width, width)))[0]
    turned = FFN([net.weights[0] @ mix.T, net.weights[1]], net.biases, None if net.skip is None else net.skip @ mix.T)
    other = Transformer(Attention(head.W, head.V @ mix.T, head.c, mix @ head.b), rewritten_network(rng, turned), residual)
    X = rng.normal(size=(5, 3, width))
    np.testing.assert_allclose(other(X), model(X), rtol=0, atol=1e-9)
    np.testing.assert_allclose(canonical(other)(X), model(X), rtol=0, atol=1e-9)
    assert distance(model, other) < 1e-8
    if not residual:
        np.testing.assert_array_equal(canonical(model).attention.V[0], np.eye(width))
    assert distance(model, Transformer(head, net, not residual)) == np.inf


def test_residual_values_that_the_network_cannot_see_are_removed():
    rng = np.random.default_rng(5)
    net = FFN([np.array([[1.0, 2.0, 0.0], [0.5, -1.0, 0.0]]), rng.normal(size=(1, 2))], [rng.normal(size=2), rng.normal(size=1)])
    V = rng.normal(size=(1, 3, 3))
    hidden = V.copy()
    hidden[0, :, 2] += 1.0
    W = rng.normal(size=(1, 3, 3))
    a, b = (Transformer(Attention(W, values), net, True) for values in (V, hidden))
    assert distance(a, b) < 1e-14
