"""How a layer of heads answers, whatever kind of arrays holds its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.base import Floats, signs
from unsoftmax.models.kinds import array_namespace
from unsoftmax.models.matrices import Matrices
from unsoftmax.models.places import alike

Padded = tuple[Floats, NDArray[np.bool_] | None]  # a batch of sequences, and which of their tokens are none


def softmax(scores: Floats, *, spent: bool = False) -> Floats:
    """Normalised exponentials along the last axis; rows of ``-inf`` beyond the first entry are masked out.

    Scores that are ``spent``, needed by nobody afterwards, are overwritten: fresh memory takes as long as the arithmetic.
    """
    xp = array_namespace(scores)
    highest = xp.max(scores, axis=-1, keepdims=True)
    weights: Floats
    if isinstance(scores, np.ndarray):
        weights = np.subtract(scores, highest, out=scores if spent else None)
        np.exp(weights, out=weights)
    else:
        weights = xp.exp(scores - highest)
    weights /= xp.sum(weights, axis=-1, keepdims=True)
    return weights


@dataclass(frozen=True, slots=True, eq=False)
class OnDevice:
    """The forward pass of a layer whose parameters are arrays of any one kind."""

    scores: Matrices
    values: Matrices | None
    c: Floats
    b: Floats
    scalar: bool

    def __call__(
        self,
        sequences: Floats,
        absent: NDArray[np.bool_] | None = None,
        *,
        everywhere: bool = False,
        causal: bool = False,
    ) -> Floats:
        """Answers to ``(batch, length, width)``, at the last position or at all; ``absent (batch, 1, length)`` tokens are none."""
        if not everywhere and len(sequences) <= (most := _most(sequences, self.scores.shape[0])):
            return self._answers(_mixed(self._queries(sequences[:, -1]), sequences, absent))
        if not everywhere:
            pieces = [slice(start, start + most) for start in range(0, max(1, len(sequences)), most)]
            parts = [self(sequences[some], None if absent is None else absent[some]) for some in pieces]
            answers: Floats = array_namespace(sequences).concat(parts)
            return answers
        assert self.values is not None  # whoever predicts has asked whether the model can answer
        batch, length, width = sequences.shape
        answers = self.b
        for head in range(self.scores.shape[0]):  # one product for the batch: a stack of small ones is far slower
            asked = self.scores.turned(sequences.reshape(-1, width), head) + self.c[head]
            mixed = _mixed(asked.reshape(sequences.shape), sequences, absent, causal=causal).reshape(-1, width)
            answers = answers + self.values.after(mixed, head).reshape(batch, length, self.values.shape[2])
        return answers

    def many(self, groups: Sequence[Padded]) -> list[Floats]:
        """Answers to several batches at the last position: parameters are read for many sequences at once."""
        told: list[Floats] = []
        for some in _bundles(groups, self.scores.shape[0]):
            if len(some) == 1:
                told.append(self(*some[0]))
                continue
            xp, ends = array_namespace(some[0][0]), np.cumsum([len(X) for X, _ in some]).tolist()
            places = [slice(end - len(X), end) for (X, _), end in zip(some, ends, strict=True)]
            asked = self._queries(xp.concat([X[:, -1] for X, _ in some]))
            answers = self._answers(xp.concat([_mixed(asked[at], *group) for at, group in zip(places, some, strict=True)]))
            told += [answers[at] for at in places]
        return told

    def _queries(self, last: Floats) -> Floats:
        """What tokens are multiplied with before these last ones ``(batch, heads, width)``."""
        queries: Floats = (self.scores.turned(last) + self.c[:, None]).swapaxes(0, 1)
        return queries

    def _answers(self, mixed: Floats) -> Floats:
        """Answers behind each head's mixture of tokens ``(batch, heads, width)``."""
        assert self.values is not None  # whoever predicts has asked whether the model can answer
        answers: Floats = self.b + self.values.summed(mixed)
        return answers[:, 0] if self.scalar else answers

    def moved(self, relative: float, rng: np.random.Generator, like: Floats) -> Moved:
        """How answers move where every score is off by about this share of itself, in numbers as long as those of ``like``."""
        assert self.values is not None
        xp, change = array_namespace(like), self.scores.change(relative, rng)
        rows, columns = (alike(some, self.c) for some in signs(self.c.shape, relative, rng))
        c, off = (xp.astype(some, like.dtype)[:, None] for some in (self.c, self.c * rows * columns))
        return Moved(self.scores.kind(like), change.kind(like), self.values.kind(like), c, off)


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """Scores, ``c`` and values of a layer, and what changes of the scores.

    Differences of weights are worked out, none of answers, so that numbers of few digits tell them.
    """

    scores: Matrices
    change: Matrices
    values: Matrices
    c: Floats
    off: Floats

    def __call__(self, sequences: Floats) -> tuple[Floats, Floats, float]:
        """Answers at the last position but for the constant ``(batch, outputs)``, how far they move, and the largest score."""
        xp, heads, size = array_namespace(sequences), self.scores.shape[0], _most(sequences, 2 * self.scores.shape[0])
        parts, largest = list[Floats](), list[Floats]()
        for start in range(0, len(sequences), size):
            some = sequences[start : start + size]
            last = some[:, -1]
            asked = xp.concat([self.scores.turned(last) + self.c, self.change.turned(last) + self.off])
            scores = xp.permute_dims(asked, (1, 0, 2)) @ some.swapaxes(1, 2)
            largest.append(xp.max(xp.abs(scores[:, :heads])))
            weights, growth = softmax(scores[:, :heads]), xp.expm1(scores[:, heads:])
            mean = xp.sum(weights * growth, axis=-1, keepdims=True)
            mixed = xp.concat([weights, weights * (growth - mean) / (1 + mean)], axis=1) @ some
            parts.append(self.values.summed(mixed.reshape(2 * len(some), heads, -1)).reshape(len(some), 2, -1))
        told = xp.concat(parts)
        return told[:, 0], told[:, 1], float(xp.max(xp.stack(largest)))


