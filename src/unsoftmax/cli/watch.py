"""``unsoftmax watch``."""

from __future__ import annotations

import re
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from unsoftmax.cli.options import check_option, json_option, length_option, norm_option, width_option
from unsoftmax.cli.progress import stdout_kept
from unsoftmax.cli.recover import make_folder
from unsoftmax.cli.running import Running, running
from unsoftmax.cli.targets import HELP
from unsoftmax.cli.verify import endpoint_of, heads_option, pickle_option, precision_option, tell, weights_of
from unsoftmax.safe_files import write_text


class Span(click.ParamType[float]):
    """A time such as 30s, 10m, 1h or 1d, in seconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value))
        if found is None or float(found[1]) == 0:
            self.fail(f"{value!r} is no time; write 30s, 10m, 1h or 1d.", param, ctx)
        return float(found[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[found[2]]


@click.command(epilog=HELP)
@click.argument("endpoint")
@click.argument("checkpoint")
@click.option("--every", type=Span(), required=True, help="Time from check to check: 30s, 10m, 1h, 1d.")
@click.option("--times", type=click.IntRange(min=1), help="End after this many checks; else with the first that does not match.")
@click.option(
    "--failures",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="End when the endpoint has failed in this many checks in a row.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="watch",
    show_default=True,
    help="Folder for history and report.",
)
@click.option(
    "--on-change", type=click.Path(path_type=Path, dir_okay=False), help="File to write the record to when the verdict changes."
)
@click.option("--queries", type=click.IntRange(min=8), default=240, show_default=True, help="Sequences to ask in each check.")
@width_option
@norm_option
@heads_option
@pickle_option
@precision_option
@length_option
@check_option
@running(asks=True, gate=True)
@json_option
def watch(
    endpoint: str,
    checkpoint: str,
    every: float,
    times: int | None,
    failures: int,
    out: Path,
    on_change: Path | None,
    width: int | None,
    run: Running,
    as_json: bool,
    **options: Any,
) -> int:
    """Verify ENDPOINT against CHECKPOINT again and again, with fresh questions each time.

    History and report lie in --out and go on where they stopped. Ends with the exit code of the last check: at once when it does
    not match, or after --times checks. An endpoint that fails is tried again at the next check, if it ever answered one.
    """
    from unsoftmax.deployment import Deployment, verify_deployment
    from unsoftmax.deployment.history import History, changed, failed, failures_in_a_row
    from unsoftmax.errors import TargetError, tried
    from unsoftmax.oracles import Metered
    from unsoftmax.report import save
    from unsoftmax.report.common import command_line, to_json
    from unsoftmax.report.deployment import deployment_record, timeline_report

    make_folder(out)
    known = weights_of(checkpoint, heads=options["heads"], trust_pickle=options["trust_pickle"])
    if not hasattr(known, "tensors"):
        raise click.UsageError(f"{checkpoint} is a model of one family; watch takes a folder or a torch module (FILE.py:NAME).")
    history = History(out / "history.sqlite", endpoint, checkpoint)
    settings = {key: options[key] for key in ("precision", "max_length", "max_norm")}

    def check(until: float | None) -> tuple[Deployment | TargetError, int]:
        opened = tried(partial(endpoint_of, endpoint, width, known, options), TargetError)
        if isinstance(opened, TargetError):
            return opened, 0
        meter = Metered(run.timed(opened, until))
        queries = options["check"] or options["queries"]
        return tried(partial(verify_deployment, meter, known, queries=queries, **settings), TargetError), meter.spent

    done = 0
    with run.limited() as until:
        while True:
            begun = time.monotonic()
            with stdout_kept(as_json):
                result, sent = check(until)
            if isinstance(result, TargetError):
                record = failed(history.checks(), result, sent)
            else:
                record = deployment_record(result, command=command_line(), authorised_by=run.authorised_by)
            verdict = record["verdict"].replace("_", " ")
            if run.view is not None:
                run.view.count(f"check {done + 1}: {verdict}", record["queries"])
            history.add(record)
            checks = history.checks()
            timeline = timeline_record(checks, record)
            save(out, "watch.json", timeline, timeline_report(timeline))
            if as_json:
                click.echo(to_json(record))
            elif isinstance(result, TargetError):
                click.echo(f"{checks[-1].at}  {verdict}  ({result})")
            else:
                click.echo(f"{checks[-1].at}  {verdict}  ({record['excess']:.2g} of what is explained)")
            if changed(checks) and on_change is not None:
                write_text(on_change, to_json(record) + "\n")
            done += 1
            if isinstance(result, TargetError):
                if done == times or failures_in_a_row(checks) >= failures:
                    raise result
            elif done == times or (times is None and not result.matches):
                run.export(record)
                if not as_json:
                    tell(record)
                run.end(verdict, record["sentence"], mood="good" if result.matches else "bad", out=out)
                return result.verdict.code
            time.sleep(max(0.0, every - (time.monotonic() - begun)))


def timeline_record(checks: list[Any], latest: dict[str, Any]) -> dict[str, Any]:
    """The timeline as data."""
    from unsoftmax.report.common import plain

    verdicts = [check.verdict for check in checks]
    kept = ("endpoint", "checkpoint", "date", "commit", "authorised_by", "scope", "version", "versions", "command", "seed")
    shared = {"schema": "unsoftmax-watch/1", **{key: latest[key] for key in kept}}
    listed = [
        {
            "at": check.at,
            "verdict": check.verdict,
            "excess": check.excess,
            "queries": check.queries,
            "sentence": check.record["sentence"],
        }
        for check in checks
    ]
    changes = sum(a != b for a, b in pairwise(verdicts))
    return plain({**shared, "count": len(checks), "changes": changes, "checks": listed})  # type: ignore[no-any-return]
