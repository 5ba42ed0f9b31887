import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import seeds

from unsoftmax.learners.ffn.kinks import KinkSearch, Piece, crossing


def search(bends, jumps, reach=1e5, lean=None):
    """Run the search on a sum of hinges; the places found and the number of questions.

    ``lean``: one answer beside a bend is enough at first, and on the other side where more than that share is unexplored.
    """
    asked = 0

    def ask(t):
        nonlocal asked
        asked += len(t)
        return (np.maximum(t[:, None] - bends, 0) @ jumps)[:, None]

    def noise(t):
        return 1e-15 * (np.abs(jumps).sum() * (np.abs(t) + np.abs(bends).max()))

    def end(low, high):
        t = np.array([low, high])
        values, errors = ask(t), noise(t)
        return Piece(low, high, values[0], values[1], errors[0], errors[1])

    kinks = KinkSearch(ask, noise, 1.0, 1000, lean=lean is not None)
    pieces = kinks.run([end(-reach, -reach / 2), end(0.0, 1e-6), end(reach / 2, reach)])
    if lean is not None:
        pieces = kinks.confirmed(pieces, lean)
    return np.array([crossing(a, b) for a, b in itertools.pairwise(pieces)]), asked


@given(count=st.integers(1, 40), seed=seeds)
def test_every_bend_is_found_at_few_questions_each(count, seed):
    rng = np.random.default_rng(seed)
    bends = np.cumsum(rng.uniform(0.01, 1.0, size=count)) - count / 4
    jumps = rng.uniform(0.2, 1.0, size=count) * rng.choice([-1, 1], size=count)
    found, asked = search(bends, jumps)
    assert len(found) == count
    np.testing.assert_allclose(found, bends, atol=1e-9)
    assert asked <= 8 * count + 24


@given(count=st.integers(2, 200), seed=seeds)
def test_one_answer_beside_a_bend_saves_questions_and_the_others_can_follow(count, seed):
    rng = np.random.default_rng(seed)
    bends = np.cumsum(rng.uniform(0.01, 1.0, size=count)) - count / 4
    jumps = rng.uniform(0.2, 1.0, size=count) * rng.choice([-1, 1], size=count)
    found, asked = search(bends, jumps, lean=0.0)
    assert len(found) == count
    np.testing.assert_allclose(found, bends, atol=1e-9)
    assert search(bends, jumps, lean=0.1)[1] <= asked


def test_bends_that_cancel_each_other_far_out_are_found():
    bends = np.array([-1.0, 0.5, 2.0])
    jumps = np.array([1.0, -2.0, 1.0])  # the slope is 0 at both ends
    found, _ = search(bends, jumps)
    np.testing.assert_allclose(found, bends, atol=1e-9)


def test_two_scales_on_one_line():
    bends = np.array([-3e4, -2e-3, 1e-3, 40.0])
    found, _ = search(bends, np.array([1.0, 0.5, -0.7, 0.2]))
    np.testing.assert_allclose(found, bends, rtol=1e-7, atol=1e-9)
