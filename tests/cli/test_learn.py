"""``unsoftmax learn``: one verdict for the screen, the JSON, the files and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from unsoftmax.cli import run
from unsoftmax.models import Attention, load
from unsoftmax.symmetry import distance


@pytest.fixture
def truth() -> Attention:
    rng = np.random.default_rng(0)
    return Attention(rng.normal(size=(2, 5, 5)) / 2, rng.normal(size=(2, 5, 5)))


def recorded(path: Path, truth: Attention, number: int = 40, **more: np.ndarray) -> Path:
    X = np.random.default_rng(1).normal(size=(number, 6, 5))
    np.savez(path, X=X, Y=truth(X, "all"), **more)
    return path


def test_a_good_file_gives_weights_report_and_zero(tmp_path: Path, truth: Attention, capsys: pytest.CaptureFixture[str]) -> None:
    file = recorded(tmp_path / "examples.npz", truth)
    assert run(["learn", str(file), "--out", str(tmp_path / "out"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["status"] == "EXACT"
    assert record["heads"] == 2
    assert record["queries"]["total"] == 0
    assert record["check"]["relative_error"] < 1e-8
    assert json.loads((tmp_path / "out" / "recovery.json").read_text()) == record
    assert (tmp_path / "out" / "report.html").is_file()
    assert distance(load(tmp_path / "out" / "weights.safetensors"), truth) < 1e-8


def test_the_story_is_told_on_the_screen(tmp_path: Path, truth: Attention, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["learn", str(recorded(tmp_path / "examples.npz", truth)), "--heads", "2"]) == 0
    assert "RECOVERED EXACTLY" in capsys.readouterr().out


def test_too_few_examples_end_with_one_and_the_number_needed(
    tmp_path: Path, truth: Attention, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recorded(tmp_path / "few.npz", truth, number=2)
    assert run(["learn", str(file), "--heads", "2", "--out", str(tmp_path / "out"), "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["status"] == "NOT_IDENTIFIABLE"
    assert record["examples_needed"] > 2
    assert not (tmp_path / "out" / "weights.safetensors").exists()


KINDS = ["missing", "garbage", "text", "empty", "cut short", "one array", "no X", "objects", "NaN", "shapes", "mask"]
KINDS += ["mask of twos", "out of range"]


def broken(kind: str, path: Path) -> Path:
    X = np.ones((4, 3, 2))
    if kind == "missing":
        return path
    if kind == "garbage":
        path.write_bytes(b"PK\x03\x04 not a zip")
    elif kind == "text":
        path.write_text("X,Y\n1,2\n")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "mask of twos":
        np.savez(path, X=X, Y=X, mask=np.full((4, 3), 2))
    elif kind == "out of range":
        np.savez(path, X=X, Y=1e200 * X)
    elif kind == "cut short":
        np.savez(path, X=X, Y=X)
        path.write_bytes(path.read_bytes()[:-60])
    elif kind == "one array":
        with path.open("wb") as file:
            np.save(file, X)
    elif kind == "no X":
        np.savez(path, Y=X)
    elif kind == "objects":
        np.savez(path, X=np.array([{"a": 1}]), Y=X)
    elif kind == "NaN":
        np.savez(path, X=X, Y=np.full_like(X, np.nan))
    elif kind == "shapes":
        np.savez(path, X=X, Y=np.ones((5, 3, 2)))
    elif kind == "mask":
        np.savez(path, X=X, Y=X, mask=np.ones((4, 7)))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_broken_files_end_with_two_and_a_reason(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = broken(kind, tmp_path / "examples.npz")
    assert run(["learn", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "examples.npz" in captured.err
    assert "Traceback" not in captured.err
    assert "pickle" not in captured.err or kind == "objects"


def test_help_names_the_arrays() -> None:
    from unsoftmax.cli.learn import learn

    outcome = CliRunner().invoke(learn, ["--help"])
    assert outcome.exit_code == 0
    assert "mask" in outcome.output
