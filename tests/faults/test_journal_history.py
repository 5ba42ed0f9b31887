"""The journal as a history: whatever breaks, no answer is lost, and none is asked for twice unless its reply was lost."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from unsoftmax.errors import TargetError
from unsoftmax.oracles.guard import NormGuard
from unsoftmax.oracles.journal import Journal, Journaled


class Crash(BaseException):
    """The process dies here."""


class Requests:
    """A target that answers in requests of ``size``; one of them may fail, lose its reply, or see the process die."""

    width = 2

    def __init__(self):
        self.size, self.fault, self.place = 3, "none", 0
        self.answered, self.lost, self.repeated = 0, 0, 0

    def parts(self, sequences, before):
        for number, start in enumerate(range(0, len(sequences), self.size)):
            piece = sequences[start : start + self.size]
            fault = self.fault if number == self.place else "none"
            before(start, len(piece))
            if fault == "refused":
                raise TargetError("refused")
            if fault == "crash":
                self.lost += len(piece)
                raise Crash
            if fault == "reply lost":  # noticed by the client, which asks again at once
                self.lost += len(piece)
                self.repeated += len(piece)
            self.answered += len(piece)
            yield start, piece.sum(axis=(1, 2))
            if fault == "crash after":
                raise Crash

    def __call__(self, sequences):
        return np.concatenate([answers for _, answers in self.parts(sequences, lambda *_: None)])


class History(RuleBasedStateMachine):
    """Runs that ask the same questions in the same order, broken off and resumed."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.target = Requests()
        self.plan = [np.random.default_rng(i).normal(size=(1 + (5 * i) % 17, 1 + i % 3, 2)) for i in range(40)]
        self.used = {}
        self.refused = 0

    @initialize()
    def begin(self):
        self.resume()

    def resume(self):
        self.journal = Journal(Path(self.folder.name) / "journal.sqlite", {"seed": 1})
        self.oracle = Journaled(NormGuard(self.target), self.journal)
        self.next = 0

    @rule(
        fault=st.sampled_from(["none", "none", "refused", "crash", "crash after", "reply lost"]),
        place=st.integers(0, 3),
        size=st.integers(2, 6),
    )
    @precondition(lambda self: self.next < len(self.plan))
    def send(self, fault, place, size):
        self.target.fault, self.target.place, self.target.size = fault, place, size
        questions = self.plan[self.next]
        try:
            answers = self.oracle(questions)
        except (TargetError, Crash) as end:
            self.refused += isinstance(end, TargetError)
            self.journal.close()
            self.resume()
            return
        assert np.array_equal(answers, questions.sum(axis=(1, 2)))
        self.used[self.next] = len(questions)
        self.next += 1

    @rule()
    def stop_and_resume(self):
        self.journal.close()
        self.resume()

    @invariant()
    def the_history_explains_everything(self):
        if not hasattr(self, "journal"):
            return
        assert self.journal.answered == self.target.answered, "what was answered is on disk, once"
        assert self.target.answered >= sum(self.used.values())
        if self.refused == 0:
            assert self.journal.repeated == self.target.lost, "what may have been billed twice is counted"
        assert self.journal.repeated >= self.target.lost

    def teardown(self):
        if hasattr(self, "journal"):
            self.journal.close()
        self.folder.cleanup()


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("place", [0, 1, 4])
def test_a_call_that_failed_midway_asks_only_for_the_rest(tmp_path, place):
    target, X = Requests(), np.random.default_rng(0).normal(size=(14, 1, 2))
    target.fault, target.place = "refused", place
    first = Journal(tmp_path / "journal.sqlite", {})
    with pytest.raises(TargetError):
        Journaled(target, first)(X)
    first.close()
    assert target.answered == 3 * place
    target.fault = "none"
    again = Journal(tmp_path / "journal.sqlite", {})
    assert np.array_equal(Journaled(target, again)(X), X.sum(axis=(1, 2)))
    assert target.answered == 14
    assert again.answered == 14
    again.close()
