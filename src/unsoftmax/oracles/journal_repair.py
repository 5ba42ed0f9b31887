"""Repair of a journal: what is damaged is asked again; where nothing is damaged, but an answer may be wrong, everything is."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from unsoftmax.errors import JournalError
from unsoftmax.oracles.journal_file import (
    FORMAT,
    NEEDED,
    WRITE_META,
    checked_meta,
    create,
    meta_values,
    opened,
    settle,
)
from unsoftmax.oracles.journal_rows import COLUMNS, REPLACE, Row, sound


def repair(path: str | Path) -> str:
    """Make the journal at ``path`` usable again, and tell in a sentence what the next run will ask anew.

    A damaged file is kept beside it under another name; of its rows those whose checksums agree go into a new journal. In a sound
    one every answer is marked as doubtful: the next run asks each again and replaces it.

    Raises:
        JournalError: another run holds it, or not even the identity of its run can be read.
    """
    path = Path(path)
    if not path.is_file() or path.stat().st_size == 0:
        return "There is no journal yet; nothing is to be repaired."
    try:
        checked_meta(path, None)
        readable = True
    except JournalError as error:
        if "in use" in str(error) or "cannot be opened" in str(error):
            raise
        readable = False
    rows, damaged = _readable_rows(path)
    if readable and not damaged:
        with closing(opened(path)) as db:
            db.execute(WRITE_META, meta_values("doubted", repr(time.time())))
        count = sum(row.sequences for row in rows if row.answers is not None)
        return f"No row of the journal is damaged: all {count} answers are asked again, and replaced where they changed."
    if readable:
        opened(path).close()  # nobody else has it
    notes = _readable_notes(path)
    if any(name not in notes for name in NEEDED) or notes["format"] != FORMAT:
        raise JournalError(
            f"Of {path} not even the notes on its run can be read, so nothing of it can be kept. It is left as it is; "
            "choose another folder."
        )
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}")
    for tail in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(path.with_name(path.name + tail), aside.with_name(aside.name + tail))
    create(path, {})
    with closing(opened(path)) as db:
        db.execute("BEGIN")
        for name, value in notes.items():
            db.execute(WRITE_META, meta_values(name, value))
        db.executemany(REPLACE, [row.values for row in rows])
        db.execute("COMMIT")
    settle(path)
    return f"Of the damaged journal {len(rows)} rows were kept; what is missing is asked again. The old file is {aside.name}."


def _readable_rows(path: Path) -> tuple[list[Row], int]:
    """Rows whose checksums agree, read from both ends of the file; and how many there are that do not."""
    found: dict[tuple[Any, ...], Row] = {}
    damaged = 0
    for order in ("", " ORDER BY rowid", " ORDER BY rowid DESC"):
        damaged = 0
        with contextlib.suppress(sqlite3.Error, OSError), closing(_read_only(path)) as db:
            try:
                for values in db.execute(f"SELECT {COLUMNS} FROM calls{order}"):
                    row = Row(*values[:-1])
                    if sound(row, values[-1]):
                        found[row.stream, row.number, row.start] = row
                    else:
                        damaged += 1
                break  # the whole table was read
            except (sqlite3.Error, UnicodeDecodeError):
                damaged += 1
    else:
        damaged = max(damaged, 1)
    return list(found.values()), damaged


def _readable_notes(path: Path) -> dict[str, str]:
    notes: dict[str, str] = {}
    with contextlib.suppress(sqlite3.Error, OSError, UnicodeDecodeError), closing(_read_only(path)) as db:
        for name, value, checksum in db.execute("SELECT name, value, checksum FROM meta"):
            if meta_values(name, value)[2] == checksum:
                notes[name] = value
    return notes


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.0)
