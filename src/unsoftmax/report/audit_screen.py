"""An audit on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from unsoftmax.report.audit_record import spell
from unsoftmax.report.audit_story import mood, notes, replayed, stopped, table
from unsoftmax.report.screen import indented
from unsoftmax.report.told import Teller


def print_audit(record: dict[str, Any], folder: Path | None = None, console: Console | None = None) -> None:
    """Print the table of defences, what would have stopped the extraction, and the verdict."""
    console = console or Console(highlight=False)
    console.print(f"\n[bold]Audit of {escape(record['target'])}[/bold]")
    indented(
        console,
        f"width {record['width']}, budget {record['budget']:,} queries a row, seed {record['seed']}, {spell(record['seconds'])}",
    )
    indented(console, escape(record["scope"][-1]) + "\n")
    told = table(Teller(record))
    for line in _aligned([list(told.headings), *([str(text) for text in row] for row in told.rows)], told.words):
        console.print(f"  {escape(line)}", soft_wrap=True)  # on a narrow terminal a line runs on; no number is cut
    console.print()
    indented(console, notes(record) + "\n")
    for sentence in (*replayed(record), *stopped(record), record["advice"][0][1]):
        indented(console, escape(sentence))
    console.print()
    console.print(
        Panel(
            f"[bold]{escape(record['verdict'])}[/bold]\n{escape(record['sentence'])}",
            border_style={"good": "green", "bad": "red", "open": "yellow"}[mood(record)],
            expand=False,
        )
    )
    if folder is not None:
        indented(console, f"Files in {escape(str(folder))}: audit.json, report.html, cells/")


def _aligned(rows: list[list[str]], words: int) -> list[str]:
    """Rows as lines of text: words to the left, numbers to the right, a rule below the headings."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            text.ljust(width) if i < words else text.rjust(width) for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return [lines[0], "─" * len(lines[0]), *lines[1:]]
