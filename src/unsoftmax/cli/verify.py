"""``unsoftmax verify``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unsoftmax.cli.options import check_option, json_option, length_option, norm_option, out_option, width_option
from unsoftmax.cli.outcome import NOT_RECOVERED, SUCCESS
from unsoftmax.cli.progress import progress_bar, stdout_kept
from unsoftmax.cli.recover import make_folder
from unsoftmax.cli.running import Running, running
from unsoftmax.cli.targets import HELP, model_in, open_target
from unsoftmax.cli.wording import hanging, say
from unsoftmax.errors import UnknownWidthError

if TYPE_CHECKING:
    from unsoftmax.deployment import Checkpoint
    from unsoftmax.models import Model
    from unsoftmax.oracles.base import Oracle

heads_option = click.option("--heads", type=click.IntRange(min=1), help="Heads of a state dict, which does not tell them.")
pickle_option = click.option(
    "--trust-pickle", is_flag=True, help="Open a folder's pickled weights; a pickled file can run code, so only if you trust it."
)
precision_option = click.option(
    "--precision",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="The arithmetic that the endpoint must have; found by its rounding if left out.",
)
queries_option = click.option("--queries", type=click.IntRange(min=8), default=960, show_default=True, help="Sequences to ask.")


@click.command(epilog=HELP)
@click.argument("target")
@click.argument("weights")
@width_option
@norm_option
@heads_option
@pickle_option
@precision_option
@length_option
@queries_option
@check_option
@click.option("--seed", type=click.IntRange(min=0), help="Of the questions; drawn from the operating system if left out.")
@out_option("verification.json and the report")
@running(asks=True, gate=True)
@json_option
def verify(target: str, weights: str, width: int | None, out: Path | None, run: Running, as_json: bool, **options: Any) -> int:
    """Tell whether TARGET answers as WEIGHTS do, and if not, what changed and where.

    WEIGHTS is a model saved by this package or a state dict in safetensors (242 to 314 queries; 1,202 in half precision), or
    whatever can be run here: a folder in Hugging Face layout, a part of it after #, FILE.onnx[#FROM..TO], or
    FILE.py:NAME with a torch module (--queries). Exit code 1 if it differs, 5 if replicas differ.
    """
    if options["trust_pickle"]:
        click.echo("Opening pickled weights: such a file can run code. Only go on if you trust where it comes from.", err=True)
    if out is not None:
        make_folder(out)
    known = weights_of(weights, heads=options["heads"], trust_pickle=options["trust_pickle"])
    if not hasattr(known, "tensors"):
        return _model(target, known, weights, width, out, run, as_json, options)
    return _deployment(target, known, width, out, run, as_json, options)


def weights_of(text: str, *, heads: int | None = None, trust_pickle: bool = False) -> Any:
    """WEIGHTS: a model of ours, or a checkpoint that can be run here."""
    whole, _, part = text.partition("#")
    if Path(whole.partition(":")[0]).suffix == ".py":
        from unsoftmax.deployment.modules import module_checkpoint

        return module_checkpoint(text)
    if Path(whole).is_dir():
        from unsoftmax.deployment.folders import folder_checkpoint

        return folder_checkpoint(text, trust_pickle=trust_pickle)
    if Path(whole).suffix == ".onnx":
        from unsoftmax.models.torch_layouts import torch_modules

        torch_modules()  # tells how to install torch where it is missing
        from unsoftmax.deployment.onnx_graph import onnx_checkpoint

        return onnx_checkpoint(text)
    if not Path(whole).exists():
        raise FileNotFoundError(f"There is no file or folder {whole}.")
    return model_in(whole, part, heads)


def _model(
    target: str,
    model: Model,
    weights: str,
    width: int | None,
    out: Path | None,
    run: Running,
    as_json: bool,
    options: dict[str, Any],
) -> int:
    """Weights of a family of ours."""
    from unsoftmax.report import save
    from unsoftmax.report.common import command_line, to_json
    from unsoftmax.report.verification import sentence, verification_record, verification_report
    from unsoftmax.verification import verify as compare

    settings = {name: options[name] for name in ("max_norm", "max_length", "check")}
    with run.limited() as until, stdout_kept(as_json), progress_bar(not as_json, run.view) as tell:
        oracle = run.timed(_opened(target, width, model), until)
        result = compare(oracle, model, tolerance=known_to(weights), on_progress=tell, **settings)
    record = verification_record(
        result, model, target=target, weights=weights, command=command_line(), authorised_by=run.authorised_by
    )
    if out is not None:
        save(out, "verification.json", record, verification_report(record, model))
    run.export(record)
    if as_json:
        click.echo(to_json(record))
    else:
        click.echo(f"{result.sequences} fresh sequences; largest deviation {result.max_abs_deviation:.2g}", nl=False)
        click.echo(f" (relative {result.relative_deviation:.2g}; the target's precision explains {result.threshold:.2g}).")
        click.echo(f"{record['verdict']}: {sentence(record)[0].lower()}{sentence(record)[1:]}")
        if not result.matches:
            click.echo(hanging("Next: ", record["next"][0].replace("`", "")))
        if out is not None:
            click.echo(f"Files in {out}: verification.json, report.html")
    run.end(record["verdict"], sentence(record), mood="good" if result.matches else "bad", out=out)
    return SUCCESS if result.matches else NOT_RECOVERED


def _opened(target: str, width: int | None, model: Model) -> Oracle:
    """The target; one that does not tell its width is taken at that of the weights."""
    try:
        return open_target(target, width)
    except UnknownWidthError:
        return open_target(target, model.width)


def known_to(weights: str) -> float:
    """How well recovered weights are known: the tolerance in the record that `recover --out` wrote beside them, else 0."""
    try:
        record = json.loads((Path(weights.partition("#")[0]).parent / "recovery.json").read_text())
    except (OSError, ValueError):
        return 0.0
    tolerance = record.get("tolerance") if isinstance(record, dict) else None
    return float(tolerance) if isinstance(tolerance, int | float) and 0 <= tolerance < 1 else 0.0


def _deployment(
    target: str,
    checkpoint: Checkpoint,
    width: int | None,
    out: Path | None,
    run: Running,
    as_json: bool,
    options: dict[str, Any],
) -> int:
    """A checkpoint of any kind, run here."""
    from unsoftmax.deployment import verify_deployment
    from unsoftmax.report import save
    from unsoftmax.report.common import command_line, to_json
    from unsoftmax.report.deployment import deployment_record, deployment_report

    settings = {key: options[key] for key in ("precision", "max_length", "max_norm", "seed")}
    with run.limited() as until, stdout_kept(as_json):
        endpoint = run.timed(endpoint_of(target, width, checkpoint, options), until)
        result = verify_deployment(endpoint, checkpoint, queries=options["check"] or options["queries"], **settings)
    record = deployment_record(result, command=command_line(), authorised_by=run.authorised_by)
    if out is not None:
        save(out, "verification.json", record, deployment_report(record))
    run.export(record)
    if as_json:
        click.echo(to_json(record))
    else:
        tell(record)
        if out is not None:
            click.echo(f"Files in {out}: verification.json, report.html")
    run.end(record["verdict"].replace("_", " "), record["sentence"], mood="good" if result.matches else "bad", out=out)
    return result.verdict.code


def endpoint_of(target: str, width: int | None, checkpoint: Checkpoint, options: dict[str, Any]) -> Any:
    """The endpoint; one that does not tell its width (SGLang) is taken at the checkpoint's."""
    silent = target.startswith("sglang+") and width is None
    return open_target(
        target, checkpoint.width if silent else width, heads=options.get("heads"), trust_pickle=bool(options.get("trust_pickle"))
    )


def tell(record: dict[str, Any]) -> None:
    """Print a verification of a deployment."""
    click.echo(
        f"{record['queries']} sequences in {record['calls']} calls; arithmetic {record['precision']}, "
        f"rounding {record['noise']:.1e} of the spread, deviations {record['deviation']:.1e}."
    )
    for layer, size in record["smallest"].items():
        if record["matches"]:
            what = "no change" if size is None else f"a change of {size:.1e}"
            say(f"{layer}: {what} of {record['weakest'][layer]} would have shown.")
    for note in record["notes"]:
        say(note)
    if record["unseen"]:
        say(f"Not seen: {', '.join(record['unseen'][:6])}.")
    say(f"{record['verdict'].replace('_', ' ')}: {record['sentence']}", indent=0)
    if record["change"] is not None and record["change"]["others"]:
        say(f"Nearly as likely: {', '.join(record['change']['others'][:4])}.")
    if not record["matches"]:
        say(f"Next: {record['next'][0].replace('`', '')}")
