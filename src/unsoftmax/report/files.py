"""The files of a finished run."""

from __future__ import annotations

import os
from pathlib import Path

from unsoftmax.report.record import recovery_json
from unsoftmax.results import Recovery


def save_recovery(recovery: Recovery, folder: str | Path) -> None:
    """Write ``recovery.json`` and ``report.html``, and ``weights.safetensors`` for a success; readable by the owner only."""
    from unsoftmax.report.page import recovery_page

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "weights.safetensors"
    if recovery.status.success and recovery.model is not None:
        recovery.model.save(weights)
        weights.chmod(0o600)
    else:
        weights.unlink(missing_ok=True)  # no weights of an earlier run beside a refusal
    _write(folder / "recovery.json", recovery_json(recovery) + "\n")
    _write(folder / "report.html", recovery_page(recovery))


def _write(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
