"""Every Python example in the README and the docs runs; links, commands, options and files that they name exist."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unsoftmax.cli import COMMANDS, cli
from unsoftmax.cli import run as call

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page not in TUTORIALS)]
GENERATED = ("reference/python.md", "reference/command-line.md", "notebooks/recover.md", "notebooks/audit.md")
STEP = re.compile(r"```python\n(.*?)```|^\$ unsoftmax ([^\n]*)$", re.S | re.M)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    steps = STEP.findall(page.read_text())
    assert len(steps) > 4
    for number, (block, command) in enumerate(steps):
        if block:
            exec(compile(block, f"{page.name}, step {number + 1}", "exec"), names)
            continue
        words, _, expected = command.partition("# exit ")
        assert call(shlex.split(words)) == int(expected or 0), command
    capsys.readouterr()


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    jupytext = pytest.importorskip("jupytext")
    client = pytest.importorskip("nbclient")
    monkeypatch.chdir(tmp_path)
    notebook = jupytext.read(path)
    client.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]


@pytest.mark.skipif(shutil.which("mkdocs", path=str(Path(sys.executable).parent)) is None, reason="the extra docs is not installed")
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    for name in ("index.html", "tutorials/auditor/index.html", "reference/python/index.html", "reference/command-line/index.html"):
        assert (tmp_path / name).exists()
    page = (tmp_path / "reference" / "python" / "index.html").read_text()
    assert "us.recover" in page
    assert "fonts.googleapis" not in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S)):
        exec(compile(block, f"{page.name}, example {number + 1}", "exec"), names)


@pytest.mark.parametrize("page", [*PAGES, *TUTORIALS], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in link and not any((page.parent / link).resolve() == (ROOT / "docs" / name) for name in GENERATED):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", [*PAGES, *TUTORIALS], ids=lambda page: page.name)
def test_commands_and_options_exist(page):
    for name, words in re.findall(r"\bunsoftmax (\w+)((?:[^\n`#]|\n {6,})*)", page.read_text()):
        if name not in COMMANDS:
            assert not words.lstrip().startswith("-"), f"{page.name} names the command {name}"
            continue
        known = {option for parameter in cli.get_command(None, name).params for option in parameter.opts}
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", words):
            assert option in known, f"{page.name} names {option} of {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_targets_of_make_exist(page):
    text = page.read_text()
    for path in re.findall(r"\b(?:benchmarks|tests|docs|src)/[\w/]+\.\w+", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}"
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for rule in re.findall(r"(?:`|\$ )make ([a-z-]+)", text):
        assert rule in rules, f"{page.name} names make {rule}"
