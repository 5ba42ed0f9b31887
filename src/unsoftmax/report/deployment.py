"""A deployment held against a checkpoint, as data and as a report; and the timeline of a watched one."""

from __future__ import annotations

import dataclasses
from typing import Any

from unsoftmax.deployment.results import Deployment, Verdict
from unsoftmax.report import figures
from unsoftmax.report.chapter import Chapter, Figure, Report, Table, Text
from unsoftmax.report.common import closing, plain, shared
from unsoftmax.report.next_steps import after_deployment
from unsoftmax.report.story import subject
from unsoftmax.report.told import Teller, step


def deployment_record(result: Deployment, *, command: str, authorised_by: str | None = None) -> dict[str, Any]:
    """Everything about a verification, ready for JSON."""
    record = {
        **dataclasses.asdict(result),
        "verdict": result.verdict.name,
        "sentence": sentence(result),
        "matches": result.matches,
        "target": result.endpoint,
        "weights": result.checkpoint,
        "replicas": [dataclasses.asdict(version) for version in result.versions],
        **shared("deployment", authorised_by=authorised_by),
        "command": command,
    }
    record["next"] = after_deployment(record)
    return plain(record)  # type: ignore[no-any-return]  # a dict stays one


def sentence(result: Deployment) -> str:
    """The verdict in words, with what and where."""
    told = result.verdict.value
    if result.verdict is Verdict.MATCHES:
        sizes = list(result.smallest.values())
        seen = None if None in sizes else max((size for size in sizes if size is not None), default=None)
        tail = (
            f" Any one tensor off by {seen:.1e} of its size, in a random direction, would have shown." if seen is not None else ""
        )
        return f"{told[:-1]} ({result.precision}).{tail}"
    if result.verdict is Verdict.REPLICAS_DIFFER:
        shares = ", ".join(f"{v.share:.0%}{' (the checkpoint)' if v.matches else ''}" for v in result.versions)
        return f"{told} {len(result.versions)} versions answered, in these shares: {shares}."
    if result.change is None:
        return told
    exact = " Our own copy, changed in this way, answers as the endpoint does." if result.change.exact else ""
    return f"{told} Found: {result.change.words}.{exact}"


def deployment_report(record: dict[str, Any]) -> Report:
    """The whole report."""
    tell = Teller(record)
    match = record["matches"]
    return Report(
        title="Verification of a deployment",
        subject=subject(record),
        verdict=record["verdict"].replace("_", " "),
        sentence=record["sentence"],
        mood="good" if match else "bad",
        headlines=[
            (tell("{/excess:.2g}"), "strongest deviation over what rounding explains"),
            (tell("{/noise:.1e}"), "rounding of an answer, relative"),
            (tell("{/queries:,}"), "queries"),
        ],
        chapters=[
            _asked(tell),
            Chapter("What now", sentences=record["next"]),
            _deviations(tell),
            *_change(tell),
            _smallest(tell),
            Chapter("What cannot be known", sentences=_unknown(tell)),
            *closing(tell),
        ],
    )


def _asked(tell: Teller) -> Chapter:
    facts: list[tuple[str, Text]] = [
        ("endpoint", tell.record["endpoint"]),
        ("checkpoint", tell.record["checkpoint"]),
        ("token width", tell("{/width}")),
        ("numbers in an answer", tell("{/outputs:,}")),
        ("arithmetic", tell.record["precision"]),
        ("asked", tell("{/queries:,} sequences in {/calls:,} calls, seed {/seed}")),
    ]
    return Chapter("What was compared", facts, sentences=tell.record["notes"])


def _deviations(tell: Teller) -> Chapter:
    bins: list[tuple[float, int]] = tell.record["histogram"]
    rows = [
        (tell(f"from {{/histogram/{i}/0:.3g}}"), float(count), tell(f"{{/histogram/{i}/1:,}}")) for i, (_, count) in enumerate(bins)
    ]
    beyond = sum(edge < tell.record["threshold"] for edge, _ in bins)
    rows.insert(beyond, (tell("threshold {/threshold:.3g}"), 0.0, tell("–")))
    facts: list[tuple[str, Text]] = [
        ("deviation", tell("{/deviation:.2e} of the answers' spread")),
        ("rounding", tell("{/noise:.2e} of it, as twins show")),
        ("of other weights", tell("{/coherent:.2e} of it, as twins share")),
        ("against what is explained", tell("{/excess:.2g} times; more than 1 is a difference")),
    ]
    caption = "Answers by their deviation, in float32 roundings of the checkpoint; beyond the threshold a single one stands out"
    return Chapter("How far answers deviate", facts, figures=[[Figure(caption, figures.bars(rows))]])


