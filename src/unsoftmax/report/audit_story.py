"""The story of an audit, told once for the screen and the page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unsoftmax.audits.verdict import CLOSE, ROUGH
from unsoftmax.models import Model
from unsoftmax.report import figures
from unsoftmax.report.audit_advice import ending, leaked
from unsoftmax.report.chapter import Chapter, Figure, Report, Table, Text
from unsoftmax.report.common import closing, succeeded
from unsoftmax.report.curve_figure import curve_figure
from unsoftmax.report.story import NEXT, subject
from unsoftmax.report.story import chapters as recovery_chapters
from unsoftmax.report.told import Teller
from unsoftmax.report.trade_figure import Point, trade


def audit_report(record: dict[str, Any], model: Model | None = None) -> Report:
    """The whole report of an audit; ``model`` is what was extracted from the target as it stands."""
    tell = Teller(record)
    return Report(
        title="Audit report",
        subject=subject(record),
        verdict=record["verdict"],
        sentence=record["sentence"],
        mood=mood(record),
        headlines=_headlines(tell),
        chapters=[
            _defences(tell),
            Chapter("What the owner can do", facts=[(name, text) for name, text in record["advice"]]),
            *_curves(tell),
            _endings(tell),
            *_present(tell, model),
            _target(tell),
            *closing(tell),
        ],
    )


def mood(record: dict[str, Any]) -> str:
    """What the verdict means to the owner: good where nothing could be extracted and no gate failed."""
    if record["exit_code"] != 0 or leaked(record["cells"][0]):
        return "bad"
    return "good" if record["verdict"] in ("NOT WITHIN BUDGET", "OUT OF FAMILY") else "open"


def _headlines(tell: Teller) -> list[tuple[Text, str]]:
    first = tell.record["cells"][0]
    told: list[tuple[Text, str]] = [(tell("{/cells/0/queries:,}"), "queries, as it stands")]
    if first["error"] is not None:
        told.append((tell("{/cells/0/error:.1e}"), "error of the part" if first.get("part") else "error of the copy"))
    if first["price"] is not None:
        told.append((tell("{/cells/0/price:.2f}" + money(tell.record)), "bill of the attacker"))
    if leaked(first):
        told.append((f"{len(tell.record['stopped_by'])} of {len(tell.record['cells']) - 1}", "defences stop it"))
    return told


def money(record: dict[str, Any]) -> str:
    """The currency of a price, after a space; nothing where none was told."""
    return f" {record['currency']}" if record.get("currency") else ""


def _target(tell: Teller) -> Chapter:
    record = tell.record
    facts: list[tuple[str, Text]] = [
        ("target", record["target"]),
        ("token width", tell("{/width}")),
        ("spread of honest answers", tell("{/spread:.3g}")),
        ("budget of each row", tell("{/budget:,} queries")),
        ("honest questions", tell("{/honest_questions:,}, tokens of standard normal entries, 1 to 32 of them")),
        ("time of the audit", tell("{/seconds:.1f} s")),
    ]
    if record["max_norm"] is not None:
        facts.append(("longest token", tell("{/max_norm:g}")))
    if record["gate"] is not None:
        facts.append(("gate", f"{record['gate']['condition']}: {'failed' if record['gate']['failed'] else 'passed'}"))
    return Chapter("The target", facts)


def table(tell: Teller) -> Table:
    """The table of defences, numbers rounded for people; a price only where one is known."""
    priced = tell.record["price_per_1000"] is not None
    rows: list[list[Text]] = []
    for i, cell in enumerate(tell.record["cells"]):
        at = f"/cells/{i}"
        rows.append(
            [
                cell["name"] + ("" if cell["measured"] else " *"),
                cell["outcome"] + ("  ◼ stops it" if i and ending(cell) == "stops" else ""),
                tell(f"{{{at}/queries:,}}"),
                tell(("~ " if cell["estimated"] else "") + f"{{{at}/error:.1e}}"),
                "none" if cell["honest_cost"] == 0 else tell(f"{{{at}/honest_cost_relative:.1e}}"),
                *([tell(f"{{{at}/price:.2f}}")] if priced else []),
                tell(f"{{{at}/time_told}}"),
            ]
        )
    price = f"Price,{money(tell.record)}" if money(tell.record) else "Price"
    marks = [ending(cell) if i else "" for i, cell in enumerate(tell.record["cells"])]
    return Table(
        ["Defence", "Outcome", "Queries", "Error", "User error", *([price] if priced else []), "Time"], rows, words=2, marks=marks
    )


def notes(record: dict[str, Any]) -> str:
    """What the columns mean."""
    unnamed = record["price_per_1000"] is not None and not record.get("currency")
    told = (
        "Error: largest deviation of the extracted model from undefended answers to honest questions, over their spread. "
        "User error: root mean square error that the defence adds to those answers, over the same. Time: to ask all questions, at "
        "the given rate or limit. ~: from the extraction's own error bars, since the target's noise hides the error. *: computed "
        "from the first row, not run. A quota or rate limit holds for one client; several accounts multiply it."
    )
    if any(cell.get("part") for cell in record["cells"]):
        told += (
            " What was extracted of this model cannot answer alone: its error is that of what heads do to very long tokens. "
            "Coarse answers and short tokens stop this way of reading it; other ways were not tried."
        )
    return told + (" Price: in the unit of --price; no currency was named." if unnamed else "")


def stopped(record: dict[str, Any]) -> list[str]:
    """Which defence would have stopped the extraction, and which only spoiled the copy."""
    if not leaked(record["cells"][0]):
        return ["The target as it stands was not extracted, so no defence is compared with it."]
    budget = f"within {record['budget']:,} queries"
    told = [f"Would have stopped the extraction {budget}: {'; '.join(record['stopped_by']) or 'none of these defences'}."]
    if record["weakened_by"]:
        told.append(
            f"Left only a rough, partial or unverified copy: {'; '.join(record['weakened_by'])}. More patience may refine it."
        )
    return told


def replayed(record: dict[str, Any]) -> list[str]:
    """What came from journals of an earlier run, where something did."""
    old = [cell for cell in record["cells"] if cell["replayed"]]
    if not old:
        return []
    count, again = (f"{sum(cell[name] for cell in old):,}" for name in ("replayed", "confirmed"))
    return [
        f"Replayed from journals: {count} answers, the oldest of {min(cell['answers_from'] for cell in old)}; "
        f"{again} questions were asked again now to confirm them."
    ]


def _defences(tell: Teller) -> Chapter:
    cells = tell.record["cells"]
    numbered = table(tell)
    rows = [[f"{i + 1}. {row[0]}", *row[1:]] for i, row in enumerate(numbered.rows)]
    points = [Point(str(i + 1), cell["honest_cost_relative"], cell["error"], ending(cell)) for i, cell in enumerate(cells)]
    told = "Each defence by the error it adds to honest answers and the error of the copy it leaves; the table holds the numbers."
    asked = [(cell["name"], cell["queries"], tell(f"{{/cells/{i}/queries:,}}")) for i, cell in enumerate(cells)]
    choice = Figure(
        "The choice of the owner: each number is a row of the table. Further up the stolen copy is worse, further right honest "
        "users pay more. Square: the extraction was stopped; ring: a rough or partial copy; disc: a close copy. Red band: a copy "
        "nobody can tell apart; yellow: a rough one; green: useless.",
        trade(points, told, CLOSE, ROUGH),
    )
    spent = Figure("Queries that the extraction took (logarithmic)", figures.bars(asked, logarithmic=True))
    return Chapter(
        "Defences against extraction",
        sentences=[*stopped(tell.record), *replayed(tell.record)],
        table=Table(numbered.headings, rows, words=2, note=notes(tell.record), marks=numbered.marks),
        figures=[[choice, spent]],
    )


def _curves(tell: Teller) -> list[Chapter]:
    """Error against queries, where it was measured."""
    curves = tell.record.get("curves") or []
    if not curves:
        return []
    numbers = {cell["name"]: str(i + 1) for i, cell in enumerate(tell.record["cells"])}
    rows: list[list[Text]] = [
        [
            curve["name"],
            *(
                tell(f"{{/curves/{i}/points/{k}/error:.1e}} from {{/curves/{i}/points/{k}/queries:,}}")
                for k in range(len(curve["points"]))
            ),
        ]
        for i, curve in enumerate(curves)
    ]
    drawn = curve_figure(
        [(numbers.get(curve["name"], "?"), curve["points"]) for curve in curves],
        "Error of the copy against queries asked, a line for each defence; the table below holds the numbers.",
        CLOSE,
    )
    headings = ["Defence", *(f"budget {point['budget']:,}" for point in curves[0]["points"])]
    caption = (
        "Error of the copy against queries, both logarithmic; numbers are rows of the table of defences, bands reach from the best "
    )
    return [
        Chapter(
            "Error against queries",
            figures=[[Figure(caption + "to the worst of several seeds.", drawn)]],
            table=Table(headings, rows, note="Error of the copy (median over the seeds) and the queries that it took; –: no copy."),
        )
    ]


def _endings(tell: Teller) -> Chapter:
    return Chapter(
        "How each extraction ended",
        folded=True,
        facts=[
            (cell["name"], words if succeeded(cell["status"]) and cell["measured"] else f"{words}. {cell['message']}")
            for cell in tell.record["cells"]
            for words in [cell["status"].replace("_", " ").capitalize()]
        ],
    )


def _present(tell: Teller, model: Model | None) -> list[Chapter]:
    """The extraction from the target as it stands, chapter by chapter."""
    if tell.record["present"] is None:
        return []
    told = recovery_chapters(Teller(tell.record["present"], "/present"), model)
    names = {
        "The target": "How the target answers",
        "What was found": "What was extracted from the target as it stands",
        "How it was checked": "How the copy was checked",
        "What it cost": "What the copy cost",
        "What cannot be known": "What the copy cannot tell",
    }
    return [
        replace(c, title=names.get(c.title, c.title), facts=c.facts[1:] if c.title == "The target" else c.facts, folded=True)
        for c in told
        if c.title != NEXT
    ]
