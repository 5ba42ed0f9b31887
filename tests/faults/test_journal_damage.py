"""Journals that were damaged, poisoned, half made or held by others: one clear sentence, nothing wrong used, and a way to go on."""

import os
import resource
import shutil
import signal
import sqlite3

import numpy as np
import pytest

import unsoftmax as us
from system_calls import disturbed, faulty_calls
from unsoftmax.cli import run
from unsoftmax.errors import JournalError
from unsoftmax.oracles import CallableOracle, Journal, Journaled, Metered
from unsoftmax.oracles.journal_repair import repair

IDENTITY = {"target": "t", "seed": 1}
CALLS = [np.random.default_rng(i).normal(size=(1 + i % 3, 2, 3)) for i in range(16)]


def answer(X):
    return X.sum(axis=(1, 2)) * np.pi


def play(path, target=answer):
    """Ask every call, the last ones in one commit, through the journal at ``path``; the answers, and what reached the target."""
    meter = Metered(CallableOracle(target, width=3))
    journal = Journal(path, IDENTITY)
    try:
        oracle = Journaled(meter, journal)
        answers = [oracle(call) for call in CALLS[:10]]
        with oracle.one_commit():
            return answers + [oracle(call) for call in CALLS[10:]], meter.spent
    finally:
        journal.close()


def right(answers):
    return all(np.array_equal(told, answer(call)) for told, call in zip(answers, CALLS, strict=True))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "journal.sqlite"
    play(path)
    return path.read_bytes()


DAMAGED = int(os.environ.get("UNSOFTMAX_DAMAGED", "120"))


def damaged(whole, rng):
    """A journal with flipped bits, a lost end, zeroed or swapped pieces."""
    content = bytearray(whole)
    kind = rng.integers(5)
    if kind <= 1:
        for place in rng.integers(len(content), size=int(rng.integers(1, 4))):
            content[place] ^= 1 << int(rng.integers(8))
    elif kind == 2:
        del content[int(rng.integers(len(content))) :]
    elif kind == 3:
        start = int(rng.integers(len(content)))
        content[start : start + 200] = bytes(len(content[start : start + 200]))
    else:
        a, b = (int(x) for x in rng.integers(len(content) - 64, size=2))
        content[a : a + 64], content[b : b + 64] = content[b : b + 64], content[a : a + 64]
    return bytes(content)


def test_damage_is_refused_or_harmless_and_never_used(whole, tmp_path):
    rng = np.random.default_rng(24)
    price = sum(map(len, CALLS))
    refused = mended = 0
    for number in range(DAMAGED):
        path = tmp_path / f"{number}.sqlite"
        content = damaged(whole, rng)
        path.write_bytes(content)
        try:
            answers, asked = play(path)
        except JournalError:
            refused += 1
        else:
            assert right(answers), "a damaged answer was used"
            assert asked <= price
            continue
        try:
            told = repair(path)
        except JournalError:
            continue
        mended += 1
        answers, asked = play(path)
        assert right(answers), told
        for file in tmp_path.glob(f"{number}.sqlite*"):
            file.unlink()
    assert refused > DAMAGED // 4
    assert mended > refused // 5