def _change(tell: Teller) -> list[Chapter]:
    record = tell.record
    if record["replicas"]:
        rows = [
            [f"version {i + 1}", "yes" if v["matches"] else "no", tell(f"{{/replicas/{i}/share:.0%}}")]
            for i, v in enumerate(record["replicas"])
        ]
        return [
            Chapter(
                "Versions behind the endpoint", table=Table(["version", "the checkpoint's", "share of requests"], rows, words=2)
            )
        ]
    change = record["change"]
    if change is None:
        return []
    facts: list[tuple[str, Text]] = [("kind", change["kind"]), ("where", ", ".join(change["where"]))]
    if change["size"] is not None:
        facts.append(("size", tell("{/change/size:.1e} of the weights' own")))
    if change["rank"] is not None:
        facts.append(("rank", tell("{/change/rank}")))
    if change["explained"]:
        facts.append(("explains", tell("{/change/explained:.2%} of the deviations")))
    words = change["words"] if "." in change["words"].split()[0] else f"{change['words'][:1].upper()}{change['words'][1:]}"
    others = [f"Nearly as likely: {', '.join(change['others'])}."] if change["others"] else []
    return [Chapter("What changed", facts, sentences=[f"{words}.", *others])]


def _smallest(tell: Teller) -> Chapter:
    rows: list[list[Text]] = [
        [layer, tell.record["weakest"][layer], tell(f"{{/smallest/{step(layer)}:.1e}}")] for layer in tell.record["smallest"]
    ]
    note = "Relative rms change of that tensor, in a random direction, that this check would have noticed."
    return Chapter(
        "The smallest change that would show", table=Table(["layer", "tensor that shows least", "change"], rows, words=2, note=note)
    )


def _unknown(tell: Teller) -> list[Text]:
    unseen = tell.record["unseen"]
    if tell.record["change"] is not None:
        return [
            "What and where are the likeliest of the explanations that were tried: one change, in one place or everywhere. Several "
            "changes at once are told as the one that explains them best; what alters answers on the way is no change of weights, "
            "but is told as one."
        ]
    told = (
        "A match says that the endpoint answers as these weights do, on fresh sequences that it could not foresee, for every "
        "change of at least the sizes above. Other weights with the same function would match as well. Tensors that no answer "
        "depends on (the table of tokens, where embeddings are sent) are not seen at all. A server that recognises these questions "
        "could answer them honestly and others not."
    )
    return [told, f"Not seen here: {', '.join(unseen[:8])}{' …' if len(unseen) > 8 else ''}."] if unseen else [told]


def timeline_report(record: dict[str, Any]) -> Report:
    """The checks of a watched deployment, one row each."""
    tell = Teller(record)
    told = ["–" if check["excess"] is None else tell(f"{{/checks/{i}/excess:.2g}}") for i, check in enumerate(record["checks"])]
    rows: list[list[Text]] = [
        [check["at"], check["verdict"].replace("_", " "), excess, tell(f"{{/checks/{i}/queries:,}}")]
        for i, (check, excess) in enumerate(zip(record["checks"], told, strict=True))
    ]
    last = record["checks"][-1]
    drawn = [
        (check["at"][5:16].replace("T", " "), check["excess"], excess)
        for check, excess in zip(record["checks"], told, strict=True)
        if check["excess"] is not None
    ]
    return Report(
        title="A watched deployment",
        subject=str(record["endpoint"]),
        verdict=last["verdict"].replace("_", " "),
        sentence=last["sentence"],
        mood="good" if last["verdict"] == "MATCHES" else "bad",
        headlines=[(tell("{/count:,}"), "checks"), (tell("{/changes:,}"), "changes of the verdict")],
        chapters=[
            Chapter(
                "Timeline",
                [("endpoint", record["endpoint"]), ("checkpoint", record["checkpoint"])],
                figures=[
                    [
                        Figure(
                            "Strongest deviation over what rounding explains; above 1 it differs",
                            figures.bars(drawn, logarithmic=True),
                        )
                    ]
                ],
                table=Table(["checked", "verdict", "against what is explained", "queries"], rows, words=2),
            ),
            *closing(tell),
        ],
    )
