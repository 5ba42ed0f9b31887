"""``unsoftmax plan``."""

from __future__ import annotations

import json

import click

from unsoftmax.cli.targets import HELP, open_target


@click.command(epilog=HELP)
@click.argument("target")
@click.option("--width", type=click.IntRange(min=1), help="Length of a token vector, where the target does not tell it.")
@click.option("--rank", type=click.IntRange(min=0), help="Rank of the score matrices; a range is printed if left out.")
@click.option("--heads", type=click.IntRange(min=1), help="Number of heads.")
@click.option("--outputs", type=click.IntRange(min=1), help="Numbers in an answer, where the target does not tell it; 1 by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def plan(target: str, width: int | None, rank: int | None, heads: int | None, outputs: int | None, as_json: bool) -> int:
    """Tell what recovering TARGET will cost, by phase, in queries and tokens. Asks the target nothing but its metadata."""
    from unsoftmax.planning import plan_attention

    oracle = open_target(target, width)
    if rank is not None and rank > oracle.width:
        raise click.UsageError(f"--rank is {rank}, but the width is only {oracle.width}.")
    told = getattr(oracle, "outputs", None)
    made = plan_attention(oracle.width, outputs=outputs or told or 1, rank=rank, heads=heads)
    if as_json:
        click.echo(json.dumps(made.record(), indent=2))
        return 0
    click.echo(f"{'phase':<16}{'queries':>12}{'tokens':>14}")
    for name, queries, tokens in made.phases:
        click.echo(f"{name:<16}{queries:>12,}{tokens:>14,}")
    total = f"{made.queries:,}" if made.queries == made.queries_max else f"{made.queries:,} to {made.queries_max:,}"
    click.echo(f"\nTotal: {total} queries.")
    for sentence in made.assumptions:
        click.echo(f"  {sentence}")
    click.echo(f"Next: unsoftmax recover {target} --out FOLDER")
    return 0
