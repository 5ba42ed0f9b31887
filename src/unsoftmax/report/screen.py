"""The story on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table

from unsoftmax.report.record import recovery_record
from unsoftmax.report.story import NEXT, chapters, verdict
from unsoftmax.report.told import Teller
from unsoftmax.results import Recovery


def indented(console: Console, text: str, by: int = 2) -> None:
    """Print text so that every line of it stands in by as much, the wrapped ones too."""
    console.print(Padding(text, (0, 0, 0, by), expand=False))


def print_recovery(recovery: Recovery, folder: Path | None = None, console: Console | None = None) -> None:
    """Print what the target is, what was found, how it was checked, what it cost, and one verdict."""
    console = console or Console(highlight=False)
    record = recovery_record(recovery)
    for chapter in chapters(Teller(record)):
        if chapter.title == NEXT and recovery.status.success:
            continue  # one line at the end says it
        console.print(f"\n[bold]{escape(chapter.title)}[/bold]")
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        for name, value in chapter.facts:
            table.add_row(f"[dim]{escape(name)}[/dim]", escape(str(value)))
        if chapter.facts:
            console.print(Padding(table, (0, 0, 0, 2), expand=False))
        for sentence in chapter.sentences:
            indented(console, escape(str(sentence)))
    console.print()
    colour = "green" if recovery.status.success else "red"
    console.print(
        Panel(f"[bold]{escape(verdict(record))}[/bold]\n{escape(recovery.status.value)}", border_style=colour, expand=False)
    )
    if folder is not None:
        names = ("weights.safetensors", "recovery.json", "report.html", "journal.sqlite")
        indented(console, f"Files in {escape(str(folder))}: {', '.join(name for name in names if (folder / name).exists())}")
    if recovery.status.success and folder is not None and "target" in record and not record.get("recorded"):
        # one line, however narrow the terminal is: it is there to be copied
        command = f"unsoftmax verify {record['target']} {folder / 'weights.safetensors'}"
        console.print(f"  Next: {escape(command)}", soft_wrap=True)
