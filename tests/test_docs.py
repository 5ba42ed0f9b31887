"""Every Python example in the README and the docs runs; links, commands, options and files that they name exist."""

import re
from pathlib import Path

import pytest

from unsoftmax.cli import COMMANDS, cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S)):
        exec(compile(block, f"{page.name}, example {number + 1}", "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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
