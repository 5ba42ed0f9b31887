"""The matrix W of one head from products with it: its rank, columns until their range is full, then rows inside that range."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from array_api_compat import device

from unsoftmax.learners.one_head.positions import PositionReader
from unsoftmax.learners.one_head.scores import Frame, Products, ScoreReader
from unsoftmax.learners.one_head.settings import HEAD
from unsoftmax.linalg import array_namespace, on_host, orthonormal
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import foretell, phase
from unsoftmax.results import Floor
from unsoftmax.watching import watchers


def read_score_matrix(reader: ScoreReader, floor: Floor, rank: int | None, rng: np.random.Generator) -> tuple[Floats, int, float]:
    """Read W ``(width, width)``, its rank and the error of one product.

    Price: ``r * ceil(d/u) + (d - r) * ceil(r/u)`` queries with u usable outputs. A low rank that must be found adds 8 and 2% at
    most, a rank of half the width up to 8%. On a device those are 4,096 or d^2/16, 16% and
    40%: steps take longer than queries there.

    The last tokens are the rows of a random rotation. A column ``W x`` costs d products; once the columns span the range of W
    (orthonormal basis Q), every other column lies in it and costs the r products ``Q^T W x``.
    """
    d = reader.oracle.width
    tokens = orthonormal(d, rng, like=reader.values.worth)
    xp = array_namespace(tokens)
    tokens = tokens * xp.where(tokens @ reader.values.directions[:, :1] > 0, -1.0, 1.0)  # keys are worth > 0: answers span both
    whole, reader = reader, reader.evened(d)
    frame = reader.frame(orthonormal(d, rng, like=reader.values.worth))
    phase(reader.oracle, "columns")
    table = _Table(reader, frame.keys, tokens, floor, d if rank is None else rank)
    test = _RankTest(table.noise)
    found = min(_leading_rank(table, test) if rank is None else rank, d)
    tokens = table.all_tokens
    # where tokens have no scores of their own and keys share one tilt, the inverse is a rotation: nothing is left to mend
    precise = table.pure and reader.values.usable == 1 and d > HEAD.mended

    vectors = xp.empty((d, d), dtype=tokens.dtype, device=device(tokens))

    def see() -> None:
        vectors[:, :found] = (frame.vectors if precise else frame.refined)(
            tokens[:found].T, table.products[:, :found], table.ratios[:, :found]
        )
        if found == d:  # all is asked but what saturates, and no answer has been looked at yet
            foretell(reader.oracle, lambda: _turned(vectors, tokens, precise))
            phase(reader.oracle, "columns")

    table.extend(d, found, see)
    if found == d and rank is None:
        rank = test.rank(table.products) if table.pure else _RankTest(table.noise).rank(vectors)
    phase(reader.oracle, "rows")
    if 0 < found < d:
        basis = xp.linalg.qr(vectors[:, :found])[0]
        reader = replace(table.reader, values=whole.values).evened(found)
        keys = _sound_keys(reader, basis, rng)
        inside = Frame(keys @ basis)
        at = found
        while at < d:
            pilot = at < HEAD.pilot and d - at > HEAD.pilot
            some = tokens[at : at + HEAD.pilot if pilot else d]
            fitted = _resized(reader, keys @ vectors[:, :at], HEAD.score / 8 if pilot else HEAD.score)
            vectors[:, at : at + len(some)] = basis @ inside.refined((some @ basis).T, *fitted.products(keys, some))
            at += len(some)
    W = _turned(vectors, tokens, precise) if found else 0.0 * tokens
    return W, found if rank is None else rank, table.noise


def _turned(vectors: Floats, tokens: Floats, precise: bool) -> Floats:
    """W from its products ``vectors`` with the ``tokens`` of a rotation."""
    W = vectors @ tokens
    # the rotation is orthonormal only to rounding
    return W if precise else W + (vectors - W @ tokens.T) @ tokens


class _Table:
    """Products of the frame's keys with the tokens, read from the upper left corner outwards.

    The first few tell the size of scores far better than the probes before, so the others are read at a size of their own.

    Args:
        columns: tokens that will be read at most.

    Attributes:
        noise: error of one product.
        pure: products hold nothing of the tokens' own scores.
    """

    def __init__(self, reader: ScoreReader, keys: Floats, tokens: Floats, floor: Floor, columns: int) -> None:
        xp = array_namespace(tokens)
        d = len(keys)
        self.all_keys, self.all_tokens = keys, tokens
        self.products, self.ratios = (xp.empty((d, d), dtype=tokens.dtype, device=device(tokens)) for _ in range(2))
        self.unit = reader.values.usable
        self.pure = reader.ratio <= floor.relative
        self.reader = reader
        self.keys, self.tokens = self._first(columns)
        here = slice(self.keys), slice(self.tokens)
        self.products[here], self.ratios[here] = reader.products(keys[: self.keys], tokens[: self.tokens])
        self.reader = _resized(reader, self.products[here])
        if self.reader.gain > HEAD.faintly * reader.gain:  # they were all but lost in the rounding
            self.products[here], self.ratios[here] = self.reader.products(keys[: self.keys], tokens[: self.tokens])
        self._precision = HEAD.noise * floor.relative * reader.values.blur(reader.key_size)
        self.noise = self._precision / min(self.reader.gain, max(reader.gain, self.reader.gain / HEAD.faintly))

    def _first(self, columns: int) -> tuple[int, int]:
        """Keys and tokens to read ahead: a few products; every token where one query takes all; on a device the first block."""
        d, few = len(self.all_keys), HEAD.pilot
        tokens = d if isinstance(self.reader, PositionReader) else 1
        if not isinstance(self.all_keys, np.ndarray) and (size := _next_size(self, 1)) < d:
            few, tokens = max(few, size + (not self.pure)), max(1, min(size, columns))
        return min(d, -(-few // self.unit) * self.unit), tokens

    def begin_with(self, chosen: list[int]) -> None:
        """Put these tokens, which were read already, in front of the others."""
        xp = array_namespace(self.all_tokens)
        others = [number for number in range(len(self.all_tokens)) if number not in chosen]
        order = xp.asarray([*chosen, *others], device=device(self.all_tokens))
        self.all_tokens = xp.take(self.all_tokens, order, axis=0)
        self.products, self.ratios = (xp.take(table, order, axis=1) for table in (self.products, self.ratios))

    def extend(self, keys: int, tokens: int, see: Callable[[], None] = lambda: None) -> None:
        """Read what is missing of the first ``keys`` keys with the first ``tokens`` tokens.

        ``see`` is called when the table holds them; on a device before anybody waits, and once more if some had to be asked again.
        """
        keys = min(len(self.all_keys), -(-max(keys, self.keys) // self.unit) * self.unit)
        parts = [
            (slice(self.keys, keys), slice(min(tokens, self.tokens))),
            (slice(keys), slice(self.tokens, max(tokens, self.tokens))),
        ]
        parts = [(rows, columns) for rows, columns in parts if len(self.all_keys[rows]) and len(self.all_tokens[columns])]
        if parts and self.tokens < HEAD.typical:
            self.reader = _resized(self.reader, self.products[: self.keys, : self.tokens])
            self.noise = max(self.noise, self._precision / self.reader.gain)
        asked = [(self.all_keys[rows], self.all_tokens[columns]) for rows, columns in parts]

        def keep(read: Products) -> None:
            for part, numbers in zip(parts, read, strict=True):
                self.products[part], self.ratios[part] = numbers
            self.keys, self.tokens = keys, max(tokens, self.tokens)
            see()

        if asked:
            self.reader.all_products(asked, sees=keep)
        else:
            keep([])
        for watcher in watchers():
            watcher.sees(self.sketch)

    def sketch(self) -> Attention:
        """The head as far as it was read: the smallest W that has these products."""
        here = slice(self.keys), slice(self.tokens)
        keys, tokens, products = map(on_host, (self.all_keys[here[0]], self.all_tokens[here[1]], self.products[here]))
        values = self.reader.values.V, self.reader.values.b, self.reader.c
        V, b, c = (None if block is None else on_host(block) for block in values)
        assert V is not None
        return Attention(W=(np.linalg.pinv(keys) @ products @ tokens)[None], V=V[None], c=None if c is None else c[None], b=b)


def _leading_rank(table: _Table, test: _RankTest) -> int:
    """The rank of W, from square blocks of products that grow until one is singular; nothing is read in vain if none is."""
    d, size = len(table.all_keys), 1
    while (size := _next_size(table, size)) < d:
        rank = test.rank(_block(table, size, size))
        if rank == size:
            continue
        taller = _block(
            table, size + HEAD.spare, size
        )  # a square block may be all but singular by chance; one with more rows is not
        rank = test.rank(taller) if len(taller) > size else size  # none left: nearly all is read, and the rest tells
        if rank < size:
            table.begin_with(_strongest(on_host(taller), min(rank, HEAD.chosen)))
            return rank
    return d


def _strongest(block: Floats, count: int) -> list[int]:
    """The columns, ``count`` different ones, that span most: each is the one that those before leave the most of."""
    left, chosen = block.copy(), list[int]()
    for _ in range(count):
        sizes = np.linalg.norm(left, axis=0)
        sizes[chosen] = -1.0
        chosen.append(int(np.argmax(sizes)))
        along = left[:, chosen[-1]] / max(float(sizes[chosen[-1]]), 1e-300)
        left -= np.outer(along, along @ left)
    return chosen


def _block(table: _Table, keys: int, tokens: int) -> Floats:
    """Products of the first keys and tokens; where tokens have scores of their own, differences to one more key, free of them."""
    first = 0 if table.pure else 1
    table.extend(keys + first, tokens)
    block: Floats = table.products[first : min(keys + first, table.keys), :tokens]
    return block if table.pure else block - table.products[:1, :tokens]


class _RankTest:
    """The rank of a growing square matrix whose entries carry ``noise``, as far as the noise lets it show.

    While the matrix is safely regular, a factorisation or its inverse tells so; from then on its singular values decide.
    """

    def __init__(self, noise: float) -> None:
        self.noise = noise
        self._certain = True

    def rank(self, block: Floats) -> int:
        """The rank of ``block``, which contains the one before at its upper left, and has more rows only after a singular one."""
        self._certain = self._certain and (self._evidently_regular(block) or self._safely_regular(block))
        if self._certain:
            return len(block)
        sizes = np.linalg.svd(on_host(block), compute_uv=False)
        rounding = HEAD.vanished * self.noise * np.sqrt(len(sizes))
        rank = int(np.sum(sizes > rounding))
        gap = max(HEAD.gap, float(np.cbrt(sizes[0] / rounding)))
        return rank if rank == 0 or sizes[rank - 1] >= gap * rounding else len(sizes)

    def _evidently_regular(self, block: Floats) -> bool:
        """Whether all squares of singular values are positive, less what may be rounding or noise; the fastest way to tell."""
        xp = array_namespace(block)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                squares = block.T @ block
                least = HEAD.evident**2 * xp.linalg.trace(squares) + len(block) * (HEAD.certain * self.noise) ** 2
                xp.linalg.cholesky(squares - least * xp.eye(len(block), dtype=block.dtype, device=device(block)))
        except (np.linalg.LinAlgError, RuntimeError):  # torch's LinAlgError is a RuntimeError
            return False
        return True

    def _safely_regular(self, block: Floats) -> bool:
        xp = array_namespace(block)
        try:
            inverse = xp.linalg.inv(block)
        except (np.linalg.LinAlgError, RuntimeError):
            return False
        return HEAD.certain * self.noise * float(xp.linalg.matrix_norm(inverse)) < 1.0


def _next_size(table: _Table, size: int) -> int:
    """The largest block after one of this size whose reading wastes little if the rank is just ``size``."""
    d, price = len(table.all_keys), table.reader.price
    share, besides = (
        (HEAD.waste, HEAD.wasted)
        if isinstance(table.all_keys, np.ndarray)
        else (HEAD.haste * HEAD.waste, min(HEAD.hasted, d * d // 16))
    )
    allowed = share * (1 + HEAD.waste_more * size / d) * (price(d, size) + price(size, d - size)) + besides
    more = bisect_right(range(size + 1, d), allowed, key=lambda larger: (larger + 1 - size) * price(larger + 2, 1))
    larger = size + 1 + more
    return larger if larger < HEAD.nearly_all * d else d


def _sound_keys(reader: ScoreReader, basis: Floats, rng: np.random.Generator) -> Floats:
    """Keys that tell the vectors of ``basis`` apart: of several choices of signs, the one whose products are best conditioned."""
    keys = reader.keys(basis.T)
    if reader.values.usable == 1:
        return keys  # one tilt for all cannot spoil them
    signs = rng.choice([-1.0, 1.0], size=(HEAD.signs, basis.shape[1]))
    return min([keys, *(reader.keys((basis * s).T) for s in signs)], key=lambda some: float(np.linalg.cond(some @ basis)))


def _resized(reader: ScoreReader, products: Floats, score: float = HEAD.score) -> ScoreReader:
    """The reader with tokens resized so that scores like those of ``products`` are of size ``score``."""
    xp = array_namespace(products)
    seen = float(xp.linalg.vector_norm(products)) / float(np.sqrt(math.prod(products.shape))) * reader.gain
    return reader.resized(float(np.clip(score / seen, 2.0**-10, 64.0)) if 0 < seen < np.inf else 1.0)
