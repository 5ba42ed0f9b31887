"""Bad input ends with a sentence, the contract's exit code and no traceback; nothing that a target says or prints does harm."""

import json
import subprocess
import sys

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.cli import run
from unsoftmax.cli.outcome import code_of, words_of

TARGETS = """
import asyncio
import numpy as np
import unsoftmax as us
head = us.Attention.single(np.diag([1.0, 2.0, -1.0, 0.5]), [1.0, -2.0, 3.0, 0.7])
calls = 0

def escapes(X): raise RuntimeError("red \\x1b[31m text")
escapes.width = 4

def cancelled(X): raise asyncio.CancelledError
cancelled.width = 4

def grows(X):
    global calls
    calls += 1
    return head(X) if calls < 4 else np.stack([head(X), head(X)], axis=1)
grows.width = 4

def words(X): return head(X)
words.width = "four"

def ids(tokens): return np.ones(len(tokens))
number = 5
"""


TALKATIVE = """
import unsoftmax as us
print("loaded")
head = us.Attention.single([[1.0, 0.5], [0.0, 2.0]], [1.0, -2.0])

def talks(X):
    print("asked")
    return head(X)
talks.width = 2
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder full of files that cannot be used, as the present one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(TARGETS)
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "table.npy", np.eye(4))
    head = us.Attention.single(np.eye(4), np.ones(4))
    head.save(tmp_path / "head.safetensors")
    whole = (tmp_path / "head.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    us.Attention(np.eye(4)[None], None).save(tmp_path / "scores.safetensors")
    for name in ("weights.safetensors", "report.html", "recovery.json"):
        (tmp_path / f"has-{name}" / name).mkdir(parents=True)
    return tmp_path


def call(capsys, *words):
    code = run([str(word) for word in words])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert "\x1b" not in out + err
    return code, out, err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("recover empty.py:f", "it has nothing public"),
        ("recover empty.safetensors", "not a safetensors file"),
        ("recover cut.safetensors", "not a safetensors file"),
        ("recover scores.safetensors", "answers nothing"),
        ("recover t.py:words", "width is 'four'"),
        ("recover t.py:ids", "--width"),
        ("recover t.py:ids --embeddings empty.npy", "not a NumPy array"),
        ("recover t.py:ids --embeddings words.npy", "real numbers"),
        ("recover t.py:number --embeddings table.npy", "cannot be called"),
        ("recover demo:attention,width=4 --width 5", "its width is 4"),
        ("recover demo:attention,width=1000000000", "would not fit into memory"),
        ("recover demo:attention,width=4,rank=-1", "rank=-1"),
        ("recover demo:attention,width=4,seed=-1", "seed=-1"),
        ("recover demo:ffn,outputs=-2", "outputs=-2"),
        ("recover demo --max-norm inf", "no positive number"),
        ("recover demo --max-norm 1e300", "between"),
        ("recover demo --max-norm 1e-300", "between"),
        ("recover demo --accuracy nan", "no positive number"),
        ("recover demo:attention,width=4 --out has-weights.safetensors", "weights.safetensors cannot be read or written"),
        ("recover demo:attention,width=4 --out has-report.html", "report.html cannot be read or written"),
        ("recover demo:attention,width=4 --out has-recovery.json", "recovery.json cannot be read or written"),
        ("plan demo --max-norm -1", "no positive number"),
        ("plan demo --non-adaptive --export absent/p.npz", "absent/p.npz cannot be read or written"),
        ("verify head.safetensors head.safetensors --max-norm 0", "no positive number"),
        ("verify head.safetensors scores.safetensors", "predicts no answers"),
        ("diagnose head.safetensors --max-norm nan", "no positive number"),
        ("audit head.safetensors --rate nan", "no positive number"),
        ("audit head.safetensors --price nan", "no positive number and not 0"),
        ("audit head.safetensors --max-norm 1e300", "between"),
        ("identify head.safetensors --max-length 1 --witness-out absent/w.safetensors", "cannot be written"),
        ("learn empty.npz", "not a .npz file of plain arrays"),
        ("serve head.safetensors --rate nan", "no positive number"),
    ],
)
def test_bad_input_is_exit_2_with_a_sentence(line, said, folder, capsys):
    code, out, err = call(capsys, *line.split())
    assert code == 2
    assert said in err
    assert out == ""


@pytest.mark.parametrize("command", ["recover", "diagnose", "audit", "verify"])
@pytest.mark.parametrize(("name", "said"), [("escapes", "red"), ("cancelled", "CancelledError"), ("grows", "keep their shape")])
def test_a_target_that_fails_is_exit_3_whatever_it_raises(command, name, said, folder, capsys):
    code, out, err = call(capsys, command, f"t.py:{name}", *(["head.safetensors"] if command == "verify" else []))
    assert code == 3
    assert said in " ".join((out + err).split())


@pytest.mark.parametrize("command", ["recover", "plan", "diagnose", "verify", "audit"])
def test_what_a_target_prints_is_no_part_of_the_json(command, tmp_path):
    (tmp_path / "t.py").write_text(TALKATIVE)
    us.Attention.single(np.eye(2), np.ones(2)).save(tmp_path / "w.safetensors")
    more = {"verify": ["w.safetensors"], "audit": ["--defence", "quota 5"]}
    words = [command, "t.py:talks", *more.get(command, []), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "unsoftmax", *words], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert isinstance(json.loads(done.stdout), dict)
    assert "loaded" in done.stderr
    assert ("asked" in done.stderr) == (command != "plan")


def test_numbers_beyond_all_measure_have_a_bill(capsys):
    code, out, _ = call(capsys, "plan", "demo", "--accuracy", 1e-300, "--noise", 1e300, "--max-norm", 1, "--json")
    assert code == 0
    assert json.loads(out)["queries"] > 10**12


@pytest.mark.parametrize(
    ("error", "said"),
    [(MemoryError("Unable to allocate 7 EiB"), "does not fit into the memory"), (EOFError("no data left"), "no data left")],
)
def test_too_much_and_too_little_are_bad_input_and_no_interrupt(error, said, monkeypatch, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("unsoftmax.cli.plan.open_target", fail)
    code, _, err = call(capsys, "plan", "demo")
    assert code == 2
    assert said in err


def test_messages_are_one_printable_line():
    assert words_of(ValueError("one\x1b[2J\ntwo")) == "one [2J two"
    assert (
        words_of(FileNotFoundError(2, "No such file or directory", "x\n.npz"))
        == "x .npz cannot be read or written: No such file or directory."
    )
    assert code_of(MemoryError()) == 2
