from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import seeds

import unsoftmax as us
from unsoftmax.errors import NotInFamilyError, RefusalError, TooNoisyError
from unsoftmax.learners.noisy import CertifiedHeadLearner
from unsoftmax.learners.noisy.intervals import Interval, key_score
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.oracles.noise import Cast


def drawn_head(rng, width, shape="plain"):
    W, v = rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=width)
    if shape == "axis":
        v = np.eye(width)[0] * (1 + rng.random()) + 10.0 ** -rng.integers(1, 12) * v
    if shape == "sparse":
        v = v * (np.arange(width) == rng.integers(width))
    if shape == "steep":
        W = 8 * W
    if shape == "flat":
        W = np.zeros_like(W)
    return Attention.single(W, v)


def liar(head, tolerance, kind, rng):
    """An oracle that answers within ``tolerance``, as badly as it can."""
    width = head.width
    step = rng.normal(size=(width, width)) * 0.3 * tolerance
    entry = np.where(np.arange(width**2).reshape(width, width) == rng.integers(width**2), tolerance, 0.0)
    near = Attention.single(head.W[0] + step, head.V[0] + 0.3 * tolerance * rng.normal(size=width))
    tilted = Attention.single(head.W[0] + 1e-3 * entry, head.V[0])
    sign = rng.choice([-1.0, 1.0])

    def answer(X):
        truth = head(X)
        if kind == "uniform":
            return truth + rng.uniform(-tolerance, tolerance, len(truth))
        if kind == "rounding":
            return np.round(truth / (2 * tolerance)) * 2 * tolerance
        if kind == "hash":
            return truth + tolerance * np.array([1 - 2 * (hashlib.md5(x.tobytes()).digest()[0] & 1) for x in X])
        if kind == "bias":
            return truth + sign * tolerance
        if kind == "neighbour":
            return truth + np.clip(near(X) - truth, -tolerance, tolerance)
        return truth + sign * tolerance * np.sign(tilted(X) - truth)

    return CallableOracle(answer, width=width)


LIES = ["uniform", "rounding", "hash", "bias", "neighbour", "greedy"]


@settings(max_examples=120, deadline=None)
@given(
    width=st.integers(1, 7),
    seed=seeds,
    shape=st.sampled_from(["plain", "plain", "axis", "sparse", "steep", "flat"]),
    lie=st.sampled_from(LIES),
    digits=st.integers(2, 8),
    norm=st.floats(0.5, 6.0),
)
def test_the_truth_lies_inside_every_certified_interval(width, seed, shape, lie, digits, norm):
    rng = np.random.default_rng(seed)
    head, tolerance = drawn_head(rng, width, shape), 10.0**-digits
    try:
        learned = CertifiedHeadLearner(tolerance=tolerance, max_norm=norm).run(liar(head, tolerance, lie, rng), rng=rng)
    except TooNoisyError:
        assert norm * np.linalg.norm(head.V) < 40 * tolerance * width  # only where the answers drown in the tolerance
        return
    assert learned.bounds.kind == "certified"
    assert (np.abs(learned.model.W - head.W) <= learned.bounds.W).all()
    assert (np.abs(learned.model.V - head.V) <= learned.bounds.V).all()


@pytest.mark.parametrize("width", [4, 8, 16])
def test_intervals_come_close_to_the_least_possible(width):
    ratios = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        head = drawn_head(rng, width)
        oracle = Metered(liar(head, 1e-4, "uniform", rng))
        learner = CertifiedHeadLearner(tolerance=1e-4, max_norm=1.5 * width**0.25)
        learned = learner.run(oracle, rng=rng)
        ratios.append(learned.evidence["half_width_median"] / learned.evidence["half_width_floor"])
        assert oracle.spent <= 1.1 * sum(queries for _, queries, _ in learner.price(width))
    assert np.median(ratios) < 2.0


def test_the_price_is_kept_where_nothing_saturates():
    rng = np.random.default_rng(5)
    head = Attention.single(0.1 * rng.normal(size=(6, 6)), rng.normal(size=6))
    oracle = Metered(liar(head, 1e-5, "uniform", rng))
    learner = CertifiedHeadLearner(tolerance=1e-5, max_norm=1.0)
    learner.run(oracle, rng=rng)
    assert [(name, count.queries, count.tokens) for name, count in oracle.phases.items()] == learner.price(6)
    assert oracle.spent == 3 * (36 + 6) + 3 * 6 + 4


def test_no_token_is_longer_than_allowed():
    head = drawn_head(np.random.default_rng(0), 5)
    longest = 0.0

    def watched(X):
        nonlocal longest
        longest = max(longest, np.linalg.norm(X, axis=-1).max())
        return head(X)

    CertifiedHeadLearner(tolerance=1e-6, max_norm=1.7).run(CallableOracle(watched, width=5), rng=np.random.default_rng(0))
    assert 1.69 < longest <= 1.7


@settings(max_examples=20, deadline=None)
@given(seed=seeds, factor=st.sampled_from([1.5, 3.0, 10.0]))
def test_answers_beyond_the_tolerance_are_refused(seed, factor):
    rng = np.random.default_rng(seed)
    head = drawn_head(rng, 8)
    with pytest.raises(NotInFamilyError, match="tolerance"):
        CertifiedHeadLearner(tolerance=1e-4, max_norm=2.5).run(liar(head, factor * 1e-4, "hash", rng), rng=rng)


