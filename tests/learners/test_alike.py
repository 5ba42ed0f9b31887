"""Neurons that are almost duplicates, and fits that leave more than rounding explains."""

import numpy as np
import pytest

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.smooth import SmoothNetworkLearner
from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.fewest import fewest, missed_without
from unsoftmax.learners.smooth.pairs import Moments, Pair, Paired, merged
from unsoftmax.models import FFN
from unsoftmax.models.activations import activation_named
from unsoftmax.oracles import CallableOracle
from unsoftmax.results import Floor


def network(kind, seed=12, d=5, m=6):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=(1, m)) / np.sqrt(m)]
    return weights, [rng.normal(size=m), rng.normal(size=1)], kind


def learned(target):
    oracle = CallableOracle(lambda X: target(X[:, 0]), width=5)
    return SmoothNetworkLearner().run(oracle, rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("kind", "sign", "length", "offset", "ratio"),
    [
        ("silu", 1.0, 1.0, 0.03, 0.01),
        ("gelu", 1.0, 1.002, 0.0, -0.5),
        ("softplus", -1.0, 1.0, 0.002, 3.0),
        ("mish", 1.0, 1.01, 0.01, -0.02),
    ],
)
def test_neurons_almost_alike_are_told_apart(kind, sign, length, offset, ratio):
    (B, A), (b, c), kind = network(kind)
    B[1], b[1], A[0, 1] = sign * length * B[0], sign * (b[0] + offset), ratio * A[0, 0]
    target = FFN([B, A], [b, c], activation=kind)
    found = learned(target)
    points = 2 * np.random.default_rng(1).normal(size=(500, 5))
    assert found.evidence["neurons"] == 6
    assert found.evidence["misfit"] < 1
    assert np.abs(found.model(points) - target(points)).max() < 1e-12 * target(points).std()
    assert "Two neurons have rows of one direction" in found.notes[0]


def test_a_misfit_far_beyond_rounding_is_no_success():
    """Fresh answers to 1e-9 would pass this target; what the fit leaves of all answers does not."""
    (B, A), (b, c), kind = network("gelu")
    target, wave = FFN([B, A], [b, c], activation=kind), np.random.default_rng(5).normal(size=5)

    def almost(x):
        return target(x) + 1e-10 * np.sin(3 * x @ wave) * np.exp(-0.1 * (x**2).sum(axis=1))

    with pytest.raises(NotInFamilyError, match="times the rounding"):
        learned(almost)


def curves(outputs):
    rng = np.random.default_rng(0)
    shapes = [(3, outputs), (3, 4), 3, (outputs, 4), outputs]
    return Curves(activation_named("gelu"), *(rng.normal(size=shape) for shape in shapes))


@pytest.mark.parametrize("outputs", [1, 2])
def test_moments_tell_two_neurons_and_their_derivatives(outputs):
    whole, pair = curves(outputs), Pair(0, 2)
    moments = Moments.of(whole, pair)
    still = np.zeros(2 * (outputs + 5))
    rows = np.c_[whole.normal, whole.shift]
    assert np.allclose(moments.moved(still), np.concatenate([*whole.out[[0, 2]], *rows[[0, 2]]]), atol=1e-13)
    points, paired = np.random.default_rng(1).normal(size=(6, 4)), Paired(whole, (pair,))
    slopes = paired.derivatives(points, np.ones(6), True)
    step = 1e-6 * np.random.default_rng(2).normal(size=slopes.shape[1])
    change = paired.moved_by(step, True)(points) - paired.moved_by(-step, True)(points)
    assert np.allclose(2 * slopes @ step, change.T.ravel(), atol=1e-10)


def test_a_pair_made_one_neuron_again_keeps_sum_and_mean():
    whole = curves(1)
    one, others = merged(whole, (Pair(0, 1),), Pair(0, 1))
    assert others == ()
    assert one.neurons == 2
    assert np.allclose(one.out[0], whole.out[0] + whole.out[1])
    weighted = (whole.out[:2] * whole.normal[:2]).sum(axis=0) / one.out[0]
    assert np.allclose(one.normal[0], weighted)


