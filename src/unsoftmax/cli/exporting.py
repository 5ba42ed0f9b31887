"""Options that write a record for others' tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from unsoftmax.safe_files import write_text

Command = TypeVar("Command", bound=Callable[..., Any])
FORMATS = {"csv": "CSV", "markdown": "Markdown", "junit": "JUnit XML", "sarif": "SARIF 2.1.0"}


def export_options(*, gate: bool) -> Callable[[Command], Command]:
    """``--csv`` and ``--markdown``; with ``gate`` also ``--junit`` and ``--sarif``."""

    def add(command: Command) -> Command:
        for name in reversed(list(FORMATS) if gate else list(FORMATS)[:2]):
            path = click.Path(dir_okay=False, path_type=Path)
            command = click.option(f"--{name}", type=path, metavar="FILE", help=f"Write the result as {FORMATS[name]}, too.")(
                command
            )
        return command

    return add


def export(record: dict[str, Any], paths: dict[str, Path | None], *, public: bool = False) -> None:
    """Write a record to the files that were named, by the names of their formats."""
    from unsoftmax.report import exports

    for name, path in paths.items():
        if path is not None:
            text = getattr(exports, f"to_{name}")(record)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text, public=public)
