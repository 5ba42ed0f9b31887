"""The matrix W of one head from products with it: columns until their range is full, then rows inside that range."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.one_head.positions import PositionReader
from unsoftmax.learners.one_head.scores import Frame, ScoreReader
from unsoftmax.linalg import orthonormal, without
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase
from unsoftmax.results import Floor

SCORE = 0.6  # rms score of the probes: larger loses digits in the tails, smaller loses them against the rounding
NOISE = 4.0  # rounding error of a score in units of the answers' relative precision (measured: 1 to 3)
GAP = 30.0  # the range is full only if what lies outside drops by this much; a spectrum that fades into the rounding is read whole
FAINTLY = 16.0  # products read with scores this many times too small are read again
PILOT = 8  # products or rows that are read ahead of the others, because the size of scores is known only roughly
FAINT = 1e-4  # a column this far inside the span of others may lie in it altogether: worth a closer look
WASTE = 0.02  # share of the bill, and queries, that columns asked in vain may cost
WASTED = 16


def read_score_matrix(reader: ScoreReader, floor: Floor, rank: int | None, rng: np.random.Generator) -> tuple[Floats, int, float]:
    """Read W ``(width, width)``, its rank and the error of one product.

    Price: ``r * ceil(d/u) + (d - r) * ceil(r/u)`` queries with u usable outputs.

    The last tokens are the rows of a random rotation. A column ``W x`` costs d products; once the columns span the range of W
    (orthonormal basis Q), every other column lies in it and costs the r products ``Q^T W x``.
    """
    d = len(reader.c)
    tokens = orthonormal(d, rng)
    tokens *= np.where(tokens @ reader.values.directions[:, :1] > 0, -1.0, 1.0)  # keys are worth > 0: answers span both
    rotation = orthonormal(d, rng)
    frame = reader.frame(rotation)
    vectors, products, ratios, framed = np.empty((d, d)), np.empty((d, d)), np.empty((d, d)), np.zeros(d, dtype=bool)
    span = _Range(d, NOISE * floor.relative / reader.gain)
    phase(reader.oracle, "columns")
    rest, at, checks = rotation.T, 0, _check_until(d, reader) if rank is None else 0
    while not span.full and at < (d if rank is None else rank):
        if 0 < at <= checks:
            vectors[:, at], rest = _check_then_column(reader, span, rest, tokens[at], vectors[:, :at])
            block = 1
        else:
            block = min(d - at, _block(d, at, rank, reader))
            some = tokens[at : at + block]
            if at == 0:
                gain = reader.gain
                reader, products[:, :block], ratios[:, :block] = _first_columns(reader, frame.keys, some)
                span.noise = NOISE * floor.relative / min(reader.gain, max(gain, reader.gain / FAINTLY))
            else:
                products[:, at : at + block], ratios[:, at : at + block] = reader.products(frame.keys, some)
            vectors[:, at : at + block] = frame.vectors(some.T, products[:, at : at + block], ratios[:, at : at + block])
            framed[at : at + block] = True
        span.add(vectors[:, at : at + block])
        at += block
    vectors[:, framed] = frame.refined(tokens[framed].T, products[:, framed], ratios[:, framed])
    phase(reader.oracle, "rows")
    basis = span.basis
    if not basis.size:
        return np.zeros((d, d)), 0, span.noise
    keys = reader.keys(basis.T)
    inside = Frame(keys @ basis)
    while at < d:
        pilot = at < PILOT and d - at > PILOT
        some = tokens[at : at + PILOT if pilot else d]
        fitted = _fitted(reader, keys, vectors[:, :at], SCORE / 8 if pilot else SCORE)
        vectors[:, at : at + len(some)] = basis @ inside.refined((some @ basis).T, *fitted.products(keys, some))
        at += len(some)
    W = vectors @ tokens
    W += (vectors - W @ tokens.T) @ tokens  # the rotation is orthonormal only to rounding
    return W, basis.shape[1], span.noise


class _Range:
    """An orthonormal basis of what the columns so far span.

    Attributes:
        noise: error of one product.
        full: a column turned out to lie in the span of those before it.
    """

    def __init__(self, width: int, noise: float) -> None:
        self._basis = np.empty((width, width), order="F")
        self._triangle = np.zeros((width, width))
        self._size = 0
        self.noise = noise
        self.full = False

    @property
    def basis(self) -> Floats:
        return self._basis[:, : self._size]

    def tolerance(self, inside: Floats) -> float:
        """What rounding leaves outside the span of a vector that has coordinates ``inside`` in the basis and none outside.

        The basis came from columns with errors, and the vector is a combination of them: its error is that combination's.
        """
        combination = np.linalg.solve(self._triangle[: len(inside), : len(inside)], inside) if len(inside) else inside
        return self.noise * (1.0 + float(np.linalg.norm(combination)))

    def negligible(self, outside: float, inside: Floats) -> bool:
        """Whether what a column shows outside the span is rounding, and far below what every column before it showed."""
        pivots = np.abs(np.diag(self._triangle)[: self._size])
        allowed = self.tolerance(inside)
        return outside <= allowed and allowed * np.sqrt(len(self._basis)) * GAP <= float(pivots.min(initial=np.inf))

    def add(self, columns: Floats) -> None:
        """Take more columns ``(width, k)``; stop extending the basis at the first that lies in it."""
        basis, known = self.basis, self._size
        inside = basis.T @ columns
        outside = columns - basis @ inside
        again = basis.T @ outside  # once more: one pass leaves errors of the size of the rounding times the columns' condition
        inside, outside = inside + again, outside - basis @ again
        fresh, triangle = np.linalg.qr(outside)
        for j in range(columns.shape[1]):
            within = np.concatenate([inside[:, j], triangle[:j, j]])
            size = abs(float(triangle[j, j]))
            if size <= FAINT * float(np.linalg.norm(columns[:, j])) and self.negligible(size / np.sqrt(len(columns)), within):
                self.full = True
                return
            self._triangle[: known + j, known + j] = within
            self._triangle[known + j, known + j] = triangle[j, j]
            self._basis[:, known + j] = fresh[:, j]
            self._size = known + j + 1


def _check_then_column(reader: ScoreReader, span: _Range, rest: Floats, token: Floats, seen: Floats) -> tuple[Floats, Floats]:
    """The column ``W x`` of one token, cheaply if it lies in the range so far; and an orthonormal ``rest`` outside that range.

    The first keys read ``Q^T W x``, two more look at random directions outside the range. If these show nothing, the column
    is known; else the rest of the rotation is asked, and no query was in vain.
    """
    basis = span.basis
    rank = basis.shape[1]
    while rest.shape[1] > len(token) - rank:
        rest = without(rest, basis[:, len(token) - rest.shape[1]])
    frame = reader.frame(np.hstack([basis, rest]).T)
    keys = frame.keys
    near = _fitted(reader, keys[:rank], seen)
    products, ratios = near.products(keys[: rank + 2], token[None])
    inside = Frame(keys[:rank] @ basis).refined((basis.T @ token)[:, None], products[:rank], ratios[:rank])
    expected = (keys[rank : rank + 2] - ratios[rank:] * token) @ (basis @ inside)
    if span.negligible(float(np.abs(products[rank:] - expected).max()) * near.gain / (3 * reader.gain), inside[:, 0]):
        return (basis @ inside)[:, 0], rest
    more, more_ratios = reader.products(keys[rank + 2 :], token[None])
    products, ratios = np.vstack([products, more]), np.vstack([ratios, more_ratios])
    return frame.refined(token[:, None], products, ratios)[:, 0], rest


def _first_columns(reader: ScoreReader, keys: Floats, tokens: Floats) -> tuple[ScoreReader, Floats, Floats]:
    """The first columns, a few products ahead of the others: they tell the size of scores far better than the probes before."""
    few = min(len(keys), max(PILOT, reader.values.usable))
    products, ratios = reader.products(keys[:few], tokens)
    fitted = _resized(reader, products)
    if fitted.gain > FAINTLY * reader.gain:  # they were all but lost in the rounding
        products, ratios = fitted.products(keys[:few], tokens)
    if few == len(keys):
        return fitted, products, ratios
    more, more_ratios = fitted.products(keys[few:], tokens)
    return fitted, np.vstack([products, more]), np.vstack([ratios, more_ratios])


def _fitted(reader: ScoreReader, keys: Floats, vectors: Floats, score: float = SCORE) -> ScoreReader:
    """The reader with tokens resized so that scores of ``keys`` with columns like those seen are of size ``score``."""
    return _resized(reader, keys @ vectors, score)


def _resized(reader: ScoreReader, products: Floats, score: float = SCORE) -> ScoreReader:
    seen = float(np.sqrt(np.mean(products**2))) * reader.gain
    return reader.resized(float(np.clip(score / seen, 2.0**-10, 64.0)) if 0 < seen < np.inf else 1.0)


def _check_until(d: int, reader: ScoreReader) -> int:
    """Up to this many columns a needless one costs more than may be wasted: look before asking it."""
    if reader.values.usable > 1:
        return 0
    return max((k for k in range(1, d - 2) if d - k > WASTE * k * (2 * d - k) + 2 * WASTED), default=0)


def _block(d: int, at: int, rank: int | None, reader: ScoreReader) -> int:
    """How many columns to ask at once: first one, then all if the rank is given, else so few that hardly any are asked in vain."""
    if at == 0 and not isinstance(reader, PositionReader):
        return 1  # it tells the size of scores for the others
    if rank is not None:
        return rank - at
    return max(1, int((WASTE * at * (2 * d - at) / reader.values.usable + WASTED) // reader.price(d, 1)))
