"""The edges of time and of the last bits: runs that may not take longer, and answers that never come quite the same."""

import json
import time

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.cli import run
from unsoftmax.errors import BudgetExceededError
from unsoftmax.oracles import CallableOracle
from unsoftmax.oracles.adapt import identity_of
from unsoftmax.oracles.timed import Timed, time_limit

SLEEPY = """
import time
import numpy as np
width = 4
def f(X):
    time.sleep({pause})
    return X[:, -1] @ np.arange(1.0, 5.0)
f.width = 4
"""


@pytest.mark.parametrize(("command", "pause"), [("recover", 0.1), ("recover", 200.0), ("audit", 0.1)])
def test_a_run_ends_in_time(command, pause, tmp_path, capsys):
    (tmp_path / "t.py").write_text(SLEEPY.format(pause=pause))
    began = time.monotonic()
    code = run([command, f"{tmp_path}/t.py:f", "--max-time", "0.4", "--out", str(tmp_path / "out"), "--json"])
    assert time.monotonic() - began < 90.0
    assert code == 4
    if command == "recover":
        record = json.loads(capsys.readouterr().out)
        assert record["status"] == "BUDGET_SPENT"
        assert "--max-time" in record["message"]


def test_a_clock_changes_nothing_but_the_end():
    oracle = CallableOracle(us.Attention.single(np.eye(3), np.ones(3)))
    timed = Timed(oracle, time.time() + 3600)
    assert identity_of(timed) == identity_of(oracle)
    assert us.recover(timed, seed=1).status is us.Status.EXACT
    with pytest.raises(BudgetExceededError, match="max-time"):
        Timed(oracle, time.time() - 1)(np.zeros((1, 1, 3)))
    with pytest.raises(BudgetExceededError), time_limit(0.05):
        time.sleep(10)
    with time_limit(None) as until:
        assert until is None


@pytest.mark.parametrize("relative", [1e-13, 1e-12])
@pytest.mark.parametrize("seed", range(3))
def test_answers_that_jitter_in_their_last_digits_are_still_recovered(relative, seed):
    rng = np.random.default_rng(seed)
    head = us.Attention.single(W=rng.normal(size=(5, 5)), v=rng.normal(size=5))
    jitter = np.random.default_rng(seed + 100)

    def answer(X):
        exact = head(X)
        return exact * (1 + relative * jitter.normal(size=exact.shape))

    found = us.recover(answer, width=5, seed=seed, on_failure="return")
    assert found.status.success, found.message  # at 1e-13 the first look may not see it
    assert found.status is us.Status.WITHIN_TOLERANCE or relative < 1e-12
    assert us.distance(found.model, head) < 1e-6
