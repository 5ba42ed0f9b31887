"""Fresh sequences: sized so that what the model computes shows in the answers."""

import numpy as np
import pytest
from unsoftmax.checks.held_out import compared, fresh_sequences, predictor, summed_up

from unsoftmax.models import FFN, Attention, Transformer
from unsoftmax.oracles import CallableOracle, Metered


def attention(size, width=6, seed=0, c=None):
    rng = np.random.default_rng(seed)
    return Attention.single(size * rng.normal(size=(width, width)), rng.normal(size=width), c=c)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_scores_are_neither_silent_nor_saturated_at_any_size_of_w(size):
    model = attention(size)
    spreads = []
    for batch in fresh_sequences(model, np.random.default_rng(1)):
        if batch.shape[1] > 1:
            scores = np.einsum("bnd,de,be->bn", batch, model.W[0], batch[:, -1])
            spreads.append(np.median(np.ptp(scores, axis=1)))
    assert 0.05 < np.median(spreads) < 50


def test_without_scores_or_bends_tokens_have_size_one():
    for model in (
        attention(0.0),
        Transformer(
            Attention(np.zeros((1, 2, 2)), np.eye(2)[None]), FFN([np.zeros((1, 2)), np.ones((1, 1))], [np.ones(1), np.zeros(1)])
        ),
    ):
        sizes = [float(np.sqrt(np.mean(batch**2))) for batch in fresh_sequences(model, np.random.default_rng(2))]
        assert all(0.01 < size < 100 for size in sizes)


def test_a_bias_alone_sets_the_size():
    model = attention(0.0, c=1e4 * np.ones(6))
    assert max(float(np.abs(batch).max()) for batch in fresh_sequences(model, np.random.default_rng(3))) < 1.0


def test_a_small_difference_is_seen_and_every_sequence_is_counted():
    model = attention(0.5)
    wrong = Attention(model.W + 1e-5, model.V)
    batches = fresh_sequences(model, np.random.default_rng(4))
    oracle = Metered(CallableOracle(model))
    right, check = (summed_up(*compared(oracle, predictor(tried), batches), batches) for tried in (model, wrong))
    assert right.relative_error < 1e-12
    assert 1e-8 < check.relative_error < 1e-2
    assert oracle.spent == 2 * check.sequences == 2 * sum(len(batch) for batch in batches)


def test_limits_and_vocabularies_are_kept_to():
    model = attention(1e-6)
    for batch in fresh_sequences(model, np.random.default_rng(5), max_norm=0.5):
        assert np.linalg.norm(batch, axis=-1).max() <= 0.5
    table = np.random.default_rng(6).normal(size=(7, 6))
    for batch in fresh_sequences(model, np.random.default_rng(7), vocabulary=table):
        assert all((table == token).all(axis=1).any() for token in batch.reshape(-1, 6))


@pytest.mark.parametrize("outputs", [None, 3])
def test_all_lengths_are_predicted_together_on_a_device_as_one_by_one_elsewhere(outputs):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    V = rng.normal(size=(2, 6) if outputs is None else (2, 6, outputs))
    model = Attention(rng.normal(size=(2, 6, 6)), V, c=rng.normal(size=(2, 6)), b=rng.normal(size=V.shape[2:]))
    batches = [rng.normal(size=(count, length, 6)) for count, length in ((3, 5), (1, 1), (4, 2))]
    mixed = [torch.asarray(batches[0]), *batches[1:]]
    told = predictor(model, torch.empty(0, dtype=torch.float64))(mixed)
    assert isinstance(told, torch.Tensor)
    assert np.abs(told.numpy() - predictor(model)(batches)).max() < 1e-13


def test_numbers_drawn_on_a_device_are_normal_and_follow_from_the_seed():
    torch = pytest.importorskip("torch")
    like = torch.empty(0, dtype=torch.float64)
    one, again, other = (fresh_sequences(attention(0.5), np.random.default_rng(seed), like=like) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], other[0])
    host = fresh_sequences(attention(0.5), np.random.default_rng(1))
    for there, here in zip(one[5:], host[5:], strict=True):
        assert 0.8 < float(there.std()) / here.std() < 1.25
