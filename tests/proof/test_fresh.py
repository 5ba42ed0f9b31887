"""Fresh sequences and the comparison: sized so that what the model computes shows, of natural size, long, and not foreseeable."""

import re

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.models import FFN, Attention, Transformer
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.proof.compare import compared, predictor
from unsoftmax.proof.drawn import Part, tokens_of
from unsoftmax.proof.fresh import COUNT, fresh_batches, natural_tokens
from unsoftmax.proof.judge import checked, covered, relative_errors, unnoticed, varies
from unsoftmax.proof.length import longest_taken
from unsoftmax.proof.rare import lengths
from unsoftmax.proof.together import Together


def attention(size, width=6, seed=0, c=None):
    rng = np.random.default_rng(seed)
    return Attention.single(size * rng.normal(size=(width, width)), rng.normal(size=width), c=c)


def batches_of(model, seed, **settings):
    return fresh_batches(model, np.random.default_rng(seed), **settings)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_scores_are_neither_silent_nor_saturated_at_any_size_of_w(size):
    model = attention(size)
    spreads = []
    for batch in batches_of(model, 1):
        if batch.length > 1 and not batch.natural:
            scores = np.einsum("bnd,de,be->bn", batch.sequences, model.W[0], batch.sequences[:, -1])
            spreads.append(np.median(np.ptp(scores, axis=1)))
    assert 0.05 < np.median(spreads) < 50


def test_without_scores_or_bends_tokens_have_size_one():
    for model in (
        attention(0.0),
        Transformer(
            Attention(np.zeros((1, 2, 2)), np.eye(2)[None]), FFN([np.zeros((1, 2)), np.ones((1, 1))], [np.ones(1), np.zeros(1)])
        ),
    ):
        sizes = [float(np.sqrt(np.mean(batch.sequences**2))) for batch in batches_of(model, 2)]
        assert all(0.01 < size < 100 for size in sizes)


def test_a_bias_alone_sets_the_size_of_the_sized_ones_and_not_of_the_natural_ones():
    model = attention(0.0, c=1e4 * np.ones(6))
    batches = batches_of(model, 3)
    assert max(float(np.abs(batch.sequences).max()) for batch in batches if not batch.natural) < 1.0
    natural = np.concatenate([batch.sequences.ravel() for batch in batches if batch.natural])
    assert 0.8 < natural.std() < 1.2


def test_lengths_reach_from_one_to_256_and_are_drawn():
    model = attention(0.5)
    drawn = [frozenset(batch.length for batch in batches_of(model, seed)) for seed in range(40)]
    assert all({2, 64, 96, 128, 256} <= lengths for lengths in drawn)
    assert len(set(drawn)) == 40
    assert len(frozenset.union(*drawn)) > 100
    assert all(sum(len(batch.sequences) for batch in batches_of(model, seed)) == COUNT for seed in range(5))


@pytest.mark.parametrize("longest", [64, 100, 256])
def test_more_tokens_are_longer_sequences_and_no_more_of_them(longest):
    model = attention(0.5)
    plain, longer = (batches_of(model, 7, longest=longest, every=True, tokens=tokens) for tokens in (14_900, 33_000))
    assert sum(len(batch.sequences) for batch in longer) == sum(len(batch.sequences) for batch in plain)
    assert {batch.length for batch in longer if batch.length <= 64} == {*range(1, 65)}
    found = {batch.length for batch in longer}
    assert found >= {n for n in (96, 128, 256, longest) if n <= longest}
    told = [sum(len(batch.sequences) * batch.length for batch in batches) for batches in (plain, longer)]
    assert told[1] > 28_000 if longest == 256 else told[1] >= told[0]


def test_narrow_targets_are_compared_on_twice_as_many_tokens_and_wide_ones_are_not():
    counts = {}
    for width in (6, 100):
        rng = np.random.default_rng(width)
        layer = Attention.single(rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=width))
        found, very_long = us.recover(layer, seed=1, rank=None if width < 10 else width), lengths(width)
        counts[width] = int(re.search(r"([\d,]+) tokens in all", found.check.covers)[1].replace(",", "")) - sum(very_long)
        assert found.check.sequences == COUNT + len(very_long)
    assert 28_000 < counts[6] < 37_000
    assert counts[100] < 19_000