def test_a_shared_direction_behind_vector_answers():
    """No one offset explains both neurons' vectors from afar; one combination of the outputs has one."""
    rng = np.random.default_rng(3)
    B, b = rng.normal(size=(6, 5)) / np.sqrt(5), rng.normal(size=6)
    B[1] = B[0]
    target = FFN([B, rng.normal(size=(3, 6)) / np.sqrt(6)], [b, rng.normal(size=3)], activation="silu")
    found = learned(target)
    points = 2 * rng.normal(size=(200, 5))
    assert found.evidence["neurons"] == 6
    assert np.abs(found.model(points) - target(points)).max() < 1e-12 * target(points).std()


def with_another(whole, row, shift, out):
    """The network with one neuron more."""
    grown = [np.concatenate([block, [more]]) for block, more in ((whole.out, out), (whole.normal, row), (whole.shift, shift))]
    return Curves(whole.phi, *grown, whole.linear, whole.constant)


def answered(truth):
    points = 2 * np.random.default_rng(4).normal(size=(120, 4))
    return Answers(points, truth(points), Floor())


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_neuron_that_adds_nothing_is_left_out(outputs):
    """Its output weight is rounding, or it shares the place of another neuron."""
    truth = curves(outputs)
    idle = with_another(truth, np.ones(4), 0.5, 1e-15 * np.ones(outputs))
    half = Curves(truth.phi, truth.out * [[1], [1], [0.4]], truth.normal, truth.shift, truth.linear, truth.constant)
    twice = with_another(half, truth.normal[2], truth.shift[2] + 1e-7, 0.6 * truth.out[2])
    for more, pairs in ((idle, ()), (idle, (Pair(0, 3),)), (twice, (Pair(2, 3),))):
        found, misfit, left = fewest(more, 0.05, pairs, answered(truth))
        assert found.neurons == 3
        assert left == ()
        assert misfit < 0.1
        assert np.abs(found.normal - truth.normal).max() < 1e-7


@pytest.mark.parametrize("apart", [1e-3, 0.1])
def test_two_neurons_that_answers_tell_are_not_made_one(apart):
    single = curves(1)
    truth = with_another(single, single.normal[0], single.shift[0] + apart, [0.7])
    pair = (Pair(0, 3),)
    assert fewest(truth, 0.05, pair, answered(truth)) == (truth, 0.05, pair)


def test_what_a_network_misses_without_a_neuron():
    """Nearly what a fit of the others leaves: to first order, in expected errors."""
    truth = curves(1)
    assert missed_without(truth, answered(truth)).min() > 1e6
    idle = with_another(truth, np.ones(4), 0.5, [1e-15])
    assert missed_without(idle, answered(truth))[3] < 1


def test_neurons_nearly_parallel_are_counted_once_each():
    """A fit that was stuck splits one of them, and goes on with a neuron too many."""
    rng = np.random.default_rng(2_500_000)
    B, A = rng.normal(size=(16, 8)) / np.sqrt(8), rng.normal(size=(1, 16)) / np.sqrt(16)
    b, c = rng.normal(size=16), rng.normal(size=1)
    B[1] = B[0] + 1e-4 * rng.normal(size=8) / np.sqrt(8)
    target = FFN([B, A], [b, c], activation="gelu")
    oracle = CallableOracle(lambda X: target(X[:, 0]), width=8)
    found = SmoothNetworkLearner().run(oracle, rng=np.random.default_rng(2_500_000))
    assert found.evidence["neurons"] == 16
    assert found.model.skip is None


def test_what_few_answers_tell_of_two_neurons_is_asked_for():
    """A fit with one neuron in the place of two explains what was asked; fresh answers are missed by a little more."""
    rng = np.random.default_rng(3_300_003)
    B, A = rng.normal(size=(16, 8)) / np.sqrt(8), rng.normal(size=(1, 16)) / np.sqrt(16)
    b, c = rng.normal(size=16), rng.normal(size=1)
    B[1], b[1] = B[0], b[0] + 0.0096
    A[0, :2] = -0.00023, -0.1565
    target = FFN([B, A], [b, c], activation="softplus")
    oracle = CallableOracle(lambda X: target(X[:, 0]), width=8)
    found = SmoothNetworkLearner().run(oracle, rng=np.random.default_rng(3_300_003))
    assert found.evidence["neurons"] == 16
    assert found.evidence["misfit"] < 0.2