@pytest.mark.parametrize("other", ["two heads", "query bias", "constant"])
def test_models_outside_the_family_are_refused(other):
    rng = np.random.default_rng(3)
    W, V = rng.normal(size=(2, 6, 6)) / 2.5, rng.normal(size=(2, 6))
    target = {
        "two heads": Attention(W, V),
        "query bias": Attention.single(W[0], V[0], c=0.2 * V[1]),
        "constant": Attention.single(W[0], V[0], b=0.1),
    }[other]
    with pytest.raises(NotInFamilyError):
        CertifiedHeadLearner(tolerance=1e-5, max_norm=2.0).run(CallableOracle(target), rng=rng)


def test_values_below_the_tolerance_say_nothing_about_w():
    head = Attention.single(np.eye(4), 1e-3 * np.ones(4))
    with pytest.raises(TooNoisyError, match="max_norm"):
        CertifiedHeadLearner(tolerance=0.1, max_norm=1.0).run(CallableOracle(head), rng=np.random.default_rng(0))


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_half_precision_answers_certify_far_below_their_own_step(seed):
    rng = np.random.default_rng(seed)
    head = drawn_head(rng, 8)
    learner = CertifiedHeadLearner(tolerance=2.0**-25, relative=2.0**-11 * (1 + 2.0**-10), max_norm=2.5)
    learned = learner.run(Cast(CallableOracle(head), "float16"), rng=rng)
    assert (np.abs(learned.model.W - head.W) <= learned.bounds.W).all()
    assert (np.abs(learned.model.V - head.V) <= learned.bounds.V).all()
    assert np.median(learned.bounds.W) < 5e-5


def test_the_same_seed_asks_the_same_and_finds_the_same():
    head = drawn_head(np.random.default_rng(1), 5)
    runs = [
        CertifiedHeadLearner(tolerance=1e-3, max_norm=2.0).run(CallableOracle(head), rng=np.random.default_rng(7)) for _ in range(2)
    ]
    assert np.array_equal(runs[0].model.W, runs[1].model.W)
    assert np.array_equal(runs[0].bounds.W, runs[1].bounds.W)


@pytest.mark.parametrize("settings_", [{"tolerance": -1.0}, {"max_norm": np.inf}, {"copies": 5}, {"rounds": 0}, {"relative": 0.7}])
def test_misuse_is_a_value_error(settings_):
    with pytest.raises(ValueError, match=r"\w"):
        CertifiedHeadLearner(**{"tolerance": 1e-3, "max_norm": 1.0, **settings_})


@given(seed=seeds)
def test_the_score_interval_holds_the_score(seed):
    rng = np.random.default_rng(seed)
    count = 50
    plus = rng.integers(1, 64, size=count).astype(float)
    key, last = rng.uniform(1, 3, size=count), rng.uniform(-0.9, 0.9, size=count)
    score, own = rng.normal(size=count) * 3, rng.normal(size=count) * 3
    up, down, rest = plus * np.exp(score), (64 - plus) * np.exp(-score), np.exp(own)
    truth = (key * (up - down) + last * rest) / (up + down + rest)
    wide = 10.0 ** rng.uniform(-9, -1, size=(4, count))

    def around(value, width):
        middle = value + rng.uniform(-1, 1, size=count) * width
        return Interval(middle - width, middle + width)

    found = key_score(around(truth, wide[0]), plus, 64 - plus, around(own, wide[1]), around(key, wide[2]), around(last, wide[3]))
    assert ((found.low <= score) & (score <= found.high)).all()


def test_a_contradiction_names_its_size():
    with pytest.raises(RefusalError, match="exclude each other by 1"):
        Interval(np.array([0.0]), np.array([1.0])).meet(Interval(np.array([2.0]), np.array([3.0])), "a number")


@pytest.mark.parametrize("max_norm", [None, 3.0])
@pytest.mark.parametrize("outputs", [1, 3])
def test_small_biases_within_the_tolerance_do_not_break_the_intervals(max_norm, outputs):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        width, tau = int(rng.integers(2, 7)), 10.0 ** rng.uniform(-6, -2)
        V = rng.normal(size=(1, width)) if outputs == 1 else rng.normal(size=(1, width, outputs))
        b = 0.9 * tau * (rng.normal() if outputs == 1 else rng.normal(size=outputs))
        head = us.Attention(rng.normal(size=(1, width, width)), V, tau * rng.normal(size=(1, width)), b)

        def within(X, head=head, tau=tau):
            answers = head(X)
            return answers + tau * np.sign(np.sin(1e6 * answers))

        found = us.recover(within, width=width, tolerance=tau, max_norm=max_norm, seed=seed)
        assert found.status is us.Status.WITHIN_TOLERANCE
        assert found.bounds.kind == "certified"
        for name in "WVcb":
            off = np.abs(getattr(found.model, name) - getattr(head, name))
            assert (off <= np.asarray(getattr(found.bounds, name))).all(), name
