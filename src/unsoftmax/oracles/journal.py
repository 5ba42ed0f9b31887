"""The journal: every answer on disk before it is used, so that a killed run loses nothing that was paid for.

One SQLite file (WAL). A request is one row: its intent is written before the questions are sent, its answers are committed with
a full sync before they are handed on. A call to an oracle in this process is one request; a call over a network may be several. A
learner is deterministic, so a resumed run asks the same questions in the same order; those that have an answer are replayed, and
only the rest reaches the target.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax.errors import JournalError
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, Wrapper, in_parts

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE calls (
    stream TEXT NOT NULL, number INTEGER NOT NULL, start INTEGER NOT NULL, digest TEXT NOT NULL, sequences INTEGER NOT NULL,
    lost INTEGER NOT NULL, shape TEXT, answers BLOB, PRIMARY KEY (stream, number, start)
);
"""
FORMAT = "unsoftmax-journal-2"


class Journal:
    """One run's answers on disk.

    Args:
        path: the file; absent or empty means a fresh start.
        identity: what makes two runs the same (target, plan, seed, version). A journal with another identity is refused.
    """

    def __init__(self, path: str | Path, identity: dict[str, Any]) -> None:
        self.path = Path(path)
        identity = json.loads(json.dumps(identity))
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        if not fresh:
            _check(self.path, identity)
        try:
            if fresh:
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=0.0)
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            if fresh:
                self._db.executescript("BEGIN;" + SCHEMA)
                notes = {"format": FORMAT, "identity": json.dumps(identity), "entropy": secrets.token_hex(32)}
                self._db.executemany("INSERT INTO meta VALUES (?, ?)", notes.items())
                self._db.execute("COMMIT")
            self.entropy = int(self._meta("entropy"), 16)
        except (sqlite3.Error, OSError) as error:
            raise JournalError(
                f"The journal {self.path} cannot be opened ({error}). It may be in use by another run, or its folder is not "
                "writable; end the other run or choose another folder."
            ) from error

    def _meta(self, name: str) -> str:
        return str(self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0])

    @property
    def repeated(self) -> int:
        """Sequences that were sent without an answer coming back: asked again, or to be asked again, and possibly billed twice."""
        row = self._db.execute("SELECT COALESCE(SUM(lost + sequences * (answers IS NULL)), 0) FROM calls").fetchone()
        return int(row[0])

    @property
    def answered(self) -> int:
        """Sequences whose answers are on disk."""
        return int(self._db.execute("SELECT COALESCE(SUM(sequences), 0) FROM calls WHERE answers IS NOT NULL").fetchone()[0])

    @property
    def digest(self) -> str:
        """SHA-256 over all answers, in order: names this journal's contents in a report."""
        state = hashlib.sha256()
        for stream, number, start, digest, answers in self._db.execute(
            "SELECT stream, number, start, digest, answers FROM calls WHERE answers IS NOT NULL ORDER BY stream, number, start"
        ):
            state.update(f"{stream}/{number}/{start}/{digest}".encode() + answers)
        return state.hexdigest()

    def find(self, stream: str, number: int, digest: str) -> dict[int, Floats]:
        """What call ``number`` of ``stream`` has been answered, by the place where each piece starts; empty if nothing yet."""
        rows = self._db.execute(
            "SELECT digest, start, shape, answers FROM calls WHERE stream = ? AND number = ? ORDER BY start", (stream, number)
        ).fetchall()
        if any(row[0] != digest for row in rows):
            raise JournalError(
                f"The journal {self.path} holds other questions than this run asks (call {number} of '{stream}'). It was made by "
                "another plan or version; it is left as it is. Choose another folder, or remove it to start afresh."
            )
        return {
            start: np.frombuffer(answers, dtype=np.float64).reshape(json.loads(shape)).copy()
            for _, start, shape, answers in rows
            if answers is not None
        }

    def intend(self, stream: str, number: int, start: int, digest: str, sequences: int) -> None:
        """Note that a request is about to be sent. Survives a killed process; a sync is not worth its price here."""
        self._write(
            "NORMAL",
            "INSERT INTO calls (stream, number, start, digest, sequences, lost) VALUES (?, ?, ?, ?, ?, 0) "
            "ON CONFLICT (stream, number, start) DO UPDATE SET lost = lost + sequences, sequences = excluded.sequences",
            (stream, number, start, digest, sequences),
        )

    def keep(self, stream: str, number: int, start: int, answers: Floats, lost: int = 0) -> None:
        """Commit the answers of a request, synced to disk; ``lost`` sequences had to be sent again on the way, their reply lost."""
        blob = np.ascontiguousarray(answers, dtype=np.float64).tobytes()
        self._write(
            "FULL",
            "UPDATE calls SET shape = ?, answers = ?, lost = lost + ? WHERE stream = ? AND number = ? AND start = ?",
            (json.dumps(answers.shape), blob, lost, stream, number, start),
        )

    def _write(self, sync: str, statement: str, values: tuple[Any, ...]) -> None:
        try:
            self._db.execute(f"PRAGMA synchronous={sync}")
            self._db.execute(statement, values)
        except (sqlite3.Error, OSError) as error:
            raise JournalError(
                f"The journal {self.path} cannot be written ({error}): the disk may be full or failing. Nothing committed before "
                "is lost; free some space and run the same command again."
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _check(path: Path, identity: dict[str, Any]) -> None:
    """Refuse a file that is no journal of this run, without touching it."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.0)) as db:
            meta = dict(db.execute("SELECT name, value FROM meta").fetchall())
            sound = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if sound != "ok" or meta.get("format") != FORMAT:
            raise sqlite3.DatabaseError(sound if sound != "ok" else f"format {meta.get('format')!r}")
        theirs = json.loads(meta["identity"])
    except (sqlite3.Error, OSError, KeyError, ValueError) as error:
        raise JournalError(
            f"{path} is not a readable journal of unsoftmax ({error}). It is left as it is; "
            "choose another folder, or remove the file to start afresh."
        ) from error
    differing = sorted(k for k in {*theirs, *identity} if theirs.get(k) != identity.get(k))
    if differing:
        told = "; ".join(f"{k}: {theirs.get(k)!r} there, {identity.get(k)!r} here" for k in differing[:4])
        raise JournalError(
            f"The journal {path} belongs to another run ({told}). It is left as it is and nothing was mixed; "
            "choose another folder, or run with the earlier settings to resume it."
        )


class Journaled(Wrapper):
    """Asks the target only what the journal cannot answer.

    Args:
        inner: the oracle that reaches the target.
        journal: where answers are kept.
        stream: questions are numbered within a stream, so that learning, sentinels and the final check do not mix.
    """

    cheap_calls = False  # each is a transaction on disk
    like = None  # questions are compared with the journal's, so they must be arrays of NumPy

    def __init__(self, inner: Oracle, journal: Journal, stream: str = "learn") -> None:
        super().__init__(inner)
        self.journal = journal
        self.stream = stream
        self._number = 0

    def __call__(self, sequences: Floats, /) -> Floats:
        """Replay what is known, ask the rest, and keep each request's answers as they come."""
        number, self._number = self._number, self._number + 1
        if len(sequences) == 0:  # nothing to keep
            return self.inner(sequences)
        digest = _digest(sequences)
        pieces = self.journal.find(self.stream, number, digest)
        for begin, end in _gaps(pieces, len(sequences)):
            resent = self._resent()

            def intend(start: int, count: int, begin: int = begin) -> None:
                self.journal.intend(self.stream, number, begin + start, digest, count)

            for start, answers in in_parts(self.inner, sequences[begin:end], intend):
                before, resent = resent, self._resent()
                self.journal.keep(self.stream, number, begin + start, answers, resent - before)
                pieces[begin + start] = answers
        return np.concatenate([pieces[start] for start in sorted(pieces)])

    def _resent(self) -> int:
        return int(getattr(self.inner, "repeated", 0))


def _gaps(pieces: dict[int, Floats], total: int) -> list[tuple[int, int]]:
    """The ranges of a call of ``total`` sequences that no piece covers."""
    gaps, reached = [], 0
    for start in sorted(pieces):
        if start > reached:
            gaps.append((reached, start))
        reached = start + len(pieces[start])
    return [*gaps, (reached, total)] if reached < total else gaps


def _digest(sequences: Floats) -> str:
    """A fingerprint of a call: the exclusive-or over its sequences, and the first and last in full.

    Of a large call every eighth sequence counts: other questions differ in all, and hashing must cost little beside the target.
    """
    step = 8 if len(sequences) >= 256 else 1
    bits = sequences[::step].view(np.uint64)
    state = hashlib.blake2b(repr(sequences.shape).encode(), digest_size=16)
    state.update(np.bitwise_xor.reduce(bits, axis=0).tobytes())
    state.update(bits[:1].tobytes())
    state.update(sequences[-1:].tobytes())
    return state.hexdigest()
