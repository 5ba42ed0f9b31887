"""One head where one-token answers are affine: six scores on a plane foretell every sequence in it, and nothing else does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recognition.targets import D, case_of, head, heads, passed, scores_of, weighted
from tests.strategies import seeds

from unsoftmax.models.forward import softmax
from unsoftmax.recognition.one_head import against, one_head
from unsoftmax.recognition.one_token import pilot
from unsoftmax.recognition.plane import Plane, random_coordinates
from unsoftmax.results import Floor

LAYER = head(seed=5)


def plane_of(layer, seed, error=0.0):
    rng = np.random.default_rng(seed)
    origin, axes = rng.normal(size=D), rng.normal(size=(2, D))
    z = np.array([[axes[j] @ layer.W[0] @ x for x in (origin, origin + axes[0], origin + axes[1])] for j in range(2)])
    return Plane.measured(origin, axes, z, np.full((2, 3), error), np.zeros((3, 1)))


@given(seed=seeds, length=st.integers(2, 40))
def test_scores_measured_at_three_places_are_those_of_the_whole_plane(seed, length):
    layer, rng = head(seed=seed % 97), np.random.default_rng(seed)
    plane = plane_of(layer, seed)
    coordinates = random_coordinates(rng, 2, length)
    X = plane.tokens(coordinates)
    weights = softmax((X @ layer.W[0] @ X[-1])[None])[0]
    np.testing.assert_allclose(plane.tokens(plane.centre(coordinates)), weights @ X, atol=1e-9 * (1 + np.abs(X).max()))


@given(seed=seeds)
def test_a_centre_lies_between_its_tokens_and_copies_change_nothing(seed):
    plane, rng = plane_of(head(seed=seed % 97), seed), np.random.default_rng(seed)
    coordinates = random_coordinates(rng, 2, 6)
    centre = plane.centre(coordinates)
    assert (centre >= coordinates.min(axis=0) - 1e-12).all()
    assert (centre <= coordinates.max(axis=0) + 1e-12).all()
    np.testing.assert_allclose(plane.centre(np.concatenate([coordinates, coordinates])), centre, atol=1e-12)


@given(seed=seeds, error=st.floats(1e-6, 1e-3))
def test_uncertainty_grows_with_the_errors_of_the_scores(seed, error):
    coordinates = random_coordinates(np.random.default_rng(seed), 2, 5)
    layer = head(seed=seed % 97)
    small, large = (plane_of(layer, seed, e).uncertainty(coordinates) for e in (error, 4 * error))
    assert (small >= 0).all()
    np.testing.assert_allclose(large, 4 * small, rtol=0.2, atol=1e-9)
    assert not plane_of(layer, seed).uncertainty(coordinates).any()


def outcome(target, seed=0, **settings):
    case = case_of(target, seed=seed, **settings)
    return one_head(case, pilot(case).scale), case


@settings(max_examples=12)
@given(seed=seeds, bias=st.booleans(), constant=st.booleans(), outputs=st.sampled_from([None, 2]))
def test_one_head_is_never_denied(seed, bias, constant, outputs):
    seed %= 1000
    found, case = outcome(head(seed=seed, bias=bias, constant=constant, outputs=outputs), seed)
    assert found.passed is not False
    assert case.asked <= 160


def test_one_head_is_known_nearly_always():
    assert sum(bool(outcome(head(seed=seed), seed)[0].passed) for seed in range(20)) >= 18


@pytest.mark.parametrize("cap", [2.0, 5.0, 20.0])
def test_scores_with_a_cap_are_no_head(cap):
    found, case = outcome(lambda X: weighted(cap * np.tanh(scores_of(LAYER, X) / cap), X) @ LAYER.V[0])
    assert found.passed is False
    assert passed(case, "foretold answers") is False or passed(case, "steep scores") is False


@pytest.mark.parametrize("seed", range(4))
def test_two_heads_are_not_one(seed):
    assert not outcome(heads(2, seed=seed), seed)[0].passed


def test_other_kernels_are_no_head():
    layer = head(seed=9)

    def squared(X):
        weights = (1.0 + scores_of(layer, X)) ** 2 + 0.1
        return np.einsum("bn,bnd->bd", weights / weights.sum(axis=1, keepdims=True), X) @ layer.V[0]

    def normalised(X):
        K = X @ layer.W[0]
        K = K / np.linalg.norm(K, axis=-1, keepdims=True)
        return weighted(3.0 * np.einsum("bnd,bd->bn", K, X[:, -1] / np.linalg.norm(X[:, -1], axis=1)[:, None]), X) @ layer.V[0]

    assert not outcome(squared)[0].passed
    assert not outcome(normalised)[0].passed


def test_the_plain_mean_is_foretold_without_scores():
    values = np.random.default_rng(1).normal(size=D)
    case = case_of(lambda X: X.mean(axis=1) @ values)
    assert one_head(case, 1.0, flat=True).passed
    assert not one_head(case_of(LAYER), 1.0, flat=True).passed


def test_coarse_answers_say_that_they_cannot_tell():
    rng = np.random.default_rng(0)
    found, _ = outcome(lambda X: LAYER(X) + 0.03 * rng.normal(size=len(X)), floor=Floor(kind="noisy", absolute=0.05))
    assert found.passed is None
    assert found.why


@pytest.mark.parametrize("seed", range(4))
def test_steep_scores_are_asked_of_short_tokens_where_natural_ones_may_not_be_sent(seed, monkeypatch):
    def short(case, plane, coordinates, base):
        return against(case, plane, coordinates, base) if np.abs(coordinates[-1]).max() <= 1 else None

    monkeypatch.setattr("unsoftmax.recognition.one_head.against", short)
    found, case = outcome(head(seed=seed, size=30.0), seed, floor=Floor(kind="float32", relative=2.0**-30))
    assert found.passed
    assert sum(fact.test == "steep scores" for fact in case.evidence) >= 2
