"""Heads that say nothing but yes or no."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unsoftmax as us
from unsoftmax.errors import DriftingError, NotIdentifiableError, NotInFamilyError, RefusalError, TooNoisyError
from unsoftmax.learners.labels import LabelsLearner
from unsoftmax.learners.labels.bill import bits, bound, capacity
from unsoftmax.learners.labels.check import boundary_pairs, margins
from unsoftmax.learners.labels.design import key_directions, simplex
from unsoftmax.learners.labels.majority import Majority, lead_wanted
from unsoftmax.learners.labels.recognised import recognised
from unsoftmax.learners.labels.search import Halving, Prior
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered, Thresholded
from unsoftmax.results import Bounds, Status


def drawn(width, seed, threshold=0.5, rank=None, bias=0.3):
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(width, width)) / np.sqrt(width)
    if rank is not None:
        W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width)) / np.sqrt(rank * width)
    return Attention.single(W, rng.normal(size=width), bias * rng.normal(size=width), -threshold)


def learn(head, seed=0, *, flip=0.0, **options):
    noise = np.random.default_rng([seed, 5])

    def target(X):
        yes = head(X) > 0
        return yes ^ (noise.random(len(yes)) < flip)

    meter = Metered(CallableOracle(target, width=head.width))
    return LabelsLearner(**options).run(meter, rng=np.random.default_rng(seed)), meter


def apart(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize(("width", "threshold", "seed"), [(4, 0.0, 1), (8, 0.5, 2), (8, 0.0, 3), (12, -2.0, 4)])
def test_labels_alone_give_back_the_head(width, threshold, seed):
    head = drawn(width, 900 + seed, threshold)
    found, meter = learn(head, seed)
    assert apart(found.model.W, head.W) < 1e-11
    assert apart(found.model.c, head.c) < 1e-11
    scale = abs(threshold) or np.linalg.norm(head.V)
    assert apart(found.model.V, head.V / scale) < 1e-12
    assert found.model.b == -np.sign(threshold)
    assert meter.spent <= 60 * (width**2 + 2 * width) + 100 * (width == 4)
    assert np.mean(np.abs(found.model.W - head.W) <= found.bounds.W) > 0.85
    for name, (low, high), (few, many) in LabelsLearner().price(width):
        assert low <= meter.phases[name].queries <= high, name
        assert few <= meter.phases[name].tokens <= many, name


def test_a_low_rank_costs_what_it_has_parameters():
    head = drawn(24, 77, rank=2, bias=0.0)
    found, meter = learn(head, 3)
    assert found.evidence["rank"] == 2
    assert apart(found.model.W, head.W) < 1e-11
    assert meter.spent <= 70 * (2 * (48 - 2) + 24) < 20 * 24**2


def test_less_accuracy_costs_less():
    head = drawn(12, 5)
    found, meter = learn(head, 2, accuracy=1e-3)
    assert apart(found.model.W, head.W) < 2e-3
    assert meter.spent <= 22 * (12**2 + 24)
    assert np.mean(np.abs(found.model.W - head.W) <= found.bounds.W) > 0.85


def test_wrong_labels_cost_more_and_are_measured():
    head = drawn(5, 31)
    found, meter = learn(head, 4, flip=0.05)
    assert 0.02 < found.evidence["flip_rate"] < 0.1
    assert apart(found.model.W, head.W) < 1.5e-3
    assert meter.spent < 300 * (5 * 5 + 2 * 5)
    assert np.mean(np.abs(found.model.W - head.W) <= found.bounds.W) > 0.85


@pytest.mark.parametrize(("classes", "seed"), [(3, 1), (4, 2)])
def test_the_largest_of_several_outputs(classes, seed):
    rng = np.random.default_rng(seed)
    head = Attention(
        rng.normal(size=(1, 6, 6)) / np.sqrt(6),
        rng.normal(size=(1, 6, classes)),
        0.3 * rng.normal(size=(1, 6)),
        0.3 * rng.normal(size=classes),
    )
    oracle = CallableOracle(lambda X: np.argmax(head(X), axis=1), width=6)
    found = LabelsLearner().run(oracle, rng=np.random.default_rng(seed))
    V = head.V[0] - head.V[0].mean(axis=1, keepdims=True)
    assert apart(found.model.W, head.W) < 1e-8
    assert apart(found.model.V[0], V / np.linalg.norm(V)) < 1e-12
    X = rng.normal(size=(500, 5, 6))
    assert np.array_equal(np.argmax(found.model(X), axis=1), np.argmax(head(X), axis=1))


class Moving:
    """A threshold that moves a little with every label."""

    def __init__(self, head, step):
        self.head, self.step, self.asked = head, step, 0

    def __call__(self, X):
        self.asked += len(X)
        return self.head(X) > self.step * self.asked


def strangers():
    one, other = drawn(5, 1), drawn(5, 2)
    two = Attention(*(np.concatenate([getattr(h, name) for h in (one, other)]) for name in "WVc"), -0.5)
    rng = np.random.default_rng(3)
    inner, bias, outer = rng.normal(size=(12, 5)), rng.normal(size=12), rng.normal(size=12)
    places = 0.3 * rng.normal(size=(64, 5))
    return {
        "two heads": (lambda X: two(X) > 0, NotInFamilyError),
        "network": (lambda X: np.maximum(X[:, -1] @ inner.T + bias, 0) @ outer > 1.0, NotInFamilyError),
        "positions": (lambda X: one(X + places[: X.shape[1]]) > 0, NotInFamilyError),
        "lengths": (lambda X: Attention(one.W / np.sqrt(X.shape[1]), one.V, one.c, one.b)(X) > 0, NotInFamilyError),
        "residual": (lambda X: one(X) + X[:, -1] @ inner[0] > 0, NotInFamilyError),
        "moving": (Moving(one, 1e-5), RefusalError),
        "moving fast": (Moving(one, 1e-3), RefusalError),
        "constant": (lambda X: np.ones(len(X)), NotIdentifiableError),
        "chance": (lambda X: rng.random(len(X)) > 0.5, TooNoisyError),
    }


@pytest.mark.parametrize("name", list(strangers()))
def test_strangers_are_refused_with_a_reason(name):
    target, kind = strangers()[name]
    with pytest.raises(kind, match=r".{40}"):
        LabelsLearner().run(CallableOracle(target, width=5), rng=np.random.default_rng(1))


def test_a_threshold_that_moved_is_said_to_have_moved():
    with pytest.raises(DriftingError, match="changed when the same questions were asked again"):
        LabelsLearner().run(CallableOracle(Moving(drawn(5, 1), 1e-4), width=5), rng=np.random.default_rng(1))


@pytest.mark.parametrize("values", [(False, True), (-1, 1), (3, 8)])
def test_recover_knows_labels_by_itself(values):
    head = drawn(4, 8)
    found = us.recover(lambda X: np.where(head(X) > 0, values[1], values[0]), width=4, seed=1)
    assert found.status is Status.WITHIN_TOLERANCE
    assert found.facts["family"] == "labels"
    assert apart(found.model.W, head.W) < 1e-11
    assert "common positive factor" in found.ambiguity
    assert found.check.sequences > 200
    assert found.check.relative_error == 0.0


def test_numbers_are_not_taken_for_labels():
    head = drawn(4, 8)
    rng = np.random.default_rng(0)
    assert recognised(CallableOracle(lambda X: head(X) > 0, width=4), rng=rng).passed is True
    assert recognised(CallableOracle(head), rng=rng).passed is False
    assert recognised(CallableOracle(lambda X: np.rint(head(X)), width=4), rng=rng).passed is False
    assert recognised(CallableOracle(lambda X: np.ones(len(X)), width=4), rng=rng).passed is None
    assert us.recover(head, seed=0).facts["family"] == "attention"


def test_no_token_is_longer_than_allowed():
    head = drawn(4, 8)
    longest = []

    def target(X):
        longest.append(np.linalg.norm(X, axis=2).max())
        return head(X) > 0

    found = us.recover(target, width=4, seed=1, max_norm=3.0)
    assert max(longest) <= 3.0
    assert apart(found.model.W, head.W) < 1e-9


def test_options_are_checked():
    with pytest.raises(ValueError, match=r"flip is 0\.7"):
        LabelsLearner(flip=0.7)
    with pytest.raises(ValueError, match="accuracy is -1"):
        LabelsLearner(accuracy=-1.0)
    with pytest.raises(ValueError, match="threshold is nan"):
        Thresholded(CallableOracle(drawn(3, 1)), np.nan)


@pytest.mark.parametrize("flip", [0.02, 0.1, 0.18])
def test_a_majority_makes_wrong_labels_right_at_its_price(flip):
    chance = np.random.default_rng(0)
    meter = Metered(CallableOracle(lambda X: (X[:, -1, 0] > 0) ^ (chance.random(len(X)) < flip), width=2))
    tokens = np.random.default_rng(1).normal(size=(2000, 1, 2))
    told = Majority(meter, flip, np.random.default_rng(2))(tokens)
    assert np.array_equal(told > 0, tokens[:, 0, 0] > 0)
    assert meter.spent / 2000 == pytest.approx(lead_wanted(flip) / (1 - 2 * flip), rel=0.05)


def test_labels_that_are_wrong_for_a_question_whenever_it_is_asked_are_made_right_too():
    head = drawn(4, 77)

    def hashed(X):
        bits = np.abs(np.sin(1e15 * X.sum(axis=(1, 2))))
        return (head(X) > 0) ^ (bits < 0.05)

    found = us.recover(hashed, width=4, seed=1, entropy=1)
    assert found.facts["evidence"]["flip_rate"] > 0
    assert apart(found.model.W, head.W) < 2e-3


def test_a_refusal_of_labels_is_the_last_word():
    rng = np.random.default_rng(3)
    A, a = rng.normal(size=(8, 4)), rng.normal(size=8)
    found = us.recover(lambda X: np.maximum(X.mean(axis=1) @ A.T, 0) @ a > 0.1, width=4, seed=0, on_failure="return")
    assert not found.status.success
    assert "label" in found.message


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8, deadline=None)
def test_brackets_keep_the_boundary(seed):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=30) * rng.choice([0.3, 3.0], size=30)
    search, rows = Halving(Prior(30, np.full(30, 0.3))), np.arange(30)
    for _ in range(40):
        at = search.middle(rows)
        search.learn(rows, at, truth > at)
    assert np.all((search.low <= truth) & (truth <= search.high))
    assert np.all(search.width < 1e-6)


@pytest.mark.parametrize("corners", [2, 3, 6, 7])
def test_a_simplex_has_orthonormal_columns_and_no_corner_on_the_plane(corners):
    found = simplex(corners, np.random.default_rng(0))
    assert np.allclose(found.T @ found, np.eye(corners - 1), atol=1e-12)
    assert np.allclose(found.sum(axis=0), 0, atol=1e-12)
    assert np.abs(found[:, 0]).min() > 0.5 / corners
    assert np.linalg.matrix_rank(key_directions(corners, np.random.default_rng(1))) == corners - 1


def test_pairs_beside_the_boundary_are_near_and_on_both_sides():
    head = drawn(5, 4)
    small = Bounds(kind="estimated", W=1e-12 * np.ones((1, 5, 5)), V=1e-14 * np.ones((1, 5)))
    pairs = boundary_pairs(head, small, 4, 10, np.random.default_rng(0))
    lead, winner = margins(head, pairs.sequences)
    half = len(winner) // 2
    assert half >= 5
    assert np.all(winner[:half] != winner[half:])
    assert lead.max() < 1e-6


def test_the_bound_counts_bits():
    assert bits(2.0**-10) == pytest.approx(10.0)
    assert capacity(0.5) == pytest.approx(0.0)
    assert bound(8, 8, 2.0**-10) == pytest.approx(800.0)
    assert bound(8, 8, 2.0**-10, 0.05) > 1100


def test_wrong_labels_too_rare_for_the_first_ones_to_show_are_outvoted_all_the_same() -> None:
    rng, chance = np.random.default_rng(0), np.random.default_rng([0, 5])
    head = us.Attention.single(rng.normal(size=(3, 3)), rng.normal(size=3))
    found = us.recover(lambda X: (head(X) > 0) ^ (chance.random(len(X)) < 0.001), width=3, seed=0)
    assert np.linalg.norm(found.model.W - head.W) < 3e-3 * np.linalg.norm(head.W)
    exact = us.recover(lambda X: head(X) > 0, width=3, seed=0)
    assert found.queries > 3 * exact.queries  # each label again and again, from the one on that was noticed
