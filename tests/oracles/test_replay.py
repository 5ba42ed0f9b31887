"""Transcripts: recorded once, answered for ever."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.errors import FileFormatError, TargetError
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle
from unsoftmax.oracles.replay import Recorded, ReplayOracle


def head(width=3):
    rng = np.random.default_rng(0)
    return Attention.single(W=rng.normal(size=(width, width)), v=rng.normal(size=width))


@given(shapes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_a_replay_gives_the_same_bits_in_any_grouping(shapes, seed):
    rng = np.random.default_rng(seed)
    recorded = Recorded(CallableOracle(head(), 3))
    asked = [rng.normal(size=(*shape, 3)) for shape in shapes]
    answers = [recorded(X) for X in asked]
    replay = ReplayOracle(recorded.transcript)
    assert replay.width == 3
    for X, Y in zip(asked, answers, strict=True):
        assert np.array_equal(replay(X), Y)
        assert np.array_equal(np.concatenate([replay(x[None]) for x in X[::-1]])[::-1], Y)


def test_files_go_round_and_are_private(tmp_path):
    recorded = Recorded(CallableOracle(head(), 3))
    X = np.random.default_rng(0).normal(size=(4, 2, 3))
    Y = recorded(X)
    recorded.save(tmp_path / "t.npz")
    assert (tmp_path / "t.npz").stat().st_mode & 0o077 == 0
    assert np.array_equal(ReplayOracle.load(tmp_path / "t.npz")(X), Y)


def test_noisy_answers_come_in_order():
    X = np.ones((1, 1, 1))
    replay = ReplayOracle([(X, np.array([1.0])), (X, np.array([2.0]))])
    assert [replay(X)[0] for _ in range(3)] == [1.0, 2.0, 2.0]


def test_unknown_questions_are_target_errors():
    replay = ReplayOracle([(np.ones((1, 1, 1)), np.array([1.0]))])
    with pytest.raises(TargetError, match="not in the transcript"):
        replay(np.zeros((1, 1, 1)))
    with pytest.raises(TargetError):
        replay(np.ones((1, 2, 1)))


@pytest.mark.parametrize(
    "arrays", [{}, {"X0": np.ones((1, 1, 1))}, {"X0": np.ones(3), "Y0": np.ones(1)}, {"X0": np.array([{}]), "Y0": np.ones(1)}]
)
def test_other_files_are_refused_and_nothing_is_unpickled(tmp_path, arrays):
    path = tmp_path / "t.npz"
    np.savez(path, **arrays)
    with pytest.raises(FileFormatError):
        ReplayOracle.load(path)
    path.write_bytes(b"not a zip file")
    with pytest.raises(FileFormatError):
        ReplayOracle.load(path)
    with pytest.raises(FileNotFoundError):
        ReplayOracle.load(tmp_path / "none.npz")
