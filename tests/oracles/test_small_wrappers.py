"""Odd corners of the local adapters and wrappers."""

import copy
import pickle
import threading

import numpy as np
import pytest

from unsoftmax.errors import BudgetExceededError, JournalError, TargetError
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered, Tokens
from unsoftmax.oracles.base import LastPosition
from unsoftmax.oracles.crew import check_wanted
from unsoftmax.oracles.journal import Journal, Journaled
from unsoftmax.oracles.noise import LowPrecision


def total(X):
    return X[:, -1].sum(axis=1)


def spent():
    raise BudgetExceededError("spent")


def test_wrappers_survive_copying_and_pickling():
    wrapped = Metered(CallableOracle(Attention.single(np.eye(2), np.ones(2)), width=2))
    for again in (copy.copy(wrapped), copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert again.width == 2
        assert np.array_equal(again(np.ones((1, 1, 2))), wrapped(np.ones((1, 1, 2))))


def test_a_refusal_inside_a_target_is_handed_on_as_it_is():
    for oracle in (CallableOracle(lambda X: spent(), width=2), Tokens(lambda ids: spent(), np.eye(2))):
        with pytest.raises(BudgetExceededError, match="spent"):
            oracle(np.eye(2)[None, :1])


def test_a_model_without_values_cannot_answer_in_any_precision():
    with pytest.raises(ValueError, match="V is None"):
        LowPrecision(Attention(np.eye(2)[None], None), "float16")(np.ones((1, 1, 2)))


def test_nobody_waits_for_a_request_that_was_given_up():
    event = threading.Event()
    check_wanted(None)
    check_wanted(event)
    event.set()
    with pytest.raises(TargetError, match="given up"):
        check_wanted(event)


def test_an_empty_batch_leaves_no_trace_in_a_journal(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite", {"target": "t"})
    oracle = Journaled(LastPosition(CallableOracle(total, width=2)), journal, "learn")
    assert oracle(np.zeros((0, 1, 2))).shape == (0,)
    assert np.array_equal(oracle(np.ones((2, 1, 2))), [2.0, 2.0])
    journal.close()


def test_a_journal_of_another_format_is_refused_and_left_alone(tmp_path):
    import sqlite3
    from contextlib import closing

    path = tmp_path / "journal.sqlite"
    Journal(path, {"target": "t"}).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE meta SET value = 'from the future' WHERE name = 'format'")
        db.commit()
    before = path.read_bytes()
    with pytest.raises(JournalError, match="format"):
        Journal(path, {"target": "t"})
    assert path.read_bytes() == before
