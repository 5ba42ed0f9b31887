"""``unsoftmax figure``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from unsoftmax.cli.compare import read_record

FILES = ("audit.json", "recovery.json", "verification.json", "diagnosis.json", "comparison.json")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--pdf", is_flag=True, help="PDF beside the SVG; needs a Chromium on this machine.")
@click.option(
    "--to", "goal", type=click.Path(file_okay=False, path_type=Path), help="Where to write them; FOLDER/figures if left out."
)
def figure(folder: Path, pdf: bool, goal: Path | None) -> int:
    """Write the pictures of the finished run in FOLDER (its --out) as SVG files, one each, for papers and slides."""
    from unsoftmax.report.exports import kind
    from unsoftmax.report.sheets import pdf_files, svg_files

    record = read_record(folder, *FILES)
    goal = goal or folder / "figures"
    goal.mkdir(parents=True, exist_ok=True)
    written = svg_files(_report(kind(record), record, folder), goal)
    if pdf:
        written += pdf_files(written)
    for path in written:
        click.echo(path)
    return 0 if written else 1


def _report(kind: str, record: dict[str, Any], folder: Path) -> Any:
    """The report that a record was made for, drawn again."""
    from unsoftmax.models import load
    from unsoftmax.report.audit_story import audit_report
    from unsoftmax.report.comparison import comparison_report
    from unsoftmax.report.diagnosis import diagnosis_report
    from unsoftmax.report.story import recovery_report
    from unsoftmax.report.verification import verification_report

    weights = folder / "weights.safetensors"
    model = load(weights) if weights.is_file() else None
    if kind == "audit":
        record["present"] = None  # an audit keeps no weights to draw
        return audit_report(record)
    if kind == "recovery":
        return recovery_report(record, model)
    if kind == "comparison":
        return comparison_report(record)
    return diagnosis_report(record) if kind == "diagnosis" else verification_report({**record, "model": None}, model)  # type: ignore[arg-type]
