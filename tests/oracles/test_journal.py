import os
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from unsoftmax.errors import JournalError
from unsoftmax.oracles.journal import Journal, Journaled
from unsoftmax.oracles.journal_file import meta_values
from unsoftmax.oracles.local import CallableOracle
from unsoftmax.oracles.meter import Metered

IDENTITY = {"target": "t", "seed": 1}


class Stop(Exception):
    pass


def questions(seed, count):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(int(rng.integers(1, 4)), 2, 3)) for _ in range(count)]


@given(seed=st.integers(0, 99), stops=st.lists(st.integers(0, 6), max_size=4))
def test_a_run_that_is_cut_anywhere_asks_nothing_twice_but_the_call_in_flight(seed, stops, tmp_path_factory):
    path = tmp_path_factory.mktemp("j") / "journal.sqlite"
    asked = questions(seed, 6)
    truth = [x.sum(axis=(1, 2)) * np.pi for x in asked]
    reached: list[int] = []

    def attempt(stop):
        number = -1

        def target(X):
            nonlocal number
            number += 1
            place = next(i for i, x in enumerate(asked) if x.shape == X.shape and np.array_equal(x, X))
            reached.append(place)
            if number == stop:
                raise Stop
            return X.sum(axis=(1, 2)) * np.pi

        journal = Journal(path, IDENTITY)
        oracle = Journaled(Raw(target), journal)
        try:
            return [oracle(x) for x in asked], journal.repeated
        finally:
            journal.close()

    cut = []
    for stop in stops:
        try:
            attempt(stop)
        except Stop:
            cut.append(reached[-1])
    answers, repeated = attempt(None)
    assert all(np.array_equal(a, t) for a, t in zip(answers, truth, strict=True))
    assert len(reached) == len(asked) + len(cut)
    assert repeated == sum(len(asked[i]) for i in cut)


class Raw:
    """An oracle that lets exceptions through, as a killed process would."""

    width = 3

    def __init__(self, target):
        self.target = target

    def __call__(self, X):
        return self.target(X)


def journal_with_answers(path):
    journal = Journal(path, IDENTITY)
    oracle = Journaled(CallableOracle(lambda X: X[:, 0, 0], width=3), journal)
    for x in questions(0, 3):
        oracle(x)
    journal.close()


