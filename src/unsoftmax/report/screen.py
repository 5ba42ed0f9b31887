"""The story on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from unsoftmax.report.record import recovery_record
from unsoftmax.report.story import chapters, verdict
from unsoftmax.report.told import Teller
from unsoftmax.results import Recovery


def print_recovery(recovery: Recovery, folder: Path | None = None, console: Console | None = None) -> None:
    """Print what the target is, what was found, how it was checked, what it cost, and one verdict."""
    console = console or Console(highlight=False)
    record = recovery_record(recovery)
    for chapter in chapters(Teller(record)):
        console.print(f"\n[bold]{escape(chapter.title)}[/bold]")
        table = Table.grid(padding=(0, 2))
        for name, value in chapter.facts:
            table.add_row(f"  [dim]{escape(name)}[/dim]", escape(str(value)))
        if chapter.facts:
            console.print(table)
        for sentence in chapter.sentences:
            console.print(f"  {escape(str(sentence))}", soft_wrap=False)
    console.print()
    colour = "green" if recovery.status.success else "red"
    console.print(
        Panel(f"[bold]{escape(verdict(record))}[/bold]\n{escape(recovery.status.value)}", border_style=colour, expand=False)
    )
    if folder is not None:
        names = ("weights.safetensors", "recovery.json", "report.html", "journal.sqlite")
        console.print(f"  Files in {escape(str(folder))}: {', '.join(name for name in names if (folder / name).exists())}")
    if recovery.status.success and folder is not None and "target" in record and not record.get("recorded"):
        console.print(f"  Next: unsoftmax verify {escape(str(record['target']))} {escape(str(folder / 'weights.safetensors'))}")
