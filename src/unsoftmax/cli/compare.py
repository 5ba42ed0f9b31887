"""``unsoftmax compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from unsoftmax.cli.options import json_option, out_option
from unsoftmax.cli.recover import make_folder
from unsoftmax.cli.running import Running, running
from unsoftmax.errors import FileFormatError


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@out_option("comparison.json and the report")
@running(gate=True)
@json_option
def compare(before: Path, after: Path, out: Path | None, run: Running, as_json: bool) -> int:
    """Tell what changed from the audit in BEFORE to that in AFTER (folders of --out, or their audit.json). Exit code 1 if worse."""
    from unsoftmax.report import save
    from unsoftmax.report.common import command_line, to_json
    from unsoftmax.report.comparison import WORDS, comparison_record, comparison_report

    with run.limited():
        records = [read_record(path, "audit.json") for path in (before, after)]
        record = comparison_record(*records, names=(str(before), str(after)), command=command_line())
    if out is not None:
        make_folder(out)
        save(out, "comparison.json", record, comparison_report(record))
    run.export(record)
    if as_json:
        click.echo(to_json(record))
    else:
        for row in record["rows"]:
            sides = [row[side]["outcome"] if row[side] else "–" for side in ("before", "after")]
            click.echo(f"  {row['name']:<26} {WORDS[row['change']]:<17} {sides[0]:<18} -> {sides[1]}")
        click.echo(f"{record['verdict']}: {record['sentence'][0].lower()}{record['sentence'][1:]}")
        if out is not None:
            click.echo(f"Files in {out}: comparison.json, report.html")
    return int(record["verdict"] == "WORSE PROTECTED")


def read_record(path: Path, *names: str) -> dict[str, Any]:
    """The JSON record of a finished run: the file itself, or the first of ``names`` in a folder.

    Raises:
        FileFormatError: there is none, or it is no record.
    """
    file = next((path / name for name in names if (path / name).is_file()), path)
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} holds no finished run ({', '.join(names)}): {error}.") from error
    if not isinstance(record, dict) or "schema" not in record:
        raise FileFormatError(f"{file} is no record of unsoftmax, or of an older version; run the command again.")
    return record
