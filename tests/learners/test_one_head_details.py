"""One head: error bars of every block, faint and loud biases, and what is not asked where it is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import seeds

import unsoftmax as us
from unsoftmax.errors import NotIdentifiableError
from unsoftmax.learners.one_head import OneHeadLearner
from unsoftmax.learners.one_head.learner import price
from unsoftmax.learners.one_head.positions import is_causal
from unsoftmax.learners.one_head.score_matrix import _leading_rank, _next_size, _RankTest, _strongest
from unsoftmax.learners.one_head.scores import ScoreReader, StepReader, Values, copies, log_weights
from unsoftmax.learners.one_head.values_again import price as price_again
from unsoftmax.learners.one_head.values_again import values_bars
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.oracles.base import Wrapper, in_parts
from unsoftmax.results import Floor
from unsoftmax.symmetry import distance


def run(head, seed=0, **settings):
    oracle = Metered(CallableOracle(head, width=head.width))
    return OneHeadLearner(**settings).run(oracle, rng=np.random.default_rng(seed)), oracle


def random_head(rng, width, rank=None, outputs=None):
    W = rng.normal(size=(width, width)) / np.sqrt(width)
    if rank is not None:
        W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width)) / np.sqrt(width * rank)
    return W, rng.normal(size=width if outputs is None else (width, outputs))


@given(width=st.integers(2, 10), seed=st.integers(0, 2**32 - 1), c=st.booleans(), b=st.booleans())
def test_every_block_has_error_bars_of_its_shape_that_hold_the_truth(width, seed, c, b):
    rng = np.random.default_rng(seed)
    W, v = random_head(rng, width)
    head = Attention.single(W, v, c=rng.normal(size=width) if c else None, b=float(rng.normal()) if b else 0.0)
    found, _ = run(head)
    for name in ("W", "V", "c", "b"):
        bars, got, true = (np.asarray(getattr(x, name)) for x in (found.bounds, found.model, head))
        assert bars.shape == got.shape
        assert np.isfinite(bars).all()
        if name != "W" or width < 6:  # error bars of W are typical errors, one in twenty lies outside
            assert np.all(np.abs(got - true) <= bars + 1e-300)
        else:
            assert np.mean(np.abs(got - true) <= bars) > 0.8


def test_scores_that_are_zero_are_known_to_be_tiny_at_most():
    found, _ = run(Attention.single(np.zeros((4, 4)), np.arange(1.0, 5.0)))
    assert not found.model.W.any()
    assert 0.0 < found.bounds.W.max() < 1e-40


def biased(size):
    rng = np.random.default_rng(7)
    W, v = random_head(rng, 6)
    return Attention.single(W, v, c=size * rng.normal(size=6))


@pytest.mark.parametrize("size", [1e-9, 1e-5, 1.0, 1e3])
def test_a_query_bias_of_any_size_is_found(size):
    head = biased(size)
    found, oracle = run(head)
    assert np.linalg.norm(found.model.c - head.c) <= 1e-9 * np.linalg.norm(head.c)
    assert oracle.spent <= 6 * 6 + 2 * 6 + 40


@pytest.mark.parametrize("size", [1e6, 1e10])
def test_a_query_bias_that_hides_the_score_matrix_is_found_and_the_rest_refused(size):
    head = biased(size)
    with pytest.raises(NotIdentifiableError, match="saturates the softmax") as caught:
        run(head)
    assert np.linalg.norm(caught.value.model.c - head.c) <= 1e-9 * np.linalg.norm(head.c)


@pytest.mark.parametrize(("width", "rank"), [(32, 2), (64, 4), (40, 40)])
def test_a_rank_that_is_told_is_not_searched_for(width, rank):
    head = Attention.single(*random_head(np.random.default_rng(width), width, rank))
    told, with_rank = run(head, rank=rank)
    found, without_rank = run(head)
    assert max(distance(told.model, head), distance(found.model, head)) < 1e-12
    bill = sum(queries for _, queries, _ in price(width, rank=rank))
    assert bill <= with_rank.spent <= bill + 8
    assert with_rank.spent <= without_rank.spent


@pytest.mark.parametrize("outputs", [1, 3, 8])
def test_the_price_is_the_bill(outputs):
    head = Attention.single(*random_head(np.random.default_rng(outputs), 24))
    if outputs > 1:
        W, V = random_head(np.random.default_rng(outputs), 24, outputs=outputs)
        head = Attention(W[None], V[None])
    _, oracle = run(head, rank=24)
    listed = price(24, outputs=outputs, rank=24)
    assert [name for name, _, _ in listed] == ["values", "query bias", "scale", "columns", "rows"]
    assert abs(oracle.spent - sum(queries for _, queries, _ in listed)) <= 8
    columns = {name: (queries, tokens) for name, queries, tokens in listed}["columns"]
    assert columns[1] == columns[0] * (outputs + copies(outputs))


@given(width=st.integers(1, 12), seed=st.integers(0, 2**32 - 1), causal=st.booleans(), loud=st.sampled_from([0.1, 1.0]))
def test_a_causal_mask_is_seen(width, seed, causal, loud):
    rng = np.random.default_rng(seed)
    W, V = random_head(rng, width, outputs=width)
    head = Attention((loud * W)[None], V[None])
    oracle = CallableOracle(lambda X: head(X, positions="all", causal=causal), width=width)
    assert is_causal(oracle, V, np.zeros(width), 2.0**-10, rng) == causal


def test_keys_without_any_weight_are_saturated_and_not_unknown():
    worth = np.array([[1.0, 0.0], [0.0, 1.0]])
    own = np.array([-1.0, -1.0])
    one, other = log_weights(worth[None], own[None], worth[:1])[0]  # the whole weight on the first key
    assert one == np.inf
    assert other == np.inf  # it and the last token have none: nothing is known of their ratio
    even = log_weights(worth[None], own[None], (worth.sum(axis=0) + own)[None] / 3)[0]
    assert np.allclose(even, 0.0, atol=1e-15)


class Parted:
    """An oracle that answers request by request."""

    width = 2

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, sequences):
        return self.inner(sequences)

    def parts(self, sequences, before):
        for start in range(0, len(sequences), 2):
            before(start, len(sequences[start : start + 2]))
            yield start, self.inner(sequences[start : start + 2])


def test_wrappers_that_change_nothing_are_looked_through():
    X = np.arange(10.0).reshape(5, 1, 2)
    plain = CallableOracle(lambda S: S[:, -1].sum(axis=1), width=2)
    for oracle, cuts in (
        (plain, [(0, 5)]),
        (Wrapper(plain), [(0, 5)]),
        (Wrapper(Wrapper(Parted(plain))), [(0, 2), (2, 2), (4, 1)]),
    ):
        begun, parts = [], []
        for start, answers in in_parts(oracle, X, lambda start, count, begun=begun: begun.append((start, count))):
            parts.append((start, answers))
            assert begun[len(parts) - 1][0] == start  # an intent is written down before its answer comes
        assert begun == cuts
        assert np.array_equal(np.concatenate([answers for _, answers in parts]), plain(X))
    metered = Metered(Parted(plain))  # counting changes something: it must not be passed by
    assert [start for start, _ in in_parts(metered, X, lambda start, count: None)] == [0]
    assert metered.spent == 5


@pytest.mark.parametrize(("rank", "outputs"), [(24, 1), (4, 1), (24, 3), (5, 3), (7, 8)])
def test_every_phase_asks_what_its_price_says(rank, outputs):
    W, V = random_head(np.random.default_rng(rank), 24, rank, outputs)
    _, oracle = run(Attention(W[None], V[None] if outputs > 1 else V[None, :, 0]), rank=rank)
    told = {name: (queries, tokens) for name, queries, tokens in price(24, outputs=outputs, rank=rank)}
    asked = {name: (count.queries, count.tokens) for name, count in oracle.phases.items()}
    told["values"] = (25, 25)  # and the zero token
    for name, (queries, tokens) in told.items():
        assert isinstance(queries, int)
        assert isinstance(tokens, int)
        assert queries == asked.get(name, (0, 0))[0]
        if outputs == 1 or name == "columns":
            assert tokens == asked.get(name, (0, 0))[1]
        elif name == "rows":
            assert abs(tokens - asked.get(name, (0, 0))[1]) <= 0.25 * tokens  # the last keys of each may be fewer


def test_scores_that_do_not_show_are_said_to_be_unseen():
    found, _ = run(Attention.single(np.zeros((4, 4)), np.arange(1.0, 5.0)))
    assert "W does not show" in " ".join(found.notes)
    found, _ = run(Attention.single(np.eye(4), np.arange(1.0, 5.0)))
    assert found.notes == ()


def test_answers_at_all_positions_are_booked_as_pairs():
    rng = np.random.default_rng(2)
    W, V = random_head(rng, 6, outputs=6)
    head = Attention(W[None], V[None])
    oracle = Metered(CallableOracle(lambda X: head(X, "all"), width=6))
    found = OneHeadLearner(max_norm=3.0).run(oracle, rng=rng)
    assert distance(found.model, head) < 1e-9
    assert oracle.phases["pairs"].queries >= 1
    assert "columns" not in oracle.phases


@pytest.mark.parametrize(("width", "outputs"), [(6, 3), (8, 4), (5, 5)])
def test_answers_that_repeat_each_other_are_read_once(width, outputs):
    rng = np.random.default_rng(width)
    W, V = random_head(rng, width, outputs=outputs)
    V[:, -1] = V[:, 0] + V[:, 1]  # one number of the answers tells nothing new
    head = Attention(W[None], V[None])
    found, _ = run(head)
    assert distance(found.model, head) < 1e-12


@pytest.mark.parametrize("size", [1e4, 1e12, 1e20])
def test_scores_of_any_size_are_brought_to_a_readable_one(size):
    rng = np.random.default_rng(9)
    head = Attention.single(size * rng.normal(size=(5, 5)), rng.normal(size=5))
    found, oracle = run(head)
    assert distance(found.model, head) < 1e-13
    assert oracle.spent <= 5 * 5 + 5 + 24


@pytest.mark.parametrize(
    ("smallest", "noise", "rank"), [(1e-2, 1e-15, 40), (1e-9, 1e-15, 40), (1e-9, 1e-12, 40), (1e-9, 1e-10, 39)]
)
def test_a_block_is_called_regular_where_noise_cannot_hide_that_it_is_not(smallest, noise, rank):
    rng = np.random.default_rng(1)
    left, right = (np.linalg.qr(rng.normal(size=(40, 40)))[0] for _ in range(2))
    block = left @ np.diag(np.append(np.ones(39), smallest)) @ right
    assert _RankTest(noise).rank(block) == rank
    assert _RankTest(noise).rank(1e200 * block) == 40  # squares overflow


@pytest.mark.parametrize(("seed", "width", "decades"), [(1, 6, 16.0), (3, 6, 16.0), (4, 7, 18.0), (8, 9, 20.0)])
def test_singular_values_that_fade_into_the_rounding_are_not_taken_for_a_low_rank(seed, width, decades):
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(width, width)))[0] for _ in range(2))
    head = Attention.single(W=(left * np.logspace(0, -decades, width)) @ right, v=rng.normal(size=width))
    found = OneHeadLearner().run(CallableOracle(head), rng=np.random.default_rng(seed))
    assert np.linalg.norm(found.model.W - head.W) < 3e-14 * np.linalg.norm(head.W)


def test_a_square_block_that_is_all_but_singular_by_chance_is_looked_at_with_more_rows():
    class Table:
        pure, keys, all_keys = True, 1, np.eye(12)
        reader = type("Reader", (), {"price": staticmethod(lambda keys, tokens: keys * tokens)})()

        def __init__(self):
            self.products = np.random.default_rng(0).normal(size=(12, 12))
            size = _next_size(self, 1)
            u, s, vt = np.linalg.svd(self.products[:size, :size])
            self.products[:size, :size] = u @ np.diag([*s[:-1], 1e-15]) @ vt

        def extend(self, keys, tokens):
            self.keys = max(self.keys, keys)

        def begin_with(self, chosen):
            self.chosen = chosen

    table = Table()
    assert _leading_rank(table, _RankTest(1e-15)) == 12
    table.products = table.products[:, :1] * [0.01, 0.02, 3.0, *np.ones(9)]
    assert _leading_rank(table, _RankTest(1e-15)) == 1
    assert table.chosen == [2]  # the strongest column that was read


def test_a_rank_of_one_is_read_through_its_strongest_column():
    errors = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        head = Attention.single(W=np.outer(*rng.normal(size=(2, 64))), v=rng.normal(size=64))
        found = OneHeadLearner().run(CallableOracle(head), rng=rng)
        errors.append(np.linalg.norm(found.model.W - head.W) / np.linalg.norm(head.W))
    assert max(errors) < 3e-14


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_scores_of_zero_at_every_position(causal, bias):
    rng = np.random.default_rng(4)
    layer = us.Attention(np.zeros((1, 6, 6)), rng.normal(size=(1, 6, 4)), rng.normal(size=(1, 6)) if bias else None)
    found = us.recover(lambda X: layer(X, "all", causal=causal), width=6, seed=0)
    assert found.status is us.Status.EXACT
    assert found.queries <= 32
    assert us.distance(found.model, layer) < 1e-12


@given(width=st.integers(3, 8), seed=st.integers(0, 2**32 - 1), ratio=st.floats(0.1, 4.0))
def test_keys_as_steps_read_products_beside_tokens_of_any_length(width, seed, ratio):
    rng = np.random.default_rng(seed)
    W, V = random_head(rng, width, outputs=width)
    c = rng.normal(size=width)
    head = Attention(W[None], V[None], c[None])
    values = Values.of(V, np.zeros(width), Floor())
    reader = StepReader(CallableOracle(head, width=width), values, 0.3, 0.3 * ratio, c)
    keys, tokens = (np.linalg.qr(rng.normal(size=(width, width)))[0] for _ in "kt")
    products, ratios = reader.products(reader.keys(keys), tokens)
    assert not ratios.any()
    assert np.abs(products - reader.keys(keys) @ W @ tokens.T).max() < 1e-7


def test_groups_of_keys_are_even_and_leave_faint_values_out():
    values = Values.of(np.diag(2.0 ** -np.arange(10.0)), np.zeros(10), Floor())
    reader = ScoreReader(None, values, 1.0, 1.0)
    assert reader.evened(14).values.usable == 7
    assert reader.evened(10).values.usable == 10
    assert reader.evened(10, worst=100.0).values.usable < 10
    assert reader.evened(10, worst=0.0, patience=2).values.usable == 5
    assert reader.evened(10, worst=0.0, patience=10).values.usable == 1


@pytest.mark.parametrize("sums", [False, True])
def test_bars_of_coarse_values_cover_answers_that_are_cast_and_answers_that_are_sums(sums):
    covered = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        A, B = (rng.normal(size=(12, 12)).astype(np.float32) for _ in "AB")
        V = A.astype(float) @ B.astype(float)

        def target(X, A=A, B=B, V=V):
            x = X[:, -1]
            return ((x.astype(np.float32) @ A) @ B if sums else (x @ V).astype(np.float32)).astype(float)

        oracle = Metered(CallableOracle(target, width=12))
        read = oracle(np.eye(12)[:, None])
        bars = values_bars(oracle, Attention(np.zeros((1, 12, 12)), read[None]), 1.0, Floor("float32", relative=2.0**-22), rng)
        assert oracle.spent == 12 + price_again(12)
        covered.append(np.mean(np.abs(read - V) <= bars[0]))
    assert 0.9 < np.mean(covered) < 0.995


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [1e-3, 0.3, 3.0])
def test_a_query_bias_is_read_together_with_the_scores_at_every_position(causal, bias):
    rng = np.random.default_rng(3)
    width = 12
    head = Attention(
        rng.normal(size=(1, width, width)) / np.sqrt(width),
        rng.normal(size=(1, width, width)),
        c=bias * rng.normal(size=(1, width)),
        b=rng.normal(size=width),
    )
    oracle = Metered(CallableOracle(lambda X: head(X, positions="all", causal=causal), width=width))
    found = OneHeadLearner().run(oracle, rng=rng)
    assert distance(found.model, head) < 1e-10
    # zero, two of loud tokens, the size of the bias, the scores; W outshines a bias of 1e-3, which takes shorter tokens
    assert oracle.spent <= 5 + (5 if bias < 0.1 else 1)


@given(seed=seeds, rank=st.integers(0, 3))
def test_no_token_is_put_in_front_twice_however_little_a_block_spans(seed, rank):
    rng = np.random.default_rng(seed)
    block = rng.integers(-2, 3, size=(5, rank)) @ rng.integers(-2, 3, size=(rank, 4)) * 1.0
    assert len({*_strongest(block, 4)}) == 4
