"""The file under a journal: created whole or not at all, opened by one run at a time, checked before anything of it is used."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from unsoftmax.errors import JournalError

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum TEXT NOT NULL);
CREATE TABLE calls (
    stream TEXT NOT NULL, number INTEGER NOT NULL, start INTEGER NOT NULL, digest TEXT NOT NULL, sequences INTEGER NOT NULL,
    lost INTEGER NOT NULL, time REAL NOT NULL, shape TEXT, answers BLOB, checksum TEXT NOT NULL,
    PRIMARY KEY (stream, number, start)
);
"""
WRITE_META = "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)"
FORMAT = "unsoftmax-journal-3"
MORE_SPACE = "free some space and run the same command again."
NEEDED = ("format", "identity", "entropy")
_door = threading.Lock()  # whoever closes any handle of a file loses all locks of this process on it: one at a time


def create(path: Path, identity: dict[str, Any]) -> None:
    """Make an empty journal under another name and move it to ``path``: a kill or a full disk leaves nothing half made.

    It is not on disk before ``settle``.
    """
    half = path.with_name(f".{path.name}.{secrets.token_hex(6)}.new")
    try:
        os.close(os.open(half, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(sqlite3.connect(half, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode=MEMORY")
            db.execute("PRAGMA synchronous=OFF")
            db.executescript("BEGIN;" + SCHEMA)
            for name, value in (("format", FORMAT), ("identity", json.dumps(identity)), ("entropy", secrets.token_hex(32))):
                db.execute(WRITE_META, meta_values(name, value))
            db.execute("COMMIT")
            db.execute("PRAGMA journal_mode=WAL")  # here, too: no reader ever meets the change of mode
        os.replace(half, path)
    except (sqlite3.Error, OSError) as error:
        _cleared(half)
        raise JournalError(
            f"The journal {path} cannot be opened: it could not be created ({error}). Its folder is not writable, or the disk is "
            f"full; {MORE_SPACE}"
        ) from error
    with contextlib.suppress(OSError):  # half-made journals of killed runs, once nobody can be at work on them any more
        for other in path.parent.glob(f".{path.name}.*.new*"):
            if other.stat().st_mtime < time.time() - 3600.0:
                other.unlink()


def missing(path: Path) -> bool:
    """Whether there is no journal at ``path`` yet; links are not followed."""
    try:
        if path.is_symlink():
            raise JournalError(f"The journal {path} is a symbolic link, which is not followed. Choose another folder.")
        return not path.exists() or path.stat().st_size == 0
    except OSError as error:
        raise _unusable(path, error) from error


def opened(path: Path) -> sqlite3.Connection:
    """A connection that nobody else has."""
    db = None
    try:
        with _door:
            db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=0.0)
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript("BEGIN IMMEDIATE; COMMIT;")  # takes the lock now, and keeps it
        return db
    except (sqlite3.Error, OSError) as error:
        if db is not None:
            db.close()
        raise _unusable(path, error) from error


def shut(db: sqlite3.Connection, path: Path, *, settled: bool = True) -> None:
    """Close what was ``opened``; a file that nobody waited for before gets to the disk now."""
    with _door:
        db.close()
        if not settled:
            settle(path)


def checked_meta(path: Path, identity: dict[str, Any] | None) -> dict[str, str]:
    """What the journal says of itself, its soundness checked without touching it; one of another run is refused.

    ``identity=None`` takes a journal of any run.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.0)) as db:
            columns = [column[1] for column in db.execute("PRAGMA table_info(meta)")]
            if columns == ["name", "value"]:
                raise sqlite3.DatabaseError("it was made by an earlier version")
            meta = {}
            for name, value, checksum in db.execute("SELECT name, value, checksum FROM meta").fetchall():
                if meta_values(name, value)[2] != checksum:
                    raise sqlite3.DatabaseError(f"the checksum of its {str(name)[:20]!r} does not agree")
                meta[str(name)] = str(value)
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(str(found))
        missing = [name for name in NEEDED if name not in meta]
        if missing or meta["format"] != FORMAT:
            raise sqlite3.DatabaseError(f"no {missing[0]}" if missing else f"format {meta['format']!r}")
        theirs = json.loads(meta["identity"])
        if not isinstance(theirs, dict):
            raise ValueError("its identity is no record")
        int(meta["entropy"], 16), float(meta.get("doubted", "0"))
    except (sqlite3.Error, OSError, KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise _unusable(path, error) from error
    differing = sorted(k for k in {*theirs, *(identity or {})} if identity is not None and theirs.get(k) != identity.get(k))
    if differing and identity is not None:
        told = "; ".join(f"{k}: {theirs.get(k)!r} there, {identity.get(k)!r} here" for k in differing[:4])
        raise JournalError(
            f"The journal {path} belongs to another run ({told}). It is left as it is and nothing was mixed; "
            "choose another folder, or run with the earlier settings to resume it."
        )
    return meta


def recorded_seed(path: str | Path) -> int | None:
    """The seed of the run that ``path`` is the journal of; None where there is no journal yet, or none that can be read."""
    path = Path(path)
    try:
        if missing(path):
            return None
        seed = json.loads(checked_meta(path, None)["identity"]).get("seed")
    except JournalError:
        return None  # whoever opens it says why
    return seed if isinstance(seed, int) else None


def settled_seed(seed: int | None, journal: str | Path | None = None) -> int:
    """The seed of a run: as given, as its journal has it, or drawn by the operating system, so that no target can foresee it."""
    if seed is not None:
        return seed
    recorded = None if journal is None else recorded_seed(journal)
    return secrets.randbits(32) if recorded is None else recorded


def row_checksum(*columns: Any) -> str:
    """A checksum over the columns of a row, each with its type."""
    parts = []
    for value in columns:
        raw = value if isinstance(value, bytes) else repr(value).encode()
        parts += [f"{type(value).__name__} {len(raw)} ".encode(), raw]
    return hashlib.blake2b(b"".join(parts), digest_size=12).hexdigest()


def meta_values(name: Any, value: Any) -> tuple[Any, Any, str]:
    """A note as its row, checksum last."""
    return name, value, row_checksum("meta", name, value)


def _unusable(path: Path, error: Exception) -> JournalError:
    """Why a file cannot be used, and what helps: never to remove one that a running process may hold."""
    words = str(error)
    if "locked" in words or "busy" in words:
        return JournalError(
            f"The journal {path} is in use by another run ({words}). Wait for it or end it, or choose another folder."
        )
    if isinstance(error, OSError) or "unable to open" in words or "disk I/O" in words or "readonly" in words or "full" in words:
        return JournalError(
            f"The journal {path} cannot be opened ({words}). Its folder may not be readable or writable, or the disk fails or is "
            "full; the file is left as it is."
        )
    return JournalError(
        f"{path} is not a readable journal of unsoftmax ({words}). It is left as it is; choose another folder, or run with "
        "--repair to keep of it what can be read."
    )


def settle(path: Path) -> None:
    """Wait until a file and its name are on disk; no connection to it may be open in this process, as it would lose its lock."""
    name = threading.Thread(target=_synced, args=(path.parent,))  # a disk takes both at the same time
    name.start()
    _synced(path)
    name.join()


def _synced(path: Path) -> None:
    with contextlib.suppress(OSError):  # what SQLite meets while it closes a file ends no run either
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _cleared(half: Path) -> None:
    for name in (half, *(half.with_name(half.name + tail) for tail in ("-wal", "-shm", "-journal"))):
        with contextlib.suppress(OSError):
            name.unlink()
