"""``unsoftmax diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unsoftmax.cli.options import json_option, length_option, norm_option, out_option, seed_option, width_option
from unsoftmax.cli.outcome import DRIFTING, NOT_RECOVERED, SUCCESS
from unsoftmax.cli.progress import progress_bar, stdout_kept
from unsoftmax.cli.recover import make_folder
from unsoftmax.cli.running import Running, running
from unsoftmax.cli.targets import HELP, open_target
from unsoftmax.cli.wording import hanging

if TYPE_CHECKING:
    from unsoftmax.recognition.diagnosis import Diagnosis


@click.command(epilog=HELP)
@click.argument("target")
@width_option
@norm_option
@length_option
@seed_option("Seed of the random probes")
@out_option("diagnosis.json and the report")
@running(asks=True, gate=True)
@json_option
def diagnose(
    target: str,
    width: int | None,
    max_norm: float | None,
    max_length: int | None,
    seed: int,
    out: Path | None,
    run: Running,
    as_json: bool,
) -> int:
    """Tell which family TARGET belongs to, with the evidence; at most 200 + 4 width queries.

    Exit code 0 if it is inside a family that can be recovered, 1 if not, 5 if it changed while it was asked.
    """
    from unsoftmax.diagnosing import diagnosed
    from unsoftmax.report import save
    from unsoftmax.report.common import command_line, to_json
    from unsoftmax.report.diagnosis import diagnosis_record, diagnosis_report

    if out is not None:
        make_folder(out)
    with run.limited() as until, stdout_kept(as_json), progress_bar(not as_json, run.view) as tell:
        oracle = open_target(target, width)
        result = diagnosed(run.timed(oracle, until), max_norm=max_norm, max_length=max_length, seed=seed, on_progress=tell)
    record = diagnosis_record(
        result, target=target, width=oracle.width, seed=seed, command=command_line(), authorised_by=run.authorised_by
    )
    if out is not None:
        save(out, "diagnosis.json", record, diagnosis_report(record))
    run.export(record)
    if as_json:
        click.echo(to_json(record))
    else:
        click.echo("\n".join(story(result, record)))
        if out is not None:
            click.echo(f"Files in {out}: diagnosis.json, report.html")
    run.end(record["verdict"], result.reason, mood="good" if result.inside else "bad", out=out)
    if "changed" in result.family:
        return DRIFTING
    return SUCCESS if result.inside else NOT_RECOVERED


def story(result: Diagnosis, record: dict[str, Any]) -> list[str]:
    """The diagnosis as lines of text, from the facts to the verdict and the next command."""
    target = record["target"]
    facts = [f"width {record['width']}", f"answers {result.answers}", f"precision {result.floor.kind}"]
    for name, value in (
        ("constant", result.constant),
        ("bias", result.bias),
        ("causal", result.causal),
        ("residual", result.residual),
    ):
        if value is not None:
            facts.append(f"{name} {'yes' if value else 'no'}")
    lines = [
        f"Target     {target}",
        hanging("Facts      ", ", ".join(facts)),
        f"Asked      {result.queries} queries",
        "",
        f"Evidence   {'':<24} {'measured':>8}   passes if",
    ]
    for item in record["evidence"]:
        sign = "≤" if item["bound"] == "at most" else "≥"
        number, threshold = ("–" if value is None else f"{value:.2g}" for value in (item["number"], item["threshold"]))
        judged = "pass" if item["passed"] else "FAIL"
        lines.append(hanging(f"  {judged}  {item['test']:<24} {number:>9}  {sign} {threshold:<9} ", item["sentence"]))
    verdict = f"{'INSIDE' if result.inside else 'OUTSIDE'}: {result.family.removeprefix('outside: ')}. {result.reason}"
    lines += ["", hanging("", verdict)]
    if result.bill is not None:
        price = f"{result.bill.low} to {result.bill.high} queries: " if result.bill.low is not None else ""
        lines += [hanging("", f"Recovery would cost {price}{result.bill.formula}."), f"Next: unsoftmax recover {target}"]
    else:
        lines += [hanging("Next: ", sentence.replace("`", "")) for sentence in record["next"][:1]]
    return lines
