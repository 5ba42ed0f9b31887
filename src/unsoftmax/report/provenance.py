"""Where and when a record was made: the date, the schema that it follows, the commit of the tool, whose permission it had."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

SCHEMA = 1  # of every record; raised when a key changes its meaning or goes away, not when one is added


def provenance(kind: str, authorised_by: str | None = None, date: str | None = None) -> dict[str, Any]:
    """The part of a record that says what it is, when it was made, by which tool, and with whose permission."""
    return {
        "schema": f"unsoftmax-{kind}/{SCHEMA}",
        "date": date or now(),
        "commit": commit(),
        "authorised_by": authorised_by,
    }


def permission(authorised_by: str | None) -> str:
    """One sentence on permission; nothing is asserted that nobody said."""
    if authorised_by is None:
        return "Nobody stated the owner's permission for this run; `--authorised-by TEXT` records it."
    return f"Authorised by, as stated when the run was started: {authorised_by}"


def now() -> str:
    """The present moment, in UTC, to the second.

    >>> now().endswith("+00:00")
    True
    """
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def commit() -> str | None:
    """The commit that this package runs from, with "-dirty" where files differ from it; None for an installed copy."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists() or not (root / "src" / "unsoftmax").is_dir():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=5.0, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip() or None
