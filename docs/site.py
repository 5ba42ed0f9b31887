"""Hooks of the documentation site: navigation from the pages that exist, reference and notebooks generated at every build.

``mkdocs build --strict`` calls them; see `make docs`.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import click
from mkdocs.structure.files import File

ROOT = Path(__file__).parent
SECTIONS = {  # a page that is not there is left out, and one that is not named here stands under "More"
    "Tutorials": (
        "tutorials/researcher.md",
        "tutorials/auditor.md",
        "tutorials/engineer.md",
        "notebooks/recover.md",
        "notebooks/audit.md",
    ),
    "How to": (
        "real-targets.md",
        "diagnose.md",
        "audit.md",
        "how-to/audit-file.md",
        "verify-a-deployment.md",
        "how-to/output-for-other-tools.md",
        "how-to/read-a-report.md",
        "how-to/watch-live.md",
        "how-to/shell-completion.md",
        "on-a-gpu.md",
        "special-access.md",
        "extending.md",
        "security.md",
    ),
    "What can be recovered": (
        "one-head.md",
        "many-heads.md",
        "trained-layer.md",
        "networks.md",
        "behind-any-network.md",
        "noise.md",
        "from-examples.md",
        "smooth.md",
        "stacks.md",
        "decoders.md",
        "labels.md",
    ),
    "Reference": ("reference/python.md", "reference/command-line.md", "reference/json.md", "glossary.md"),
    "Theory": ("theory/counting-bound.md", "theory/papers.md"),
    "Measurements": (
        "measurements/index.md",
        "benchmarks.md",
        "measurements/benchmarks.md",
        "measurements/verdicts.md",
        "measurements/one-head.md",
        "measurements/many-heads.md",
        "measurements/trained-layer.md",
        "measurements/networks.md",
        "measurements/new-families.md",
        "measurements/decoders.md",
        "measurements/behind-any-network.md",
        "measurements/noise.md",
        "measurements/from-examples.md",
        "measurements/special-access.md",
        "measurements/diagnose.md",
        "measurements/deployments.md",
        "measurements/audit.md",
        "measurements/real-targets.md",
        "measurements/on-a-gpu.md",
    ),
}


def on_config(config):
    """The navigation."""
    generated = {"reference/python.md", "reference/command-line.md", *(f"notebooks/{p.stem}.md" for p in notebooks())}
    there = generated | {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.md")}
    nav = [{"unsoftmax": "index.md"}]
    nav += [{title: [page for page in pages if page in there]} for title, pages in SECTIONS.items()]
    named = {"index.md", *(page for pages in SECTIONS.values() for page in pages)}
    more = sorted(there - named)
    config.nav = nav + ([{"More": more}] if more else [])
    return config


def on_files(files, config):
    """Pages that are made from the code."""
    made = {"reference/python.md": python_reference(), "reference/command-line.md": command_reference()}
    made |= {f"notebooks/{path.stem}.md": notebook_page(path) for path in notebooks()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def notebooks() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("*.py"))


def python_reference() -> str:
    """Every public name, its signature and what it says of itself."""
    import unsoftmax as us

    parts = ["# Python reference\n\nEverything that `import unsoftmax as us` offers; generated from the code.\n"]
    for name in us.__all__:
        thing = getattr(us, name)
        said = inspect.getdoc(thing) or ""
        if inspect.ismodule(thing):
            members = [n for n in getattr(thing, "__all__", ()) if not n.startswith("_")]
            parts.append(
                f"## us.{name}\n\n```text\n{said}\n```\n"
                + (f"\nNames: {', '.join(f'`{m}`' for m in members)}.\n" if members else "")
            )
            continue
        try:
            signature = str(inspect.signature(thing))
        except (TypeError, ValueError):
            signature = ""
        signature = signature.replace("<factory>", "…")
        parts.append(f"## us.{name}\n\n```python\nus.{name}{signature}\n```\n\n```text\n{said}\n```\n")
    return "\n".join(parts)


def command_reference() -> str:
    """The help of every command."""
    from unsoftmax.cli import COMMANDS, cli

    parts = ["# Command line\n\nThe help of every command; generated from the code.\n"]
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        context = click.Context(command, info_name=f"unsoftmax {name}", max_content_width=110, terminal_width=110)
        parts.append(f"## unsoftmax {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def notebook_page(path: Path) -> str:
    """A notebook in percent format as a page; the suite executes the notebook itself."""
    import jupytext

    text = jupytext.writes(jupytext.read(path), fmt="md")
    return text.split("---\n", 2)[-1] if text.startswith("---\n") else text
