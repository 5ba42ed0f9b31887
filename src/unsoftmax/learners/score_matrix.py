"""The matrix W of one head from products with it: columns until their range is full, then rows inside that range."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from unsoftmax.learners.scores import Frame, ScoreReader
from unsoftmax.linalg import complement, orthonormal
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase
from unsoftmax.results import Floor

SCORE = 0.6  # rms score of the probes: larger loses digits in the tails, smaller loses them against the rounding
NOISE = 16.0  # rounding error of a score in units of the answers' relative precision (measured: 2 to 6)


def read_score_matrix(reader: ScoreReader, floor: Floor, rank: int | None, rng: np.random.Generator) -> tuple[Floats, int]:
    """Read W ``(width, width)`` and its rank; ``r * ceil(d/u) + (d - r) * ceil(r/u)`` queries with u usable outputs.

    The last tokens are the rows of a random rotation. A column ``W x`` costs d products; once the columns span the range of W
    (orthonormal basis Q), every other column lies in it and costs the r products ``Q^T W x``.
    """
    d = len(reader.c)
    tokens = orthonormal(d, rng)
    tokens *= np.where(tokens @ reader.values.directions[:, :1] > 0, -1.0, 1.0)  # keys are worth > 0: answers span both
    keys = reader.keys(orthonormal(d, rng))
    frame = Frame(keys)
    span = _Range(d, NOISE * floor.relative / reader.gain)
    phase(reader.oracle, "columns")
    while not span.full and span.columns < (d if rank is None else rank):
        at = span.columns
        if rank is None and 0 < at <= _check_until(d, reader):
            span.add(_check_then_column(reader, span, tokens[at], rng))
        else:
            block = tokens[at : at + _block(d, at, rank, reader)]
            span.add(frame.vectors(block.T, *reader.products(keys, block)))
        if at == 0:  # the first column tells the size of scores far better than the few probes before it
            reader = _fitted(reader, keys, span.vectors)
            span.noise = NOISE * floor.relative / reader.gain
    phase(reader.oracle, "rows")
    basis, vectors = span.basis, span.vectors
    if not basis.size:
        return np.zeros((d, d)), 0
    if span.columns < d:
        rest = tokens[span.columns :]
        keys = reader.keys(basis.T)
        reader = _fitted(reader, keys, vectors)
        vectors = np.hstack([vectors, basis @ Frame(keys @ basis).vectors((rest @ basis).T, *reader.products(keys, rest))])
    W = vectors @ tokens
    W += (vectors - W @ tokens.T) @ tokens  # the rotation is orthonormal only to rounding
    return W, basis.shape[1]


class _Range:
    """Columns read so far and an orthonormal basis of what they span.

    Attributes:
        noise: error of one product.
        full: a column turned out to lie in the span of those before it.
    """

    def __init__(self, width: int, noise: float) -> None:
        self.vectors = np.empty((width, 0))
        self.basis = np.empty((width, 0))
        self._triangle = np.empty((0, 0))
        self.noise = noise
        self.full = False

    @property
    def columns(self) -> int:
        return int(self.vectors.shape[1])

    def tolerance(self, inside: Floats) -> float:
        """What rounding leaves outside the span of a vector that has coordinates ``inside`` in the basis and none outside.

        The basis came from columns with errors, and the vector is a combination of them: its error is that combination's.
        """
        combination = solve_triangular(self._triangle, inside) if len(inside) else inside
        return self.noise * (1.0 + float(np.linalg.norm(combination)))

    def add(self, vectors: Floats) -> None:
        """Take more columns ``(width, k)``; stop extending the basis at the first that lies in it."""
        self.vectors = np.hstack([self.vectors, vectors])
        for vector in vectors.T:
            inside = self.basis.T @ vector
            outside = vector - self.basis @ inside
            again = self.basis.T @ outside
            inside, outside = inside + again, outside - self.basis @ again
            size = float(np.linalg.norm(outside))
            if size <= self.tolerance(inside) * np.sqrt(len(vector)):
                self.full = True
                return
            self.basis = np.hstack([self.basis, outside[:, None] / size])
            self._triangle = np.block([[self._triangle, inside[:, None]], [np.zeros((1, len(inside))), np.array([[size]])]])


def _check_then_column(reader: ScoreReader, span: _Range, token: Floats, rng: np.random.Generator) -> Floats:
    """The column ``W x`` of one token, cheaply if it lies in the range so far.

    The first ``r`` keys read ``Q^T W x``, two more look at random directions outside the range. If these show nothing, the column
    is known; else the rest of the rotation is asked, and no query was in vain.
    """
    basis = span.basis
    rank = basis.shape[1]
    keys = reader.keys(np.hstack([basis, complement(basis, rng)]).T)
    near = _fitted(reader, keys[:rank], span.vectors)
    products, ratios = near.products(keys[: rank + 2], token[None])
    inside = Frame(keys[:rank] @ basis).vectors((basis.T @ token)[:, None], products[:rank], ratios[:rank])
    expected = (keys[rank : rank + 2] - ratios[rank:] * token) @ (basis @ inside)
    if np.abs(products[rank:] - expected).max() <= 2 * span.tolerance(inside[:, 0]) * reader.gain / near.gain:
        return np.asarray(basis @ inside)
    more, more_ratios = reader.products(keys[rank + 2 :], token[None])
    return Frame(keys).vectors(token[:, None], np.vstack([products, more]), np.vstack([ratios, more_ratios]))


def _fitted(reader: ScoreReader, keys: Floats, vectors: Floats) -> ScoreReader:
    """The reader with tokens resized so that scores of ``keys`` with columns like those seen are of size ``SCORE``."""
    seen = float(np.sqrt(np.mean((keys @ vectors) ** 2))) * reader.gain
    return reader.resized(float(np.clip(SCORE / seen, 2.0**-10, 2.0)) if seen > 0 else 1.0)


def _check_until(d: int, reader: ScoreReader) -> int:
    """Up to this many columns a needless one costs more than 2% of what was asked and 32 queries: look before asking it."""
    if reader.values.usable > 1:
        return 0
    needless = [k for k in range(1, d - 2) if d - k > 0.02 * k * (2 * d - k) + 32]
    return max(needless, default=0)


def _block(d: int, at: int, rank: int | None, reader: ScoreReader) -> int:
    """How many columns to ask at once: all if the rank is given, else so few that needless ones stay below 1% and 16 queries."""
    if rank is not None:
        return rank - at
    return max(1, int((0.01 * at * (2 * d - at) / reader.values.usable + 16) // reader.price(d, 1))) if at else 1
