import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import seeds

from unsoftmax.errors import NotIdentifiableError, RefusalError
from unsoftmax.learners.transformer import TransformerLearner
from unsoftmax.models import FFN, Attention, Transformer
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.results import Floor


def gaussian(d, m, p, seed, *, residual=False, bias=False, rank=None, scale=1.0):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=(p, m)) / np.sqrt(m)]
    network = FFN(weights, [rng.normal(size=m), rng.normal(size=p)])
    W = rng.normal(size=(d, d)) if rank is None else rng.normal(size=(d, rank)) @ rng.normal(size=(rank, d)) / np.sqrt(rank)
    V = rng.normal(size=(1, d, d)) / np.sqrt(d)
    W = scale * W[None] / np.sqrt(d)
    attention = Attention(W, V, rng.normal(size=(1, d)) / np.sqrt(d)) if bias else Attention(W, V)
    return Transformer(attention, network, residual=residual)


def learn(target, seed=0, **settings):
    oracle = Metered(CallableOracle(target, width=target.width))
    return TransformerLearner(**settings).run(oracle, rng=np.random.default_rng(seed)), oracle


def error(found, target):
    rng = np.random.default_rng(1)
    worst = 0.0
    for tokens in (1, 2, 8, 32):
        X = rng.normal(size=(100, tokens, target.width))
        truth = target(X)
        worst = max(worst, np.abs(found.model(X) - truth).max() / truth.std())
    return worst


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_d8_m16_every_variant_comes_back(residual, bias, seed):
    target = gaussian(8, 16, 1, seed + 40, residual=residual, bias=bias)
    found, oracle = learn(target, seed)
    assert error(found, target) < 1e-9
    assert (found.model.residual, found.model.attention.has_c) == (residual, bias)
    np.testing.assert_allclose(found.model.attention.W, target.attention.W, atol=1e-9)
    if residual:
        np.testing.assert_allclose(found.model.attention.V, target.attention.V, atol=1e-7)
    else:
        np.testing.assert_array_equal(found.model.attention.V[0], np.eye(8))
    assert oracle.spent <= 2.4 * (161 + 64 + 64 * residual + 8 * bias)


@given(d=st.integers(2, 6), m=st.integers(4, 10), p=st.integers(1, 3), residual=st.booleans(), seed=seeds)
@settings(max_examples=15)
def test_random_shapes_are_right_or_refused(d, m, p, residual, seed):
    target = gaussian(d, m, p, seed, residual=residual)
    try:
        found, _ = learn(target)
    except RefusalError:
        return
    assert error(found, target) < 1e-6


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("bias", "seed"), [(False, 0), (True, 1), (False, 2)])
def test_a_network_that_sleeps_at_the_origin_shows_its_attention_elsewhere(residual, bias, seed):
    awake = gaussian(4, 7, 1, seed, residual=residual, bias=bias)
    target = Transformer(awake.attention, FFN(awake.ffn.weights, [-0.1 - np.abs(awake.ffn.biases[0]), [0.5]]), residual=residual)
    found, _ = learn(target, seed)
    assert error(found, target) < 1e-8
    assert (found.model.residual, found.model.attention.has_c) == (residual, bias)
    np.testing.assert_allclose(found.model.attention.W, target.attention.W, atol=1e-8)


def test_low_rank_is_found_and_cheaper():
    target = gaussian(12, 16, 1, 3, rank=3)
    found, oracle = learn(target)
    assert found.evidence["rank"] == 3
    assert error(found, target) < 1e-9
    assert oracle.phases["scores"].queries < 12 * 12


@pytest.mark.parametrize("residual", [False, True])
def test_vector_answers(residual):
    target = gaussian(8, 16, 4, 8, residual=residual)
    found, _ = learn(target)
    assert error(found, target) < 1e-9


@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_faint_and_saturated_attention(scale):
    target = gaussian(6, 12, 1, 2, scale=scale)
    found, _ = learn(target)
    assert error(found, target) < 1e-8


def test_no_token_is_longer_than_allowed():
    target = gaussian(6, 12, 1, 2)
    longest = 0.0

    def watched(X):
        nonlocal longest
        longest = max(longest, np.linalg.norm(X, axis=-1).max())
        return target(X)

    found = TransformerLearner(max_norm=20.0).run(CallableOracle(watched, width=6), rng=np.random.default_rng(0))
    assert longest <= 20.0
    assert error(found, target) < 1e-8


def test_a_network_that_is_constant_hides_the_attention():
    dead = FFN([np.zeros((2, 3)), np.ones((1, 2))], [[1.0, -1.0], [0.5]])
    target = Transformer(Attention(np.ones((1, 3, 3)), np.eye(3)[None]), dead)
    with pytest.raises(NotIdentifiableError, match="does not change"):
        learn(target)


def test_two_heads_are_refused():
    rng = np.random.default_rng(0)
    one = gaussian(5, 8, 1, 0)
    heads = Attention(rng.normal(size=(2, 5, 5)), rng.normal(size=(2, 5, 5)))

    def target(X):
        return one.ffn(heads(X))

    with pytest.raises(RefusalError):
        TransformerLearner().run(CallableOracle(target, width=5), rng=np.random.default_rng(0))


def test_the_meter_meets_the_price():
    found, oracle = learn(gaussian(8, 16, 1, 50, residual=True))
    assert found.model.residual
    for name, (low, high), (few, many) in TransformerLearner().price(8, 16):
        assert low <= oracle.phases[name].queries <= high, name
        assert few <= oracle.phases[name].tokens <= many, name


def test_attention_that_looks_at_nothing_is_found_beside_a_residual():
    rng = np.random.default_rng(6)
    target = Transformer(Attention(np.zeros((1, 5, 5)), rng.normal(size=(1, 5, 5))), gaussian(5, 9, 2, 6).ffn, residual=True)
    found, _ = learn(target)
    assert found.model.residual
    assert found.evidence["rank"] == 0
    assert error(found, target) < 1e-8


@pytest.mark.parametrize("seed", [0, 1])
def test_rounded_answers_are_outweighed_by_long_tokens(seed):
    target = gaussian(6, 10, 1, 70 + seed)
    oracle = CallableOracle(lambda X: np.round(target(X), 8), width=6)
    learner = TransformerLearner(floor=Floor(kind="rounded", absolute=0.5e-8, step=1e-8), max_norm=1000.0)
    assert error(learner.run(oracle, rng=np.random.default_rng(seed)), target) < 1e-6


def test_attention_that_looks_at_nothing_has_no_scores():
    rng = np.random.default_rng(4)
    network = FFN([rng.normal(size=(7, 5)), rng.normal(size=(1, 7))], [rng.normal(size=7), rng.normal(size=1)])
    found = TransformerLearner().run(CallableOracle(lambda X: network(X.mean(axis=1)), 5), rng=np.random.default_rng(0))
    assert not found.model.attention.W.any()
    assert found.evidence["rank"] == 0
