"""``unsoftmax audit``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unsoftmax.cli.options import (
    Positive,
    check_option,
    fresh_seed_option,
    json_option,
    length_option,
    out_option,
    public_option,
    width_option,
)
from unsoftmax.cli.progress import stdout_kept
from unsoftmax.cli.recover import make_folder
from unsoftmax.cli.running import Running, running
from unsoftmax.cli.targets import HELP, open_target

if TYPE_CHECKING:
    from unsoftmax.audits import AuditFile, Cell
    from unsoftmax.live import LiveView
    from unsoftmax.oracles.base import Oracle


@click.command(
    epilog=f"{HELP} Or FILE.toml, an audit as a file: target, budget, price, gate and defences of your own; "
    "see docs/how-to/audit-file.md."
)
@click.argument("target")
@click.option("--fail-if", help='Exit 1 if this holds, for example "queries<100000 and error<1e-3".')
@out_option("audit.json, report and journals; resumes from it")
@json_option
@click.option("--budget", type=click.IntRange(min=1), help="Sequences that each extraction may ask.  [default: 100000]")
@click.option("--rate", type=Positive(), help="Queries a second that an attacker may ask, for times.")
@click.option("--price", type=Positive(zero=True), help="Price of 1000 queries, for bills.")
@click.option("--currency", metavar="NAME", help="Currency of --price, such as EUR.")
@click.option("--max-norm", type=Positive(), help="The target takes no longer tokens; send none.")
@click.option(
    "--defence",
    "defences",
    multiple=True,
    metavar="WORDS",
    help='A row of your own, such as "norm 6, 3 decimals"; may be repeated.',
)
@click.option(
    "--search", multiple=True, metavar="WORDS", help='Search the weakest noise that stops it, added to this ("none": alone).'
)
@click.option("--curve", is_flag=True, help="Measure error against queries: each row at five budgets.")
@click.option("--runs", type=click.IntRange(min=1), default=1, show_default=True, help="Seeds of each point of --curve.")
@click.option("--scheduler", metavar="ADDRESS", help="Run on the Dask cluster of this scheduler; it must share --out.")
@width_option
@fresh_seed_option("Same seed, same questions")
@check_option
@length_option
@running(asks=True, gate=True)
@public_option
def audit(
    target: str,
    out: Path | None,
    as_json: bool,
    defences: tuple[str, ...],
    search: tuple[str, ...],
    curve: bool,
    runs: int,
    scheduler: str | None,
    run: Running,
    public: bool,
    **options: Any,
) -> int:
    """Try extraction of TARGET against a table of defences; report what would stop it and what that costs honest users.

    The condition of --fail-if compares queries, error, seconds, price (needs --price) and time in seconds (needs --rate) of the
    target as it stands with numbers, joined by "and" and "or". Where nothing was extracted they count as infinite.

    Exit code 0 if the audit ran, 1 if the condition holds or cannot be decided, 3 if the target failed, 5 if it drifts.
    """
    from unsoftmax.auditing import is_remote
    from unsoftmax.audits import Defence, budgets_up_to, parse_gate, read_audit, read_defence, run_audit
    from unsoftmax.report import save
    from unsoftmax.report.audit_record import audit_record
    from unsoftmax.report.audit_screen import print_audit
    from unsoftmax.report.audit_story import audit_report, mood
    from unsoftmax.report.common import command_line, to_json

    file = read_audit(target) if target.endswith(".toml") else None
    target, wishes = _merged(target, options, file)
    rows = (*(file.defences if file else ()), *map(read_defence, defences))
    standard = file.standard if file else not rows
    budgets = file.points if file and file.points else budgets_up_to(wishes["budget"]) if curve else ()
    gate = None if wishes["fail_if"] is None else parse_gate(wishes["fail_if"])
    if out is not None:
        make_folder(out)
    with run.limited() as until, stdout_kept(as_json), _progress(not as_json, run.view) as tell:
        result = run_audit(
            partial(_opened, target, wishes["width"], until),
            defences=None if standard else (Defence(name="none"),),
            extra=tuple(row for row in rows if not row.base),
            search=tuple(map(read_defence, (*(file.search if file else ()), *search))),
            budgets=budgets,
            runs=file.seeds if file and file.points else runs,
            gate=gate,
            **{name: wishes[name] for name in ("budget", "rate", "price", "max_norm", "seed", "check", "max_length")},
            folder=None if out is None else out.absolute() / "cells",
            scheduler=scheduler,
            on_cell=tell,
        )
    said = run.authorised_by or (file.settings.get("authorised_by") if file else None)
    record = audit_record(
        result, target=target, command=command_line(), remote=is_remote(target), authorised_by=said, currency=wishes["currency"]
    )
    if out is not None:
        found = result.cells[0].recovery
        save(out, "audit.json", record, audit_report(record, None if found is None else found.model), public=public)
    run.export(record, public=public)
    if as_json:
        click.echo(to_json(record))
    else:
        print_audit(record, out)
    run.end(record["verdict"], record["sentence"], mood=mood(record), out=out)
    return int(record["exit_code"])


def _merged(target: str, options: dict[str, Any], file: AuditFile | None) -> tuple[str, dict[str, Any]]:
    """The target and the settings: what the command line says, else what the file says, else the default."""
    said = {} if file is None else file.settings
    wishes = {name: said.get(name) if value is None else value for name, value in options.items()}
    wishes["budget"] = wishes["budget"] or 100_000
    if file is None:
        return target, wishes
    if file.target is None:
        raise click.UsageError(f'{target} names no target; add a line such as target = "demo".')
    return file.target, wishes


def _opened(target: str, width: int | None, until: float | None) -> Oracle:
    """The target, in whatever process; with a limit on time, it is not asked after that."""
    from unsoftmax.oracles.timed import Timed

    oracle = open_target(target, width)
    return oracle if until is None else Timed(oracle, until)


@contextmanager
def _progress(enabled: bool, view: LiveView | None) -> Iterator[Callable[[Cell, int], None] | None]:
    """What follows finished rows: lines with their numbers and a bar with the time left on a terminal, and the live page."""
    on_page = None if view is None else view.row
    if not enabled or not sys.stderr.isatty():
        yield on_page
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as progress:
        task = progress.add_task("defences", total=None)

        def tell(cell: Cell, total: int) -> None:
            error = "no copy" if cell.error is None else f"error {cell.error:.1e}"
            words = cell.status.replace("_", " ").lower()
            progress.console.print(f"  {escape(cell.defence.name):<26} {words:<18} {cell.queries:>9,} queries  {error}")
            progress.update(task, advance=1, total=total)
            if on_page is not None:
                on_page(cell, total)

        yield tell
