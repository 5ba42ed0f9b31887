"""The audit as one self-contained HTML page."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from unsoftmax.report import figures
from unsoftmax.report.audit_screen import NOTES, headings, rows, spell, stopped


def audit_page(record: dict[str, Any]) -> str:
    """The report of an audit as HTML; every number comes from ``record``, as in ``audit.json``."""
    environment = Environment(loader=PackageLoader("unsoftmax.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("audit.html.j2").render(
        record=record,
        headings=headings(record),
        rows=rows(record),
        stopped=stopped(record),
        notes=NOTES,
        success=record["exit_code"] == 0 and record["verdict"] != "EXTRACTABLE",
        facts=_facts(record),
        messages=[(cell["name"], cell["status"], cell["message"]) for cell in record["cells"]],
        pictures=_pictures(record),
        reproduction=_reproduction(record),
    )


def _facts(record: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [
        ("target", record["target"]),
        ("token width", str(record["width"])),
        ("spread of honest answers", f"{record['spread']:.3g}"),
        ("budget of each row", f"{record['budget']:,} queries"),
        ("honest questions", f"{record['honest_questions']:,}, tokens of standard normal entries, 1 to 32 of them"),
        ("time of the audit", spell(record["seconds"])),
    ]
    if record["gate"] is not None:
        facts.append(("gate", f"{record['gate']['condition']}: {'failed' if record['gate']['failed'] else 'passed'}"))
    return facts


def _pictures(record: dict[str, Any]) -> list[tuple[str, Markup]]:
    """Drawings with their captions; the SVG escapes its own text."""
    names = [cell["name"] for cell in record["cells"]]
    errors = figures.defences([cell["error"] for cell in record["cells"]], names, "Error of the extracted model, by defence")
    honest = figures.defences(
        [cell["honest_cost_relative"] for cell in record["cells"]], names, "Error added to honest answers, by defence"
    )
    return [
        ("Error of the extracted model over the spread of honest answers; a longer bar is a worse copy", Markup(errors)),
        ("Error that the defence adds to honest answers, over their spread; a longer bar costs users more", Markup(honest)),
    ]


def _reproduction(record: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [
        ("command", record["command"]),
        ("version", f"unsoftmax {record['version']}"),
        *((name, value) for name, value in record["versions"].items()),
        ("seed", str(record["seed"])),
    ]
    return facts + [(f"journal SHA-256, {cell['name']}", cell["journal"]) for cell in record["cells"] if cell["journal"]]
