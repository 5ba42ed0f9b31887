"""The six phases: each does what it promises, and the whole finds one and two heads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.errors import NotIdentifiableError
from unsoftmax.learners.from_examples import learn_from_examples
from unsoftmax.learners.from_examples.sculpt_phases import Body, crude_sum, minimum_norm_point, row_patterns
from unsoftmax.learners.from_examples.sculpting import sculpt
from unsoftmax.models import Attention, Floats
from unsoftmax.results import Status
from unsoftmax.symmetry import distance


def examples(
    seed: int, heads: int, number: int, length: int, width: int = 8, size: float = 2.0
) -> tuple[Attention, Floats, Floats]:
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(heads, width, width))
    W *= size / np.linalg.norm(W, axis=(1, 2), keepdims=True)
    truth = Attention(W, rng.normal(size=(heads, width, width)) / np.sqrt(width))
    X = rng.choice([-1.0, 1.0], size=(number, length, width))
    return truth, X, truth(X, "all")


def test_one_head_to_a_thousandth_before_any_polish() -> None:
    truth, X, Y = examples(0, 1, 4000, 3)
    found = sculpt(X, Y, heads=1)
    fresh = np.random.default_rng(1).choice([-1.0, 1.0], size=(500, 3, 8))
    answers = truth(fresh, "all")
    assert np.linalg.norm(found.model(fresh, "all") - answers) < 1e-3 * np.linalg.norm(answers)
    assert found.body.width < 0.01 * found.first_body.width  # the second body is far thinner
    assert truth.V is not None
    total = truth.V.sum(axis=0)
    assert np.linalg.norm(found.refined - total) < 0.01 * np.linalg.norm(found.crude - total)


def test_two_heads_and_the_body_is_long_only_where_they_differ() -> None:
    truth, _, _ = examples(1, 2, 1, 2, width=5)
    X = np.random.default_rng(51).normal(size=(10_000, 2, 5))  # five signs would repeat too few tokens to limit the body
    found = sculpt(X, truth(X, "all"), heads=2)
    assert found.span is not None
    assert found.span.extents[0] > 10.0 * found.span.elsewhere.max()
    apart = (truth.W[0] - truth.W[1]).T.ravel()
    assert abs(found.span.directions[0] @ apart) > 0.99 * np.linalg.norm(apart)
    assert found.training_error < 0.03


def test_the_public_route_polishes_and_checks() -> None:
    truth, X, Y = examples(2, 1, 3000, 3)
    found = learn_from_examples(X, Y, method="sculpt")
    assert found.status is Status.EXACT
    assert distance(found.model, truth) < 1e-8  # type: ignore[arg-type]
    assert found.facts["phases"]["unpolished_error"] < 0.01


def test_too_few_examples_and_other_layouts_are_refused() -> None:
    _, X, Y = examples(4, 1, 40, 3)
    with pytest.raises(NotIdentifiableError, match="Record about"):
        learn_from_examples(X, Y, method="sculpt", heads=1)
    with pytest.raises(ValueError, match="1 or 2 heads"):
        learn_from_examples(X, Y, method="sculpt", heads=3)
    with pytest.raises(ValueError, match="all positions"):
        learn_from_examples(X, Y[:, -1], method="sculpt")
    with pytest.raises(ValueError, match="tokens"):
        learn_from_examples(X, Y[:, :, :1], method="sculpt")


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_minimum_norm_point_is_inside_and_no_farther_than_a_known_inside_point(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inside, normals = rng.normal(size=9), rng.normal(size=(30, 9))
    body = Body(normals, normals @ inside + rng.uniform(-0.2, 0.2, size=30), 0.2, np.zeros((30, 2), dtype=np.int64))
    widened, point = minimum_norm_point(body)
    assert widened.width == body.width  # it was not empty
    assert np.abs(normals @ point.ravel() - body.offsets).max() <= body.width + 1e-6
    assert np.linalg.norm(point) <= np.linalg.norm(inside) + 1e-6
    direction = inside / np.linalg.norm(inside)
    assert body.extent(direction) >= abs(direction @ (inside - point.ravel())) - 1e-6


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_one_head_gives_its_own_patterns_back_when_the_sum_is_known(seed: int) -> None:
    truth, X, Y = examples(seed, 1, 30, 3)
    assert truth.V is not None
    weights, left = row_patterns(X, Y, truth.V[0])
    distinct = np.array([len(np.unique(x, axis=0)) == 3 and np.linalg.matrix_rank(x) == 3 for x in X])
    scores = X @ truth.W[0].T @ X.transpose(0, 2, 1)
    true = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
    assert np.abs(weights - true)[distinct].max(initial=0.0) < 1e-4
    assert left[distinct].max(initial=0.0) < 1e-4


def test_the_crude_sum_is_right_for_heads_without_scores() -> None:
    rng = np.random.default_rng(0)
    truth = Attention(np.zeros((1, 4, 4)), rng.normal(size=(1, 4, 3)))
    X = rng.normal(size=(50, 3, 4))
    assert truth.V is not None
    np.testing.assert_allclose(crude_sum(X, truth(X, "all")), truth.V[0], atol=1e-10)
