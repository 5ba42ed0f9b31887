"""An audit on a terminal, and the words for its numbers that the page uses too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

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


def stopped(record: dict[str, Any]) -> list[str]:
    """Which defence would have stopped the extraction, and which only spoiled the copy."""
    if record["verdict"] != "EXTRACTABLE":
        return ["The target as it stands was not extracted, so no defence is compared with it."]
    budget = f"within {record['budget']:,} queries"
    told = [f"Would have stopped the extraction {budget}: {'; '.join(record['stopped_by']) or 'none of these defences'}."]
    if record["weakened_by"]:
        told.append(
            f"Left only a rough, partial or unverified copy: {'; '.join(record['weakened_by'])}. More patience may refine it."
        )
    return told


def print_audit(record: dict[str, Any], folder: Path | None = None, console: Console | None = None) -> None:
    """Print the table of defences, what would have stopped the extraction, and the verdict."""
    console = console or Console(highlight=False)
    console.print(f"\n[bold]Audit of {escape(record['target'])}[/bold]")
    console.print(
        f"  width {record['width']}, budget {record['budget']:,} queries a cell, seed {record['seed']}, {spell(record['seconds'])}"
    )
    console.print(f"  {escape(record['scope'][1])}\n")
    for line in _aligned([headings(record), *rows(record)]):
        console.print(f"  {escape(line)}", soft_wrap=True)  # on a narrow terminal a line runs on; no number is cut
    console.print()
    console.print(f"  {NOTES}\n")
    for sentence in stopped(record):
        console.print(f"  {escape(sentence)}")
    console.print()
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


def _aligned(table: list[list[str]]) -> list[str]:
    """Rows as lines of text: words to the left, numbers to the right, a rule below the headings."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            text.ljust(width) if i < 2 else text.rjust(width) for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]
    return [lines[0], "─" * len(lines[0]), *lines[1:]]
