"""A target that answers at every position is inside only where its earlier positions follow the law of the last one."""

import numpy as np
import pytest
from tests.recognition.targets import head, heads
from tests.recognition.test_depth import transformer

import unsoftmax as us
from unsoftmax.models.base import seen_at
from unsoftmax.recognition.case import most_asked

LAYERS = [head(outputs=2), heads(2, seed=1, outputs=3), heads(3, seed=1, outputs=4)]


def other_at(layer, places, causal):
    """The layer at every position, with answers of its own at some of them."""

    def target(X):
        answers = np.array(layer(X, "all", causal=causal))
        answers[:, places] += 1e-3 * np.abs(answers[:, places])
        return answers

    return target


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_layer_right_at_every_position_is_inside(layer, causal):
    told = us.diagnose(lambda X: layer(X, "all", causal=causal), width=5)
    assert told.inside
    assert told.causal is causal
    assert told.queries <= most_asked(5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("places", [slice(0, -1), slice(0, None, 7), slice(20, -1)], ids=str)
def test_a_layer_that_is_another_at_earlier_positions_is_told(layer, causal, places):
    told = us.diagnose(other_at(layer, places, causal), width=5)
    assert not told.inside
    assert told.queries <= most_asked(5)


def test_a_mask_that_is_wrong_at_some_positions_is_told():
    layer = head(outputs=2)

    def target(X):
        answers = np.array(layer(X, "all", causal=True))
        answers[:, 3:-1] = layer(X, "all")[:, 3:-1]
        return answers

    assert us.diagnose(target, width=5).family == "outside: another law at other positions"


@pytest.mark.parametrize("causal", [False, True])
def test_a_network_behind_the_head_is_asked_elsewhere_too(causal):
    whole = transformer((12, 8, 2), 3)

    def at_all(X):
        tokens = range(X.shape[1])
        return np.stack([whole(seen_at(X, at, causal)) for at in tokens], axis=1).reshape(*X.shape[:2], -1)

    def last_alone(X):
        return at_all(X) * np.where(np.arange(X.shape[1]) == X.shape[1] - 1, 1.0, 1.1)[:, None]

    assert us.diagnose(at_all, width=12).inside
    assert not us.diagnose(last_alone, width=12).inside
