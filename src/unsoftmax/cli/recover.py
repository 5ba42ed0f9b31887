"""``unsoftmax recover``."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import click

from unsoftmax.cli.options import (
    FamilyName,
    Grid,
    Positive,
    check_option,
    fresh_seed_option,
    json_option,
    length_option,
    norm_option,
    out_option,
    public_option,
    repair_option,
    width_option,
)
from unsoftmax.cli.outcome import CODES
from unsoftmax.cli.progress import progress_bar, stdout_kept
from unsoftmax.cli.running import Running, running
from unsoftmax.cli.targets import HELP, open_target, open_token_target
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Recovery


@click.command(epilog=HELP)
@click.argument("target", default="demo")
@click.option(
    "--target",
    "others",
    multiple=True,
    metavar="TARGET",
    help="Another endpoint of the same model, to share the questions; repeatable.",
)
@click.option(
    "--streams",
    type=click.IntRange(1, 64),
    help="Requests that a server may work on side by side; every call is divided among them. Two, as large as may be, if left out.",
)
@out_option("weights, report and journal; resumes from it")
@width_option
@click.option("--family", type=FamilyName(), default="auto", show_default=True, help="What kind of model to look for.")
@click.option("--rank", type=click.IntRange(min=0), help="Rank of the score matrices; found by itself if left out.")
@click.option("--heads", type=click.IntRange(min=1), help="How many heads there are at most; found by itself if left out.")
@click.option("--tolerance", type=Positive(), help="Every answer is within this of the truth; measured if left out.")
@norm_option
@length_option
@check_option
@click.option(
    "--natural",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Tokens that the target meets in use (npy, shape (tokens, width)); the check draws from them.",
)
@click.option(
    "--labels", is_flag=True, default=None, help="The target answers with one of two values; found by itself where it shows."
)
@click.option("--budget", type=click.IntRange(min=1), help="Ask no more sequences than this, the check included.")
@click.option("--accuracy", type=Positive(), help="Wanted rms error of W where answers are noisy or rounded.")
@click.option("--digits", type=click.IntRange(1, 15), help="The same as --accuracy 1e-DIGITS.")
@click.option("--grid", type=Grid(), help="Spacing of the weights where they lie on a grid, or 'auto' to look for one.")
@click.option(
    "--embeddings", type=click.Path(path_type=Path), help="Embedding table (safetensors, npy); the target takes token ids."
)
@click.option("--answers", type=click.Path(path_type=Path), help="Answers to exported probes (npz); no live target is asked.")
@fresh_seed_option("Same seed, same questions, same result")
@repair_option
@running(asks=True, gate=True)
@public_option
@json_option
def recover(
    target: str,
    others: tuple[str, ...],
    streams: int | None,
    out: Path | None,
    width: int | None,
    embeddings: Path | None,
    answers: Path | None,
    natural: Path | None,
    digits: int | None,
    seed: int | None,
    repair: bool,
    run: Running,
    public: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Recover a target's parameters from its answers, check them on fresh questions, and write the report.

    With --out the run keeps a journal: the same command goes on where it stopped, and asks nothing twice.
    """
    from unsoftmax.report import print_recovery, recovery_json, recovery_record, save_recovery
    from unsoftmax.report.common import command_line
    from unsoftmax.report.provenance import now
    from unsoftmax.report.story import verdict

    if digits is not None and options["accuracy"] is None:
        options["accuracy"] = 10.0**-digits
    if natural is not None:
        options["natural"] = _tokens_in(natural)
    if out is not None:
        make_folder(out)
    if answers is not None:
        from unsoftmax.recorded import recover_recorded

        recovery = recover_recorded(answers, seed=seed or 0)
    else:
        from unsoftmax.driver import recover as learn

        journal = None if out is None else out / "journal.sqlite"
        if repair:
            _repaired(journal)
        with run.limited() as until, stdout_kept(as_json), progress_bar(not as_json, run.view) as tell:
            oracle = opened(target, others, width, streams) if embeddings is None else open_token_target(target, embeddings)
            try:
                recovery = learn(
                    run.timed(oracle, until),
                    journal=journal,
                    seed=seed,
                    on_failure="return",
                    on_progress=tell,
                    **options,
                )
            finally:
                closed(oracle)
        recovery = recovery.noted(*_fewer_heads(recovery, options["heads"]))
    named = target if answers is None else str(answers)
    recovery = recovery.of(target=named, command=command_line(), authorised_by=run.authorised_by, date=now())
    if out is not None:
        save_recovery(recovery, out, public=public)
    record = recovery_record(recovery)
    run.export(record, public=public)
    if as_json:
        click.echo(recovery_json(recovery))
    else:
        print_recovery(recovery, out)
    mood = "good" if recovery.status.success else "bad"
    run.end(verdict(record), recovery.message, mood=mood, out=out, following=" ".join(record["next"]))
    return CODES[recovery.status]


def opened(target: str, others: tuple[str, ...], width: int | None, streams: int | None) -> Oracle:
    """The target, or all endpoints of it together."""
    if not others:
        return open_target(target, width, streams=streams)
    from unsoftmax.oracles.several import Several

    try:
        return Several([open_target(text, width, streams=streams) for text in (target, *others)])
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def closed(oracle: Any) -> None:
    """Let go of the connections of a target that has some."""
    close = getattr(oracle, "close", None)
    if callable(close):
        close()


def _repaired(journal: Path | None) -> None:
    """Repair a journal before the run, and say what that means."""
    from unsoftmax.oracles.journal_repair import repair

    if journal is None:
        raise click.UsageError("--repair mends the journal of an earlier run: name its folder with --out.")
    click.echo(repair(journal), err=True)


def _fewer_heads(recovery: Recovery, heads: int | None) -> list[str]:
    """Says so where fewer heads explain everything than were named: --heads is the most, not the number."""
    found = None if recovery.account.sizes is None else recovery.account.sizes.heads
    if not recovery.status.success or heads is None or found is None or found >= heads:
        return []
    return [f"--heads {heads} is the most: {found} explain{'s' * (found == 1)} every answer, so that no more are there."]


def make_folder(out: Path) -> None:
    """Create the output folder, or say why it cannot be used."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".unsoftmax-{secrets.token_hex(6)}"
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        probe.unlink()
    except OSError as error:
        raise click.UsageError(
            f"The folder {out} cannot be written ({error.strerror or error}). Choose another with --out."
        ) from error


def _tokens_in(path: Path) -> Any:
    """The array of an npy file; nothing is ever unpickled."""
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise click.UsageError(f"{path} is no npy file of numbers ({error}). Save the tokens with numpy.save.") from error
