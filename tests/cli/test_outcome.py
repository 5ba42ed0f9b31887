"""Every way a command can end, and its exit code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from unsoftmax import errors
from unsoftmax.cli import COMMANDS, cli, run
from unsoftmax.cli.outcome import CODES, code_of
from unsoftmax.results import Status

REFUSALS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RefusalError)]


@pytest.mark.parametrize("kind", [kind for kind in REFUSALS if kind is not errors.RefusalError], ids=lambda kind: kind.__name__)
def test_every_refusal_has_the_exit_code_of_its_status(kind):
    assert code_of(kind("reason")) == CODES[Status[kind("reason").status_name]]


def test_bad_input_is_2_and_our_own_faults_keep_their_traceback(monkeypatch, capsys):
    assert code_of(ValueError("odd")) == code_of(OSError("gone")) == 2
    assert code_of(RuntimeError("ours")) is None

    def fail(**_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(cli, "main", fail)
    assert run(["plan", "secret-target"]) == 70
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "Traceback" not in told
    kept = Path(re.search(r"in (/\S+\.txt);", told)[1])
    assert "RuntimeError: a fault of ours" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0
    kept.unlink()
    assert run(["plan", "--debug"]) == 70
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "above" in told

    def stop(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", stop)
    assert run(["plan"]) == 130
    assert "goes on from there" in capsys.readouterr().err


def test_the_commands_are_listed_without_being_imported(capsys):
    assert run(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in COMMANDS)
    assert run(["conjure"]) == 2
    assert "conjure" in capsys.readouterr().err


def test_arrays_that_do_not_fit_together_are_a_fault_of_ours():
    for fault in (lambda: np.ones(2) + np.ones(3), lambda: np.linalg.inv(np.zeros((2, 2))), lambda: int("x")):
        with pytest.raises(ValueError, match=r".") as caught:
            fault()
        assert code_of(caught.value) is None
    with pytest.raises(ValueError, match="positive") as caught:
        errors.check_positive(tolerance=-1.0)
    assert code_of(caught.value) == 2


def test_a_reader_that_has_seen_enough_changes_no_outcome():
    start = "from unsoftmax.cli import main; main()"
    words = [sys.executable, "-c", start, "recover", "demo:attention,width=3", "--json"]
    reading, writing = os.pipe()
    os.close(reading)  # head(1) that is gone
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(words, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
