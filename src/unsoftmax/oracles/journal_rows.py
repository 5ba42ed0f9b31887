"""The rows of a journal: one request each, with a checksum over everything in it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.oracles.journal_file import row_checksum

COLUMNS = "stream, number, start, digest, sequences, lost, time, shape, answers, checksum"
REPLACE = f"INSERT OR REPLACE INTO calls ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class Row(NamedTuple):
    """One request as the journal keeps it; ``shape`` and ``answers`` are None until the reply is there."""

    stream: str
    number: int
    start: int
    digest: str
    sequences: int
    lost: int
    time: float
    shape: str | None
    answers: bytes | None

    @property
    def values(self) -> tuple[Any, ...]:
        """The columns, checksum last."""
        return (*self, row_checksum(*self))


def sound(row: Row, checksum: Any) -> bool:
    """Whether a row is what was once written: checksum, types, and answers that fill their shape."""
    try:
        if row.values[-1] != checksum or (row.answers is None) != (row.shape is None):
            return False
        return row.answers is None or len(numbers_of(row)) == row.sequences
    except (ValueError, TypeError, AttributeError, OverflowError):
        return False


def numbers_of(row: Row) -> Floats:
    """The answers of a row as an array."""
    assert row.answers is not None
    assert row.shape is not None
    return np.frombuffer(row.answers, dtype=np.float64).reshape(json.loads(row.shape)).copy()
