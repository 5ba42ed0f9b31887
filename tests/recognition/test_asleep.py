"""Neurons that sleep on ordinary tokens make answers flat: that excludes no network."""

import numpy as np
import pytest
from tests.recognition.targets import head

import unsoftmax as us
from unsoftmax.errors import Sign


def behind(neuron, seed, shift, dtype=np.float32):
    layer = head(5, seed)
    return lambda X: neuron(layer(X) - shift).astype(dtype)


def relu(z):
    return np.maximum(z, 0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shift", [3.0, 30.0, 100.0])
def test_a_neuron_that_sleeps_near_by_is_left_open(seed, shift):
    told = us.diagnose(behind(relu, seed, shift), width=5, seed=seed)
    assert told.inside or Sign.UNDECIDED in told.signs
    found = us.recover(behind(relu, seed, shift, float), width=5, seed=seed, on_failure="return")
    assert found.status not in (us.Status.NOT_IN_FAMILY, us.Status.NOT_IDENTIFIABLE)


def test_a_constant_is_still_told():
    assert us.diagnose(lambda X: np.full(len(X), 2.5), width=5).family == "outside: constant"


def test_answers_in_steps_are_still_told():
    layer = head(5, 1)
    assert not us.diagnose(lambda X: np.round(X[:, -1] @ np.arange(1.0, 6.0) + layer(X)), width=5).inside
