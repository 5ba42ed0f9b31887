"""Networks in which no bend was found, and those so small that a share of their parameters is no question at all."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.ffn.depth import bends_found_again
from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.places import Places
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.ffn.rough import _gains, polished
from unsoftmax.learners.smooth.head import Amounts
from unsoftmax.oracles import CallableOracle
from unsoftmax.results import Floor


def straight() -> Questions:
    questions = Questions(CallableOracle(lambda X: X[:, -1].sum(axis=1), width=3), floor=Floor(), max_norm=None)
    questions.ask(np.random.default_rng(1).normal(size=(20, 3)))
    questions.offset = 1.0
    return questions


def test_no_bend_is_followed_where_there_is_none():
    found = bends_found_again(straight(), Places(None, 0.5, 100), Hinges.zero(3, 1), 1.0, np.random.default_rng(0))
    assert found == (0, 0)


@pytest.mark.parametrize("planes", [np.zeros((0, 4)), -np.eye(4)[3:]])
def test_planes_that_no_answer_sees_gain_nothing(planes):
    questions = straight()
    gains, outs = _gains(questions, polished(questions, Hinges.zero(3, 1)), planes)
    assert gains.shape == (len(planes),)
    assert outs.shape == (len(planes), 1)
    assert not gains.any()
    assert not outs.any()


def test_the_fit_of_the_smallest_network_asks_at_least_one_sequence_of_each_length():
    for asked in (0, 10, 10_000):
        assert all(Amounts().fit(network, 1, 1, residual, False, asked) >= 1 for network in (1, 4, 9) for residual in (False, True))


def test_a_smooth_transformer_of_width_two_with_few_neurons_is_recovered():
    rng = np.random.default_rng(11)
    W, A, out = rng.normal(size=(2, 2)), rng.normal(size=(2, 2)), rng.normal(size=2)

    def target(X):
        scores = np.einsum("bid,de,be->bi", X, W, X[:, -1])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        z = np.einsum("bi,bid->bd", weights / weights.sum(axis=1, keepdims=True), X) @ A.T
        return (z / (1 + np.exp(-np.clip(z, -700, 700)))) @ out

    assert us.recover(target, width=2, seed=1).status is us.Status.EXACT