def test_some_natural_tokens_are_whole_numbers_some_repeat_and_some_are_equally_long():
    kinds = np.zeros(3, dtype=int)
    for batch in batches_of(attention(0.5), 4):
        for X in batch.sequences if batch.natural and batch.length > 8 else []:
            kinds[0] += np.array_equal(2 * X, np.rint(2 * X))
            kinds[1] += len(np.unique(X, axis=0)) < len(X)
            kinds[2] += np.ptp(np.linalg.norm(X, axis=1)) < 1e-9
    assert (kinds > 0).all()


@pytest.mark.parametrize("longest", [1, 2, 3, 20, 64, 65, 100, 256])
def test_no_sequence_is_longer_than_the_target_takes(longest):
    batches = batches_of(attention(0.5), 5, longest=longest)
    assert max(batch.length for batch in batches) == longest
    assert 150 <= sum(len(batch.sequences) for batch in batches) <= COUNT


def test_natural_samples_are_what_is_sent():
    table = np.random.default_rng(6).normal(size=(5, 6))
    for batch in batches_of(attention(0.5), 6, natural=natural_tokens(table.reshape(1, 5, 6), 6)):
        if batch.natural:
            assert all((table == token).all(axis=1).any() for token in batch.sequences.reshape(-1, 6))
    with pytest.raises(ValueError, match="natural has shape"):
        natural_tokens(np.ones((3, 5)), 6)


def test_a_small_difference_is_seen_and_every_sequence_is_counted():
    model = attention(0.5)
    wrong = Attention(model.W + 1e-5, model.V)
    batches = batches_of(model, 4)
    oracle = Metered(CallableOracle(model))
    right, off = (compared(oracle, tried, batches) for tried in (model, wrong))
    assert checked(right, "").relative_error < 1e-12
    assert 1e-8 < checked(off, "").relative_error < 1e-2
    assert oracle.spent == 2 * right.sequences == 2 * COUNT
    assert varies(right, 2.0**-50)


def test_answers_that_do_not_vary_prove_nothing():
    silent = Attention(np.eye(6)[None], np.zeros((1, 6)), b=1.0)
    assert not varies(compared(CallableOracle(silent), silent, batches_of(silent, 7)), 2.0**-50)
    faint = Attention(np.eye(6)[None], np.full((1, 6), 1e-15), b=1.0)
    assert not varies(compared(CallableOracle(faint), faint, batches_of(faint, 7)), 2.0**-50)


@pytest.mark.parametrize("causal", [False, True])
def test_every_position_is_compared_where_every_position_is_answered(causal):
    model = Attention(np.eye(4)[None], np.random.default_rng(9).normal(size=(1, 4, 3)))
    batches = batches_of(model, 8, longest=20)
    seen = compared(CallableOracle(lambda X: model(X, "all", causal=causal), width=4), model, batches)
    assert relative_errors(seen).all < 1e-12
    assert len(seen.answers) == sum(batch.sequences.shape[0] * batch.length for batch in batches)
    assert ("causal" in covered(seen, tolerance=1e-8, max_norm=None)) == causal

    def wrong_before_the_end(X):
        answers = model(X, "all", causal=causal)
        answers[:, :-1] *= 1.001
        return answers

    assert relative_errors(compared(CallableOracle(wrong_before_the_end, width=4), model, batches)).all > 1e-5


def test_natural_sequences_that_overflow_the_target_are_left_out_and_said():
    model = attention(1e-6)

    def target(X):
        answers = model(X)
        answers[np.abs(X).max(axis=(1, 2)) < 100] = np.nan
        return answers

    seen = compared(CallableOracle(target, width=6), model, batches_of(model, 9))
    assert not seen.natural.any()
    assert seen.unanswered
    assert "got no answer" in covered(seen, tolerance=1e-8, max_norm=None)


def test_the_share_that_may_go_unnoticed_is_binomial():
    assert (1 - unnoticed(100)) ** 100 == pytest.approx(0.01)
    assert unnoticed(100, 0.95) == pytest.approx(1 - 0.05**0.01)


@pytest.mark.parametrize(("longest", "asked"), [(10**6, 1), (200, 3), (100, 3), (64, 3), (3, 5), (1, 5)])
def test_a_target_is_asked_how_much_it_takes(longest, asked):
    model = attention(0.5)

    def target(X):
        if X.shape[1] > longest:
            raise RuntimeError("too long")
        return model(X)

    oracle = Metered(CallableOracle(target, width=6))
    found = longest_taken(oracle, np.random.default_rng(0))
    assert found <= longest
    assert found > longest / 4 or found == 256


