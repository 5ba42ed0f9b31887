"""The journal: every answer on disk before it is used, so that a killed run loses nothing that was paid for.

One SQLite file (WAL). A request is one row: its answers are committed before they are used, with the time and a checksum. What
comes over a network is paid for: its intent is written before the questions are sent, its answers are committed as they come and
synced to disk at once, and no kill of the process loses any. What is computed in this process is synced within ``Journal.late``
seconds: a power cut may cost that much computing, never the order, since commits reach the disk one after another. Its intents
need no rows, as one request is under way at a time, and calls on whose answers nothing is decided before all are there share a
commit, ``most`` of them within ``late`` seconds: that much a kill may cost.
A call to an oracle in this process is one request; a call over a network may be several. A learner is deterministic, so a resumed
run asks the same questions in the same order; those that have an answer are replayed, and only the rest reaches the target. What
was replayed is of its own date: ``confirm_replayed`` asks some of it again, so that no success rests on old answers alone.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax.errors import DriftingError, JournalError, RefusalError
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, Wrapper, in_parts, is_local
from unsoftmax.oracles.contradiction import Precision
from unsoftmax.oracles.journal_file import MORE_SPACE, WRITE_META, checked_meta, create, meta_values, missing, opened, shut
from unsoftmax.oracles.journal_rows import COLUMNS, REPLACE, Row, numbers_of, sound
from unsoftmax.oracles.meter import Metered
from unsoftmax.oracles.receipts import Place, Receipts, misdelivery
from unsoftmax.oracles.replayed import Kept, Replayed


class Journal:
    """One run's answers on disk.

    Args:
        path: the file; absent or empty means a fresh start.
        identity: what makes two runs the same (target, plan, seed, version). A journal with another identity is refused.
        late: seconds by which the sync of answers computed in this process may follow their commit; 0 for at once.
        most: calls that may share a commit.

    Attributes:
        entropy: randomness of the operating system, drawn when the journal was created.
        receipts: one question of each reply of this run, replayed or new; empty where the target runs in this process.
        replayed: what this run took from the journal, and when that had been answered.
        asked: sequences that reached the target in this run.
        confirmed: how many of those asked again what had been replayed.
        replaced: answers that a repair asked again and found changed.
    """

    def __init__(self, path: str | Path, identity: dict[str, Any], *, late: float = 1.0, most: int = 100) -> None:
        self.path = Path(path)
        self.late, self.most = late, most
        identity = json.loads(json.dumps(identity))
        self._called: set[tuple[str, int]] | None = None  # the calls that have rows; None where others may have some
        self._new = missing(self.path)  # nothing of the file has been synced
        if self._new:
            create(self.path, identity)
            self._called = set()
        meta = checked_meta(self.path, identity)
        self._db = opened(self.path)
        self._intents: dict[Place, Row] = {}
        self._waiting: list[Row] = []  # answers that are not committed yet
        self._sharing = False
        self._working = "working" in meta
        self._cut = most if self._working else 0  # calls that may have been under way when the run before this one was killed
        self._sync, self._synced = "", time.monotonic()
        self.entropy = int(meta["entropy"], 16)
        self._doubted = float(meta.get("doubted", "-inf"))
        self._mended = float(meta.get("mended", "-inf"))
        self.receipts = Receipts()
        self.replayed = Replayed()
        self.asked = 0
        self.confirmed = 0
        self._unreported = int(meta.get("confirmed", "0"))
        self._reported = False
        self.replaced = 0

    @property
    def repeated(self) -> int:
        """Sequences that were sent without an answer coming back: asked again, or to be asked again, and possibly billed twice."""
        self._commit()
        lost = self._one("SELECT COALESCE(SUM(lost + sequences * (answers IS NULL)), 0) FROM calls")
        return int(lost) + self._unreported

    @property
    def answered(self) -> int:
        """Sequences whose answers are on disk."""
        self._commit()
        return int(self._one("SELECT COALESCE(SUM(sequences), 0) FROM calls WHERE answers IS NOT NULL"))

    @property
    def digest(self) -> str:
        """SHA-256 over all answers, in order: names this journal's contents in a report."""
        self._commit()
        state = hashlib.sha256()
        for stream, number, start, digest, answers in self._all(
            "SELECT stream, number, start, digest, answers FROM calls WHERE answers IS NOT NULL ORDER BY stream, number, start"
        ):
            state.update(f"{stream}/{number}/{start}/{digest}".encode() + answers)
        return state.hexdigest()

    def describe(self) -> Kept:
        """For a report: what was replayed, of which date, what was asked now, and what may have been billed twice."""
        self._reported = True
        oldest, newest = self.replayed.dates
        return Kept(
            sha256=self.digest,
            possibly_asked_twice=self.repeated,
            asked_now=self.asked,
            confirmed=self.confirmed,
            replaced=self.replaced,
            replayed=self.replayed.sequences,
            answers_from=oldest,
            answers_to=newest,
        )

    def find(self, stream: str, number: int, digest: str) -> dict[int, Floats]:
        """What call ``number`` of ``stream`` has been answered, by the place where each piece starts; empty if nothing yet."""
        return {row.start: numbers_of(row) for row in self._rows(stream, number, digest) if row.answers and not self._doubts(row)}

    def replay(self, stream: str, number: int, digest: str, sequences: Floats) -> dict[int, Floats]:
        """As ``find``, for a call that replays them: they are counted, and some are remembered for ``confirm_replayed``."""
        pieces = {}
        for row in self._rows(stream, number, digest):
            if row.answers is not None and not self._doubts(row):
                pieces[row.start] = answers = numbers_of(row)
                self.replayed.take(sequences[row.start : row.start + len(answers)], answers, row.time)
        return pieces

    def intend(self, stream: str, number: int, start: int, digest: str, sequences: int, *, paid: bool = True) -> None:
        """Note that a request is about to be sent. Survives a killed process; a sync is not worth its price here.

        What is not ``paid`` needs no row of its own: the journal says that a run is at work, and if that run is killed, the first
        request without an answer is the one that was under way.
        """
        self.asked += sequences
        before = self._row(stream, number, start)
        lost = sequences * (self._cut > 0) if before is None else before.lost + before.sequences * (before.answers is None)
        self._cut -= self._cut > 0 and before is None
        same = before is not None and (before.digest, before.sequences) == (digest, sequences) and self._doubts(before)
        old = before if same else None  # a repair forgets an answer only for another one
        shape, answers, moment = (None, None, time.time()) if old is None else (old.shape, old.answers, old.time)
        self._intents[stream, number, start] = row = Row(stream, number, start, digest, sequences, lost, moment, shape, answers)
        if paid or lost:
            self._write("NORMAL", row)
        elif not self._working:
            self._syncs("NORMAL")
            self._execute(WRITE_META, meta_values("working", "yes"))
            self._working = True

    def keep(self, stream: str, number: int, start: int, answers: Floats, lost: int = 0, *, paid: bool = True) -> None:
        """Commit the answers of a request that was intended.

        Args:
            lost: sequences that had to be sent again on the way, their reply lost.
            paid: synced to disk at once; else within ``late`` seconds.
        """
        blob = np.asarray(answers, dtype=np.float64).tobytes()
        intent = self._intents.pop((stream, number, start))
        self.replaced += int(intent.answers is not None and intent.answers != blob)
        shape, moment = str(list(answers.shape)), max(time.time(), self._doubted)
        due = paid or time.monotonic() >= self._synced + self.late
        self._waiting.append(intent._replace(lost=intent.lost + lost, time=moment, shape=shape, answers=blob))
        if due or not self._sharing or len(self._waiting) >= self.most:
            self._commit("FULL" if due else "NORMAL")

    def unanswered(self) -> None:
        """Requests that were sent and got no answer get their row: what ended them did not end the process."""
        rows, self._intents = self._intents, {}
        with suppress(JournalError):  # a disk that fails may be what ended them
            for row in rows.values():
                self._write("NORMAL", row)

    @contextmanager
    def one_commit(self) -> Iterator[None]:
        """Calls of a target in this process on whose answers nothing is decided before the end share a commit.

        None waits longer than ``late`` seconds for it, and whatever but a kill ends the calls, their answers are on disk.
        """
        within, self._sharing = self._sharing, True
        try:
            yield
        finally:
            self._sharing = within
            self._commit()

    def confirm_replayed(self, oracle: Oracle, floor: Precision | None) -> None:
        """Ask some of what this run replayed again, with fresh randomness; nothing where nothing was replayed.

        These questions stay out of the journal; ``confirmed`` is their number. Price: see ``Replayed.confirm``.

        Args:
            oracle: reaches the target, not the journal.
            floor: how coarse the answers are; None where that is not known.

        Raises:
            DriftingError: the target does not say today what the journal holds.
            TargetError: it does not answer today.
        """
        with self._metered(oracle) as meter:
            self.replayed.confirm(meter, floor)

    def find_misdelivered(self, oracle: Oracle, floor: Precision | None, most: int | None = None) -> DriftingError | None:
        """Ask one question of each reply again: the reason, if a few replies were not the target's own; a journal is mended once.

        Those requests and the held-out check are marked as doubtful, so that the next run asks them again. A target that is a
        mixture shows on the second run, too, and then stays refused. Price: see ``Receipts.misdelivered``; nothing where it would
        exceed ``most``.
        """
        replies = len(self.receipts.kept)
        if self._mended > 0 or replies < 2 or (most is not None and 3 * replies > most):
            return None
        with self._metered(oracle) as meter:
            wrong = self.receipts.misdelivered(meter, floor)
        if not wrong:
            return None
        self._doubt({*wrong, *self._all("SELECT stream, number, start FROM calls WHERE stream = 'check'")})
        return misdelivery(len(wrong), replies)

    @contextmanager
    def _metered(self, oracle: Oracle) -> Iterator[Metered]:
        """The oracle for questions that stay out of the journal; what had to be sent again counts, too."""
        before, meter = self.confirmed, Metered(_Noted(oracle, self._confirms))
        try:
            yield meter
        finally:
            self._confirms(max(0, before + meter.spent - self.confirmed))

    def _confirms(self, sequences: int) -> None:
        """Note questions that stay out of the journal before they leave: those of a run that reports nothing count as lost."""
        self.asked += sequences
        self.confirmed += sequences
        self._execute(WRITE_META, meta_values("confirmed", str(self._unreported + self.confirmed)))

    def _doubt(self, places: set[Place]) -> None:
        """Mark requests so that the next run asks them again; an answer is forgotten only for another one."""
        self._mended = time.time()
        rows = [row for place in places if (row := self._row(*place)) is not None]
        self._syncs("FULL")
        with self._transaction():
            for row in rows:
                self._execute(REPLACE, row._replace(time=0.0).values)
            self._execute(WRITE_META, meta_values("mended", repr(self._mended)))

    def close(self) -> None:
        """Close the file, all of it synced."""
        if self.confirmed and self._reported:
            with suppress(JournalError):  # as below
                self._execute(WRITE_META, meta_values("confirmed", str(self._unreported)))
        if self._working:
            with suppress(JournalError):  # a disk that fails has said so; one request too many counts as asked twice
                self._commit()
                self._syncs("NORMAL")
                self._execute("DELETE FROM meta WHERE name = 'working'")
        shut(self._db, self.path, settled=not self._new)

    def _doubts(self, row: Row) -> bool:
        """Whether this is to be asked again: a repair doubts all that is older, a mended journal some rows."""
        return row.time < self._doubted or row.time == 0.0

    def _rows(self, stream: str, number: int, digest: str) -> list[Row]:
        if self._unknown(stream, number):
            return []
        rows = [
            row
            for values in self._all(f"SELECT {COLUMNS} FROM calls WHERE stream = ? AND number = ? ORDER BY start", (stream, number))
            if (row := self._sound(values)) is not None
        ]
        others = [row for row in rows if row.digest != digest]
        if any(not self._doubts(row) and row.time > self._mended for row in others):
            raise JournalError(
                f"The journal {self.path} holds other questions than this run asks (call {number} of '{stream}'). It was made by "
                "another plan or version; it is left as it is. Choose another folder for a fresh start."
            )
        for row in others:  # a repair changed what is asked from here on
            self._execute("DELETE FROM calls WHERE stream = ? AND number = ? AND start = ?", (stream, number, row.start))
        return [row for row in rows if row.digest == digest]

    def _row(self, stream: str, number: int, start: int) -> Row | None:
        if self._unknown(stream, number):
            return None
        found = self._all(f"SELECT {COLUMNS} FROM calls WHERE stream = ? AND number = ? AND start = ?", (stream, number, start))
        return self._sound(found[0]) if found else None

    def _sound(self, values: tuple[Any, ...]) -> Row | None:
        """The row, if its checksum agrees; a damaged one is dropped by a repair and refused otherwise."""
        row = Row(*values[:-1])
        if sound(row, values[-1]):
            return row
        if self._doubted > 0:
            self._execute("DELETE FROM calls WHERE stream IS ? AND number IS ? AND start IS ?", values[:3])
            return None
        raise JournalError(
            f"A row of the journal {self.path} is damaged: its checksum does not agree. The disk or another program changed it. "
            "Nothing of it was used. Run the same command with --repair to ask such answers again, or choose another folder."
        )

    def _commit(self, sync: str = "NORMAL") -> None:
        """Commit the answers that wait for it, in order; where that fails they still wait."""
        if self._waiting:
            self._write(sync, *self._waiting)
            self._waiting.clear()
            self._synced = time.monotonic() if sync == "FULL" else self._synced
            self._cut = self._cut if self._sharing else 0

    def _write(self, sync: str, *rows: Row) -> None:
        """Write rows in one commit."""
        self._syncs(sync)
        if self._called is not None:
            self._called.update((row.stream, row.number) for row in rows)
        with self._transaction() if len(rows) > 1 else nullcontext():
            for row in rows:
                self._execute(REPLACE, row.values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN")
        try:
            yield
            self._execute("COMMIT")
        finally:
            if self._db.in_transaction:
                with suppress(sqlite3.Error):  # the disk fails, and that was said
                    self._db.rollback()

    def _unknown(self, stream: str, number: int) -> bool:
        """Whether no row of this call is on disk."""
        return self._called is not None and (stream, number) not in self._called

    def _syncs(self, sync: str) -> None:
        """From here on commits wait for the disk (``FULL``) or not (``NORMAL``).

        A new file waits for nothing until the first that does: nothing is on disk yet that another order could spoil.
        """
        first = sync == "FULL" and self._new
        self._new = self._new and not first
        sync = "OFF" if self._new else sync
        if sync != self._sync:
            self._execute(f"PRAGMA synchronous={sync}")
            self._sync = sync
        if first:
            self._execute("PRAGMA wal_checkpoint")  # the file itself reaches the disk, and its name

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> None:
        try:
            self._db.execute(statement, values)
        except (sqlite3.Error, OSError) as error:
            raise JournalError(
                f"The journal {self.path} cannot be written ({error}): the disk may be full or failing. Nothing committed before "
                f"is lost; {MORE_SPACE}"
            ) from error

    def _all(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(statement, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise JournalError(
                f"The journal {self.path} cannot be read ({error}): the file is damaged, or its disk fails. Run the same command "
                "with --repair to keep what is readable, or choose another folder."
            ) from error

    def _one(self, statement: str) -> Any:
        return self._all(statement)[0][0]


class _Noted(Wrapper):
    """Tells of every call before it leaves."""

    def __init__(self, inner: Oracle, note: Callable[[int], None]) -> None:
        super().__init__(inner)
        self._note = note

    def __call__(self, sequences: Floats, /) -> Floats:
        """Note them, and ask."""
        self._note(len(sequences))
        return self.inner(sequences)


class Journaled(Wrapper):
    """Asks the target only what the journal cannot answer.

    Args:
        inner: the oracle that reaches the target.
        journal: where answers are kept.
        stream: questions are numbered within a stream, so that learning, sentinels and the final check do not mix.
    """

    fewest_calls = 4  # instead of more where calls are cheap: each is a transaction on disk
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
        pieces = self.journal.replay(self.stream, number, digest, sequences)
        if not pieces and is_local(self.inner):
            return self._in_one(number, digest, sequences)
        billed = sum(map(len, pieces.values()))
        paid = not is_local(self.inner)
        for begin, end in _gaps(pieces, len(sequences)):
            resent = self._resent() if paid else 0

            def intend(start: int, count: int, begin: int = begin) -> None:
                nonlocal billed
                self.journal.intend(self.stream, number, begin + start, digest, count, paid=paid)
                billed += count

            try:
                for start, answers in in_parts(self.inner, sequences[begin:end], intend):
                    before, resent = resent, self._resent() if paid else 0
                    self.journal.keep(self.stream, number, begin + start, answers, resent - before, paid=paid)
                    pieces[begin + start] = answers
            except BaseException as error:
                self._ended(error, billed)
                raise
        if paid:
            for start, answers in pieces.items():
                self.journal.receipts.take((self.stream, number, start), sequences[start : start + len(answers)], answers)
        return pieces[0] if len(pieces) == 1 else np.concatenate([pieces[start] for start in sorted(pieces)])

    def one_commit(self) -> AbstractContextManager[None]:
        """Calls on whose answers nothing is decided before the end: one commit, where the target runs in this process."""
        return self.journal.one_commit() if is_local(self.inner) else nullcontext()

    def _in_one(self, number: int, digest: str, sequences: Floats) -> Floats:
        """A call to a target in this process, of which nothing is known: one request."""
        billed = 0
        try:
            self.journal.intend(self.stream, number, 0, digest, len(sequences), paid=False)
            billed = len(sequences)
            answers = self.inner(sequences)
            self.journal.keep(self.stream, number, 0, answers, paid=False)
        except BaseException as error:
            self._ended(error, billed)
            raise
        return answers

    def _ended(self, error: BaseException, billed: int) -> None:
        self.journal.unanswered()
        if isinstance(error, RefusalError):
            error.billed = billed if error.billed is None else error.billed

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
    """A fingerprint of a call: the exclusive-or over its tokens, and the last token of its first and of its last sequence.

    Of a large call 32 sequences at least count, of a long sequence 8 tokens at least: other questions differ in all, and hashing
    must cost little beside the target.
    """
    batch, length = sequences.shape[:2]
    bits = sequences.view(np.uint64)
    some = bits[:: max(1, batch // 32), :: max(1, length // 8)]
    parts = np.bitwise_xor.reduce(some, axis=(0, 1)), bits[0, -1], bits[-1, -1]
    known = repr(sequences.shape).encode() + b"".join(part.tobytes() for part in parts)
    return hashlib.blake2b(known, digest_size=16).hexdigest()
