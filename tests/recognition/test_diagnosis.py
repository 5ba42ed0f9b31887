"""Diagnosis: the right family for targets inside, never "inside" for those outside, within 200 + 4 width queries."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recognition.targets import as_tested
from tests.strategies import seeds
from tests.zoo import INSIDE, OUTSIDE, exhibit

import unsoftmax as us
from unsoftmax.errors import TargetError
from unsoftmax.families import Size, named
from unsoftmax.learners.behind_network.learner import price
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered, Wrapper
from unsoftmax.recognition.cells import cell_law
from unsoftmax.recognition.settings import TESTS
from unsoftmax.results import Floor


def diagnosed(target, width, seed=0, **settings):
    return as_tested(CallableOracle(target, width=width), seed, **settings)


def one_head(width=6, seed=0, bias=False, outputs=None):
    rng = np.random.default_rng(seed)
    v = rng.normal(size=width if outputs is None else (width, outputs))
    return Attention.single(
        rng.normal(size=(width, width)) / np.sqrt(width),
        v,
        rng.normal(size=width) if bias else None,
        rng.normal(size=v.shape[1:]) if bias else 0.0,
    )


@pytest.mark.parametrize("name", INSIDE)
def test_inside_targets_get_their_family(name):
    shown = exhibit(name, seed=501, width=8)
    meter = Metered(CallableOracle(shown.target, width=8))
    result = as_tested(meter, 3)
    assert (result.family, result.inside) == (shown.family, True)
    assert meter.spent <= result.queries <= 200 + 4 * 8
    assert named(result.family).estimate(Size(width=8, heads=result.heads)) is not None
    if shown.heads is not None:
        assert result.heads == shown.heads


@settings(max_examples=16)
@given(
    name=st.sampled_from(sorted(set(INSIDE) | set(OUTSIDE))),
    seed=st.integers(0, 10**6),
    answers=st.sampled_from(["float32", "6 decimals"]),
)
def test_coarse_answers_never_make_an_outsider_inside(name, seed, answers):
    shown = exhibit(name, seed, answers=answers)
    result = diagnosed(shown.target, shown.width, seed)
    assert shown.inside or not result.inside
    assert result.queries <= 200 + 4 * shown.width


@settings(max_examples=10)
@given(width=st.integers(1, 12), seed=seeds, factor=st.sampled_from([1e-3, 0.1, 10.0, 1e3]))
def test_one_head_is_known_at_any_scale_of_its_tokens(width, seed, factor):
    head = one_head(width, seed)
    result = diagnosed(lambda X: head(factor * X), width)
    assert (result.family, result.heads) == ("attention", 1)


@settings(max_examples=6)
@given(radius=st.sampled_from([0.05, 1.0, 7.5]), seed=seeds)
def test_no_token_is_longer_than_max_norm(radius, seed):
    class Guard(Wrapper):
        def __call__(self, sequences, /):
            assert np.linalg.norm(sequences, axis=-1).max() <= radius
            return super().__call__(sequences)

    shown = exhibit(sorted(INSIDE)[seed % len(INSIDE)], seed % 1000, width=6)
    result = as_tested(Guard(CallableOracle(shown.target, width=6)), max_norm=radius)
    # within a small ball a network may have no kink at all, and then it is attention
    assert not result.inside or result.family in (shown.family, "attention")


def test_facts_about_the_answers():
    plain, biased = diagnosed(one_head(), 6), diagnosed(one_head(bias=True), 6)
    assert (plain.constant, plain.bias, plain.answers, plain.causal) == (False, False, "scalar", None)
    assert (biased.constant, biased.bias) == (True, True)
    vector = diagnosed(one_head(outputs=3), 6)
    assert (vector.answers, vector.outputs) == ("vector", 3)
    layer = one_head(outputs=3)
    for causal in (False, True):
        everywhere = diagnosed(lambda X, causal=causal: layer(X, "all", causal=causal), 6)
        assert (everywhere.answers, everywhere.causal, everywhere.inside) == ("all positions", causal, True)


def test_precision_of_the_answers():
    head = one_head(bias=True)
    assert diagnosed(head, 6).floor.kind == "exact"
    assert diagnosed(lambda X: head(X).astype(np.float32), 6).floor.kind == "float32"
    rounded = diagnosed(lambda X: np.round(head(X), 4), 6).floor
    assert (rounded.kind, rounded.step) == ("rounded", 1e-4)
    noise = np.random.default_rng(0)
    noisy = diagnosed(lambda X: head(X) + 1e-3 * noise.normal(size=len(X)), 6)
    assert noisy.floor.kind == "noisy"
    assert 3e-4 < noisy.floor.absolute < 6e-3


def test_same_seed_same_questions():
    def transcript():
        asked = []

        def target(X):
            asked.append(X.copy())
            return one_head()(X)

        return diagnosed(target, 6, seed=5), asked

    (first, one), (second, two) = transcript(), transcript()
    assert asdict(first) == asdict(second)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_evidence_is_complete_and_fits_into_json():
    result = diagnosed(exhibit("QK-norm", 1, width=6).target, 6)
    assert any(not item.passed for item in result.evidence)
    assert all(item.sentence.endswith(".") for item in result.evidence)
    json.loads(json.dumps(asdict(result), allow_nan=False))


def test_a_short_limit_on_length_is_respected():
    head = one_head()

    def target(X):
        if X.shape[1] > 32:
            raise ValueError("at most 32 tokens")
        return head(X)

    assert diagnosed(target, 6).family == "attention"


def test_a_target_that_overflows_on_long_tokens_is_still_known():
    head = one_head(12)

    def naive(X):
        scores = np.exp((X @ (head.W[0] @ X[:, -1, :, None]))[..., 0])
        return (scores * (X @ head.V[0])).sum(axis=1) / scores.sum(axis=1)

    with np.errstate(all="ignore"):
        assert diagnosed(naive, 12).family == "attention"


def test_a_target_that_always_fails_is_reported():
    def broken(X):
        raise RuntimeError("no")

    with pytest.raises(TargetError, match="raised RuntimeError"):
        diagnosed(broken, 4)


def test_misuse_is_a_value_error():
    with pytest.raises(ValueError, match="max_norm"):
        diagnosed(one_head(), 6, max_norm=0.0)


def estimate(family, width, heads=1, outputs=1):
    return named(family).estimate(Size(width=width, heads=heads, outputs=outputs))


def test_bills_follow_the_counting_formulas():
    assert 16 + 18 * 16 + 200 < estimate("attention", 16).high < 16 + 18 * 16 + 320
    assert 16 + 18 * 4 + 200 < estimate("attention", 16, outputs=4).high < 16 + 18 * 4 + 320
    low, high = estimate("attention", 8, 3).low, estimate("attention", 8, 3).high
    assert 3 * (64 + 16) + 1 <= low <= high
    assert estimate("transformer", 8).low is None


@pytest.mark.parametrize("width", [1, 2, 7, 64])
def test_the_bill_behind_a_network_spans_the_price_of_every_rank_and_the_check(width):
    told, phases = estimate("attention-behind-network", width), price(width)
    assert told.low <= sum(queries[0] for _, queries, _ in phases)
    assert told.high >= sum(queries[1] for _, queries, _ in phases) + 256


@pytest.mark.parametrize("seed", [1, 2])
def test_the_bill_behind_a_network_holds_at_small_width(seed):
    rng = np.random.default_rng(seed)
    head, layer = Attention(rng.normal(size=(1, 3, 3)), rng.normal(size=(1, 3, 3))), rng.normal(size=(3, 8))

    def answer(sequences):
        return np.tanh(head(sequences) @ layer).sum(axis=1)

    told = us.diagnose(answer, width=3)
    assert told.family == "attention-behind-network"
    assert told.bill.low <= us.recover(answer, width=3).facts["queries"]["total"] <= told.bill.high


@pytest.mark.parametrize(("bias", "outputs"), [(False, None), (True, None), (True, 3)])
def test_the_bill_holds_what_recovery_asks(bias, outputs):
    head = one_head(7, 3, bias, outputs)
    told = us.diagnose(head, width=7).bill
    assert told.low <= us.recover(head, width=7).facts["queries"]["total"] <= told.high


@pytest.mark.parametrize("activation", [np.tanh, lambda z: np.maximum(z, 0)])
@pytest.mark.parametrize("width", [2, 3])
def test_networks_of_small_width_are_told_within_the_budget(width, activation):
    rng = np.random.default_rng(width)
    W, A, r = rng.normal(size=(width, width)), rng.normal(size=(8, width)), rng.normal(size=8)

    def answer(X):
        weights = np.exp((s := (X @ (W @ X[:, -1, :, None]))[..., 0]) - s.max(axis=1, keepdims=True))
        mean = ((weights / weights.sum(axis=1, keepdims=True))[..., None] * X).sum(axis=1)
        return activation(mean @ A.T + np.arange(8) / 4) @ r

    told = [us.diagnose(answer, width=width, seed=seed) for seed in range(3)]
    assert {t.family for t in told} == {"attention-behind-network" if activation is np.tanh else "transformer"}
    assert all(t.queries <= 200 + 4 * width for t in told)


@pytest.mark.parametrize("keep", [12, 64, 200])
def test_weights_of_the_largest_scores_alone_are_outside(keep):
    head = one_head()

    def target(X):
        scores = (X @ (head.W[0] @ X[:, -1, :, None]))[..., 0]
        least = np.sort(scores, axis=1)[:, -min(keep, X.shape[1])]
        weights = np.where(scores >= least[:, None], np.exp(scores - scores.max(axis=1, keepdims=True)), 0.0)
        return (weights * (X @ head.V[0])).sum(axis=1) / weights.sum(axis=1)

    assert diagnosed(target, 6).family == "outside: weights depend on the number of tokens"


def test_a_target_of_fixed_length_is_outside():
    assert diagnosed(lambda X: np.maximum(X.reshape(len(X), 5 * 6), 0).sum(axis=1), 6).family == "outside: fixed length"


@pytest.mark.parametrize("seed", range(3))
def test_a_maximum_over_tokens_is_no_pair_of_saturated_heads(seed):
    A = np.random.default_rng(seed).normal(size=(5, 3)).astype(np.float32)
    assert not diagnosed(lambda X: (X.astype(np.float32) @ A).max(axis=1).sum(axis=1), 5, seed).inside


def test_a_norm_behind_the_attention_is_told_from_one_before_it():
    layer = one_head(8, outputs=8, bias=True)

    def norm(Z):
        Z = Z - Z.mean(axis=-1, keepdims=True)
        return Z / np.sqrt((Z**2).mean(axis=-1, keepdims=True) + 1e-5)

    weights = np.random.default_rng(1).normal(size=8)
    behind = diagnosed(lambda X: np.round(norm(layer(X)) @ weights, 6), 8)
    before = diagnosed(lambda X: np.round(np.tanh(layer(norm(X))) @ weights, 6), 8)
    assert behind.family == "attention-behind-network"
    assert before.family == "outside: LayerNorm before attention"


def test_large_float32_answers_are_not_called_rounded():
    head = one_head()
    assert diagnosed(lambda X: (1e4 * head(X)).astype(np.float32), 6).floor.kind == "float32"
    assert diagnosed(lambda X: 1e6 * head(X), 6).floor.kind == "exact"


@pytest.mark.parametrize("factor", [1e300, 1e-300])
def test_answers_whose_squares_are_no_numbers_are_diagnosed_all_the_same(factor):
    head = one_head()
    assert us.diagnose(lambda X: factor * head(X), width=6).family == "attention"


def test_a_target_of_at_most_three_tokens_is_named_so():
    head = one_head()

    def answer(X):
        if X.shape[1] > 3:
            raise ValueError("too long")
        return head(X)

    assert us.diagnose(answer, width=6).family == "outside: inconclusive (length)"


@given(score=st.floats(-6.0, 16.0), kink=st.floats(0.1, 0.9), bend=st.floats(1e-4, 0.5))
def test_a_score_is_not_read_across_a_kink_that_the_law_cannot_see(score, kink, bend):
    """A network that bends on the way from x to x + u: where all weights lie beyond the kink, only the score looks different."""
    case = SimpleNamespace(noise=lambda answers: 4e-15 * float(np.abs(answers).max()), floor=Floor(), coarse=False)
    weights = np.array([many / (many + few * np.exp(-score)) for many, few in TESTS.copies])
    straight = np.concatenate([[0.0], weights])[:, None]
    read, _, good, _, _ = cell_law(case, straight, np.ones(1))
    assert not good[0] or abs(read[0] - score) < 1e-5
    assert good[0] or abs(score) > 4
    read, _, good, _, _ = cell_law(case, straight + bend * np.maximum(straight - kink, 0.0), np.ones(1))
    assert not good[0] or abs(read[0] - score) < 1e-4


@pytest.mark.parametrize("most", [1, 2, 3, 4, 8, 20])
def test_no_sequence_is_longer_than_asked_for(most):
    shown, longest = exhibit("one head", 5, width=5), [0]

    def target(X):
        longest.append(X.shape[1])
        return shown.target(X)

    told = us.diagnose(target, width=5, max_length=most)
    assert max(longest) <= most
    assert told.inside == (most >= 4)


@pytest.mark.parametrize("seed", range(3))
def test_a_network_that_bends_smoothly_has_answers_as_precise_as_they_are(seed):
    rng = np.random.default_rng(seed)
    into, out = rng.normal(size=(6, 8)), rng.normal(size=8)
    found = us.diagnose(lambda X: np.logaddexp(0.0, X[:, -1] @ into) @ out, width=6, seed=seed)
    assert found.inside
    assert found.floor.exact
