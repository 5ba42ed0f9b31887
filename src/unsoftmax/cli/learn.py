"""``unsoftmax learn``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import click

from unsoftmax.cli.exporting import export, export_options
from unsoftmax.cli.options import json_option, out_option, permission_option, seed_option
from unsoftmax.cli.outcome import CODES
from unsoftmax.cli.recover import make_folder
from unsoftmax.errors import FileFormatError
from unsoftmax.memory import read_archive


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
@permission_option
@export_options(gate=False)
@json_option
def learn(
    examples: Path,
    heads: int | None,
    causal: bool,
    method: Literal["fit", "sculpt"],
    out: Path | None,
    seed: int,
    authorised_by: str | None,
    csv: Path | None,
    markdown: Path | None,
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

    arrays = read_arrays(examples)
    if out is not None:
        make_folder(out)
    try:
        with _progress(enabled=not as_json) as tell:
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
    recovery.facts["target"] = str(examples)
    recovery.facts["command"] = command_line()
    recovery.facts["authorised_by"] = authorised_by
    if out is not None:
        save_recovery(recovery, out)
    export(recovery_record(recovery), {"csv": csv, "markdown": markdown})
    if as_json:
        click.echo(recovery_json(recovery))
        return CODES[recovery.status]
    print_recovery(recovery)
    if out is not None:
        weights = "weights.safetensors, " if recovery.status.success else ""
        click.echo(f"  Files in {out}: {weights}recovery.json, report.html")
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
def _progress(enabled: bool) -> Iterator[Callable[[str], None] | None]:
    """A line on stderr that follows the fit, on a terminal only."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("fitting") as status:
        yield lambda line: status.update(f"fitting · {line}")
