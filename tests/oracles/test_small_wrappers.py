"""Odd corners of the local adapters and wrappers."""

import copy
import pickle
import threading

import numpy as np
import pytest

from unsoftmax.errors import BudgetExceededError, JournalError, TargetError
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered, Noisy, Rounded, Tokens
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


def test_a_meter_counts_sequences_tokens_and_calls_of_each_phase():
    told = []
    meter = Metered(CallableOracle(total, width=2), on_count=lambda name, count: told.append((name, count)))
    meter(np.ones((3, 4, 2)))
    meter.begin_phase("columns")
    meter(np.ones((2, 1, 2)))
    meter(np.ones((1, 5, 2)))
    assert {name: (c.queries, c.tokens, c.calls) for name, c in meter.phases.items()} == {"asked": (3, 12, 1), "columns": (3, 7, 2)}
    assert (meter.spent, meter.tokens) == (6, 19)
    assert told == [("asked", 3), ("columns", 2), ("columns", 1)]


def test_significant_digits_are_rounded_by_size():
    oracle = Rounded(CallableOracle(lambda X: X[:, -1, 0], width=1), digits=3)
    values = np.array([123456.0, -0.00123456, 0.0, 9.9999])
    assert np.allclose(oracle(values.reshape(4, 1, 1)), [123000.0, -0.00123, 0.0, 10.0], rtol=1e-15, atol=0)
    for wrong in ({}, {"decimals": 1, "digits": 1}, {"digits": 0}):
        with pytest.raises(ValueError, match="digits"):
            Rounded(oracle, **wrong)


def test_noise_that_belongs_to_the_question_comes_back_with_it():
    vectors = CallableOracle(lambda X: np.stack([total(X), -total(X), total(X)], axis=1), width=2)
    X = np.arange(8.0).reshape(4, 1, 2)
    fixed = Noisy(vectors, 0.1, fresh=False)
    first = fixed(X)
    assert np.array_equal(fixed(X[::-1])[::-1], first)
    noise = first - vectors(X)
    assert len(np.unique(noise)) == noise.size  # every number of an answer has its own
    fresh = Noisy(vectors, 0.1)
    assert not np.array_equal(fresh(X), fresh(X))
    for scale in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="scale"):
            Noisy(vectors, scale)


def test_answers_to_token_ids_are_checked_like_others():
    for answer in (lambda ids: np.ones(3), lambda ids: np.full(len(ids), np.inf)):
        with pytest.raises(TargetError):
            Tokens(answer, np.eye(2))(np.eye(2)[None])
    table = np.eye(2)
    oracle = Tokens(lambda ids: ids[:, -1].astype(float), table)
    with pytest.raises(ValueError, match="read-only"):
        oracle.embeddings[0, 0] = 5.0
    assert oracle(-1.0 * np.array([[[-0.0, -1.0]]]))[0] == 1.0  # minus zero is zero


def test_a_journal_keeps_its_entropy_and_tells_shapes_apart(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal = Journal(path, {"target": "t"})
    entropy = journal.entropy
    Journaled(CallableOracle(total, width=2), journal)(np.arange(8.0).reshape(2, 2, 2))
    journal.close()
    again = Journal(path, {"target": "t"})
    assert again.entropy == entropy > 2**200
    with pytest.raises(JournalError, match="other questions"):
        Journaled(CallableOracle(total, width=2), again)(np.arange(8.0).reshape(4, 1, 2))  # the same numbers, other sequences
    again.close()
    other = Journal(tmp_path / "other.sqlite", {"target": "t"})
    assert other.entropy != entropy
    other.close()


def test_sequences_whose_reply_was_lost_are_booked(tmp_path):
    class Flaky:
        width, repeated = 2, 0

        def __call__(self, sequences):
            self.repeated += len(sequences)  # each had to be sent twice
            return total(sequences)

    journal = Journal(tmp_path / "journal.sqlite", {"target": "t"})
    oracle = Journaled(Flaky(), journal)
    oracle(np.ones((3, 1, 2)))
    oracle(np.ones((2, 1, 2)))
    assert (journal.answered, journal.repeated) == (5, 5)
    journal.close()
