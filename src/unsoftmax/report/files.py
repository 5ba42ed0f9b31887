"""The files of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unsoftmax.report.chapter import Report
from unsoftmax.report.common import to_json
from unsoftmax.report.record import recovery_record
from unsoftmax.results import Recovery
from unsoftmax.safe_files import replacing, write_text


def save_recovery(recovery: Recovery, folder: str | Path, *, public: bool = False) -> None:
    """Write ``recovery.json`` and ``report.html``, and ``weights.safetensors`` for a success.

    Each file appears whole or not at all and follows no symbolic link; readable by the owner only, unless ``public``.
    """
    from unsoftmax.report.story import recovery_report

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "weights.safetensors"
    if recovery.status.success and recovery.model is not None:
        with replacing(weights, public=public) as half:
            recovery.model.save(half)
    else:
        weights.unlink(missing_ok=True)  # no weights of an earlier run beside a refusal
    record = recovery_record(recovery)
    save(folder, "recovery.json", record, recovery_report(record, recovery.model), public=public)


def save(folder: Path, name: str, record: dict[str, Any], report: Report, *, public: bool = False) -> None:
    """Write a record as ``name`` and its report as ``report.html``; readable by the owner only, unless ``public``."""
    from unsoftmax.report.page import page

    for file, text in ((name, to_json(record) + "\n"), ("report.html", page(report))):
        write_text(folder / file, text, public=public)
