"""The history of a watched deployment."""

import json
import sqlite3

import pytest

from unsoftmax.cli import run
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


MODULES = """
from pathlib import Path
import torch

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
served = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
served.load_state_dict(layer.state_dict())
count = Path(__file__).with_suffix(".count")
opened = int(count.read_text()) if count.exists() else 0
count.write_text(str(opened + 1))
if opened > 2:  # the weights themselves are opened once, before the first check
    with torch.no_grad():
        served.linear1.weight += 0.01 * served.linear1.weight.std() * torch.randn(16, 8)
"""


def test_a_watch_goes_on_until_the_endpoint_changes(tmp_path, capsys):
    pytest.importorskip("torch")
    (tmp_path / "modules.py").write_text(MODULES)
    out, alarm = tmp_path / "watch", tmp_path / "alarm.json"
    named = [f"{tmp_path}/modules.py:served", f"{tmp_path}/modules.py:layer"]
    watched = ["watch", *named, "--width", "8", "--every", "0.1s", "--queries", "64", "--out", str(out), "--on-change", str(alarm)]
    assert run([*watched, "--max-time", "100"]) == 1  # no --times: it ends with the first check that does not match
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("20")]
    assert [line.split("  ")[1] for line in lines] == ["MATCHES", "MATCHES", "DIFFERS"]
    assert json.loads(alarm.read_text())["verdict"] == "DIFFERS"
    timeline = json.loads((out / "watch.json").read_text())
    assert (timeline["count"], timeline["changes"]) == (3, 1)
    page = (out / "report.html").read_text()
    assert page.count("MATCHES") >= 2
    alarm.unlink()
    assert run([*watched, "--times", "1"]) == 1  # the history goes on, and nothing has changed since
    assert not alarm.exists()
    assert json.loads((out / "watch.json").read_text())["count"] == 4


FAILING = MODULES.replace(
    "if opened > 2:  # the weights themselves are opened once, before the first check",
    "if opened in ({fails}):\n    served.forward = None\nif False:",
)


def watch_with_failures(folder, fails, *options):
    (folder / "modules.py").write_text(FAILING.replace("{fails}", fails))
    named = [f"{folder}/modules.py:served", f"{folder}/modules.py:layer"]
    watched = ["watch", *named, "--width", "8", "--every", "0.1s", "--queries", "64", "--out", str(folder / "watch")]
    code = run([*watched, "--max-time", "100", *options])
    timeline = folder / "watch" / "watch.json"
    return code, [check["verdict"] for check in json.loads(timeline.read_text())["checks"]] if timeline.exists() else []


def test_a_watch_outlives_an_endpoint_that_fails_once(tmp_path, capsys):
    pytest.importorskip("torch")
    code, verdicts = watch_with_failures(tmp_path, "2,", "--times", "3", "--on-change", str(tmp_path / "alarm.json"))
    assert (code, verdicts) == (0, ["MATCHES", "TARGET_FAILED", "MATCHES"])
    assert "TARGET FAILED  (" in capsys.readouterr().out
    assert "TARGET FAILED" in (tmp_path / "watch" / "report.html").read_text()
    assert json.loads((tmp_path / "alarm.json").read_text())["verdict"] == "MATCHES"  # it changed twice


def test_a_watch_ends_when_the_endpoint_keeps_failing(tmp_path, capsys):
    pytest.importorskip("torch")
    code, verdicts = watch_with_failures(tmp_path, "2, 3", "--failures", "2")
    assert (code, verdicts) == (3, ["MATCHES", "TARGET_FAILED", "TARGET_FAILED"])


def test_an_endpoint_that_never_answered_ends_a_watch_at_once(tmp_path, capsys):
    pytest.importorskip("torch")
    assert watch_with_failures(tmp_path, "1,") == (3, [])
