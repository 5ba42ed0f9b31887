"""``unsoftmax audit``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unsoftmax.cli.options import (
    Positive,
    fresh_seed_option,
    json_option,
    max_time_option,
    out_option,
    public_option,
    width_option,
)
from unsoftmax.cli.progress import stdout_kept
from unsoftmax.cli.recover import make_folder
from unsoftmax.cli.targets import HELP, open_target

if TYPE_CHECKING:
    from unsoftmax.audit import Cell
    from unsoftmax.oracles.base import Oracle


@click.command(epilog=HELP)
@click.argument("target")
@click.option("--fail-if", "condition", help='Exit 1 if this holds, for example "queries<100000 and error<1e-3".')
@out_option("audit.json, report and journals; resumes from it")
@json_option
@click.option(
    "--budget", type=click.IntRange(min=1), default=100_000, show_default=True, help="Sequences that each extraction may ask."
)
@click.option("--rate", type=Positive(), help="Queries a second that an attacker may ask, for times.")
@click.option("--price", type=Positive(zero=True), help="Price of 1000 queries, for bills.")
@click.option("--max-norm", type=Positive(), help="The target takes no longer tokens; send none.")
@click.option("--scheduler", metavar="ADDRESS", help="Run on the Dask cluster of this scheduler; it must share --out.")
@width_option
@fresh_seed_option("Same seed, same questions")
@max_time_option
@public_option
def audit(
    target: str,
    condition: str | None,
    out: Path | None,
    as_json: bool,
    budget: int,
    rate: float | None,
    price: float | None,
    max_norm: float | None,
    scheduler: str | None,
    width: int | None,
    seed: int | None,
    max_time: float | None,
    public: bool,
) -> int:
    """Try extraction of TARGET against a table of defences; report what would stop it and what that costs honest users.

    The condition of --fail-if compares queries, error, seconds, price (needs --price) and time in seconds (needs --rate) of the
    target as it stands with numbers, joined by "and" and "or". Where nothing was extracted they count as infinite.

    Exit code 0 if the audit ran, 1 if the condition holds or cannot be decided, 3 if the target failed, 5 if it drifts.
    """
    from unsoftmax.audit import parse_gate, run_audit
    from unsoftmax.oracles.timed import time_limit
    from unsoftmax.report import save
    from unsoftmax.report.audit_record import audit_record
    from unsoftmax.report.audit_screen import print_audit
    from unsoftmax.report.audit_story import audit_report
    from unsoftmax.report.common import command_line, to_json

    gate = None if condition is None else parse_gate(condition)
    if out is not None:
        make_folder(out)
    with time_limit(max_time) as until, stdout_kept(as_json), _progress(enabled=not as_json) as tell:
        result = run_audit(
            partial(_opened, target, width, until),
            gate=gate,
            budget=budget,
            rate=rate,
            price=price,
            max_norm=max_norm,
            seed=seed,
            folder=None if out is None else out.absolute() / "cells",
            scheduler=scheduler,
            on_cell=tell,
        )
    remote = target.startswith(("http://", "https://", "grpc://", "grpcs://"))
    record = audit_record(result, target=target, command=command_line(), remote=remote)
    if out is not None:
        found = result.cells[0].recovery
        save(out, "audit.json", record, audit_report(record, None if found is None else found.model), public=public)
    if as_json:
        click.echo(to_json(record))
    else:
        print_audit(record, out)
    return int(record["exit_code"])


def _opened(target: str, width: int | None, until: float | None) -> Oracle:
    """The target, in whatever process; with a limit on time, it is not asked after that."""
    from unsoftmax.oracles.timed import Timed

    oracle = open_target(target, width)
    return oracle if until is None else Timed(oracle, until)


@contextmanager
def _progress(enabled: bool) -> Iterator[Callable[[Cell, int], None] | None]:
    """A bar of finished cells on a terminal's stderr, silence elsewhere."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("defences", total=None)

        def tell(cell: Cell, total: int) -> None:
            progress.update(task, advance=1, total=total, description=cell.defence.name)

        yield tell
