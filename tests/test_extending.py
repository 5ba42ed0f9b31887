"""The family of docs/extending.md, installed as another package would be, does what the page says."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()


def block(title):
    return re.search(rf'```\w+ title="{re.escape(title)}"\n(.*?)```', PAGE, re.DOTALL).group(1)


@pytest.fixture
def installed(tmp_path):
    """A folder to be put on the path: the module, and what an installer writes beside it."""
    (tmp_path / "max_pooling.py").write_text(block("max_pooling.py"))
    entries = tomllib.loads(block("pyproject.toml"))["project"]["entry-points"]
    info = tmp_path / "max_pooling-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: max-pooling\nVersion: 0.1\n")
    lines = [line for group, points in entries.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def run(folder, *command):
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *command], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, cwd=folder, timeout=120
    )


def test_the_example_is_short():
    assert len((block("max_pooling.py") + block("pyproject.toml")).splitlines()) <= 120


def test_a_family_from_outside_is_found_learned_saved_and_compared(installed):
    made = run(installed, "-m", "unsoftmax", "recover", "pool://7", "--out", "out", "--json")
    assert made.returncode == 0, made.stderr
    record = json.loads(made.stdout)
    assert record["status"] == "EXACT"
    assert record["family"] == "max-pooling"
    assert record["queries"]["learn"] <= 6 + 2 + 7 + 4
    assert run(installed, "-m", "unsoftmax", "verify", "pool://7", "out/weights.safetensors").returncode == 0
    assert run(installed, "-m", "unsoftmax", "verify", "pool://8", "out/weights.safetensors").returncode == 1


def test_attention_is_still_attention_beside_it(installed):
    made = run(installed, "-m", "unsoftmax", "recover", "demo:attention,width=6", "--json")
    record = json.loads(made.stdout)
    assert (record["status"], record["family"]) == ("EXACT", "attention")
    assert record["queries"]["learn"] <= 6 * 6 + 6 + 16 + 2


def test_no_family_from_outside_takes_a_native_name(installed):
    (installed / "max_pooling.py").write_text(block("max_pooling.py").replace('name = "max-pooling"', 'name = "attention"'))
    made = run(installed, "-c", "import unsoftmax.families as f; f.all_families()")
    assert made.returncode == 1
    assert "exists already" in made.stderr