def _most(X: Floats, queries: int) -> int:
    """Sequences with so many queries each that the cache of this machine holds, or the memory of a device."""
    numbers = 2**23 // X.itemsize if isinstance(X, np.ndarray) else 2**27
    return max(1, numbers // (queries * int(X.shape[2])))


def _bundles(groups: Sequence[Padded], queries: int) -> list[list[Padded]]:
    """Batches in their order, as many together as are no more sequences than that."""
    most = count = _most(groups[0][0], queries)
    bundles: list[list[Padded]] = []
    for group in groups:
        if not bundles or count + len(group[0]) > most:
            bundles.append([])
            count = 0
        bundles[-1].append(group)
        count += len(group[0])
    return bundles


def _mixed(asked: Floats, X: Floats, absent: NDArray[np.bool_] | None, *, causal: bool = False, most: int = 2**20) -> Floats:
    """Tokens mixed by the softmax of their products with ``asked (batch, queries, width)``.

    On the host about ``most`` scores at a time: fresh memory for all of a large batch takes longer than the arithmetic.
    """
    size = max(1, most // (asked.shape[1] * X.shape[1])) if isinstance(X, np.ndarray) else len(X)
    if len(X) > size:
        parts = [slice(i, i + size) for i in range(0, len(X), size)]
        somewhere = [None if absent is None else absent[part] for part in parts]
        return np.concatenate([_mixed(asked[p], X[p], none, causal=causal) for p, none in zip(parts, somewhere, strict=True)])
    scores = asked @ X.swapaxes(1, 2)
    if causal:
        scores[:, ~np.tri(X.shape[1], dtype=bool)] = -np.inf
    if absent is not None:
        scores[array_namespace(scores).broadcast_to(absent, scores.shape)] = -np.inf
    return softmax(scores, spent=True) @ X
