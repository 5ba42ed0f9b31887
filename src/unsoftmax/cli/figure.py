"""``unsoftmax figure``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unsoftmax.cli.compare import read_record
from unsoftmax.cli.running import Running, running

if TYPE_CHECKING:
    from unsoftmax.report.chapter import Report


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--pdf", is_flag=True, help="PDF beside the SVG; needs a Chromium on this machine.")
@click.option(
    "--to", "goal", type=click.Path(file_okay=False, path_type=Path), help="Where to write them; FOLDER/figures if left out."
)
@running()
def figure(folder: Path, pdf: bool, goal: Path | None, run: Running) -> int:
    """Write the pictures of the finished run in FOLDER (its --out) as SVG files, one each, for papers and slides."""
    from unsoftmax.report.exports import kind
    from unsoftmax.report.sheets import pdf_files, svg_files

    record = read_record(
        folder, *(f"{name}.json" for name in ("audit", "recovery", "verification", "diagnosis", "comparison", "watch"))
    )
    goal = goal or folder / "figures"
    goal.mkdir(parents=True, exist_ok=True)
    with run.limited():
        written = svg_files(_report(kind(record), record, folder), goal)
        if pdf:
            written += pdf_files(written)
    for path in written:
        click.echo(path)
    if not written:
        click.echo("This run has no drawings: its numbers stand as bars and tables in its report.", err=True)
    return 0 if written else 1


def _report(kind: str, record: dict[str, Any], folder: Path) -> Report:
    """The report that a record was made for, drawn again."""
    from unsoftmax.models import load
    from unsoftmax.report.audit_story import audit_report
    from unsoftmax.report.comparison import comparison_report
    from unsoftmax.report.deployment import deployment_report, timeline_report
    from unsoftmax.report.diagnosis import diagnosis_report
    from unsoftmax.report.story import recovery_report
    from unsoftmax.report.verification import verification_report

    weights = folder / "weights.safetensors"
    model = load(weights) if weights.is_file() else None
    reports: dict[str, Callable[[], Report]] = {
        "audit": lambda: audit_report({**record, "present": None}),  # an audit keeps no weights to draw
        "recovery": lambda: recovery_report(record, model),
        "comparison": lambda: comparison_report(record),
        "diagnosis": lambda: diagnosis_report(record),
        "deployment": lambda: deployment_report(record),
        "watch": lambda: timeline_report(record),
        "verification": lambda: verification_report({**record, "model": None}, None),
    }
    return reports[kind]()
