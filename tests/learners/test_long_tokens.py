"""Tokens may be far longer than suits the scores: the learner finds shorter ones, and its way back to long ones."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import seeds

import unsoftmax as us
from unsoftmax.errors import RefusalError
from unsoftmax.learners.noisy import NoisyHeadLearner
from unsoftmax.learners.noisy.fit import Head
from unsoftmax.learners.noisy.stages import ask_pilot
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.oracles.noise import Cast, Noisy, Rounded
from unsoftmax.results import Floor


def drawn_head(seed, width):
    """A head whose query bias alone saturates the softmax for tokens of length 16."""
    rng = np.random.default_rng(seed)
    W, v, c = rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=width), rng.normal(size=width)
    return Attention.single(W, v, c=c, b=float(rng.normal()))


ANSWERS = {
    "rounded": lambda head, seed: Rounded(CallableOracle(head), decimals=4),
    "noisy": lambda head, seed: Noisy(CallableOracle(head), 1e-3, seed=seed),
    "cast": lambda head, seed: Cast(CallableOracle(head), "float16"),
}


@pytest.mark.parametrize("answers", ANSWERS)
@pytest.mark.parametrize(("width", "norm"), [(2, 32.0), (3, 16.0), (4, 32.0), (5, 16.0)])
def test_heads_with_biases_are_recovered_at_any_limit(width, norm, answers):
    for seed in range(530_000, 530_003):
        head = drawn_head(seed, width)
        found = us.recover(ANSWERS[answers](head, seed), max_norm=norm, seed=seed, entropy=seed)
        assert found.status is us.Status.WITHIN_TOLERANCE
        assert np.abs(found.model.W - head.W).max() < 4 * found.bounds.W.max()
        assert np.abs(found.model.W - head.W).max() < 1e-3


def test_weight_that_goes_to_the_last_token_is_seen():
    """Its own score is 100 here: answers are its own value, and no key shows."""
    head = drawn_head(540_000, 8)
    found = us.recover(Noisy(CallableOracle(head), 1e-3, seed=540_000), max_norm=16.0, seed=540_000, entropy=1)
    assert np.abs(found.model.W - head.W).max() < 1e-4
    assert found.queries <= 6 * 72


@settings(max_examples=20, deadline=None)
@given(seed=seeds, width=st.integers(1, 5), norm=st.floats(1.0, 64.0), more=st.integers(0, 40))
def test_no_more_is_asked_than_allowed(seed, width, norm, more):
    allowed = 2 * (width**2 + width) + 4 + more
    oracle = Metered(Rounded(CallableOracle(drawn_head(seed, width)), decimals=3))
    learner = NoisyHeadLearner(max_norm=norm, queries=allowed, floor=Floor("rounded", absolute=5e-4, step=1e-3))
    with contextlib.suppress(RefusalError):
        learner.run(oracle, rng=np.random.default_rng(seed))
    assert oracle.spent <= allowed + 2  # a last question where none is left


@settings(max_examples=20, deadline=None)
@given(seed=seeds, width=st.integers(1, 6), norm=st.floats(4.0, 64.0))
def test_a_pilot_ends_with_moderate_answers_and_enough_of_them(seed, width, norm):
    head = drawn_head(seed, width)
    guess = Head.start(head.V[0], float(head.b))
    parts, length = ask_pilot(CallableOracle(head), guess, 10, 1000, 1e-6, norm, 64, np.random.default_rng(seed))
    assert 0 < length <= norm
    assert np.all(parts[-1].lengths <= length * (1 + 1e-9))
    if length < norm:
        assert len(parts[-1]) >= (width + 1) ** 2
    key = parts[-1].keys @ head.V[0]
    assert np.median(np.abs(parts[-1].answers - head.b) / key) < 0.97
    for part in parts:
        assert max(np.linalg.norm(part.keys, axis=1).max(), np.linalg.norm(part.last, axis=1).max()) <= norm
