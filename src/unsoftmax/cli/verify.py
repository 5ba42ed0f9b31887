"""``unsoftmax verify``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from unsoftmax.cli.options import json_option, norm_option, out_option, width_option
from unsoftmax.cli.outcome import NOT_RECOVERED, SUCCESS
from unsoftmax.cli.progress import stdout_kept
from unsoftmax.cli.recover import make_folder
from unsoftmax.cli.targets import HELP, open_target


@click.command(epilog=HELP)
@click.argument("target")
@click.argument("weights", type=click.Path(path_type=Path))
@width_option
@norm_option
@out_option("verification.json and the report")
@json_option
def verify(target: str, weights: Path, width: int | None, max_norm: float | None, out: Path | None, as_json: bool) -> int:
    """Tell whether TARGET answers as the WEIGHTS (a safetensors file) do; 242 to 314 queries. Exit code 1 if it does not."""
    from unsoftmax.models import load
    from unsoftmax.report import save
    from unsoftmax.report.common import command_line, to_json
    from unsoftmax.report.verification import sentence, verification_record, verification_report
    from unsoftmax.verification import verify as run

    model = load(weights)
    if out is not None:
        make_folder(out)
    with stdout_kept(as_json):
        result = run(open_target(target, width or model.width), model, max_norm=max_norm, tolerance=known_to(weights))
    record = verification_record(result, model, target=target, weights=str(weights), command=command_line())
    if out is not None:
        save(out, "verification.json", record, verification_report(record, model))
    if as_json:
        click.echo(to_json(record))
    else:
        click.echo(f"{result.sequences} fresh sequences; largest deviation {result.max_abs_deviation:.2g}", nl=False)
        click.echo(f" (relative {result.relative_deviation:.2g}; the target's precision explains {result.threshold:.2g}).")
        click.echo(f"{record['verdict']}: {sentence(record)[0].lower()}{sentence(record)[1:]}")
        if out is not None:
            click.echo(f"Files in {out}: verification.json, report.html")
    return SUCCESS if result.matches else NOT_RECOVERED


def known_to(weights: Path) -> float:
    """How well recovered weights are known: the tolerance in the record that `recover --out` wrote beside them, else 0."""
    try:
        record = json.loads((weights.parent / "recovery.json").read_text())
    except (OSError, ValueError):
        return 0.0
    tolerance = record.get("tolerance") if isinstance(record, dict) else None
    return float(tolerance) if isinstance(tolerance, int | float) and 0 <= tolerance < 1 else 0.0
