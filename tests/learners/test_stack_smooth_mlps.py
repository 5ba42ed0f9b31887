"""Smooth MLPs of small stacks: every neuron, and with them the whole function."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.stack import StackLearner
from unsoftmax.learners.stack.student import Lesson, pruned, random_student, taught
from unsoftmax.models import Floats, Stack
from unsoftmax.models.activations import activation_named
from unsoftmax.models.stack import Activation, random_stack
from unsoftmax.oracles import CallableOracle, Metered


@pytest.mark.parametrize(("layers", "hidden", "activation"), [(1, 16, "gelu"), (2, 5, "silu"), (1, 6, "gelu_tanh")])
def test_smooth_mlps_make_the_stack_whole(layers: int, hidden: int, activation: Activation) -> None:
    target = random_stack(layers, 1, 8, 8, np.random.default_rng(11), hidden=hidden, activation=activation)
    found = us.recover(target, seed=0)
    assert isinstance(found.model, Stack)
    assert found.status is us.Status.EXACT
    assert found.model.mlps is not None
    assert [(len(mlp.first), mlp.activation) for mlp in found.model.mlps] == [(hidden, activation)] * layers
    tokens = np.random.default_rng(2).normal(size=(50, 4, target.width))
    np.testing.assert_allclose(found.model(tokens), target(tokens), atol=1e-10)


def test_no_question_is_spent_on_smooth_mlps_of_wide_stacks() -> None:
    target = random_stack(1, 1, 24, 4, np.random.default_rng(11), hidden=8)
    spent = []
    for mlps in (20.0, 0.0):
        oracle = Metered(CallableOracle(target))
        StackLearner(checks=4, mlps=mlps).run(oracle, rng=np.random.default_rng(0))
        spent.append(oracle.spent)
    assert spent[0] - spent[1] == 4  # the look whether they are ReLUs


def test_a_student_finds_the_neurons_and_no_others() -> None:
    rng = np.random.default_rng(4)
    phi, points = activation_named("gelu"), rng.normal(size=(150, 5))
    into, bias, out = rng.normal(size=(7, 5)), rng.normal(size=7), rng.normal(size=(7, 3))
    lesson = Lesson.of(points, phi.value(points @ into.T + bias) @ out + points @ rng.normal(size=(5, 3)))
    enough = 1e-8 * float(np.linalg.norm(lesson.values))
    starts = (taught(lesson, random_student(lesson, phi, 12, rng), enough) for _ in range(5))
    learned = next(student for student in starts if student.off <= enough)
    few = pruned(lesson, learned, enough)
    assert len(few.bias) == 7
    rows, truth = np.c_[few.into, few.bias], np.c_[into, bias]
    apart = np.minimum(*(np.linalg.norm(truth[:, None] - sign * rows, axis=2) for sign in (1, -1)))
    assert apart.min(axis=1).max() < 1e-5


def test_norms_of_another_definition_are_folded_into_the_heads() -> None:
    """Standard deviations over ``n - 1``, epsilon outside the root: very long tokens see a LayerNorm with another gain."""
    width = 12
    stack = random_stack(2, 1, width, 4, np.random.default_rng(3), hidden=3, activation="relu")

    def norm(x: Floats) -> Floats:
        centred = x - x.mean(-1, keepdims=True)
        return np.asarray(centred / (np.sqrt((centred**2).sum(-1, keepdims=True) / (width - 1)) + 1e-2))

    def target(X: Floats) -> Floats:
        h = X
        for layer, mlp in zip(stack.layers, stack.mlps or (), strict=True):
            h = h + layer(norm(h), "all")
            h = h + mlp(norm(h))
        return np.asarray(h[:, -1])

    found = us.recover(target, width=width, seed=0)
    assert found.status is us.Status.EXACT
    assert isinstance(found.model, Stack)
    assert not found.model.complete  # no epsilon under a root explains answers of natural size
    share = (width - 1) / width
    for mine, told in zip(found.model.layers, stack.layers, strict=True):
        assert mine.V is not None
        assert told.V is not None
        np.testing.assert_allclose(mine.W, share * told.W, atol=1e-8)
        np.testing.assert_allclose(mine.V, np.sqrt(share) * told.V, atol=1e-8)
