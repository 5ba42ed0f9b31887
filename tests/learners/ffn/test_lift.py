from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import seeds

from unsoftmax.learners.ffn.design import telling
from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.lift import Lift
from unsoftmax.learners.ffn.orientation import flipped
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.results import Floor


def setting(width, neurons, outputs, seed, hidden=0):
    """A network in coordinates ``y``, a lift of it, and what a line (without ``hidden`` bends) tells: the lift's arguments."""
    rng = np.random.default_rng(seed)
    out = rng.normal(size=(neurons, outputs))
    out /= np.linalg.norm(out, axis=1, keepdims=True)
    network = Hinges(out, rng.normal(size=(neurons, width)), rng.normal(size=neurons), rng.normal(size=(outputs, width)), out[0])
    oracle = Metered(CallableOracle(lambda X: network(X[:, 0]), width=width))
    questions = Questions(oracle, floor=Floor(), max_norm=None)
    questions.offset, questions.slope = network.sizes()
    down = network.normal[:, 0] < 0
    turned = flipped(network, down)
    order = np.argsort(-turned.shift / turned.normal[:, 0])
    ends = (-turned.shift / turned.normal[:, 0])[order]
    kept = turned.keep(order[: neurons - hidden])
    line = replace(kept, normal=kept.normal[:, :1], linear=kept.linear[:, :1])
    bends = ends[: neurons - hidden]
    last = (bends[-1] + ends[neurons - hidden]) / 2 if hidden else bends[-1] + 1
    places = np.concatenate([[bends[0] - 1], (bends[1:] + bends[:-1]) / 2, [last]])[:, None]
    whole = np.concatenate([places, np.zeros((len(places), width - 1))], axis=1)
    values = questions.ask(whole)
    lift = Lift(questions, np.zeros(width), np.eye(width), None, np.inf, rng, [(places, places, values)])
    return network, oracle, lift, (line, places, values)


@given(width=st.integers(2, 12), neurons=st.integers(2, 14), outputs=st.integers(1, 3), seed=seeds)
def test_a_network_grows_from_a_line_to_all_of_space(width, neurons, outputs, seed):
    network, _, lift, line = setting(width, neurons, outputs, seed)
    found = lift.run(*line)
    if found is None:  # bends that nearly coincide, or slopes that do not tell them apart
        return
    points = np.random.default_rng(seed).normal(size=(50, width))
    np.testing.assert_allclose(found(points), network(points), atol=1e-5 * np.abs(network(points)).max())


def test_it_takes_one_question_for_each_new_component_of_a_bend():
    _, oracle, lift, line = setting(20, 12, 1, 5)
    before = oracle.spent
    assert lift.run(*line) is not None
    assert oracle.spent - before <= 19 * 13 + 13 + 3


def test_a_bend_that_the_line_did_not_tell_is_noticed():
    """Its effect shows wherever the network is asked beyond it, unless it lies far out."""
    lifted = [setting(16, 10, 1, seed, hidden=1) for seed in range(20)]
    assert sum(lift.run(*line) is None for _, _, lift, line in lifted) >= 12


@pytest.mark.parametrize("known", [1, 2, 5])
@pytest.mark.parametrize("share", [0.01, 0.1])
def test_steps_cross_a_bend_no_more_often_than_they_should(known, share):
    """Whatever the norms: here they span six orders of magnitude."""
    rng = np.random.default_rng(known)
    crossed = []
    for _ in range(300):
        normal = rng.normal(size=(6, known + 1)) * 10.0 ** rng.uniform(-3, 3, size=(6, 1))
        shift = rng.normal(size=6) * np.linalg.norm(normal[:, :known], axis=1)
        model = Hinges(np.ones((6, 1)), normal[:, :known], shift, np.zeros((1, known)), np.zeros(1))
        lift = Lift(None, np.zeros(known + 1), np.eye(known + 1), None, np.inf, rng)
        points = rng.normal(size=(20, known))
        before = model.before(points)
        after = before + lift._lengths(model, points, share)[:, None] * normal[:, known]
        crossed.append((np.sign(before) != np.sign(after)).sum())
    assert np.sum(crossed) / 6000 < 1.4 * share
    assert (
        np.sum(crossed) / 6000 > 0.7 * share or known > 1
    )  # there, bends that look small beside the others are kept at a distance


@given(count=st.integers(2, 5), outputs=st.integers(1, 3), seed=seeds)
def test_chosen_answers_tell_everything_where_any_do(count, outputs, seed):
    rows = np.random.default_rng(seed).normal(size=(30, outputs, count * outputs)) * 1e6
    picks = telling(rows, count)
    assert len(set(picks.tolist())) == count
    assert np.linalg.cond(rows[picks].reshape(-1, count * outputs)) < 1e4
