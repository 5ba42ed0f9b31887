"""One head before a ReLU network: inside a linear cell copies follow a law of one number, and that number is bilinear."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recognition.targets import D, case_of, head, heads, relu_network, scores_of, through, weighted
from tests.strategies import seeds

from unsoftmax.recognition.cells import affine_fit, cell_law, copies_of, excess_of
from unsoftmax.recognition.one_token import pilot
from unsoftmax.recognition.piecewise import _stand_in, chord_law, transformer
from unsoftmax.recognition.settings import TESTS


@given(score=st.floats(-3.0, 3.0), seed=seeds, outputs=st.integers(1, 3))
def test_a_score_is_read_from_copies_in_a_linear_cell(score, seed, outputs):
    rng = np.random.default_rng(seed)
    rise, base = rng.normal(size=outputs) + 2.0, rng.normal(size=outputs)
    weights = np.array([many / (many + few * np.exp(-score)) for many, few in TESTS.copies])
    answers = base + np.vstack([np.zeros(outputs), weights[:, None] * rise])
    z, errors, good, heard, whole = cell_law(case_of(head()), answers, np.ones(1))
    assert good[0]
    assert heard[0]
    assert abs(z[0] - score) < 1e-7
    assert errors[0] > 0
    np.testing.assert_allclose(whole[0], rise, rtol=1e-6)


@given(score=st.floats(-3.0, 3.0), other=st.floats(-3.0, 3.0), share=st.floats(0.2, 0.8))
def test_two_heads_do_not_follow_the_law_of_one(score, other, share):
    if abs(score - other) < 1.0:
        return
    weights = [np.array([many / (many + few * np.exp(-z)) for many, few in TESTS.copies]) for z in (score, other)]
    answers = np.concatenate([[0.0], share * weights[0] + (1 - share) * weights[1]])[:, None]
    assert not cell_law(case_of(head()), answers, np.ones(1))[2][0]


def test_silence_is_heard_as_such():
    assert not cell_law(case_of(head()), np.ones((4, 1)), np.ones(1))[3][0]


def test_copies_are_of_the_step_first_and_of_the_place_last():
    x, u = np.zeros(D), np.ones(D)
    for sequence, (many, few) in zip(copies_of(x, u), TESTS.copies, strict=True):
        assert len(sequence) == many + few
        np.testing.assert_array_equal(sequence[0], u)
        np.testing.assert_array_equal(sequence[-1], x)


@given(seed=seeds, places=st.integers(4, 9))
def test_affine_scores_are_fitted_and_bent_ones_are_seen(seed, places):
    rng = np.random.default_rng(seed)
    bases, kept = rng.uniform(-1, 1, size=(places, 2)), np.ones(places, dtype=bool)
    truth, errors = rng.normal(size=3), np.full(places, 1e-6)
    z = truth[0] + bases @ truth[1:]
    solution, doubt, off = affine_fit(bases, z, errors, kept)
    np.testing.assert_allclose(solution, truth, atol=1e-3)
    assert off < 1
    assert (doubt > 0).all()
    bent = affine_fit(bases, z + 0.3 * (bases**2).sum(axis=1) * np.arange(places), errors, kept)[2]
    assert places <= 3 or bent > 1


@given(seed=seeds, factor=st.floats(0.01, 1.0))
def test_scatter_below_the_floor_narrows_the_errors_and_never_widens_them(seed, factor):
    rng = np.random.default_rng(seed)
    bases, errors = rng.uniform(-1, 1, size=(9, 2)), np.full((2, 9), 1e-6)
    z = np.ones((2, 9)) + factor * 1e-6 * rng.normal(size=(2, 9))
    excess = excess_of(bases, z, errors, np.ones((2, 9), dtype=bool))
    assert 0.05 <= excess <= 1.0
    assert excess_of(bases, z, errors, np.repeat(np.arange(9)[None] < 3, 2, axis=0)) == 1.0  # nothing to spare


@given(height=st.floats(-4.0, 4.0))
def test_one_token_in_many_copies_stands_in_for_a_sequence(height):
    factor = _stand_in(height)
    if factor is None:
        return
    weight = TESTS.shared / (TESTS.shared + np.exp(-factor * height))
    assert factor * weight == pytest.approx(1.0, abs=1e-6)


def outcome(target, seed=0):
    case = case_of(target, seed=seed)
    point = pilot(case)
    return transformer(case, point.scale * min(1.0, 0.4 / point.strength))


@pytest.mark.parametrize("seed", range(4))
def test_one_head_before_a_relu_network_is_not_denied(seed):
    found, residual = outcome(through(head(seed=seed), relu_network(seed=seed)), seed)
    assert found.passed is not False
    assert not residual


def test_a_residual_is_told_where_the_head_is_known():
    told = []
    for seed in range(6):
        network, layer = relu_network(seed=seed, hidden=6), head(seed=seed, outputs=D)
        found, residual = outcome(lambda X, layer=layer, network=network: network(X[:, -1] + layer(X)), seed)
        assert found.passed is not False
        told.append(residual)
    assert sum(bool(residual) for residual in told) >= 3
    assert False not in [residual for residual in told if residual is not None]


@pytest.mark.parametrize("seed", range(3))
def test_two_heads_before_a_relu_network_are_not_one(seed):
    layer, network = heads(2, seed=seed, outputs=D), relu_network(seed=seed)
    assert not outcome(lambda X: network(layer(X)), seed)[0].passed


def test_a_broken_law_is_marked():
    layer, network = head(seed=1), relu_network(seed=1, hidden=4)
    found = [outcome(lambda X: network(weighted(1.5 * np.tanh(scores_of(layer, X)), X)), seed)[0] for seed in range(4)]
    assert not any(one.passed for one in found)


@settings(max_examples=8)
@given(seed=seeds)
def test_a_network_on_each_token_answers_pairs_by_mixing(seed):
    seed %= 97
    network, layer = relu_network(seed=seed), head(seed=seed)

    def before(X):
        return weighted(scores_of(layer, X), network(X)[..., None])[:, 0]

    assert chord_law(case_of(before, seed=seed), 1.0) is not False
    assert chord_law(case_of(through(layer, network), seed=seed), 1.0) is not True
