"""The history of a watched deployment, in one SQLite file: every check with its verdict and numbers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from unsoftmax.errors import JournalError, TargetError

VERSION = 1
TABLE = """CREATE TABLE IF NOT EXISTS checks (
    at TEXT NOT NULL, endpoint TEXT NOT NULL, checkpoint TEXT NOT NULL, verdict TEXT NOT NULL,
    excess REAL, deviation REAL, noise REAL, queries INTEGER, record TEXT NOT NULL)"""
LISTED = """SELECT at, verdict, excess, deviation, queries, record FROM checks
    WHERE endpoint = ? AND checkpoint = ? ORDER BY rowid"""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: when, its verdict, how far deviations exceed what is explained, and the whole record."""

    at: str
    verdict: str
    excess: float | None
    deviation: float | None
    queries: int
    record: dict[str, Any]


class History:
    """Checks of one endpoint against one checkpoint, oldest first; written before they are announced.

    Args:
        path: the SQLite file; made where it is missing.
        endpoint: name of the endpoint.
        checkpoint: name of the checkpoint.

    Raises:
        JournalError: the file is no history of ours.
    """

    def __init__(self, path: Path, endpoint: str, checkpoint: str) -> None:
        self.path, self.endpoint, self.checkpoint = path, endpoint, checkpoint
        if path.exists() and path.stat().st_size:
            self._check()
        with self._open() as database:
            database.execute(TABLE)
            database.execute(f"PRAGMA user_version = {VERSION}")
        path.chmod(0o600)

    def _check(self) -> None:
        """Look at an existing file without writing a byte to it."""
        try:
            database = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)
            try:
                found = database.execute("PRAGMA user_version").fetchone()[0]
                tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            finally:
                database.close()
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{self.path} cannot be used as a history ({error}); it is left untouched.") from error
        if found != VERSION or "checks" not in tables:
            raise JournalError(f"{self.path} is no history of `unsoftmax watch`; it is left untouched. Name another file.")

    def add(self, record: dict[str, Any], at: datetime | None = None) -> Check:
        """Keep a check."""
        check = Check(
            (at or datetime.now(UTC)).isoformat(timespec="seconds"),
            str(record["verdict"]),
            record.get("excess"),
            record.get("deviation"),
            int(record["queries"]),
            record,
        )
        with self._open() as database:
            database.execute(
                "INSERT INTO checks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    check.at,
                    self.endpoint,
                    self.checkpoint,
                    check.verdict,
                    check.excess,
                    check.deviation,
                    record.get("noise"),
                    check.queries,
                    json.dumps(record),
                ),
            )
        return check

    def checks(self) -> list[Check]:
        """All checks of this endpoint against this checkpoint."""
        with self._open() as database:
            rows = database.execute(LISTED, (self.endpoint, self.checkpoint)).fetchall()
        return [
            Check(at, verdict, excess, deviation, queries, json.loads(record))
            for at, verdict, excess, deviation, queries, record in rows
        ]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            database = sqlite3.connect(self.path)
            try:
                with database:
                    database.execute("PRAGMA journal_mode = WAL")
                    database.execute("PRAGMA synchronous = FULL")
                    yield database
            finally:
                database.close()
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{self.path} cannot be used as a history ({error}); it is left untouched.") from error


def changed(checks: list[Check]) -> bool:
    """Whether the newest check has another verdict than the one before; a first check that does not match counts too."""
    if not checks:
        return False
    before = checks[-2].verdict if len(checks) > 1 else "MATCHES"
    return checks[-1].verdict != before


def failed(checks: list[Check], failure: TargetError, queries: int) -> dict[str, Any]:
    """A check that the endpoint failed, as a record: the newest check, with this end and what was sent.

    Raises:
        TargetError: the endpoint never answered, so that its address may be wrong.
    """
    if all(check.verdict == failure.status_name for check in checks):
        raise failure
    nothing = {"matches": False, "excess": None, "deviation": None, "noise": None, "queries": queries}
    return {**checks[-1].record, **nothing, "verdict": failure.status_name, "sentence": str(failure)}


def failures_in_a_row(checks: list[Check]) -> int:
    """How many checks in a row the endpoint has failed, up to the newest."""
    return sum(1 for _ in takewhile(lambda check: check.verdict == TargetError.status_name, reversed(checks)))