def test_another_run_is_refused_and_the_file_left_untouched(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal_with_answers(path)
    before = path.read_bytes()
    for other in ({"target": "t", "seed": 2}, {"target": "u", "seed": 1}, {"target": "t", "seed": 1, "version": "9"}):
        with pytest.raises(JournalError, match="belongs to another run"):
            Journal(path, other)
    assert path.read_bytes() == before


def test_other_questions_are_never_mixed(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal_with_answers(path)
    oracle = Journaled(CallableOracle(lambda X: X[:, 0, 0], width=3), Journal(path, IDENTITY))
    with pytest.raises(JournalError, match="other questions"):
        oracle(questions(1, 1)[0])


def test_an_empty_file_is_a_fresh_start_and_a_corrupt_one_is_refused(tmp_path):
    path = tmp_path / "journal.sqlite"
    path.touch()
    journal_with_answers(path)
    assert path.stat().st_mode & 0o777 in (0o600, 0o644)  # an existing file keeps its mode
    whole = path.read_bytes()
    for broken in (b"junk" * 100, whole[: len(whole) // 2], whole[:100] + b"\0" * 5000):
        path.write_bytes(broken)
        with pytest.raises(JournalError, match="not a readable journal"):
            Journal(path, IDENTITY)
        assert path.read_bytes() == broken


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DELETE FROM meta WHERE name = 'entropy'", "no entropy"),
        ("UPDATE meta SET value = '0' WHERE name = 'format'", "the checksum of its 'format'"),
        ("CREATE TABLE other (x); DROP TABLE meta; CREATE TABLE meta (name, value)", "made by an earlier version"),
        ("foreign", "its identity is no record"),
    ],
)
def test_a_journal_of_another_kind_is_refused_with_what_is_odd_about_it(statement, words, tmp_path):
    path = tmp_path / "journal.sqlite"
    journal_with_answers(path)
    with sqlite3.connect(path) as db:
        if statement == "foreign":
            db.execute("DELETE FROM meta WHERE name = 'identity'")
            db.execute("INSERT INTO meta VALUES (?, ?, ?)", meta_values("identity", "[]"))
        else:
            db.executescript(statement)
    db.close()
    with pytest.raises(JournalError, match=words):
        Journal(path, IDENTITY)


def test_a_new_journal_is_for_the_owner_only(tmp_path):
    journal_with_answers(tmp_path / "journal.sqlite")
    assert (tmp_path / "journal.sqlite").stat().st_mode & 0o777 == 0o600


def test_two_runs_cannot_share_a_journal(tmp_path):
    first = Journal(tmp_path / "journal.sqlite", IDENTITY)
    Journaled(CallableOracle(lambda X: X[:, 0, 0], width=3), first)(questions(0, 1)[0])
    with pytest.raises(JournalError, match=r"in use by another run|not a readable journal"):
        Journal(tmp_path / "journal.sqlite", IDENTITY)
    first.close()


def test_an_unwritable_folder_is_said_clearly(tmp_path):
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "absent" / "journal.sqlite", IDENTITY)


def test_a_disk_that_fails_loses_nothing_committed(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal = Journal(path, IDENTITY)
    oracle = Journaled(CallableOracle(lambda X: X[:, 0, 0], width=3), journal)
    first, second = questions(3, 2)
    kept = oracle(first)
    journal._db.execute("PRAGMA query_only=ON")
    with pytest.raises(JournalError, match="cannot be written"):
        oracle(second)
    journal.close()
    meter = Metered(CallableOracle(lambda X: X[:, 0, 0], width=3))
    again = Journaled(meter, Journal(path, IDENTITY))
    assert np.array_equal(again(first), kept)
    assert meter.spent == 0


def test_streams_are_numbered_apart_and_the_digest_names_the_contents(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal = Journal(path, IDENTITY)
    inner = CallableOracle(lambda X: X[:, 0, 0], width=3)
    learn, check = Journaled(inner, journal, "learn"), Journaled(inner, journal, "check")
    a, b = questions(5, 2)
    learn(a)
    digest = journal.digest
    check(b)
    assert journal.digest != digest
    assert journal.answered == len(a) + len(b)
    journal.close()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT COUNT(*) FROM calls").fetchone()[0] == 2


@pytest.mark.parametrize(("local", "late", "syncs"), [(False, 60.0, 5), (True, 60.0, 0), (True, 0.0, 5)])
def test_answers_that_were_paid_for_are_synced_at_once_and_others_soon(local, late, syncs, tmp_path):
    journal = Journal(tmp_path / "journal.sqlite", IDENTITY, late=late)
    target = Raw(lambda X: X.sum(axis=(1, 2)))
    target.local = local
    oracle = Journaled(target, journal)
    modes = []
    write = journal._write
    journal._write = lambda sync, row: (modes.append((sync, row.answers is not None)), write(sync, row))
    for x in questions(3, 5):
        oracle(x)
    assert modes.count(("FULL", True)) == syncs
    assert modes.count(("NORMAL", True)) == 5 - syncs
    assert journal.answered == sum(map(len, questions(3, 5)))
    journal.close()


class Local(Raw):
    local = True

    def __init__(self, deadly=None):
        super().__init__(self.answer)
        self.deadly, self.asked = deadly, []

    def answer(self, X):
        self.asked.append(len(X))
        if len(self.asked) == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return X.sum(axis=(1, 2))


def killed_at(path, call, *, at_once, late=60.0):
    """A process that is killed while its target answers one of eight calls, of which the last four share a commit."""
    child = os.fork()
    if child == 0:
        play(path, Local(call), at_once=at_once, late=late)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def play(path, target, *, at_once, late=60.0):
    journal, told = Journal(path, IDENTITY, late=late), []
    oracle = Journaled(target, journal)
    asked = questions(7, 8)
    told += [oracle(x) for x in asked[:4]]
    if at_once:
        with oracle.one_commit():
            told += [oracle(x) for x in asked[4:]]
    else:
        told += [oracle(x) for x in asked[4:]]
    assert all(np.array_equal(y, x.sum(axis=(1, 2))) for x, y in zip(asked, told, strict=True))
    journal.close()
    with sqlite3.connect(path) as db:
        kept, lost = db.execute("SELECT SUM(sequences), SUM(lost) FROM calls").fetchone()
    db.close()
    assert kept == sum(map(len, asked))
    return lost


@pytest.mark.parametrize("call", [1, 3, 8])
def test_a_request_of_this_process_that_a_kill_cut_short_is_counted(call, tmp_path):
    path, sizes = tmp_path / "journal.sqlite", [len(x) for x in questions(7, 8)]
    for kills in (1, 2):
        killed_at(path, call if kills == 1 else 1, at_once=False)
        target = Local()
    assert play(path, target, at_once=False) == 2 * sizes[call - 1]
    assert target.asked == sizes[call - 1 :]
    assert play(path, target := Local(), at_once=False) == 2 * sizes[call - 1]
    assert target.asked == []


@pytest.mark.parametrize(("late", "lost"), [(60.0, slice(4, None)), (0.0, slice(6, None))])
def test_calls_that_share_a_commit_are_lost_and_counted_together_but_none_waits_long(late, lost, tmp_path):
    path, sizes = tmp_path / "journal.sqlite", [len(x) for x in questions(7, 8)]
    killed_at(path, 7, at_once=True, late=late)
    target = Local()
    assert play(path, target, at_once=True, late=late) == sum(sizes[lost])  # all of them may have been under way
    assert target.asked == sizes[lost]


def test_whatever_else_ends_calls_that_share_a_commit_keeps_their_answers(tmp_path):
    path, target = tmp_path / "journal.sqlite", Local()
    journal, asked = Journal(path, IDENTITY), questions(7, 3)
    oracle = Journaled(target, journal)

    def ask():
        with oracle.one_commit():
            oracle(asked[0])
            target.target = stopped
            oracle(asked[1])

    with pytest.raises(Stop):
        ask()
    assert (journal.answered, journal.repeated) == (len(asked[0]), len(asked[1]))
    journal.close()
    again = Journal(path, IDENTITY)
    assert np.array_equal(Journaled(target, again)(asked[0]), asked[0].sum(axis=(1, 2)))
    assert target.asked == [len(asked[0])]
    assert again.repeated == len(asked[1])
    again.close()


def stopped(_):
    raise Stop


def statements(monkeypatch):
    """What journals do from here on, in order, as ``(statement, row or note)``."""
    written = []
    execute = Journal._execute
    monkeypatch.setattr(Journal, "_execute", lambda self, *words: (written.append(words), execute(self, *words))[1])
    return written


def test_a_recovery_commits_its_check_once_and_its_very_long_sequences(tmp_path, monkeypatch):
    written = statements(monkeypatch)
    us.recover(us.Attention.single(np.eye(3), np.ones(3)), journal=tmp_path / "journal.sqlite", seed=1)
    together = [0]
    for statement, *row in written:
        together[-1] += bool(row) and row[0][0] == "check"
        together += [0] * (statement == "COMMIT")
    together = [count for count in together if count]
    assert max(together) > 50
    assert len(together) < 5


def test_scores_that_are_read_together_share_a_commit(tmp_path, monkeypatch):
    written = statements(monkeypatch)
    rng = np.random.default_rng(0)
    head = us.Attention.single(rng.normal(size=(40, 40)) / 6, rng.normal(size=40))
    asked = us.recover(head, journal=tmp_path / "journal.sqlite", seed=1).queries
    learned, sizes = [], []
    for statement, *values in written:
        row = values[0] if values else ("",)
        if row[0] == "learn":
            learned.append(row[4])
        elif statement == "COMMIT":
            sizes.append(len(learned))
            learned.clear()
    assert max(sizes) > 3, "what one block of products asks"
    assert asked > 40 * 40


def test_no_more_calls_share_a_commit_than_a_kill_may_cost(tmp_path):
    path, sizes = tmp_path / "journal.sqlite", [len(x) for x in questions(7, 8)]
    journal = Journal(path, IDENTITY, late=60.0, most=3)
    target = Local()
    oracle = Journaled(target, journal)
    kept = []
    with oracle.one_commit():
        for x in questions(7, 8):
            oracle(x)
            kept.append(journal._one("SELECT COUNT(*) FROM calls"))
    assert kept == [0, 0, 3, 3, 3, 6, 6, 6]
    assert journal.answered == sum(sizes)
    journal.close()
    child = os.fork()
    if child == 0:
        path.unlink()
        play(path, Local(7), at_once=True)
    os.waitpid(child, 0)
    again = Journal(path, IDENTITY, most=2)
    oracle = Journaled(target, again)
    with oracle.one_commit():
        for x in questions(7, 8):
            oracle(x)
    assert again.repeated == sum(sizes[4:6])
    again.close()


def test_answers_that_a_full_disk_did_not_take_are_written_once_it_has_room(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal, target = Journal(path, IDENTITY), Local()
    oracle = Journaled(target, journal)

    def ask():
        with oracle.one_commit():
            for x in questions(7, 3):
                oracle(x)
            journal._db.execute("PRAGMA query_only=ON")

    with pytest.raises(JournalError, match="cannot be written"):
        ask()
    journal._db.execute("PRAGMA query_only=OFF")
    journal.close()
    again = Journal(path, IDENTITY)
    assert (again.answered, again.repeated) == (sum(map(len, questions(7, 3))), 0)
    again.close()


def test_a_short_run_waits_for_the_disk_when_it_ends_and_a_long_one_before(tmp_path, monkeypatch):
    written, settled = statements(monkeypatch), []
    monkeypatch.setattr("unsoftmax.oracles.journal_file.settle", settled.append)
    for name, late, waited in (("short", 60.0, False), ("long", 0.0, True)):
        written.clear()
        settled.clear()
        play(tmp_path / name, Local(), at_once=True, late=late)
        assert (("PRAGMA synchronous=FULL",) in written) == waited
        assert written.count(("PRAGMA wal_checkpoint",)) == waited, "the file itself reaches the disk, once"
        assert settled == ([] if waited else [tmp_path / name])
    journal = Journal(tmp_path / "long", IDENTITY)
    journal.close()
    assert not settled, "a file that was on disk before is closed by SQLite alone"


def test_a_journal_whose_answers_were_synced_is_still_in_use(tmp_path):
    """Who closes a handle of a file loses the locks that keep other processes out of it."""
    path = tmp_path / "journal.sqlite"
    journal = Journal(path, IDENTITY)
    oracle = Journaled(Raw(lambda X: X.sum(axis=(1, 2))), journal)
    for x in questions(7, 3):
        oracle(x)
    assert journal._sync == "FULL"
    opening = f"from unsoftmax.oracles.journal import Journal; Journal({str(path)!r}, {IDENTITY!r})"
    other = subprocess.run([sys.executable, "-c", opening], capture_output=True, text=True, check=False)
    assert "in use by another run" in other.stderr
    journal.close()
    assert subprocess.run([sys.executable, "-c", opening], check=False).returncode == 0


def test_what_a_run_without_a_report_asked_again_counts_as_lost(tmp_path):
    """A run that is killed while it confirms has sent those questions all the same."""
    target = us.Attention.single(W=np.diag([1.0, 2.0, -1.0]), v=[1.0, -2.0, 3.0])
    path = tmp_path / "j.sqlite"
    us.recover(target, seed=1, journal=path)
    with pytest.MonkeyPatch.context() as patch:  # nobody gets to report
        patch.setattr(Journal, "describe", lambda journal: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            us.recover(target, seed=1, journal=path)
    for _ in range(2):  # told by every later run, and once
        last = us.recover(target, seed=1, journal=path)
        assert last.account.journal.possibly_asked_twice == 32
        assert last.account.queries.confirm == 32
