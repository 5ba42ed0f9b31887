"""``unsoftmax plan``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from unsoftmax.cli.options import Positive, json_option, norm_option, seed_option, width_option
from unsoftmax.cli.progress import stdout_kept
from unsoftmax.cli.targets import HELP, model_of, open_target
from unsoftmax.models import FFN, Transformer

GUESSED = "Counted for attention; `unsoftmax diagnose` tells the family of a target, and --family counts for another."
PLANNED = ("attention", "transformer", "ffn", "attention-behind-network")


@click.command(epilog=HELP)
@click.argument("target")
@width_option
@click.option(
    "--family",
    type=click.Choice(["auto", *PLANNED]),
    default="auto",
    show_default=True,
    help="What kind of model to count for; auto is that of a demo or of a file of weights, else attention.",
)
@click.option("--neurons", type=click.IntRange(min=1), help="Hidden units of the network, for the families transformer and ffn.")
@click.option("--rank", type=click.IntRange(min=0), help="Rank of the score matrices; a range is printed if left out.")
@click.option("--heads", type=click.IntRange(min=1), help="Number of heads.")
@click.option(
    "--outputs", type=click.IntRange(min=1), help="Numbers in an answer, where the target does not tell it; 1 by default."
)
@click.option("--non-adaptive", is_flag=True, help="All probes drawn before the first answer.")
@click.option(
    "--export", type=click.Path(dir_okay=False, path_type=Path), help="With --non-adaptive: write the probes to this npz file."
)
@norm_option
@click.option(
    "--accuracy", type=Positive(), help="Wanted rms error of W; with --noise and --max-norm tells the queries that takes."
)
@click.option("--noise", type=Positive(), help="Standard deviation of an answer's error (0.29 steps for rounding).")
@seed_option("Seed of the exported probes")
@json_option
def plan(
    target: str,
    width: int | None,
    family: str,
    neurons: int | None,
    rank: int | None,
    heads: int | None,
    outputs: int | None,
    non_adaptive: bool,
    export: Path | None,
    max_norm: float | None,
    accuracy: float | None,
    noise: float | None,
    seed: int,
    as_json: bool,
) -> int:
    """Tell what recovering TARGET will cost, by phase, in queries and tokens. Asks the target nothing but its metadata."""
    from unsoftmax.planning import plan_attention, plan_fixed, plan_network, plan_noisy

    with stdout_kept(as_json):
        oracle = open_target(target, width)
        known = model_of(target, width)
    if rank is not None and rank > oracle.width:
        raise click.UsageError(f"--rank is {rank}, but the width is only {oracle.width}.")
    told = getattr(oracle, "outputs", None)
    guessed = family == "auto" and known is None
    if family == "auto":
        family = {FFN: "ffn", Transformer: "transformer"}.get(type(known), "attention")
    if family != "attention" and (heads not in (None, 1) or non_adaptive or accuracy is not None):
        raise click.UsageError(f"--heads, --non-adaptive and --accuracy are for attention alone, but the family is {family}.")
    if neurons is not None and family not in ("transformer", "ffn"):
        raise click.UsageError(f"--neurons is for the families transformer and ffn, but the family is {family}.")
    if export is not None and not non_adaptive:
        raise click.UsageError("--export writes probes that are fixed beforehand; add --non-adaptive.")
    if (accuracy is None) != (noise is None) or (accuracy is not None and max_norm is None):
        raise click.UsageError("--accuracy, --noise and --max-norm go together: the bill depends on all three.")
    if accuracy is not None and noise is not None and max_norm is not None:
        made = plan_noisy(oracle.width, accuracy=accuracy, noise=noise, max_norm=max_norm)
    elif non_adaptive:
        made = plan_fixed(oracle.width, rank=rank)
    elif family != "attention":
        if known is not None:
            neurons, told = neurons or known.sizes(None).get("neurons"), known.outputs
        if neurons is None and family in ("transformer", "ffn"):
            raise click.UsageError("The bill of a network grows with its hidden units: say how many to count for with --neurons.")
        made = plan_network(family, oracle.width, neurons=neurons, outputs=outputs or told or 1, rank=rank)
    else:
        made = plan_attention(oracle.width, outputs=outputs or told or 1, rank=rank, heads=heads)
    if guessed:
        made = replace(made, assumptions=(*made.assumptions, GUESSED))
    if export is not None:
        from unsoftmax.recorded import export_probes

        export_probes(export, oracle.width, rank=rank, seed=seed, max_norm=max_norm)
    if as_json:
        click.echo(json.dumps(made.record(), indent=2))
        return 0
    click.echo(f"{'phase':<16} {'queries':>12} {'tokens':>14}")
    for name, queries, tokens in made.phases:
        click.echo(f"{name:<16} {queries:>12,} {tokens:>14,}")
    total = f"{made.queries:,}" if made.queries == made.queries_max else f"{made.queries:,} to {made.queries_max:,}"
    click.echo(f"\nTotal: {total} queries.")
    for sentence in made.assumptions:
        click.echo(f"  {sentence}")
    if export is not None:
        click.echo(f"Wrote {export}. Add the answers Y0, Y1, … to it, then: unsoftmax recover --answers {export} --out FOLDER")
    else:
        click.echo(f"Next: unsoftmax recover {target} --out FOLDER")
    return 0
