"""What a repository of this kind has, and that its parts agree."""

import re
import tomllib
import zipfile
from pathlib import Path

import pytest

import unsoftmax as us

ROOT = Path(__file__).parent.parent


def test_one_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    assert project["version"] == us.__version__ == cited


@pytest.mark.parametrize("name", ["CITATION.cff", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "LICENSE", "CHANGELOG.md"])
def test_the_files_that_people_look_for(name):
    assert len((ROOT / name).read_text()) > 300


def test_the_workflows_run_what_everybody_runs():
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    flows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    called = [rule for flow in flows for rule in re.findall(r"run: make ([a-z-]+)", flow.read_text())]
    assert {"test", "dist", "docs"} <= set(called) <= set(rules)
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = re.findall(r"Python :: (3\.\d+)\"", str(asked["classifiers"]).replace("'", '"'))
    assert pythons == re.findall(
        r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", (ROOT / ".github/workflows/tests.yml").read_text())[1]
    )


def test_a_wheel_holds_the_types_the_pages_and_the_schemas(tmp_path):
    hatchling = pytest.importorskip("hatchling.builders.wheel")
    (path,) = hatchling.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(path).namelist()
    for name in ("unsoftmax/py.typed", "unsoftmax/report/templates/page.html.j2", "unsoftmax/report/schemas/audit.json"):
        assert name in names
    assert not [name for name in names if name.startswith(("tests", "docs"))]
