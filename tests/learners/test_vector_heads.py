from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import unsoftmax as us
from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, RefusalError, TooNoisyError
from unsoftmax.learners.vector_heads import VectorHeadsLearner, price
from unsoftmax.learners.vector_heads.all_positions import chosen, tags
from unsoftmax.learners.vector_heads.answers import Answers
from unsoftmax.learners.vector_heads.demixing import MOST_SEARCHED, binary_patterns, one_token
from unsoftmax.learners.vector_heads.half_circle import patterns_on_half_circle
from unsoftmax.learners.vector_heads.settings import SEVERAL
from unsoftmax.learners.vector_heads.unnamed import supported
from unsoftmax.learners.vector_heads.weighted import weighted_solve
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered, TorchOracle
from unsoftmax.oracles.base import Wrapper
from unsoftmax.results import Floor
from unsoftmax.symmetry import canonical, distance


def layer(rng, width, outputs, heads, rank=None, biases=False):
    """Gaussian heads of full rank, or of the given one."""

    def matrices(columns):
        if rank is None:
            return rng.normal(size=(heads, width, columns)) / np.sqrt(width)
        return rng.normal(size=(heads, width, rank)) @ rng.normal(size=(heads, rank, columns)) / np.sqrt(width * rank)

    optional = {"c": 0.3 * rng.normal(size=(heads, width)), "b": rng.normal(size=outputs)} if biases else {}
    return Attention(W=matrices(width), V=matrices(outputs), **optional)


