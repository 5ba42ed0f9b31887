"""An audit that counts: not foreseen, not fooled by a target that tells questions apart, not outlived by its own processes."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from unsoftmax.audits import Cell, Defence, Verdict, conclude, outcome, parse_gate, run_audit
from unsoftmax.audits.cells import PER_LENGTH
from unsoftmax.audits.sweep import gate_values
from unsoftmax.demo import demo_oracle
from unsoftmax.errors import DriftingError
from unsoftmax.oracles import CallableOracle, Rounded

NONE = Defence(name="none")
WIDTH = 4


class Liar:
    """A naked head that answers the honest questions of seed 0 with noise, so that its copies look useless."""

    width = WIDTH

    def __init__(self):
        self.head = demo_oracle("attention", width=WIDTH, seed=3)
        rng = np.random.default_rng([0, 0xA0D17])
        questions = [rng.normal(size=(PER_LENGTH, length, WIDTH)) for length in (1, 2, 4, 8, 16, 32)]
        self.known = {q.tobytes() for batch in questions for q in batch}

    def __call__(self, X):
        answers = self.head(X)
        lies = np.array([q.tobytes() in self.known for q in np.ascontiguousarray(X)])
        return np.where(lies, np.random.default_rng(len(X)).normal(size=answers.shape) * 9, answers)


def test_a_naked_head_cannot_foresee_the_honest_questions():
    gate = parse_gate("queries<100000 and error<1e-3")
    opener = lambda: CallableOracle(Liar(), width=WIDTH)  # noqa: E731
    audit = run_audit(opener, defences=(NONE,), gate=gate, workers=1)
    assert audit.conclusion.verdict is Verdict.EXTRACTABLE
    assert audit.conclusion.exit_code == 1
    foreseen = run_audit(opener, defences=(NONE,), gate=gate, workers=1, seed=0)
    assert foreseen.conclusion.verdict is Verdict.INCONCLUSIVE, "an exact copy that misses honest answers is a contradiction"
    assert foreseen.conclusion.exit_code == 1
    assert "differently" in foreseen.conclusion.sentence


def test_every_audit_draws_its_own_seed_and_a_folder_keeps_it(tmp_path):
    opener = partial(demo_oracle, "attention", width=2, seed=1)
    seeds = [run_audit(opener, defences=(NONE,), workers=1).facts["seed"] for _ in range(3)]
    assert len(set(seeds)) == 3
    first, again = (run_audit(opener, defences=(NONE,), workers=1, folder=tmp_path).facts["seed"] for _ in range(2))
    assert first == again


@pytest.mark.parametrize(
    ("status", "error", "check", "expected"),
    [
        ("EXACT", 1e-9, 1e-12, Verdict.EXTRACTABLE),
        ("EXACT", 0.3, 1e-12, Verdict.INCONCLUSIVE),
        ("EXACT", 7.0, 1e-12, Verdict.INCONCLUSIVE),
        ("WITHIN_TOLERANCE", 3.0, 1e-4, Verdict.INCONCLUSIVE),
        ("WITHIN_TOLERANCE", 0.2, 0.1, Verdict.PARTIAL),
        ("WITHIN_TOLERANCE", 3.0, 0.2, Verdict.NOT_WITHIN_BUDGET),
        ("BUDGET_SPENT", 3.0, None, Verdict.NOT_WITHIN_BUDGET),
    ],
)
def test_a_success_that_misses_honest_answers_decides_nothing(status, error, check, expected):
    cell = Cell(defence=NONE, status=status, message="", error=error, check_error=check)
    assert outcome(cell) is expected
    gate = parse_gate("error<1e-3")
    assert conclude([cell], gate_values(cell, None, None), gate).gate_failed == (
        expected in (Verdict.EXTRACTABLE, Verdict.INCONCLUSIVE)
    )


def test_a_defence_that_was_switched_off_does_not_pass_on_old_answers(tmp_path):
    defended = {"decimals": 1}

    class Door(Rounded):
        identity = "the same door"

        def __call__(self, X):
            return np.round(self.inner(X), defended["decimals"])

    opener = lambda: Door(demo_oracle("attention", width=3, seed=1), decimals=1)  # noqa: E731
    gate = parse_gate("error<1e-3")
    settings = {"defences": (NONE,), "gate": gate, "workers": 1, "folder": tmp_path, "budget": 400, "max_norm": 3.0}
    assert run_audit(opener, **settings).conclusion.exit_code == 0
    assert run_audit(opener, **settings).conclusion.exit_code == 0  # and an honest one is not accused
    defended["decimals"] = 15
    with pytest.raises(DriftingError):
        run_audit(opener, **settings)


SLOW = """
import os, sys, time
from functools import partial
from unsoftmax.audits import Defence, run_audit
from test_cheats import Slow
if __name__ == "__main__":
    rows = (Defence(name="none"), Defence(name="3 decimals", decimals=3))
    run_audit(partial(Slow, sys.argv[1]), defences=rows, workers=2, seed=1)
"""


class Slow:
    """A target that notes its process and takes its time once it is asked in a process of its own."""

    width = WIDTH

    def __init__(self, folder):
        self.folder, self.head, self.parent = Path(folder), demo_oracle("attention", width=WIDTH, seed=3), os.getppid()
        (self.folder / f"{os.getpid()}").touch()

    def __call__(self, X):
        time.sleep(0.2)
        return self.head(X)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    here = Path(__file__).parent
    places = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    (tmp_path / "start.py").write_text(SLOW)
    noted = tmp_path / "pids"
    noted.mkdir()
    deadline = time.monotonic() + 120
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "start.py"), str(noted)], env=os.environ | {"PYTHONPATH": places}, stdout=subprocess.PIPE
    ) as process:
        while len(list(noted.iterdir())) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
        process.stdout.read()  # ends only when nobody holds the pipe any more
    pids = [int(path.name) for path in noted.iterdir()]
    assert len(pids) == 3
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


class Deadly:
    """A target that kills its own process the first times that it is asked there."""

    width = WIDTH

    def __init__(self, folder, times):
        self.folder, self.times, self.here = Path(folder), times, os.getpid()
        self.head = demo_oracle("attention", width=WIDTH, seed=3)
        self.inside = os.environ.get("UNSOFTMAX_TEST_PARENT") != str(os.getpid())

    def __call__(self, X):
        if self.inside and len(list(self.folder.iterdir())) < self.times:
            (self.folder / f"{time.time_ns()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.head(X)


@pytest.mark.parametrize(("times", "status"), [(1, "EXACT"), (1000, "ERROR")])
def test_a_killed_worker_is_a_row_to_run_again(times, status, tmp_path, monkeypatch):
    monkeypatch.setenv("UNSOFTMAX_TEST_PARENT", str(os.getpid()))
    rows = (NONE, Defence(name="quota 9", quota=9))
    audit = run_audit(partial(Deadly, tmp_path, times), defences=rows, workers=2, seed=1)
    assert [cell.status for cell in audit.cells] == [status, "BUDGET_SPENT" if times == 1 else "ERROR"]
