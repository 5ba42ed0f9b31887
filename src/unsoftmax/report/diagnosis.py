"""A diagnosis as data and as a report."""

from __future__ import annotations

import dataclasses
from typing import Any

from unsoftmax.families import named
from unsoftmax.recognition.diagnosis import Diagnosis
from unsoftmax.report import figures
from unsoftmax.report.chapter import Chapter, Figure, Report, Table, Text
from unsoftmax.report.common import closing, floor_facts, plain, shared
from unsoftmax.report.next_steps import after_diagnosis
from unsoftmax.report.story import subject
from unsoftmax.report.told import Teller


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
    record["next"] = after_diagnosis(record)
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
            Chapter("What now", sentences=record["next"]),
            *_evidence(tell),
            Chapter("What recovery would cost", sentences=cost, figures=drawn),
            Chapter("What cannot be known", sentences=[_unknown(record)]),
            *closing(tell),
        ],
    )


def _unknown(record: dict[str, Any]) -> str:
    if not record["inside"]:
        return (
            "Nothing beyond the tests above: no parameter is read by a diagnosis, and a target outside the families may be any "
            "model."
        )
    return f"By any questions: {named(record['family']).unknown}."


def _evidence(tell: Teller) -> list[Chapter]:
    """The tests that failed, and folded, all of them."""
    rows: list[list[Text]] = [
        [
            item["test"],
            "pass" if item["passed"] else "FAIL",
            item["sentence"],
            tell(f"{{/evidence/{i}/number:.2g}}"),
            tell(f"{item['bound']} {{/evidence/{i}/threshold:.2g}}"),
        ]
        for i, item in enumerate(tell.record["evidence"])
    ]
    headings = ["Test", "Result", "What it says", "Measured", "Passes if"]
    failed = [row for row in rows if row[1] == "FAIL"]
    words = "Every test was passed." if not failed else "These tests failed; all others were passed."
    told = Chapter("The evidence", sentences=[words], table=Table(headings, failed, words=3) if failed else None)
    return [told, Chapter("Every test", table=Table(headings, rows, words=3), folded=True)]