def test_limits_and_vocabularies_are_kept_to():
    model = attention(1e-6)
    for batch in batches_of(model, 5, max_norm=0.5):
        assert np.linalg.norm(batch.sequences, axis=-1).max() <= 0.5
    table = np.random.default_rng(6).normal(size=(7, 6))
    for batch in batches_of(model, 7, vocabulary=table):
        assert all((table == token).all(axis=1).any() for token in batch.sequences.reshape(-1, 6))


@pytest.mark.parametrize("outputs", [None, 3])
def test_all_lengths_are_predicted_together_on_a_device_as_one_by_one_elsewhere(outputs):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    V = rng.normal(size=(2, 6) if outputs is None else (2, 6, outputs))
    model = Attention(rng.normal(size=(2, 6, 6)), V, c=rng.normal(size=(2, 6)), b=rng.normal(size=V.shape[2:]))
    batches = [rng.normal(size=(count, length, 6)) for count, length in ((3, 5), (1, 1), (2, 70), (4, 2))]
    mixed = [torch.asarray(batches[0]), *batches[1:]]
    told = predictor(model, torch.empty(0, dtype=torch.float64))(mixed)
    assert isinstance(told, torch.Tensor)
    one_by_one = np.concatenate([model.answer(batch) for batch in batches])
    assert np.abs(told.numpy().reshape(10, -1) - one_by_one).max() < 1e-13
    assert np.abs(predictor(model)(batches) - one_by_one).max() < 1e-13


def test_on_the_host_small_batches_of_like_lengths_are_predicted_together_and_large_ones_apart():
    rng = np.random.default_rng(9)
    counts = ((3, 5), (2, 8), (4, 1), (1000, 7), (5, 6))
    together = Together.of([rng.normal(size=(count, length, 6)) for count, length in counts], None)
    assert sorted(together.batches) == [(0, 1, 4), (2,), (3,)]
    lengths = together.told(lambda groups: [np.full(len(X), X.shape[1]) - _none(absent) for X, absent in groups])
    assert lengths.tolist() == [5] * 3 + [8] * 2 + [1] * 4 + [7] * 1000 + [6] * 5


def _none(absent):
    return 0 if absent is None else absent[:, 0].sum(axis=1)


@pytest.mark.parametrize("width", [40, 3000])
def test_all_kinds_keep_their_laws_however_they_are_drawn_together(width):
    """Also where many numbers are drawn apart, of fewer digits: sizes in turn, natural tokens of size one."""
    rng, sizes = np.random.default_rng(1), np.array([0.1, 10.0])
    parts = [Part(30, 4, np.array([1, 0])), Part(2, 2), Part(40, 12), Part(100, 3, np.array([0, 1]))]
    drawn = tokens_of(parts, width, sizes, rng)
    assert [part.shape for part in drawn] == [(4, 30, width), (2, 2, width), (12, 40, width), (3, 100, width)]
    rms = [np.sqrt(np.mean(part**2, axis=(1, 2))) for part in drawn]
    np.testing.assert_allclose(rms[0], [10.0, 0.1, 10.0, 0.1], rtol=0.3)
    np.testing.assert_allclose(rms[3], [0.1, 10.0, 0.1], rtol=0.3)
    np.testing.assert_allclose(rms[2], np.ones(12), rtol=0.3)
    whole = [np.array_equal(2 * X, np.rint(2 * X)) for X in drawn[2]]
    repeated = [len(np.unique(X, axis=0)) < len(X) for X in drawn[2]]
    equal = [np.ptp(np.linalg.norm(X, axis=1)) < 1e-9 * width for X in drawn[2]]
    assert (sum(whole), sum(repeated), sum(equal)) == (2, 2, 2)


def test_numbers_drawn_on_a_device_are_normal_and_follow_from_the_seed():
    torch = pytest.importorskip("torch")
    like = torch.empty(0, dtype=torch.float64)
    one, again, other = (batches_of(attention(0.5), seed, like=like)[5].sequences for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert one.shape != other.shape or not torch.equal(one, other)
    assert 0.2 < float(one.std()) < 5
