"""Odd corners of the local adapters and wrappers."""

import copy
import pickle
import queue
import threading

import numpy as np
import pytest

from unsoftmax.errors import BudgetExceededError, DriftingError, JournalError, TargetError
from unsoftmax.models import FFN, Attention
from unsoftmax.oracles import CallableOracle, Metered, Noisy, Rounded, Tokens
from unsoftmax.oracles.adapt import as_oracle, identity_of
from unsoftmax.oracles.base import LastPosition, Wrapper
from unsoftmax.oracles.contradiction import Remembered
from unsoftmax.oracles.crew import check_wanted, in_turn
from unsoftmax.oracles.drift import Sizes, post_mortem
from unsoftmax.oracles.guard import NormGuard
from unsoftmax.oracles.journal import Journal, Journaled
from unsoftmax.oracles.noise import LowPrecision, cast
from unsoftmax.oracles.text import plain
from unsoftmax.results import Floor


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


def test_every_sequence_of_a_small_call_counts_in_a_journal(tmp_path):
    X = np.arange(10.0).reshape(5, 1, 2)
    journal = Journal(tmp_path / "journal.sqlite", {"target": "t"})
    Journaled(CallableOracle(total, width=2), journal)(X)
    journal.close()
    for place in range(5):
        other = X.copy()
        other[place] += 1.0
        again = Journal(tmp_path / "journal.sqlite", {"target": "t"})
        with pytest.raises(JournalError, match="other questions"):
            Journaled(CallableOracle(total, width=2), again)(other)
        again.close()


def test_questions_are_of_the_stream_of_learning_unless_said_otherwise(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite", {"target": "t"})
    Journaled(CallableOracle(total, width=2), journal)(np.ones((3, 1, 2)))
    meter = Metered(CallableOracle(total, width=2))
    Journaled(meter, journal, "check")(np.ones((3, 1, 2)))
    assert meter.spent == 3
    Journaled(meter, journal, "learn")(np.ones((3, 1, 2)))
    assert meter.spent == 3  # known from the first
    journal.close()


def test_requests_under_way_learn_that_their_caller_is_gone():
    told: queue.Queue[bool] = queue.Queue()

    def waits(given_up):
        told.put(given_up.wait(300))

    answers = in_turn(iter([(0, 1, lambda given_up: "first"), (1, 1, waits)]), room=lambda: 2)
    assert next(answers) == (0, "first")
    answers.close()  # as an interrupt does
    assert told.get(timeout=300)


def test_a_network_is_a_target_of_one_token():
    rng = np.random.default_rng(3)
    network = FFN([rng.normal(size=(4, 3)), rng.normal(size=(2, 4))], [rng.normal(size=4), rng.normal(size=2)])
    X = rng.normal(size=(5, 2, 3))
    assert np.array_equal(as_oracle(network)(X), network(X[:, -1]))


def test_a_wrapper_that_names_itself_is_known_by_that_name():
    class Known(Wrapper):
        identity = "the target of 12 May"

    plain_one = CallableOracle(total, width=2)
    assert identity_of(Known(plain_one)) == "the target of 12 May"
    assert identity_of(Wrapper(plain_one)) == f"Wrapper({identity_of(plain_one)}, )"


def test_the_guard_lets_requests_through_one_by_one_and_none_that_is_too_long():
    class InPairs(CallableOracle):
        def parts(self, sequences, before):
            for start in range(0, len(sequences), 2):
                before(start, len(sequences[start : start + 2]))
                yield start, self(sequences[start : start + 2])

    begun = []
    guard = NormGuard(InPairs(total, width=2), max_norm=2.0)
    X = np.full((3, 1, 2), 0.5)
    parts = list(guard.parts(X, lambda start, count: begun.append((start, count))))
    assert begun == [(0, 2), (2, 1)]
    assert [(start, answers.tolist()) for start, answers in parts] == [(0, [1.0, 1.0]), (2, [1.0])]
    with pytest.raises(AssertionError, match="beyond max_norm"):
        list(guard.parts(4 * X, lambda start, count: begun.append((start, count))))
    assert len(begun) == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_model_in_low_precision_answers_with_numbers_of_that_format(dtype):
    rng = np.random.default_rng(1)
    model = Attention.single(rng.normal(size=(3, 3)), rng.normal(size=3))
    X = rng.normal(size=(20, 4, 3))
    answers = LowPrecision(model, dtype)(X)
    assert np.array_equal(cast(answers, dtype), answers)
    assert not np.array_equal(answers, model(X))
    assert np.allclose(answers, model(X), rtol=0, atol=0.2)


def test_token_vectors_of_another_number_type_are_the_same_tokens():
    oracle = Tokens(lambda ids: ids[:, -1].astype(float), np.eye(2))
    for kind in (np.float64, np.float32, np.int64):
        assert np.array_equal(oracle.ids(np.eye(2, dtype=kind)[None]), [[0, 1]])


@pytest.mark.parametrize("target", [5, None, "words"])
def test_what_cannot_be_called_answers_no_token_ids(target):
    with pytest.raises(ValueError, match="cannot be called"):
        Tokens(target, np.eye(2))
    with pytest.raises(ValueError, match="real numbers"):
        Tokens(total, [["a", "b"]])


def test_a_line_that_just_fits_is_shown_whole():
    assert plain("x" * 300) == "x" * 300
    assert plain("x" * 301) == "x" * 299 + "…"


def test_the_size_behind_an_answer_is_the_largest_seen_so_far():
    sizes = Sizes()
    ask = np.full((1, 1, 2), 1.0)
    sizes.learn(ask, np.array([-5.0]))
    assert sizes.of(ask) == [5.0]
    sizes.learn(ask, np.array([2.0]))
    assert sizes.of(ask) == [5.0]  # a smaller one later changes nothing
    assert sizes.of(1e-3 * ask) == [0.0]  # nothing is known of tokens this small
    assert sizes.of(1e3 * ask) == [5.0]


def test_a_contradiction_is_shown_with_both_answers_and_the_bill():
    rng = np.random.default_rng(4)
    earlier = [Remembered(question, question[0], 2.0) for question in rng.normal(size=(3, 1, 2))]
    changed = CallableOracle(lambda X: X[:, -1] * [1.0, 3.0], width=2)
    with pytest.raises(DriftingError) as caught:
        post_mortem(changed, earlier, Floor())
    evidence = caught.value.evidence
    before, after = np.array(evidence["before"]), np.array(evidence["after"])
    assert np.array_equal(after, before * [1.0, 3.0])
    assert evidence["deviation"] == np.abs(after - before).max() > evidence["allowed"]
    assert evidence["asked_again"] > 3
