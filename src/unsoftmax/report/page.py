"""One self-contained HTML page: escaped, without script, readable on a phone and on paper."""

from __future__ import annotations

from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from unsoftmax.models import Attention, Model, Transformer
from unsoftmax.report import figures
from unsoftmax.report.record import recovery_record
from unsoftmax.report.story import chapters, verdict
from unsoftmax.results import Recovery

SHOWN_HEADS = 16  # heads drawn one by one; the rest is in the weights file


def recovery_page(recovery: Recovery) -> str:
    """The report of a recovery as HTML."""
    record = recovery_record(recovery)
    return _render(
        "page.html.j2",
        title="unsoftmax: recovery report",
        verdict=verdict(record),
        success=recovery.status.success,
        advice=recovery.status.value,
        chapters=chapters(record),
        pictures=_pictures(recovery, record),
        record=_reproduction(record),
    )


def _render(template: str, **values: Any) -> str:
    environment = Environment(loader=PackageLoader("unsoftmax.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template).render(**values)


def _pictures(recovery: Recovery, record: dict[str, Any]) -> list[tuple[str, Markup]]:
    """Drawings with their captions; the SVG escapes its own text."""
    drawn: list[tuple[str, str]] = []
    if recovery.status.success:
        drawn += _model_pictures(recovery.model)
    if recovery.check is not None and recovery.check.by_length:
        lengths = recovery.check.by_length
        labels = [f"{n} tokens" for n in lengths]
        drawn.append(
            (
                "Error on fresh sequences, by length",
                figures.bars(list(lengths.values()), labels, "Largest error by length", logarithmic=True),
            )
        )
    phases = record.get("phases") or {}
    if phases:
        counts = [phase["queries"] for phase in phases.values()]
        drawn.append(("Queries by phase", figures.bars(counts, list(phases), "Queries by phase")))
    return [(caption, Markup(svg)) for caption, svg in drawn]  # figures escape every text they hold


def _model_pictures(model: Model | None) -> list[tuple[str, str]]:
    head = model.attention if isinstance(model, Transformer) else model
    if not isinstance(head, Attention):
        return []
    drawn = []
    for h, W in enumerate(head.W[:SHOWN_HEADS]):
        name = "W" if head.heads == 1 else f"W of head {h + 1}"
        drawn.append((name, figures.heat_map(W, name)))
        drawn.append(
            (f"Singular values of {name}", figures.line(np.linalg.svd(W, compute_uv=False).tolist(), f"Singular values of {name}"))
        )
    if head.V is not None:
        values = head.V if head.V.ndim == 2 else head.V.reshape(-1, head.V.shape[2]).T
        drawn.append(("Values V", figures.heat_map(values, "Values V")))
    return drawn


def _reproduction(record: dict[str, Any]) -> list[tuple[str, str]]:
    journal = record.get("journal") or {}
    return [
        ("command", str(record.get("command", "unsoftmax.recover (Python)"))),
        ("version", str(record["version"])),
        ("seed", str(record["seed"])),
        ("journal SHA-256", str(journal.get("sha256", "no journal"))),
        ("possibly asked twice", str(journal.get("possibly_asked_twice", 0))),
    ]
