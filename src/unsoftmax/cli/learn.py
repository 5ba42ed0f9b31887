"""``unsoftmax learn``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from unsoftmax.cli.options import json_option, out_option, seed_option
from unsoftmax.cli.outcome import CODES
from unsoftmax.cli.recover import make_folder
from unsoftmax.cli.running import Running, running
from unsoftmax.errors import FileFormatError
from unsoftmax.memory import read_archive

if TYPE_CHECKING:
    from unsoftmax.live import LiveView


@click.command()
@click.argument("examples", type=click.Path(path_type=Path))
@click.option("--heads", type=click.IntRange(min=1), help="Number of heads; found by itself if left out.")
@click.option("--causal", is_flag=True, help="A position sees only itself and those before it.")
@click.option(
    "--method",
    type=click.Choice(["fit", "sculpt"]),
    default="fit",
    show_default=True,
    help="fit: least squares, any layer; sculpt: the six provable phases, one or two heads.",
)
@out_option("weights and report")
@seed_option("Same seed, same result")
@running(asks=True, gate=True)
@json_option
def learn(
    examples: Path,
    heads: int | None,
    causal: bool,
    method: Literal["fit", "sculpt"],
    out: Path | None,
    seed: int,
    run: Running,
    as_json: bool,
) -> int:
    """Learn an attention layer from recorded examples; nothing is asked.

    EXAMPLES is a .npz file with the arrays X (examples, length, width) and Y: (examples, length, outputs) for answers at all
    positions, (examples, outputs) or (examples,) for answers at the last one; and optionally mask (examples, length), true
    where a token is real. A part of the answers is held out beforehand and decides at the end.
    """
    from unsoftmax.learners.from_examples import learn_from_examples
    from unsoftmax.report import print_recovery, recovery_json, recovery_record, save_recovery
    from unsoftmax.report.common import command_line
    from unsoftmax.report.provenance import now
    from unsoftmax.report.story import verdict

    arrays = read_arrays(examples)
    if out is not None:
        make_folder(out)
    try:
        with run.limited(), _progress(not as_json, run.view) as tell:
            recovery = learn_from_examples(
                arrays["X"],
                arrays["Y"],
                heads=heads,
                causal=causal,
                mask=arrays.get("mask"),
                method=method,
                seed=seed,
                on_failure="return",
                progress=tell,
            )
    except ValueError as error:
        raise click.UsageError(f"{examples}: {error}") from error
    recovery = recovery.of(target=str(examples), command=command_line(), authorised_by=run.authorised_by, date=now())
    if out is not None:
        save_recovery(recovery, out)
    record = recovery_record(recovery)
    run.export(record)
    if as_json:
        click.echo(recovery_json(recovery))
    else:
        print_recovery(recovery, out)
    run.end(verdict(record), recovery.message, mood="good" if recovery.status.success else "bad", out=out)
    return CODES[recovery.status]


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays X, Y and, where there is one, mask of a .npz file; nothing is unpickled.

    Raises:
        FileFormatError: there is no such file, it is not .npz, or X or Y is missing.
    """
    if not path.is_file():
        raise FileFormatError(f"There is no file {path}. Give a .npz file with the arrays X and Y (numpy.savez(path, X=X, Y=Y)).")
    held = read_archive(path, ("X", "Y", "mask"))
    missing = [name for name in ("X", "Y") if name not in held]
    if missing:
        raise FileFormatError(f"{path} lacks the array {' and '.join(missing)}; both X and Y are needed.")
    return held


@contextmanager
def _progress(enabled: bool, view: LiveView | None) -> Iterator[Callable[[str], None] | None]:
    """What follows the fit: a line on stderr on a terminal, and the live page."""
    on_page = None if view is None else view.say
    if not enabled or not sys.stderr.isatty():
        yield on_page
        return
    from rich.console import Console

    with Console(stderr=True).status("fitting") as status:

        def tell(line: str) -> None:
            status.update(f"fitting · {line}")
            if on_page is not None:
                on_page(line)

        yield tell
