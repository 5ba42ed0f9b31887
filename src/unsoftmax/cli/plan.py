"""``unsoftmax plan``."""

from __future__ import annotations

from pathlib import Path

import click

from unsoftmax.cli.options import FamilyName, Positive, check_option, json_option, norm_option, seed_option, width_option
from unsoftmax.cli.progress import stdout_kept
from unsoftmax.cli.running import Running, running
from unsoftmax.cli.targets import HELP, open_target
from unsoftmax.cli.wording import say


@click.command(epilog=HELP)
@click.argument("target")
@width_option
@click.option(
    "--family",
    type=FamilyName(),
    default="auto",
    show_default=True,
    help="What kind of model to count for; auto is that of a demo or of a file of weights, else attention.",
)
@click.option("--neurons", type=click.IntRange(min=1), help="Hidden units of the network, for families that end in one.")
@click.option("--rank", type=click.IntRange(min=0), help="Rank of the score matrices; a range is printed if left out.")
@click.option("--heads", type=click.IntRange(min=1), help="Number of heads; of a stack or decoder, in all layers together.")
@click.option(
    "--outputs", type=click.IntRange(min=1), help="Numbers in an answer, where the target does not tell it; 1 by default."
)
@click.option("--every-position", is_flag=True, help="The target answers at every position: stacks and decoders cost less.")
@click.option("--non-adaptive", is_flag=True, help="All probes drawn before the first answer.")
@click.option(
    "--export", type=click.Path(dir_okay=False, path_type=Path), help="With --non-adaptive: write the probes to this npz file."
)
@norm_option
@click.option(
    "--accuracy", type=Positive(), help="Wanted rms error of W; with --noise and --max-norm tells the queries that takes."
)
@click.option("--noise", type=Positive(), help="Standard deviation of an answer's error (0.29 steps for rounding).")
@check_option
@seed_option("Seed of the exported probes")
@running(record=True)
@json_option
def plan(
    target: str,
    width: int | None,
    family: str,
    neurons: int | None,
    rank: int | None,
    heads: int | None,
    outputs: int | None,
    every_position: bool,
    non_adaptive: bool,
    export: Path | None,
    max_norm: float | None,
    accuracy: float | None,
    noise: float | None,
    check: int | None,
    seed: int,
    run: Running,
    as_json: bool,
) -> int:
    """Tell what recovering TARGET will cost, by phase, in queries and tokens. Asks the target nothing but its metadata."""
    from unsoftmax.plans import plan as bill
    from unsoftmax.report.common import command_line, shared, to_json

    if export is not None and not non_adaptive:
        raise click.UsageError("--export writes probes that are fixed beforehand; add --non-adaptive.")
    with run.limited(), stdout_kept(as_json):
        oracle = open_target(target, width)
        try:
            made = bill(
                target,
                width=width,
                family=family,
                neurons=neurons,
                rank=rank,
                heads=heads,
                outputs=outputs,
                adaptive=not non_adaptive,
                max_norm=max_norm,
                accuracy=accuracy,
                noise=noise,
                check=check,
                everywhere=every_position,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    if export is not None:
        from unsoftmax.recorded import export_probes

        export_probes(export, oracle.width, rank=rank, seed=seed, max_norm=max_norm)
    record = {**made.record(), "target": target, **shared("plan"), "command": command_line()}
    run.export(record)
    if as_json:
        click.echo(to_json(record))
        return 0
    click.echo(f"{'phase':<16} {'queries':>12} {'tokens':>14}")
    for name, queries, tokens in made.phases:
        click.echo(f"{name:<16} {queries:>12,} {tokens:>14,}")
    total = f"{made.queries:,}" if made.queries == made.queries_max else f"{made.queries:,} to {made.queries_max:,}"
    click.echo(f"\nTotal: {total} queries.")
    for sentence in made.assumptions:
        say(sentence)
    if export is not None:
        click.echo(f"Wrote {export}. Add the answers Y0, Y1, … to it, then: unsoftmax recover --answers {export} --out FOLDER")
    else:
        click.echo(f"Next: unsoftmax recover {target} --out FOLDER")
    return 0
