"""What every record and every page share: scope, permission, catalogues of attacks, and how to reproduce the run."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from typing import Any

import numpy as np
import scipy

from unsoftmax.report.chapter import Chapter
from unsoftmax.report.provenance import permission, provenance
from unsoftmax.report.told import Teller
from unsoftmax.results import Status
from unsoftmax.version import __version__


def catalogues() -> tuple[tuple[str, str], ...]:
    """Where attack and defences stand in the catalogues that auditors cite."""
    return (
        ("MITRE ATLAS AML.T0024.002", "Extract AI Model, through its inference interface: the attack that this tool carries out."),
        ("MITRE ATLAS AML.M0002", "Passive AI Output Obfuscation: the heading of rounding, short number formats and noise."),
        ("MITRE ATLAS AML.M0004", "Restrict Number of AI Model Queries: the heading of quotas and rate limits."),
        ("OWASP ML05:2023", "Model Theft, in the OWASP Machine Learning Security Top Ten."),
        ("NIST AI 100-2 NISTAML.031", "Model Extraction, in the NIST taxonomy of adversarial machine learning."),
    )


def succeeded(status: str) -> bool:
    """Whether a status, by its name, is that of a model that was recovered and verified."""
    return status in Status.__members__ and Status[status].success


def shared(kind: str, *scope: str, authorised_by: str | None = None, date: str | None = None) -> dict[str, Any]:
    """The part of a record that all have: what it is and when it was made, scope and permission, versions."""
    asked = "The target was asked only questions that its interface accepts; nothing else of it was read or changed."
    limits = "Only the methods of this tool were tried: what stops them may not stop other attacks."
    return {
        **provenance(kind, authorised_by, date),
        "scope": [permission(authorised_by), asked, limits, *scope],
        "version": __version__,
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__},
    }


def command_line() -> str:
    """The command that is running, for the reproduction record."""
    return shlex.join(["unsoftmax", *sys.argv[1:]])


def catalogued(record: dict[str, Any]) -> list[Chapter]:
    """Where attack and defences stand in the catalogues that auditors cite, for records that name them."""
    named = record.get("catalogues")
    return [Chapter("Names in security catalogues", facts=[(name, text) for name, text in named], folded=True)] if named else []


def closing(tell: Teller) -> list[Chapter]:
    """The last chapters of every page: scope and permission, names in catalogues, reproduction."""
    record = tell.record
    made: list[tuple[str, Any]] = [
        ("command", str(record.get("command") or "called from Python")),
        ("date", record["date"]),
        ("seed", tell("{/seed}")),
        ("schema of the JSON", record["schema"]),
        ("unsoftmax", record["version"] + (f", commit {record['commit']}" if record["commit"] else "")),
    ]
    made += [(name, str(value)) for name, value in record["versions"].items()]
    journal = record.get("journal")
    if journal:
        made.append(("journal SHA-256", journal["sha256"]))
        made.append(("possibly asked twice", tell("{/journal/possibly_asked_twice:,}")))
    for cell in record.get("cells", ()):
        if cell["journal"]:
            made.append((f"journal SHA-256, {cell['name']}", cell["journal"]))
    return [
        Chapter("Scope and permission", sentences=record["scope"]),
        *catalogued(record),
        Chapter("How to reproduce this", facts=made, folded=True),
    ]


def floor_facts(tell: Teller) -> list[tuple[str, Any]]:
    """How the answers behave: their precision and noise floor."""
    record = tell.record
    floor = record.get("floor") or {}
    if record.get("examples") is not None and floor.get("kind") == "exact" and record["status"] != "EXACT":
        # recorded examples show how they are written, and their noise only once a layer explains them
        known = record.get("noise") is not None
        return [
            ("precision", tell("noise of about {/noise:.1e} on every answer") if known else "not known: no layer explains them")
        ]
    words = {
        "exact": "float64, nothing beyond rounding",
        "rounded": "rounded to fixed decimals",
        "digits": "rounded to significant digits",
        "noisy": "noise on every answer",
        "coarse": "coarse: noise, rounding, or not affine in one token",
        **{kind: f"{kind} precision" for kind in ("float32", "float16", "bfloat16")},
    }
    facts: list[tuple[str, Any]] = [("precision", words.get(str(floor.get("kind")), "unknown"))]
    forms = (
        ("relative", "rounding of an answer", "{/floor/relative:.1e} of its size"),
        ("absolute", "noise floor", "{/floor/absolute:.1e} on every answer"),
        ("step", "rounding step", "{/floor/step:.3g}"),
    )
    return facts + [(name, tell(sentence)) for key, name, sentence in forms if floor.get(key)]


def plain(value: Any) -> Any:
    """Arrays and NumPy numbers to lists and plain numbers; what JSON cannot hold becomes None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def to_json(record: dict[str, Any]) -> str:
    """A record as one JSON document."""
    return json.dumps(record, indent=2, allow_nan=False)
