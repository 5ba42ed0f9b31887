"""The worked audit of the docs, command by command; servers are left out, their targets opened directly."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from unsoftmax.audits import Defence, sweep
from unsoftmax.cli import run

DOCS = Path(__file__).parents[2] / "docs"
NOISY = """
import unsoftmax as us
target = us.oracles.Noisy(us.oracles.Clipped(us.oracles.CallableOracle(us.load("scorer.safetensors")), 8), 0.098)
"""
TABLE = (Defence(name="none"), Defence(name="2 decimals", decimals=2), Defence(name="quota 72", quota=72))
CODES = {"diagnosis": 0, "before": 1, "after": 0}


@pytest.fixture
def scorer(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("scorer", DOCS / "scorer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    module.train(steps=60).save("scorer.safetensors")
    Path("noisy.py").write_text(NOISY)


def test_its_commands_end_as_they_say(scorer, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "standard_defences", lambda *_: TABLE)
    monkeypatch.setattr(sweep.os, "cpu_count", lambda: 1)
    commands = re.findall(r"^\$ unsoftmax (.*)$", (DOCS / "audit.md").read_text(), re.M)
    targets = {"8931": "scorer.safetensors", "8932": "noisy.py:target"}
    ended = {}
    for command in commands:
        words = shlex.split(command)
        words[1] = targets[re.search(r":(\d{4})/", words[1])[1]]
        ended[words[words.index("--out") + 1]] = run(words)
    assert ended == CODES
    assert "Gate passed" in capsys.readouterr().out
    for folder in CODES:
        assert Path(folder, "report.html").exists()
