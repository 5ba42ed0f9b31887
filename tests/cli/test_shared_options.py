"""Every command takes the options that the contract names, and they do what they say."""

import json
import subprocess
import sys
from importlib import resources

import jsonschema
import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.audits import sweep
from unsoftmax.cli import COMMANDS, cli, run
from unsoftmax.report.exports import kind

FILES = {"--csv", "--markdown"}
GATES = {"--junit", "--sarif"}
ASKING = {"--max-time", "--max-length", "--authorised-by", "--live", *FILES, *GATES}
OPTIONS = {
    "recover": {*ASKING, "--check", "--out", "--json", "--seed", "--budget", "--max-norm"},
    "audit": {*ASKING, "--check", "--out", "--json", "--fail-if", "--scheduler", "--rate", "--price", "--currency", "--curve"},
    "verify": {*ASKING, "--check", "--out", "--json"},
    "watch": {*ASKING, "--check", "--out", "--json", "--every", "--times", "--failures"},
    "diagnose": {*ASKING, "--out", "--json"},  # it compares no model with fresh answers, so there is nothing to check
    "learn": {*ASKING - {"--max-length"}, "--out", "--json", "--method"},  # the examples are as long as they are
    "plan": {"--max-time", "--check", "--json", "--rank", "--heads", "--non-adaptive", "--export", *FILES},
    "identify": {"--max-time", "--check", "--max-length", "--json", *FILES},
    "compare": {"--max-time", "--out", "--json", *FILES, *GATES},
    "convert": {"--max-time", "--layout"},
    "figure": {"--max-time", "--pdf", "--to"},
    "serve": {"--max-time", "--rate", "--quota", "--round", "--digits", "--dtype", "--noise", "--labels", "--max-norm"},
}
TARGET = """
import time
import numpy as np
import unsoftmax as us

rng = np.random.default_rng(3)
head = us.Attention.single(W=rng.normal(size=(3, 3)), v=rng.normal(size=3))


class Listening:
    width = 3
    slow = 0.0

    def __call__(self, X):
        time.sleep(self.slow)
        with open("lengths", "a") as file:
            file.write(f"{X.shape[1]}\\n")
        return head(X)


class Slow(Listening):
    slow = 0.2


target, slow = Listening(), Slow()
"""


def test_the_table_names_every_command():
    assert set(OPTIONS) == set(COMMANDS)


@pytest.mark.parametrize("command", OPTIONS)
def test_a_command_takes_its_options_and_explains_them(command):
    known = {option: parameter for parameter in cli.get_command(None, command).params for option in parameter.opts}
    assert known.keys() >= OPTIONS[command]
    for option in OPTIONS[command]:
        assert known[option].help


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a target that remembers the longest sequence, and with what the commands work on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep.os, "cpu_count", lambda: 1)  # rows in this process
    (tmp_path / "target.py").write_text(TARGET)
    rng = np.random.default_rng(3)
    us.Attention.single(W=rng.normal(size=(3, 3)), v=rng.normal(size=3)).save("weights.safetensors")
    layer = us.Attention(W=rng.normal(size=(1, 3, 3)), V=rng.normal(size=(1, 3, 3)))
    X = rng.normal(size=(60, 4, 3))
    np.savez("examples.npz", X=X, Y=layer(X, "all"))
    return tmp_path


WORDS = {
    "recover": ["recover", "target.py:target"],
    "diagnose": ["diagnose", "target.py:target"],
    "verify": ["verify", "target.py:target", "weights.safetensors"],
    "audit": ["audit", "target.py:target", "--defence", "quota 5", "--budget", "900", "--seed", "1"],
    "learn": ["learn", "examples.npz"],
    "plan": ["plan", "target.py:target"],
    "identify": ["identify", "weights.safetensors"],
}


@pytest.mark.parametrize("command", WORDS)
def test_the_options_do_what_they_say(place, command, capsys):
    words = [*WORDS[command], "--json", "--max-time", "300"]
    takes = OPTIONS[command]
    words += ["--check", "40"] if "--check" in takes else []
    words += ["--max-length", "16"] if "--max-length" in takes else []
    words += ["--authorised-by", "The owner <owner@example.org>"] if "--authorised-by" in takes else []
    written = [option for option in ("--csv", "--markdown", "--junit", "--sarif") if option in takes]
    for option in written:
        words += [option, f"files/{option[2:]}.txt"]
    assert run(words) == 0
    record = json.loads(capsys.readouterr().out)
    for key in ("schema", "date", "commit", "version"):
        assert key in record
    schema = resources.files("unsoftmax.report").joinpath(f"schemas/{kind(record)}.json").read_text()
    jsonschema.validate(record, json.loads(schema), jsonschema.Draft202012Validator)
    if "--authorised-by" in takes:
        assert record["authorised_by"] == "The owner <owner@example.org>"
        assert "The owner <owner@example.org>" in record["scope"][0]
    for option in written:
        assert len((place / "files" / f"{option[2:]}.txt").read_text()) > 40
    if command in ("recover", "verify", "audit", "diagnose"):
        assert 2 <= max(map(int, (place / "lengths").read_text().split())) <= 16
    if command == "recover":
        assert 30 <= record["check"]["sequences"] <= 50
    if command == "verify":
        assert 30 <= record["sequences"] <= 50


def test_a_plan_counts_the_check_that_is_wished_for(place, capsys):
    words = ["target.py:target", "--check", "40", "--json"]
    assert run(["plan", *words, "--rank", "3", "--heads", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert run(["recover", *words]) == 0
    asked = json.loads(capsys.readouterr().out)["queries"]["total"]
    assert abs(asked - told["queries"]) <= 0.02 * told["queries"] + 16


@pytest.mark.parametrize("command", ["recover", "diagnose", "verify"])
def test_time_runs_out(place, command, capsys):
    words = [word.replace(":target", ":slow") for word in WORDS[command]]
    assert run([*words, "--max-time", "0.5"]) == 4
    assert "--max-time" in "".join(capsys.readouterr())


def test_a_gate_on_a_comparison_of_audits(place, capsys):
    for name, defence in (("before", "quota 5"), ("after", "2 decimals")):
        assert run(["audit", "target.py:target", "--defence", defence, "--budget", "400", "--seed", "1", "--out", name]) == 0
    assert run(["compare", "before", "after", "--junit", "compare.xml", "--csv", "compare.csv"]) == 0
    assert 'failures="0"' in (place / "compare.xml").read_text()
    capsys.readouterr()


def test_a_served_target_ends_when_its_time_is_over():
    command = [
        sys.executable,
        "-m",
        "unsoftmax",
        "serve",
        "demo:attention,width=3",
        "--port",
        "0",
        "--quota",
        "9",
        "--max-time",
        "0.3",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Defences: quota of queries 9." in ended.stdout


def test_other_widths_are_told_as_what_they_are(place, capsys):
    (place / "plain.py").write_text("import numpy as np\n\n\ndef target(X):\n    return X[:, -1, 0]\n")
    assert run(["verify", "demo:attention,width=8", "weights.safetensors"]) == 2
    told = capsys.readouterr().err
    assert "takes tokens of width 8, the weights are for width 3" in told
    assert "given" not in told
    assert run(["verify", "plain.py:target", "weights.safetensors"]) == 1  # a target that tells no width gets that of the weights
    assert "Next: unsoftmax recover plain.py:target" in capsys.readouterr().out


def test_recorded_examples_of_one_length(place, capsys):
    assert run(["learn", "examples.npz"]) == 0
    assert "of 4 tokens" in capsys.readouterr().out
