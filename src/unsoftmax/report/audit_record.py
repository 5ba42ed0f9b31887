"""An audit as plain data: what ``audit.json`` holds and every other view is drawn from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from unsoftmax.audits import Audit, Origin, outcome
from unsoftmax.audits.sweep import bill, duration
from unsoftmax.report.audit_advice import advice
from unsoftmax.report.common import catalogues, plain, shared
from unsoftmax.report.record import recovery_record


def audit_record(
    audit: Audit, *, target: str, command: str, remote: bool, authorised_by: str | None = None, currency: str | None = None
) -> dict[str, Any]:
    """Everything about an audit, ready for JSON."""
    conclusion = audit.conclusion
    cells = []
    for cell in audit.cells:
        known = cell.to_dict()
        settings = {key: value for key, value in known.pop("defence").items() if value is not None and key != "name"}
        time = duration(cell, audit.rate)
        cells.append(
            {
                "name": cell.defence.name,
                "settings": settings,
                "outcome": outcome(cell).words,
                **known,
                "honest_cost_relative": cell.honest_cost / audit.spread if audit.spread > 0 else None,
                "price": None if audit.price is None else bill(cell, audit.price),
                "time": time,
                "time_told": None if time is None else spell(time),
            }
        )
    recovery = audit.cells[0].recovery
    scope = (
        "The target is remote: its present state was measured as it answers, and every defence was applied to its answers on this "
        "side, as if the owner had put it there."
        if remote
        else "The target is local: every row was measured by running the extraction against the defended target."
    )
    record = {
        "verdict": conclusion.verdict.words,
        "sentence": conclusion.sentence,
        "exit_code": conclusion.exit_code,
        "gate": None if conclusion.gate is None else {"condition": conclusion.gate, "failed": conclusion.gate_failed},
        "stopped_by": list(conclusion.stopped_by),
        "weakened_by": list(conclusion.weakened_by),
        "target": target,
        "remote": remote,
        "cells": cells,
        "spread": audit.spread,
        "rate": audit.rate,
        "price_per_1000": audit.price,
        "currency": currency,
        **asdict(audit.run),
        "present": None if recovery is None else recovery_record(recovery),
        **shared("audit", scope, authorised_by=authorised_by, date=audit.run.date),
        "command": command,
    }
    record["curves"] = [asdict(curve) for curve in audit.curves]
    record |= {"advice": advice(record), "catalogues": catalogues()}
    return plain(record)  # type: ignore[no-any-return]  # a dict stays one


def save_audit(audit: Audit, folder: str | Path) -> None:
    """Write ``audit.json`` and ``report.html`` of an audit that was run from Python."""
    from unsoftmax.report.audit_story import audit_report
    from unsoftmax.report.files import save

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    origin = audit.origin or Origin(target="a Python callable", remote=False, currency=None, authorised_by=None)
    record = audit_record(
        audit,
        target=origin.target,
        command="",
        remote=origin.remote,
        authorised_by=origin.authorised_by,
        currency=origin.currency,
    )
    found = audit.cells[0].recovery
    save(folder, "audit.json", record, audit_report(record, None if found is None else found.model))


def spell(seconds: float) -> str:
    """A time for people."""
    for size, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.2g} s"
