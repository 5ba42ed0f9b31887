"""Identifiability: the counts equal theory, and the Jacobian, in every case of the table; witnesses answer alike."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.models import FFN, Attention, Transformer
from unsoftmax.symmetry import attention_jacobian, distance, identifiability, numerical_nullity, witness
from unsoftmax.symmetry.jacobian import network_jacobian, transformer_jacobian

D, H = 4, 3


def layer(case, m, c, b, seed=0):
    """Three generic heads of width 4, made special as ``case`` says; equal or opposite heads share or oppose c too."""
    rng = np.random.default_rng(seed)
    W, V, bias = rng.normal(size=(H, D, D)), rng.normal(size=(H, D, m or 1)), rng.normal(size=(H, D))
    if case in ("equal", "equal, parallel values"):
        W[1], bias[1] = W[0], bias[0]
    if case == "all equal":
        W[:], bias[:] = W[0], bias[0]
    if case in ("parallel values", "equal, parallel values"):
        V[1] = 0.7 * V[0]
    if case == "no values":
        V[1] = 0.0
    if case == "zero scores":
        W[1], bias[1] = 0.0, 0.0
    if case == "opposite":
        W[1], bias[1] = -W[0], -bias[0]
    if case == "stretched":
        W[1], bias[1] = 1.7 * W[0], 1.7 * bias[0]
    if case == "opposite and zero":
        W[1], bias[1], W[2], bias[2] = -W[0], -bias[0], 0.0, 0.0
    V = V[..., 0] if m is None else V
    return Attention(W, V, bias if c else None, rng.normal(size=() if m is None else m) if b else None)


def theory(case, m, c, length):
    scalar, m, row = m is None or m == 1, m or 1, D + c
    everything = H * D * (D + m + c)
    if length == 1:
        return everything - D * m
    table = {
        "generic": 0,
        "equal": D * m + (row if scalar else 0),
        "all equal": 2 * D * m + (3 * row if scalar else 0),
        "parallel values": 0,
        "equal, parallel values": D * m + D * row,
        "no values": D * row,
        "zero scores": 0,
        "opposite": 0,
        "stretched": 0,
        "opposite and zero": 0,
    }
    extra = {"opposite": row if scalar else 0, "opposite and zero": D * m + (row if scalar else 0)} if length == 2 else {}
    return table[case] + extra.get(case, 0)


CASES = ["generic", "equal", "all equal", "parallel values", "equal, parallel values", "no values", "zero scores", "opposite"]
CASES += ["stretched", "opposite and zero"]


@pytest.mark.parametrize("length", [None, 1, 2, 3])
@pytest.mark.parametrize("b", [False, True])
@pytest.mark.parametrize("c", [False, True])
@pytest.mark.parametrize("m", [None, 1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_nullity_is_what_theory_and_the_jacobian_say(case, m, c, b, length):
    model = layer(case, m, c, b)
    found = identifiability(model, max_length=length)
    assert found.nullity == theory(case, m, c, length)
    assert found.parameters == H * D * (D + (m or 1) + c) + (m or 1) * b
    assert found.dimension == found.parameters - found.nullity
    rng = np.random.default_rng(1)
    rows = [attention_jacobian(model, 0.7 * rng.normal(size=(300, n, D)))[1] for n in range(1, (length or 5) + 1)]
    nullity, _ = numerical_nullity(np.concatenate(rows).reshape(-1, found.parameters))
    assert nullity == found.nullity


def test_equal_w_with_different_biases_are_different_heads():
    model = layer("equal", None, True, False)
    apart = Attention(model.W, model.V, model.c + np.arange(H)[:, None])
    assert identifiability(apart).nullity == 0
    assert witness(apart) is None


@pytest.mark.parametrize(("length", "bad"), [(0, identifiability), (-1, witness)])
def test_a_sequence_has_a_token(length, bad):
    with pytest.raises(ValueError, match="at least one token"):
        bad(layer("generic", None, False, False), max_length=length)


def test_symmetries_are_named():
    assert "share their W" in " ".join(identifiability(layer("equal", None, False, False)).symmetries)
    assert "V = 0" in " ".join(identifiability(layer("no values", None, False, False)).symmetries)
    assert "opposite" in " ".join(identifiability(layer("opposite", None, False, False), max_length=2).symmetries)
    assert "sum of all V" in " ".join(identifiability(layer("generic", None, False, False), max_length=1).symmetries)


def test_wide_layers_are_counted_without_their_jacobian():
    rng = np.random.default_rng(2)
    model = Attention(rng.normal(size=(3, 96, 96))[[0, 1, 0]], rng.normal(size=(3, 96, 96)))
    assert identifiability(model).nullity == 96 * 96


@pytest.mark.parametrize("m", [None, 2])
@pytest.mark.parametrize("length", [None, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_witnesses_answer_alike_and_look_different(case, length, m):
    model = layer(case, m, True, True)
    other = witness(model, max_length=length)
    if length is None and case not in ("equal", "all equal", "equal, parallel values", "no values"):
        assert other is None
        return
    rng = np.random.default_rng(3)
    for n in range(1, (length or 6) + 1):
        X = rng.normal(size=(50, n, D))
        np.testing.assert_allclose(other(X), model(X), rtol=0, atol=1e-12)
    assert other.heads != model.heads or max(np.abs(other.W - model.W).max(), np.abs(other.V - model.V).max()) > 0.1
    if length is None:
        assert distance(model, other) < 1e-12
    else:
        X = rng.normal(size=(50, 5, D))
        same = case in ("equal", "all equal", "equal, parallel values", "no values")
        assert same or np.abs(other(X) - model(X)).max() > 1e-3


def test_a_head_without_scores_has_no_mirror():
    assert witness(Attention.single(np.zeros((2, 2)), [1.0, 2.0]), max_length=2) is None


def net(rng, width=3, neurons=4, outputs=2, skip=False):
    return FFN(
        [rng.normal(size=(neurons, width)), rng.normal(size=(outputs, neurons))],
        [rng.normal(size=neurons), rng.normal(size=outputs)],
        rng.normal(size=(outputs, width)) if skip else None,
    )


@settings(deadline=None, max_examples=20)
@given(neurons=st.integers(1, 5), outputs=st.integers(1, 3), skip=st.booleans(), seed=st.integers(0, 999))
def test_networks_lose_one_scale_per_neuron(neurons, outputs, skip, seed):
    rng = np.random.default_rng(seed)
    model = net(rng, 3, neurons, outputs, skip)
    model = FFN(model.weights, [0.3 * model.biases[0], model.biases[1]], model.skip)  # every kink within reach of the points
    found = identifiability(model)
    assert found.nullity == neurons
    x = rng.normal(size=(20, 3))
    other = witness(model)
    np.testing.assert_array_equal(other(x), model(x))
    assert np.abs(other.weights[0] - model.weights[0]).max() > 1e-3


def test_transformers_lose_v_to_the_network_unless_residual():
    rng = np.random.default_rng(4)
    head = Attention(rng.normal(size=(1, 3, 3)), rng.normal(size=(1, 3, 3)), rng.normal(size=(1, 3)), rng.normal(size=3))
    plain, residual = Transformer(head, net(rng, neurons=6)), Transformer(head, net(rng, neurons=6), residual=True)
    assert identifiability(plain).nullity == 6 + 9 + 3
    assert identifiability(residual).nullity == 6 + 3
    X = rng.normal(size=(9, 4, 3))
    for model in (plain, residual):
        np.testing.assert_allclose(witness(model)(X), model(X), rtol=0, atol=1e-12)
        assert distance(witness(model), model) < 1e-12
    assert witness(FFN([[[1.0]]], [[0.0]])) is None


@given(seed=st.integers(0, 999), residual=st.booleans(), skip=st.booleans())
@settings(deadline=None, max_examples=10)
def test_jacobians_are_derivatives(seed, residual, skip):
    rng = np.random.default_rng(seed)
    network = net(rng, skip=skip)
    head = Attention(rng.normal(size=(1, 3, 3)), rng.normal(size=(1, 3, 3)), rng.normal(size=(1, 3)), rng.normal(size=3))
    blocks = [*network.weights, *network.biases] + ([network.skip] if skip else [])
    assert network_jacobian(network, rng.normal(size=(2, 3)))[0].shape == (2, 2, sum(x.size for x in blocks))
    X = rng.normal(size=(3, 4, 3))
    step = (
        rng.normal(size=head.W.shape),
        rng.normal(size=head.V.shape),
        rng.normal(size=head.c.shape),
        rng.normal(size=head.b.shape),
    )

    def at(t):
        moved = Attention(*(block + t * s for block, s in zip((head.W, head.V, head.c, head.b), step, strict=True)))
        return Transformer(moved, network, residual)(X)

    J = transformer_jacobian(Transformer(head, network, residual), X)
    slope = J[:, :, -sum(s.size for s in step) :] @ np.concatenate([s.ravel() for s in step])
    np.testing.assert_allclose((at(1e-7) - at(-1e-7)) / 2e-7, slope, rtol=1e-4, atol=1e-5)