def test_every_byte_of_an_answer_counts(whole, tmp_path):
    blob = answer(CALLS[5]).tobytes()
    place = whole.index(blob)
    for bit in (0, 7 * 8 + 6):
        content = bytearray(whole)
        content[place + bit // 8] ^= 1 << bit % 8
        (tmp_path / "j.sqlite").write_bytes(content)
        with pytest.raises(JournalError, match="checksum"):
            play(tmp_path / "j.sqlite")
        assert "were kept" in repair(tmp_path / "j.sqlite")
        answers, asked = play(tmp_path / "j.sqlite")
        assert right(answers)
        assert asked == len(CALLS[5]), "only the damaged row is asked again"
        for file in tmp_path.glob("j.sqlite*"):
            file.unlink()


def test_rows_that_were_tampered_with_are_noticed(whole, tmp_path):
    for change in (
        "UPDATE calls SET time = time + 1 WHERE number = 3",
        "UPDATE calls SET lost = 5 WHERE number = 3",
        "UPDATE calls SET shape = '[9]' WHERE number = 3",
        "UPDATE calls SET answers = 'text' WHERE number = 3",
        "UPDATE calls SET shape = NULL WHERE number = 3",
        "UPDATE calls SET number = 3 + 100 * (number = 4), answers = (SELECT answers FROM calls WHERE number = 4) WHERE number = 3",
    ):
        path = tmp_path / "j.sqlite"
        path.write_bytes(whole)
        with sqlite3.connect(path) as db:
            db.execute(change)
        db.close()
        with pytest.raises(JournalError, match="checksum"):
            play(path)
    path.write_bytes(whole)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = 'abc' WHERE name = 'entropy'")
    db.close()
    with pytest.raises(JournalError, match="checksum"):
        play(path)


def test_a_poisoned_answer_is_replaced_by_a_repair(tmp_path):
    path = tmp_path / "journal.sqlite"

    def poisoned(X):
        return answer(X) + 5.0 * np.array_equal(X, CALLS[4])

    play(path, poisoned)
    answers, asked = play(path)
    assert asked == 0
    assert not right(answers)
    assert "all 31 answers are asked again" in repair(path)
    answers, asked = play(path)
    assert asked == sum(map(len, CALLS))
    assert right(answers)
    answers, asked = play(path)
    assert asked == 0, "a repair is over when it is done"
    assert right(answers)


def test_a_repair_on_the_command_line(tmp_path, capsys):
    command = ["recover", "demo:attention,width=3,seed=2", "--out", str(tmp_path / "run"), "--seed", "1"]
    assert run(command) == 0
    path = tmp_path / "run" / "journal.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("UPDATE calls SET answers = zeroblob(length(answers)) WHERE number = 2")
    db.close()
    assert run(command) == 2
    assert "--repair" in capsys.readouterr().err
    assert run([*command, "--repair"]) == 0
    assert "were kept" in capsys.readouterr().err
    assert run(["recover", "demo", "--repair"]) == 2


def test_a_journal_in_use_is_called_so_and_never_to_be_removed(tmp_path):
    path = tmp_path / "journal.sqlite"
    first = Journal(path, IDENTITY)
    for action in (lambda: Journal(path, IDENTITY), lambda: repair(path)):
        with pytest.raises(JournalError, match="in use by another run") as caught:
            action()
        assert "remove" not in str(caught.value)
    first.close()
    link = tmp_path / "link.sqlite"
    link.symlink_to(path)
    with pytest.raises(JournalError, match="symbolic link"):
        Journal(link, IDENTITY)


STRIDE = int(os.environ.get("UNSOFTMAX_KILL_STRIDE", "16"))


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace disturbs system calls")
def test_a_kill_or_an_error_at_any_system_call_leaves_a_journal_that_goes_on(tmp_path):
    ends = set()
    for fault, places in faulty_calls(play).items():
        assert len(places) > 80
        for number, place in enumerate(places[::STRIDE]):
            path = tmp_path / f"{fault}{number}"
            ends.add(code := disturbed(play, path, place, fault))
            assert code in (0, 1, -signal.SIGKILL), (place, fault)
            answers, _ = play(path)
            assert right(answers), (place, fault)
    assert ends >= {1, -signal.SIGKILL}


def test_a_full_disk_of_any_size_leaves_a_journal_that_goes_on(tmp_path):
    for size in range(0, 60_000, 5000):
        path = tmp_path / f"{size}.sqlite"
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            try:
                play(path)
                os._exit(0)
            except JournalError:
                os._exit(1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (0, 1), size
        answers, _ = play(path)
        assert right(answers), size


def test_a_journal_names_the_time_of_its_answers(tmp_path):
    path = tmp_path / "j.sqlite"
    us.recover(us.Attention.single(np.eye(2), np.ones(2)), journal=path, seed=1)
    with sqlite3.connect(path) as db:
        times = [row[0] for row in db.execute("SELECT time FROM calls WHERE answers IS NOT NULL")]
    db.close()
    assert times
    assert all(time > 1.7e9 for time in times)