@st.composite
def layers(draw):
    heads = draw(st.integers(1, 5))
    width, outputs = draw(st.integers(max(heads, 2), 12)), draw(st.integers(heads, 12))
    rank = draw(st.one_of(st.none(), st.integers(1, max(1, min(outputs // heads, width)))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return layer(rng, width, outputs, heads, rank, draw(st.booleans()))


def errors(found, truth):
    """Largest relative error of W, V and c over the heads, best order."""
    assert found.heads == truth.heads
    apart = [[np.linalg.norm(a - b) for b in truth.V] for a in found.V]
    mine, theirs = linear_sum_assignment(np.array(apart))
    worst = {}
    for name in ("W", "V", "c"):
        pairs = zip(getattr(found, name)[mine], getattr(truth, name)[theirs], strict=True)
        worst[name] = max(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0) for a, b in pairs)
    return worst


@given(layers(), st.integers(0, 999))
@settings(max_examples=25, deadline=None, phases=[Phase.generate])  # shrinking a whole recovery takes minutes
def test_the_last_position_gives_back_all_heads(truth, seed):
    found = VectorHeadsLearner().run(CallableOracle(truth), rng=np.random.default_rng(seed)).model
    assert max(errors(found, truth).values()) < 1e-8
    assert np.abs(found.b - truth.b).max() < 1e-12
    assert found.has_c == truth.has_c


@given(layers(), st.integers(0, 999), st.booleans())
@settings(max_examples=15, deadline=None, phases=[Phase.generate])
def test_all_positions_give_back_all_heads(truth, seed, causal):
    oracle = CallableOracle(lambda X: truth(X, "all", causal=causal), width=truth.width)
    found = VectorHeadsLearner().run(oracle, rng=np.random.default_rng(seed)).model
    assert max(errors(found, truth).values()) < 1e-7


@pytest.mark.parametrize("positions", ["last", "all"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_tensors_on_a_device_are_asked_and_solved_there(positions, dtype):
    torch = pytest.importorskip("torch")
    truth = layer(np.random.default_rng(2), 24, 24, 3, 6, biases=True)
    W, V, c, b = (torch.tensor(np.array(getattr(truth, name)), dtype=getattr(torch, dtype)) for name in "WVcb")

    def target(X):
        queries = X if positions == "all" else X[:, -1:]
        scores = torch.einsum("nid,hde,nje->nhji", X, W, queries) + torch.einsum("nid,hd->nhi", X, c)[:, :, None]
        told = b + torch.einsum("nhji,nid,hdm->njm", torch.softmax(scores, dim=-1), X, V)
        return told if positions == "all" else told[:, 0]

    oracle = Kinds(TorchOracle(target, width=24, dtype=getattr(torch, dtype), build_there=True))
    floor = Floor() if dtype == "float64" else Floor(kind="float32", relative=2.0**-22)
    found = VectorHeadsLearner(floor=floor).run(oracle, rng=np.random.default_rng(4)).model
    assert max(errors(found, truth).values()) < (1e-10 if dtype == "float64" else 1e-4)
    assert oracle.seen == {np.ndarray: 1, torch.Tensor: oracle.seen[torch.Tensor]}  # the first question tells the shape of answers


class Kinds(Wrapper):
    """Counts the kinds of arrays that questions come in."""

    def __init__(self, inner):
        super().__init__(inner)
        self.seen = Counter()

    def __call__(self, sequences):
        self.seen[type(sequences)] += 1
        return self.inner(sequences)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("width", "heads", "rank"), [(16, 4, None), (32, 8, None), (32, 8, 4), (24, 1, None)])
def test_the_bill_is_as_announced(width, heads, rank, biases):
    truth = layer(np.random.default_rng(width + heads), width, width, heads, rank, biases)
    oracle = Metered(CallableOracle(truth))
    VectorHeadsLearner().run(oracle, rng=np.random.default_rng(1))
    announced = {name: (queries, tokens) for name, queries, tokens in price(width, width, heads, rank, biases=biases)}
    assert set(announced) == set(oracle.phases)
    for name in ("values", "columns", "rows"):
        if name in announced:
            assert abs(announced[name][0] - oracle.phases[name].queries) <= 8 + 0.02 * announced[name][0]
    assert abs(sum(queries for queries, _ in announced.values()) - oracle.spent) <= 40 + 0.1 * oracle.spent


def test_all_positions_need_a_third_of_the_queries():
    truth = layer(np.random.default_rng(5), 32, 32, 4, biases=True)
    last, every = Metered(CallableOracle(truth)), Metered(CallableOracle(lambda X: truth(X, "all"), width=32))
    for oracle in (last, every):
        VectorHeadsLearner().run(oracle, rng=np.random.default_rng(6))
    assert 3 * every.spent <= last.spent


def test_the_same_seed_asks_the_same_questions():
    truth = layer(np.random.default_rng(0), 6, 6, 2, biases=True)
    asked: list[list[bytes]] = [[], []]
    found = []
    for log in asked:
        oracle = CallableOracle(lambda X, log=log: log.append(X.tobytes()) or truth(X), width=6)
        found.append(VectorHeadsLearner().run(oracle, rng=np.random.default_rng(3)).model)
    assert asked[0] == asked[1]
    assert np.array_equal(found[0].W, found[1].W)


def test_a_float32_target_is_recovered_within_its_precision():
    truth = layer(np.random.default_rng(2), 24, 24, 3, 6, biases=True)
    W, V, c, b = (getattr(truth, name).astype(np.float32) for name in "WVcb")

    def target(X):
        X = X.astype(np.float32)
        scores = np.einsum("nid,hde,ne->nhi", X, W, X[:, -1]) + np.einsum("nid,hd->nhi", X, c)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return b + np.einsum("nhi,nid,hdm->nm", p / p.sum(axis=-1, keepdims=True), X, V)

    learner = VectorHeadsLearner(floor=Floor(kind="float32", relative=2.0**-21))
    found = learner.run(CallableOracle(target, width=24), rng=np.random.default_rng(4)).model
    X = np.random.default_rng(9).normal(size=(50, 8, 24))
    assert np.abs(found(X) - truth(X)).max() < 1e-3 * truth(X).std()


def test_one_strong_head_with_a_large_bias_does_not_spoil_a_float32_layer():
    truth = layer(np.random.default_rng(12), 32, 32, 4, 8, biases=True)
    scale = np.array([4.0, 1.0, 1.0, 1.0])
    W, V, c, b = (x.astype(np.float32) for x in (truth.W * scale[:, None, None], truth.V, truth.c * 2 * scale[:, None], truth.b))

    def target(X):
        X = X.astype(np.float32)
        scores = np.einsum("nid,hde,ne->nhi", X, W, X[:, -1]) + np.einsum("nid,hd->nhi", X, c)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return b + np.einsum("nhi,nid,hdm->nm", p / p.sum(axis=-1, keepdims=True), X, V)

    learner = VectorHeadsLearner(floor=Floor(kind="float32", relative=2.0**-22))
    for seed in range(3):
        found = learner.run(CallableOracle(target, width=32), rng=np.random.default_rng(seed)).model
        assert errors(found, Attention(W=W, V=V, c=c, b=b))["W"] < 1e-4


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_weighted_equations_count_as_their_errors_tell(unknowns, n, seed):
    rng = np.random.default_rng(seed)
    A, truth, errors_ = rng.normal(size=(20, unknowns)), rng.normal(size=(unknowns, n)), 10.0 ** rng.uniform(-3, 0, size=(20, n))
    told = A @ truth + errors_ * rng.normal(size=(20, n))
    found = weighted_solve(A, told, errors_)
    for i in range(n):
        weight = 1 / errors_[:, i]
        assert np.allclose(found[:, i], np.linalg.lstsq(A * weight[:, None], told[:, i] * weight, rcond=None)[0], rtol=1e-6)


def special(case, rng):
    base = layer(rng, 8, 8, 3)
    W, V = base.W.copy(), base.V.copy()
    match case:
        case "same values":
            V[1] = V[0]
        case "more heads than outputs":
            return layer(rng, 8, 2, 3)
        case "more heads than the width":
            return layer(rng, 3, 8, 5)
        case "no scores":
            W[1] = 0
        case "proportional scores":
            W[1] = 1.7 * W[0]
        case "close":
            W[1] = W[0] + 1e-3 * rng.normal(size=W[0].shape)
        case "nearly equal scores":
            W[1] = W[0] + 1e-5 * rng.normal(size=W[0].shape)
    return Attention(W=W, V=V)


@pytest.mark.parametrize(
    ("case", "positions"),
    [
        ("same values", "last"),
        ("more heads than outputs", "all"),
        ("more heads than the width", "last"),
        ("no scores", "all"),
        ("proportional scores", "last"),
    ],
)
def test_heads_that_cannot_be_switched_are_read_from_one_mixture_of_the_outputs(case, positions):
    truth = special(case, np.random.default_rng(1))
    oracle = CallableOracle(lambda X: truth(X, positions), width=truth.width)
    try:
        found = VectorHeadsLearner().run(oracle, rng=np.random.default_rng(2)).model
    except RefusalError:
        return  # honest; what matters is that nothing wrong is returned
    X = np.random.default_rng(3).normal(size=(20, 6, truth.width))
    assert np.abs(found(X) - truth(X)).max() < 1e-8 * truth(X).std()
    assert found.heads == truth.heads


@pytest.mark.parametrize("positions", ["last", "all"])
def test_nearly_equal_heads_are_never_guessed(positions):
    truth = special("nearly equal scores", np.random.default_rng(0))
    oracle = CallableOracle(lambda X: truth(X, positions), width=truth.width)
    try:
        found = VectorHeadsLearner().run(oracle, rng=np.random.default_rng(1)).model
    except RefusalError:
        return
    assert distance(found, truth) < 1e-6  # told apart by less than a thirtieth of what they differ by


def test_equal_scores_are_merged_and_opposite_scores_told_apart():
    rng = np.random.default_rng(1)
    base = layer(rng, 8, 8, 3)
    merged = Attention(W=base.W[[0, 0, 2]], V=base.V)
    found = VectorHeadsLearner().run(CallableOracle(merged), rng=rng).model
    assert max(errors(found, Attention(W=base.W[[0, 2]], V=np.stack([base.V[0] + base.V[1], base.V[2]]))).values()) < 1e-9
    opposite = Attention(W=np.stack([base.W[0], -base.W[0], base.W[2]]), V=base.V)
    found = VectorHeadsLearner().run(CallableOracle(opposite), rng=rng).model
    assert max(errors(found, opposite).values()) < 1e-9


@pytest.mark.parametrize("positions", ["last", "all"])
def test_the_heads_come_in_canonical_order_with_their_ranks(positions):
    rng = np.random.default_rng(3)
    low, full = layer(rng, 8, 8, 2, 2), layer(rng, 8, 8, 1)
    truth = Attention(W=np.concatenate([full.W, low.W]), V=np.concatenate([0.1 * full.V, low.V]))
    oracle = CallableOracle(lambda X: truth(X, positions), width=8)
    found = VectorHeadsLearner().run(oracle, rng=np.random.default_rng(1))
    assert np.array_equal(canonical(found.model).W, found.model.W)
    assert found.evidence["ranks"] == [2, 2, 8]
    assert distance(found.model, truth) < 1e-8


def test_heads_that_share_values_or_lie_close_are_refined_together():
    for case, worst in (("same values", 1e-11), ("close", 1e-8)):
        truth = special(case, np.random.default_rng(7))
        found = VectorHeadsLearner().run(CallableOracle(truth), rng=np.random.default_rng(8)).model
        assert distance(found, truth) < worst


@pytest.mark.parametrize("gap", [1e-9, 1e-11, 1e-13])
def test_heads_closer_than_the_interval_told_appear_merged(gap):
    rng = np.random.default_rng(4)
    base = layer(rng, 6, 6, 3)
    W = base.W.copy()
    W[1] = W[0] + gap * rng.normal(size=W[0].shape) * np.linalg.norm(W[0]) / 6
    found = VectorHeadsLearner().run(CallableOracle(Attention(W=W, V=base.V)), rng=np.random.default_rng(5))
    assert found.model.heads == 2
    assert gap < found.evidence["merged_below"] < 1e3 * gap + 1e-11
    assert "appear as one head" in found.ambiguity


def test_positions_and_other_layers_are_refused():
    truth = layer(np.random.default_rng(0), 6, 6, 2)
    shifted = CallableOracle(lambda X: truth(X + np.arange(X.shape[1])[:, None]), width=6)
    squashed = CallableOracle(lambda X: np.tanh(truth(X)), width=6)
    for oracle in (shifted, squashed):
        with pytest.raises(NotInFamilyError):
            VectorHeadsLearner().run(oracle, rng=np.random.default_rng(1))


@pytest.mark.parametrize("near", [1e-4, 1e-6])
@pytest.mark.parametrize(("width", "heads", "rank", "outputs"), [(16, 4, 4, 16), (24, 3, 6, 24), (20, 2, 4, 8)])
def test_two_heads_whose_values_span_nearly_the_same_are_told_apart(width, heads, rank, outputs, near):
    rng = np.random.default_rng(5)
    ranges = rng.normal(size=(heads, rank, outputs))
    ranges[1] = ranges[0] + near * ranges[1]
    W = rng.normal(size=(heads, width, rank)) @ rng.normal(size=(heads, rank, width)) / np.sqrt(width * rank)
    truth = Attention(W=W, V=rng.normal(size=(heads, width, rank)) @ ranges / np.sqrt(width * rank))
    found = us.recover(truth, seed=3)
    assert found.status is us.Status.EXACT
    assert distance(found.model, truth) < 1e-11


@pytest.mark.parametrize("max_norm", [30.0, 100.0, 1e3, 1e6])
def test_no_token_is_longer_than_allowed_and_a_layer_is_recovered_or_refused(max_norm):
    truth = layer(np.random.default_rng(2), 12, 12, 3)
    longest = []

    def answer(X):
        longest.append(float(np.linalg.norm(X, axis=2).max()))
        return truth(X)

    found = us.recover(answer, width=12, max_norm=max_norm, seed=1, on_failure="return")
    assert max(longest) <= max_norm * (1 + 1e-12)
    assert max_norm < 1e3 or (found.status is us.Status.EXACT and distance(found.model, truth) < 1e-9)


def test_wishes_that_do_not_fit_are_refused():
    truth = layer(np.random.default_rng(0), 6, 6, 2)
    oracle = CallableOracle(truth)
    assert VectorHeadsLearner(heads=3).run(oracle, rng=np.random.default_rng(1)).model.heads == 2
    three = layer(np.random.default_rng(0), 6, 6, 3)
    for positions in ("last", "all"):
        with pytest.raises(NotInFamilyError, match="Found 3 heads, but heads=2"):
            VectorHeadsLearner(heads=2).run(
                CallableOracle(lambda X, p=positions: three(X, p), width=6), rng=np.random.default_rng(1)
            )
    with pytest.raises(TooNoisyError):
        VectorHeadsLearner(floor=Floor(kind="bfloat16", relative=2.0**-8)).run(oracle, rng=np.random.default_rng(1))
    longest = []
    watched = CallableOracle(lambda X: longest.append(np.linalg.norm(X, axis=-1).max()) or truth(X), width=6)
    with pytest.raises(RefusalError):
        VectorHeadsLearner(max_norm=2.0).run(watched, rng=np.random.default_rng(1))
    assert max(longest) <= 2.0


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_patterns_come_back_from_their_sums(heads, seed):
    rng = np.random.default_rng(seed)
    patterns = np.concatenate([np.ones((1, heads)), rng.integers(0, 2, size=(40, heads))])
    found = binary_patterns(patterns @ rng.normal(size=(heads, heads + 2)), 2.0**-50)
    if np.linalg.matrix_rank(patterns) == heads and found is not None:
        assert {tuple(column) for column in found.T} == {tuple(column) for column in patterns.T}


@given(st.integers(2, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_half_a_circle_tells_any_number_of_heads_apart(heads, seed):
    rng = np.random.default_rng(seed)
    normals, parts = rng.normal(size=(heads, 12)), rng.normal(size=(heads, heads + 3))

    def ask(x):
        return (x @ normals.T > 0) @ parts

    random = rng.normal(size=(2 * heads + 8, 12))
    sums = np.concatenate([parts.sum(axis=0)[None], ask(random)])
    found = patterns_on_half_circle(ask, sums, heads, 1e-15, 12, rng)
    truth = np.concatenate([np.ones((1, heads)), random @ normals.T > 0])
    assert sorted(map(tuple, found.T)) == sorted(map(tuple, truth.T))
    assert patterns_on_half_circle(ask, sums + 0.01 * rng.normal(size=sums.shape), heads, 1e-15, 12, rng) is None


@pytest.mark.parametrize("positions", ["last", "all"])
def test_more_heads_than_a_search_over_subsets_could_tell_apart(positions):
    truth = layer(np.random.default_rng(8), 24, 24, MOST_SEARCHED + 4, 1, biases=True)
    oracle = CallableOracle(lambda X: truth(X, positions), width=24)
    found = VectorHeadsLearner().run(oracle, rng=np.random.default_rng(9)).model
    assert max(errors(found, truth).values()) < 1e-8


def nearly_dependent(rng, width, heads, rank, near):
    """Heads whose ranges fill all outputs, one direction of the first within ``near`` of what the others span."""
    truth = layer(rng, width, width, heads, rank)
    rows = rng.normal(size=(heads, rank, width))
    others = rows[1:].reshape(-1, width)
    rows[0, 0] = rng.normal(size=len(others)) @ others / np.sqrt(len(others)) + near * rng.normal(size=width)
    return Attention(W=truth.W, V=rng.normal(size=(heads, width, rank)) @ rows / np.sqrt(width * rank))


@pytest.mark.parametrize("positions", ["last", "all"])
@pytest.mark.parametrize("near", [1e-4, 1e-6])
def test_ranges_that_depend_on_each_other_nearly_cost_a_few_questions_and_no_digits(near, positions):
    for seed in range(2):
        truth = nearly_dependent(np.random.default_rng(seed), 24, 6, 4, near)
        found = us.recover(lambda X, truth=truth: truth(X, positions), width=24, seed=seed)
        assert max(errors(found.model, truth).values()) < (1e-11 if positions == "last" or near < 1e-5 else 1e-9)
        told = sum(queries for _, queries, _ in price(24, 24, 6, 4, biases=False))
        assert found.queries < told + 2 * 24 + 60


@pytest.mark.parametrize("near", [1e-4, 1e-6])
def test_where_ranges_depend_on_each_other_a_few_mixtures_spare_a_second_question_for_each_row(near):
    truth = nearly_dependent(np.random.default_rng(3), 64, 8, 8, near)
    oracle = Metered(CallableOracle(truth))
    found = VectorHeadsLearner().run(oracle, rng=np.random.default_rng(4))
    columns = 64 - (oracle.phases["rows"].queries - SEVERAL.mixtures)
    assert 8 < columns < 16
    assert max(errors(found.model, truth).values()) < 2e-11
    assert max(errors(found.model, truth).values()) < 4 * found.evidence["estimated_error"] < 1e-8


@pytest.mark.parametrize("positions", ["last", "all"])
@pytest.mark.parametrize(("width", "heads", "rank", "seeds"), [(16, 4, None, 4), (8, 8, None, 4), (16, 4, 4, 4), (32, 8, 4, 2)])
def test_the_estimated_error_is_that_of_the_parameters_but_for_a_small_factor(width, heads, rank, seeds, positions):
    for seed in range(seeds):
        truth = layer(np.random.default_rng([seed, 4]), width, width, heads, rank, biases=bool(seed % 2))
        oracle = CallableOracle(lambda X, truth=truth: truth(X, positions), width=width)
        found = VectorHeadsLearner().run(oracle, rng=np.random.default_rng(seed))
        assert max(errors(found.model, truth).values()) < 4 * found.evidence["estimated_error"] < 1e-7


def test_more_heads_than_outputs_are_named_as_such():
    truth = layer(np.random.default_rng(8), 32, 24, 30)
    with pytest.raises(NotInFamilyError, match="more heads than outputs"):
        VectorHeadsLearner().run(CallableOracle(truth), rng=np.random.default_rng(9))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_a_position_where_no_long_token_was_chosen_names_none(seed):
    rng = np.random.default_rng(seed)
    values, picked = rng.normal(size=(6, 3)), rng.integers(0, 6, size=40)
    plain = values[picked]
    tagged = plain * tags(6)[picked][:, None]
    faint = 1e-15 * rng.normal(size=(30, 3))
    none = np.stack([faint, faint * (1 + 3e-5)])  # rounding that happens to look tagged
    local = np.concatenate([none[:, :30], np.stack([plain, tagged])], axis=1)
    number, valid = chosen(local, 6, 1e-12)
    assert not valid[:30].any()
    assert valid[30:].all()
    assert (number[30:] == picked).all()


@pytest.mark.parametrize("positions", ["last", "all"])
@pytest.mark.parametrize(("faint", "factor"), [("V", 1e-9), ("W", 1e-10)])
def test_a_head_that_rounding_hides_is_not_guessed(positions, faint, factor):
    base = layer(np.random.default_rng(4), 6, 6, 3)
    blocks = {"W": base.W.copy(), "V": base.V.copy()}
    blocks[faint][1] *= factor
    truth = Attention(**blocks)
    with pytest.raises(NotIdentifiableError, match="the W of one head only to") as refused:
        VectorHeadsLearner().run(CallableOracle(lambda X: truth(X, positions), width=6), rng=np.random.default_rng(1))
    assert distance(refused.value.model, truth) < 100 * refused.value.evidence["estimated_error"]


@pytest.mark.parametrize("biases", [False, True])
def test_all_positions_through_the_front_door_need_a_third_of_the_queries_at_low_rank(biases):
    truth = layer(np.random.default_rng(5), 32, 32, 4, 8, biases=biases)
    last, every = (us.recover(lambda X, p=p: truth(X, p), width=32, seed=6) for p in ("last", "all"))
    assert us.distance(every.model, truth) < 1e-8
    assert 3 * every.queries <= last.queries


@pytest.mark.parametrize("b", [0.0, 1e6])
def test_one_head_is_not_taken_for_several(b):
    truth = Attention(
        W=np.random.default_rng(1).normal(size=(1, 6, 6)), V=np.random.default_rng(2).normal(size=(1, 6, 4)), b=np.full(4, b)
    )
    recovery = us.recover(truth, seed=3)
    assert recovery.model.heads == 1
    assert recovery.queries <= 6 + 12 + 24


def test_rounded_answers_of_several_heads_are_matched_or_called_coarse():
    truth = layer(np.random.default_rng(11), 5, 5, 2)
    recovery = us.recover(lambda X: np.round(truth(X), 6), width=5, seed=1, on_failure="return")
    assert recovery.status in (us.Status.WITHIN_TOLERANCE, us.Status.TOO_NOISY)
    if recovery.status.success:
        assert us.distance(recovery.model, truth) < 1e-4


def test_a_rank_given_too_small_is_named():
    truth = Attention(W=np.random.default_rng(1).normal(size=(1, 5, 5)), V=np.random.default_rng(2).normal(size=(1, 5, 5)))
    assert "rank=1 is too small" in us.recover(truth, rank=1, seed=3, on_failure="return").message


@pytest.mark.parametrize("weakest", [1e-3, 1e-4])
def test_a_weak_direction_of_values_is_kept_in_float32(weakest):
    for seed in range(4):
        exact = layer(np.random.default_rng([seed, 6]), 16, 16, 4)
        rows, spread, columns = np.linalg.svd(exact.V[1])
        V = exact.V.copy()
        V[1] = (rows * np.append(spread[:-1], weakest * spread[0])) @ columns
        W, V = exact.W.astype(np.float32), V.astype(np.float32)

        def answers(X, W=W, V=V):
            X = np.asarray(X, dtype=np.float32)
            scores = np.einsum("bnd,hde,be->bhn", X, W, X[:, -1])
            weights = np.exp(scores - scores.max(axis=2, keepdims=True))
            weights /= weights.sum(axis=2, keepdims=True)
            return np.einsum("bhn,bnd,hdm->bm", weights, X, V)

        found = us.recover(answers, width=16, seed=seed, on_failure="return")
        assert found.status is us.Status.WITHIN_TOLERANCE
        assert max(errors(found.model, Attention(W=W, V=V)).values()) < 2e-5


def test_a_faint_head_beside_others_that_fill_the_outputs_is_known_from_all_positions():
    for seed in (1, 7, 10):
        truth = layer(np.random.default_rng([seed, 7]), 32, 32, 8, 4, biases=True)
        V = truth.V.copy()
        V[0] *= 1e-4
        truth = Attention(W=truth.W, V=V, c=truth.c, b=truth.b)
        oracle = CallableOracle(lambda X, truth=truth: truth(X, "all"), width=32)
        found = VectorHeadsLearner().run(oracle, rng=np.random.default_rng(seed))
        assert max(errors(found.model, truth).values()) < 4 * found.evidence["estimated_error"] < 2e-7


def test_values_that_cancel_are_seen_wherever_the_heads_look():
    base = layer(np.random.default_rng(133), 6, 6, 2, biases=True)
    truth = Attention(W=base.W, V=np.stack([base.V[0], -base.V[0]]), c=base.c, b=base.b)
    answers = Answers(CallableOracle(truth), Floor(), None)
    for seed in range(400):  # three tokens, four times: in one of a hundred both heads look at the same one each time
        assert np.abs(one_token(answers, truth.b, np.random.default_rng(seed)).total).max() < 1e-12


def test_a_value_of_two_heads_together_is_left_out_of_a_range():
    rng = np.random.default_rng(1)
    answers = Answers(CallableOracle(layer(rng, 16, 16, 4)), Floor())
    block = rng.normal(size=(9, 4)) @ rng.normal(size=(4, 16))
    block[5] += rng.normal(size=16)
    assert np.array_equal(supported(answers, block), np.delete(block, 5, axis=0))
    assert len(supported(answers, block[:4])) == 4  # too few to tell


def test_every_position_shows_ranges_without_names_in_a_few_questions():
    truth = layer(np.random.default_rng(3), 48, 48, 4, 12, biases=True)
    oracle = Metered(CallableOracle(lambda X: truth(X, "all"), width=48))
    found = VectorHeadsLearner().run(oracle, rng=np.random.default_rng(4)).model
    assert oracle.phases["slices"].queries <= 4
    assert max(errors(found, truth).values()) < 1e-9
