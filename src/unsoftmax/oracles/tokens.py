"""Targets that take token ids: only the rows of a known embedding table can be sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unsoftmax.models import Floats
from unsoftmax.oracles.local import Layout, blamed, checked_answers

Ids = NDArray[np.int64]


class Tokens:
    """A target that takes integer ids ``(batch, length)``; asked with vectors that must be rows of ``embeddings``.

    Args:
        target: maps ids to answers of the usual shapes.
        embeddings: ``(vocabulary, width)``; row i is what token i means to the attention. Equal rows count as one token.

    >>> table = np.array([[1.0, 0.0], [0.0, 2.0]])
    >>> Tokens(lambda ids: table[ids].sum(axis=(1, 2)), table)(table[None])
    array([3.])
    """

    def __init__(self, target: Callable[[Ids], Any], embeddings: ArrayLike) -> None:
        if not callable(target):
            raise ValueError(f"The target, {target!r}, cannot be called. Give a function of token ids (batch, length).")
        given = np.asarray(embeddings)
        if given.dtype.kind not in "fiub":
            raise ValueError(f"embeddings hold {given.dtype} data; they must be real numbers (vocabulary, width).")
        table = given.astype(np.float64) + 0.0  # + 0.0 turns -0.0 into 0.0, so that equal rows have equal bytes
        if table.ndim != 2 or table.size == 0 or not np.isfinite(table).all():
            raise ValueError(
                f"embeddings have shape {table.shape}; they must be finite numbers (vocabulary, width), at least one row."
            )
        table.setflags(write=False)
        self.target = target
        self._layout = Layout()
        self.embeddings: Floats = table
        self._id_of: dict[bytes, int] = {}
        for index, row in enumerate(table):
            self._id_of.setdefault(row.tobytes(), index)

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return int(self.embeddings.shape[1])

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return len(self.embeddings)

    def ids(self, sequences: ArrayLike) -> Ids:
        """The ids ``(batch, length)`` of vectors ``(batch, length, width)``.

        Raises:
            ValueError: a vector is not a row of the table.
        """
        X = np.ascontiguousarray(np.asarray(sequences, dtype=np.float64) + 0.0)
        found = [self._id_of.get(row.tobytes(), -1) for row in X.reshape(-1, self.width)]
        if -1 in found:
            raise ValueError(
                f"Token {found.index(-1)} of a question is not a row of the embedding table: this target takes token ids, so only "
                f"the {self.vocabulary} rows of `embeddings` can be sent."
            )
        return np.array(found, dtype=np.int64).reshape(X.shape[:2])

    def draw(self, rng: np.random.Generator, count: int, length: int) -> Floats:
        """Random token sequences as vectors ``(count, length, width)``, for checks on fresh questions."""
        return np.asarray(self.embeddings[rng.integers(self.vocabulary, size=(count, length))])

    def __call__(self, sequences: Floats, /) -> Floats:
        """Translate to ids, ask, and check shape and finiteness of the answers."""
        ids = self.ids(sequences)
        with blamed("target", f"token ids of shape {ids.shape}", "integer arrays (batch, length)"):
            raw = self.target(ids)
        return checked_answers(raw, sequences.shape, self._layout)
