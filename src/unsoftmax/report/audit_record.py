"""An audit as plain data: what ``audit.json`` holds and every other view is drawn from."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from unsoftmax.audit import Audit, outcome
from unsoftmax.audit.sweep import bill, duration

SCOPE = (
    "This audit asked the target only questions that its interface accepts, on behalf of its owner or with the owner's permission. "
    "It tried the extraction methods of this tool and no others; a defence that stops them here may not stop other attacks."
)
APPLIED_HERE = (
    "The target is remote: its present state was measured as it answers, and every defence was applied to its answers on this "
    "side, as if the owner had put it there."
)
MEASURED = "The target is local: every row was measured by running the extraction against the defended target."
MITIGATIONS = (
    ("MITRE ATLAS AML.T0024.002", "Extract ML Model: the attack that this audit carries out."),
    (
        "MITRE ATLAS AML.M0002",
        "Passive ML Output Obfuscation: rounding, noise and lower precision, the rows above that change answers.",
    ),
    ("MITRE ATLAS AML.M0004", "Restrict Number of ML Model Queries: the rows with a quota or a rate limit."),
    ("OWASP ML05:2023", "Model Theft: the risk in the OWASP Machine Learning Security Top Ten."),
    ("NIST AI 100-2 NISTAML.031", "Model Extraction: the attack class in the NIST taxonomy."),
)


def audit_record(audit: Audit, *, target: str, command: str, remote: bool) -> dict[str, Any]:
    """Everything about an audit, ready for JSON."""
    conclusion = audit.conclusion
    cells = []
    for cell in audit.cells:
        plain = cell.to_dict()
        settings = {key: value for key, value in plain.pop("defence").items() if value is not None and key != "name"}
        cells.append(
            {
                "name": cell.defence.name,
                "settings": settings,
                "outcome": outcome(cell).words,
                **plain,
                "honest_cost_relative": cell.honest_cost / audit.spread if audit.spread > 0 else None,
                "price": None if audit.price is None else bill(cell, audit.price),
                "time": duration(cell, audit.rate),
            }
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
        **audit.facts,
        "scope": [SCOPE, APPLIED_HERE if remote else MEASURED],
        "mitigations": [list(pair) for pair in MITIGATIONS],
        "command": command,
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__},
    }
    return _finite(record)  # type: ignore[no-any-return]  # a dict stays one


def audit_json(record: dict[str, Any]) -> str:
    """The record as one JSON document."""
    return json.dumps(record, indent=2, allow_nan=False)


def save_audit(record: dict[str, Any], folder: Path) -> None:
    """Write ``audit.json`` and ``report.html``; readable by the owner only."""
    from unsoftmax.report.audit_page import audit_page

    for name, text in (("audit.json", audit_json(record) + "\n"), ("report.html", audit_page(record))):
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)


def command_line() -> str:
    """The command that is running, for the reproduction record."""
    return "unsoftmax " + " ".join(sys.argv[1:])


def _finite(value: Any) -> Any:
    """Numbers that JSON cannot hold become None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
