"""An audit on a terminal, and the words for its numbers that the page uses too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

UNITS = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))

NOTES = (
    "Error: largest deviation of the extracted model from undefended answers to honest questions, over their spread. "
    "User error: root mean square error that the defence adds to those answers, over the same. Time: to ask all questions, at the "
    "given rate or limit. *: computed from the first row, not run. A quota or rate limit holds for one client; several accounts "
    "multiply it."
)


def headings(record: dict[str, Any]) -> list[str]:
    """The columns of the table; price and time only where they are known."""
    more = ["Price"] if record["price_per_1000"] is not None else []
    return ["Defence", "Outcome", "Queries", "Error", "User error", *more, "Time"]


def rows(record: dict[str, Any]) -> list[list[str]]:
    """The table, numbers rounded for people."""
    table = []
    for cell in record["cells"]:
        more = [f"{cell['price']:.2f}"] if cell["price"] is not None else []
        table.append(
            [
                cell["name"] + ("" if cell["measured"] else " *"),
                cell["outcome"],
                f"{cell['queries']:,}",
                "–" if cell["error"] is None else f"{cell['error']:.1e}",
                honest(cell),
                *more,
                "–" if cell["time"] is None else spell(cell["time"]),
            ]
        )
    return table


def honest(cell: dict[str, Any]) -> str:
    """The error that a defence adds to honest answers, as a share of their spread."""
    share = cell["honest_cost_relative"]
    if share is None:
        return "–"
    if cell["honest_cost"] == 0:
        return "none"
    return f"{share:.1e}"


def spell(seconds: float) -> str:
    """A time for people."""
    for size, name in UNITS:
        if seconds >= size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.2g} s"


def stopped(record: dict[str, Any]) -> str:
    """Which defence would have stopped the extraction."""
    if record["verdict"] != "EXTRACTABLE":
        return "The target as it stands was not extracted, so no defence is compared with it."
    if not record["stopped_by"]:
        return "None of these defences stopped the extraction within the budget."
    return f"Would have stopped a close copy within {record['budget']:,} queries: {'; '.join(record['stopped_by'])}."


def print_audit(record: dict[str, Any], folder: Path | None = None, console: Console | None = None) -> None:
    """Print the table of defences, what would have stopped the extraction, and the verdict."""
    console = console or Console(highlight=False)
    console.print(f"\n[bold]Audit of {escape(record['target'])}[/bold]")
    console.print(
        f"  width {record['width']}, budget {record['budget']:,} queries a cell, seed {record['seed']}, {spell(record['seconds'])}"
    )
    console.print(f"  {escape(record['scope'][1])}\n")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for number, heading in enumerate(headings(record)):
        table.add_column(heading, justify="left" if number < 2 else "right", no_wrap=number < 2)
    for row in rows(record):
        table.add_row(*map(escape, row))
    console.print(table)
    console.print(f"  {NOTES}\n")
    console.print(f"  {escape(stopped(record))}\n")
    good = record["exit_code"] == 0 and record["verdict"] != "EXTRACTABLE"
    console.print(
        Panel(
            f"[bold]{escape(record['verdict'])}[/bold]\n{escape(record['sentence'])}",
            border_style="green" if good else "red",
            expand=False,
        )
    )
    if folder is not None:
        console.print(f"  Files in {escape(str(folder))}: audit.json, report.html, cells/")
