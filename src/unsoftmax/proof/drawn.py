"""Tokens of fresh sequences, of all lengths and kinds in a few steps: a device takes as long for a step as for many tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from unsoftmax.linalg import INSIDE, alike, normal, on_host, there
from unsoftmax.models import Floats
from unsoftmax.proof.settings import PROOF

Numbers = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Sequences of one length that are wanted.

    Attributes:
        length: tokens of each.
        count: how many are kept.
        sizes: which of a model's token sizes they have in turn; None for natural ones.
        drawn: how many are drawn, where those kept are chosen among them.
    """

    length: int
    count: int
    sizes: Numbers | None = None
    drawn: int = 0

    @property
    def natural(self) -> bool:
        """Whether their tokens have natural size."""
        return self.sizes is None

    @property
    def sequences(self) -> int:
        """How many are drawn."""
        return max(self.count, self.drawn)

    @property
    def tokens(self) -> int:
        """Tokens of all that are drawn."""
        return self.sequences * self.length


def tokens_of(
    parts: list[Part],
    width: int,
    sizes: Floats,
    rng: np.random.Generator,
    max_norm: float | None = None,
    natural: Floats | None = None,
    like: Floats | None = None,
) -> list[Floats]:
    """The sequences of each part ``(sequences, length, width)``; natural ones are rows of ``natural``, where that is given.

    All that are drawn together lie in one piece of memory. On the host many numbers are drawn apart, fewer digits of each.
    """
    wanted = [i for i, part in enumerate(parts) if natural is None or not part.natural]
    moderate = [i for i in wanted if not parts[i].natural and parts[i].length <= PROOF.moderate]
    pieces = [moderate, *([i] for i in wanted if i not in moderate)]
    large = [like is None and width * sum(parts[i].tokens for i in piece) >= PROOF.large for piece in pieces]
    small = [i for piece, many in zip(pieces, large, strict=True) for i in piece if not many]
    small.sort(key=lambda i: parts[i].natural)
    drawn: dict[int, Floats] = {}
    for piece, many in [(small, False), *((piece, True) for piece, many in zip(pieces, large, strict=True) if many)]:
        sequences = _drawn([parts[i] for i in piece], width, sizes, rng, like, even=many, max_norm=max_norm)
        drawn |= zip(piece, sequences, strict=True)
    for i, part in enumerate(parts):
        if i not in drawn:
            assert natural is not None
            drawn[i] = _within(rows_of(natural, (part.sequences, part.length), rng), max_norm)
    return [drawn[i] for i in range(len(parts))]


def plain(
    shape: tuple[int, ...], rng: np.random.Generator, like: Floats | None, large: int = PROOF.large, *, short: bool = False
) -> Floats:
    """Entries of standard deviation one; many on this machine evenly spread, of 8 bits: as fresh, and drawn at memory speed.

    Those may be ``short``, numbers of 4 bytes.
    """
    if like is not None or math.prod(shape) < large:
        return normal(shape, rng, like)
    return _even_bits(math.prod(shape[:-1]), shape[-1], rng, short=short).reshape(shape)


def natural_ones(
    shape: tuple[int, int, int],
    rng: np.random.Generator,
    natural: Floats | None,
    max_norm: float | None,
    like: Floats | None = None,
    large: int = PROOF.large,
    *,
    short: bool = False,
) -> Floats:
    """Sequences of natural tokens: plain ones, or rows of ``natural``; all shortened alike where one exceeds ``max_norm``."""
    X = plain(shape, rng, like, large, short=short) if natural is None else rows_of(natural, shape[:2], rng)
    return X if max_norm is None else X * min(1.0, INSIDE * max_norm / float(np.linalg.norm(on_host(X), axis=-1).max()))


def _drawn(
    parts: list[Part],
    width: int,
    sizes: Floats,
    rng: np.random.Generator,
    like: Floats | None,
    *,
    even: bool,
    max_norm: float | None,
) -> list[Floats]:
    """The sequences of some parts, natural ones last; ``even``: evenly spread numbers of 8 bits, as fresh and at memory speed."""
    ends = np.cumsum([0, *(part.tokens for part in parts)])
    count = int(ends[-1])
    tokens = _even_bits(count, width, rng) if even else normal((count, width), rng, like)
    starts = ends[:-1].tolist()
    places = [np.arange(at, at + part.tokens).reshape(-1, part.length) for at, part in zip(starts, parts, strict=True)]
    which = [np.repeat(np.resize(part.sizes, part.count), part.length) for part in parts if part.sizes is not None]
    if which:
        known = alike(sizes, like) if isinstance(sizes, np.ndarray) else sizes
        ours = there(np.concatenate(which).astype(np.int32), like)  # few bytes travel to a busy device unawaited
        tokens[: len(ours)] *= known[ours][:, None]
    _vary(tokens, [place for place, part in zip(places, parts, strict=True) if part.natural], rng, like)
    tokens = _within(tokens, max_norm)
    return [tokens[at : at + part.tokens].reshape(-1, part.length, width) for at, part in zip(starts, parts, strict=True)]


def _vary(tokens: Floats, places: list[Numbers], rng: np.random.Generator, like: Floats | None) -> None:
    """Of natural sequences at these ``places (sequences, length)`` make one in six whole numbers, repetitions, equally long."""
    whole, steps, onto, again, equal = ([np.zeros(0, dtype=np.intp)] for _ in range(5))
    for place in places:
        order, length = rng.permutation(len(place)), place.shape[1]
        whole.append(place[order[::6]].ravel())
        steps.append(np.repeat(rng.integers(1, 3, size=len(order[::6])), length))
        repeated = place[order[1::6]]
        onto.append(repeated.ravel())
        again.append(np.take_along_axis(repeated, rng.integers(0, -(-length // 2), size=repeated.shape), axis=1).ravel())
        equal.append(place[order[2::6]].ravel())
    xp = array_namespace(tokens)
    at, times, to, source, long = (there(np.concatenate(some), like) for some in (whole, steps, onto, again, equal))
    if len(at):
        tokens[at] = xp.round(tokens[at] * times[:, None]) / times[:, None]
    if len(to):
        tokens[to] = tokens[source]
    if len(long):
        norms = xp.linalg.vector_norm(tokens[long], axis=-1, keepdims=True)
        tokens[long] = tokens[long] * (tokens.shape[1] ** 0.5 / xp.clip(norms, min=1e-300))


def _even_bits(count: int, width: int, rng: np.random.Generator, *, short: bool = False) -> Floats:
    """Tokens ``(count, width)`` of standard deviation one whose entries are whole multiples of one step."""
    steps = np.asarray(rng.bit_generator.random_raw(-(-count * width // 8))).view(np.int8)[: count * width]
    tokens: Any = steps.reshape(-1, width).astype(np.float32 if short else np.float64)
    tokens *= float(np.sqrt(3.0) / 2**7)
    told: Floats = tokens
    return told


def rows_of(table: Floats, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Sequences of rows of a table."""
    return np.asarray(table[rng.integers(0, len(table), size=shape)])


def _within(tokens: Floats, max_norm: float | None) -> Floats:
    """Tokens shortened to ``max_norm`` where they are longer."""
    if max_norm is None:
        return tokens
    xp = array_namespace(tokens)
    norms = xp.linalg.vector_norm(tokens, axis=-1, keepdims=True)
    shortened: Floats = tokens * xp.clip(max_norm * INSIDE / xp.where(norms > 0, norms, max_norm), max=1.0)
    return shortened
