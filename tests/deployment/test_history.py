"""The history of a watched deployment."""

import sqlite3

import pytest

from unsoftmax.deployment.history import History, changed
from unsoftmax.errors import JournalError


def record(verdict):
    return {"verdict": verdict, "excess": 0.5, "deviation": 1e-7, "noise": 1e-7, "queries": 240}


def test_checks_are_kept_and_changes_noticed(tmp_path):
    path = tmp_path / "history.sqlite"
    history = History(path, "endpoint", "checkpoint")
    assert not changed(history.checks())
    history.add(record("MATCHES"))
    assert not changed(history.checks())
    again = History(path, "endpoint", "checkpoint")  # it goes on where it stopped
    again.add(record("DIFFERS"))
    assert changed(again.checks())
    assert [check.verdict for check in again.checks()] == ["MATCHES", "DIFFERS"]
    assert History(path, "endpoint", "other").checks() == []
    assert path.stat().st_mode & 0o077 == 0


def test_a_first_check_that_differs_is_a_change(tmp_path):
    history = History(tmp_path / "h.sqlite", "e", "c")
    history.add(record("REPLICAS_DIFFER"))
    assert changed(history.checks())


def test_other_files_are_left_untouched(tmp_path):
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE mine (x)")
    database.close()
    before = other.read_bytes()
    with pytest.raises(JournalError, match="no history"):
        History(other, "e", "c")
    words = tmp_path / "words.sqlite"
    words.write_text("these are words, and far from a database " * 50)
    with pytest.raises(JournalError, match="cannot be used"):
        History(words, "e", "c")
    assert other.read_bytes() == before
