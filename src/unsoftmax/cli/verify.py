"""``unsoftmax verify``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from unsoftmax.cli.outcome import NOT_RECOVERED, SUCCESS
from unsoftmax.cli.targets import HELP, open_target


@click.command(epilog=HELP)
@click.argument("target")
@click.argument("weights", type=click.Path(path_type=Path))
@click.option("--width", type=click.IntRange(min=1), help="Length of a token vector, where the target does not tell it.")
@click.option("--max-norm", type=float, help="Send no token longer than this.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def verify(target: str, weights: Path, width: int | None, max_norm: float | None, as_json: bool) -> int:
    """Tell whether TARGET runs exactly the WEIGHTS (a safetensors file); about 181 queries. Exit code 1 if it does not."""
    from unsoftmax.models import load
    from unsoftmax.verification import verify as run

    model = load(weights)
    result = run(open_target(target, width or model.width), model, max_norm=max_norm)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(result), indent=2))
    else:
        click.echo(f"{result.sequences} fresh sequences; largest deviation {result.max_abs_deviation:.2g}", nl=False)
        click.echo(f" (relative {result.relative_deviation:.2g}; the target's precision explains {result.threshold:.2g}).")
        said = "MATCHES: the target runs these weights." if result.matches else "DIFFERS: the target does not run these weights."
        click.echo(said)
    return SUCCESS if result.matches else NOT_RECOVERED
