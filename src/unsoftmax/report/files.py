"""The files of a finished run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from unsoftmax.report.chapter import Report
from unsoftmax.report.common import to_json
from unsoftmax.report.record import recovery_record
from unsoftmax.results import Recovery


def save_recovery(recovery: Recovery, folder: str | Path) -> None:
    """Write ``recovery.json`` and ``report.html``, and ``weights.safetensors`` for a success; readable by the owner only."""
    from unsoftmax.report.story import recovery_report

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "weights.safetensors"
    if recovery.status.success and recovery.model is not None:
        recovery.model.save(weights)
        weights.chmod(0o600)
    else:
        weights.unlink(missing_ok=True)  # no weights of an earlier run beside a refusal
    record = recovery_record(recovery)
    save(folder, "recovery.json", record, recovery_report(record, recovery.model))


def save(folder: Path, name: str, record: dict[str, Any], report: Report) -> None:
    """Write a record as ``name`` and its report as ``report.html``; readable by the owner only."""
    from unsoftmax.report.page import page

    for file, text in ((name, to_json(record) + "\n"), ("report.html", page(report))):
        handle = os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
