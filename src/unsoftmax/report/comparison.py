"""Two audits side by side, before and after a change: as data and as a report."""

from __future__ import annotations

from typing import Any

from unsoftmax.errors import FileFormatError
from unsoftmax.report.audit_advice import ending
from unsoftmax.report.chapter import Chapter, Report, Table, Text
from unsoftmax.report.common import closing, plain, shared
from unsoftmax.report.told import Teller

WORDS = {"better": "better protected", "worse": "worse protected", "same": "as before", "new": "only after", "gone": "only before"}


def comparison_record(before: dict[str, Any], after: dict[str, Any], *, names: tuple[str, str], command: str) -> dict[str, Any]:
    """Everything about a comparison, ready for JSON.

    Raises:
        FileFormatError: one of the two is no audit.
    """
    for name, record in zip(names, (before, after), strict=True):
        if "cells" not in record or not str(record.get("schema", "")).startswith("unsoftmax-audit/"):
            raise FileFormatError(f"{name} is no audit of this version; make one with `unsoftmax audit TARGET --out FOLDER`.")
    old, new = ({cell["name"]: cell for cell in record["cells"]} for record in (before, after))
    rows = [_row(name, old.get(name), new.get(name)) for name in dict.fromkeys((*old, *new))]
    changes = {change: sum(row["change"] == change for row in rows) for change in WORDS}
    first = rows[0]["change"]
    verdict = {"better": "BETTER PROTECTED", "worse": "WORSE PROTECTED"}.get(first, "AS BEFORE")
    record = {
        "verdict": verdict,
        "sentence": f"The target as it stands: {before['verdict'].lower()} before, {after['verdict'].lower()} after.",
        "before": _side(before, names[0]),
        "after": _side(after, names[1]),
        "rows": rows,
        "changes": changes,
        "alike": before["budget"] == after["budget"] and before["width"] == after["width"],
        "seed": None,
        **shared("comparison"),
        "command": command,
    }
    return plain(record)  # type: ignore[no-any-return]  # a dict stays one


def comparison_report(record: dict[str, Any]) -> Report:
    """The whole report of a comparison."""
    tell = Teller(record)
    sides: list[tuple[str, Text]] = []
    for side in ("before", "after"):
        told = record[side]
        sides.append((side, f"{told['verdict']}, {told['target']}, {told['date'][:10]} ({told['file']})"))
        sides.append((f"budget {side}", tell(f"{{/{side}/budget:,}} queries a row")))
    notes = [] if record["alike"] else ["Budget or width differ: rows are compared as they were measured, not as equals."]
    return Report(
        title="Comparison of two audits",
        subject=f"{record['after']['target']} · {record['date'][:10]}",
        verdict=record["verdict"],
        sentence=record["sentence"],
        mood={"BETTER PROTECTED": "good", "WORSE PROTECTED": "bad"}.get(record["verdict"], "open"),
        headlines=[
            (tell(f"{{/changes/{change}}}"), f"rows {words}") for change, words in WORDS.items() if record["changes"][change]
        ],
        chapters=[Chapter("The two audits", sides, notes), _rows(tell), *closing(tell)],
    )


def _rows(tell: Teller) -> Chapter:
    rows: list[list[Text]] = []
    for i, row in enumerate(tell.record["rows"]):
        at = f"/rows/{i}"
        rows.append(
            [
                row["name"],
                WORDS[row["change"]],
                *(row[side]["outcome"] if row[side] else "–" for side in ("before", "after")),
                *(tell(f"{{{at}/{side}/queries:,}}") if row[side] else "–" for side in ("before", "after")),
                *(tell(f"{{{at}/{side}/error:.1e}}") if row[side] else "–" for side in ("before", "after")),
            ]
        )
    headings = ["Defence", "Change", "Before", "After", "Queries before", "after", "Error before", "after"]
    marks = [{"better": "stops", "worse": "spoils"}.get(row["change"], "") for row in tell.record["rows"]]
    note = "Better: extraction ends in less than before (a close copy, then a rough one, then none). Rows are matched by name."
    return Chapter("Row by row", table=Table(headings, rows, words=4, note=note, marks=marks))


def _row(name: str, old: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any]:
    if old is None or new is None:
        change = "new" if old is None else "gone"
    else:
        worst_first = ("fails", "open", "spoils", "stops")
        step = worst_first.index(ending(new)) - worst_first.index(ending(old))
        change = "better" if step > 0 else "worse" if step < 0 else "same"
    keys = ("outcome", "queries", "error", "honest_cost_relative")
    sides = {side: cell and {key: cell[key] for key in keys} for side, cell in (("before", old), ("after", new))}
    return {"name": name, "change": change, **sides}


def _side(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {"file": name, **{key: record[key] for key in ("target", "verdict", "budget", "seed", "date", "version")}}
