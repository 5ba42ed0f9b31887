"""A diagnosis as data and as a report."""

from __future__ import annotations

import dataclasses
from typing import Any

from unsoftmax.recognition.diagnosis import Diagnosis
from unsoftmax.report import figures
from unsoftmax.report.chapter import Chapter, Figure, Report, Table, Text
from unsoftmax.report.common import closing, floor_facts, plain, shared
from unsoftmax.report.story import subject
from unsoftmax.report.told import Teller

UNKNOWN = {
    "attention": "Query and key matrices show only through their product W, value and output matrices only through V; a key bias "
    "does not show at all, heads have no order, and heads with equal W show as one.",
    "transformer": "Beside what one attention head hides, neurons of the network have no order, and one that never switches on "
    "shows only as part of the linear map.",
    "ffn": "Neurons have no order and each may be scaled against its output; one that never switches on does not show.",
    "attention-behind-network": "Only the scores W and c of the head are read; its values and the network behind stay unknown.",
}
OUTSIDE = "Nothing beyond the tests above: no parameter is read by a diagnosis, and a target outside the families may be any model."


def diagnosis_record(
    result: Diagnosis, *, target: str, width: int, seed: int | None, command: str, authorised_by: str | None = None
) -> dict[str, Any]:
    """Everything about a diagnosis, ready for JSON."""
    record = {
        "verdict": verdict(result),
        "target": target,
        "width": width,
        **dataclasses.asdict(result),
        "seed": seed,
        **shared("diagnosis", authorised_by=authorised_by),
        "command": command,
    }
    for item in record["evidence"]:
        item["bound"] = bound(item["number"], item["threshold"], item["passed"])
    return plain(record)  # type: ignore[no-any-return]  # a dict stays one


def bound(number: float, threshold: float, passed: bool) -> str:
    """On which side of its threshold a number passes, read off how it was judged.

    >>> bound(0.2, 1.0, True), bound(3.0, 1.0, False), bound(3.0, 1.0, True)
    ('at most', 'at most', 'at least')
    """
    return "at most" if (number <= threshold) == passed else "at least"


def verdict(result: Diagnosis) -> str:
    """The one line that everything ends with."""
    return f"{'INSIDE' if result.inside else 'OUTSIDE'}: {result.family.removeprefix('outside: ')}"


def diagnosis_report(record: dict[str, Any]) -> Report:
    """The whole report of a diagnosis."""
    tell = Teller(record)
    facts: list[tuple[str, Text]] = [
        ("target", record["target"]),
        ("token width", tell("{/width}")),
        ("answers", tell(record["answers"] + ("" if record["outputs"] is None else ", {/outputs} numbers"))),
        *floor_facts(tell),
    ]
    for name, key in (("constant b", "constant"), ("query bias c", "bias"), ("causal", "causal"), ("residual", "residual")):
        if record[key] is not None:
            facts.append((name, tell(f"{{/{key}}}")))
    headlines: list[tuple[Text, str]] = [(tell("{/queries:,}"), "queries asked")]
    if record["heads"]:
        headlines.append((tell("{/heads}"), "head" if record["heads"] == 1 else "heads"))
    bill = record["bill"]
    if bill is not None and bill["low"] is not None:
        headlines.append((tell("{/bill/low:,} to {/bill/high:,}"), "queries would recover it"))
    cost = ["Recovery has no price: the target is outside the families."]
    drawn = []
    if bill is not None:
        cost = [f"Formula: {bill['formula']}."]
        if bill["low"] is not None:
            rows = [
                ("this diagnosis", record["queries"], tell("{/queries:,}")),
                ("recovery, at least", bill["low"], tell("{/bill/low:,}")),
                ("recovery, at most", bill["high"], tell("{/bill/high:,}")),
            ]
            drawn = [[Figure("Queries", figures.bars(rows))]]
    return Report(
        title="Diagnosis report",
        subject=subject(record),
        verdict=record["verdict"],
        sentence=record["reason"],
        mood="good" if record["inside"] else "open",
        headlines=headlines,
        chapters=[
            Chapter("The target", facts),
            _evidence(tell),
            Chapter("What recovery would cost", sentences=cost, figures=drawn),
            Chapter("What cannot be known", sentences=[UNKNOWN.get(record["family"], OUTSIDE)]),
            *closing(tell),
        ],
    )


def _evidence(tell: Teller) -> Chapter:
    rows: list[list[Text]] = []
    for i, item in enumerate(tell.record["evidence"]):
        at = f"/evidence/{i}"
        rows.append(
            [
                item["test"],
                "pass" if item["passed"] else "FAIL",
                item["sentence"],
                tell(f"{{{at}/number:.2g}}"),
                tell(f"{item['bound']} {{{at}/threshold:.2g}}"),
            ]
        )
    return Chapter("The evidence", table=Table(["Test", "Result", "What it says", "Measured", "Passes if"], rows, words=3))
