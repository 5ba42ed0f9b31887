"""How a layer of heads answers, whatever kind of arrays holds its parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from unsoftmax.models.base import Floats, signs
from unsoftmax.models.matrices import Matrices
from unsoftmax.models.places import alike


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
        assert self.values is not None  # whoever predicts has asked whether the model can answer
        if self.scores.right is not None and not everywhere:
            return self._at_last(sequences, absent, self.values)
        batch, width = len(sequences), sequences.shape[2]
        queries = sequences if everywhere else sequences[:, -1:]
        answers = self.b
        for head in range(self.scores.shape[0]):  # one product for the batch: a stack of small ones is far slower
            asked = self.scores.turned(queries.reshape(-1, width), head) + self.c[head]
            mixed = _mixed(asked.reshape(queries.shape), sequences, causal and everywhere, absent).reshape(-1, width)
            answers = answers + self.values.after(mixed, head).reshape(batch, queries.shape[1], self.values.shape[2])
        if everywhere:
            return answers
        return answers[:, 0, 0] if self.scalar else answers[:, 0]

    def moved(self, sequences: Floats, relative: float, rng: np.random.Generator) -> tuple[Floats, Floats, float]:
        """Answers at the last position but for the constant ``(batch, outputs)``, how far they move, and the largest score.

        Every score is off by about this share of itself. Differences of weights are worked out, none of answers, so that numbers of
        few digits tell them: short sequences are answered in numbers as short.
        """
        xp, heads, parts = array_namespace(sequences), self.scores.shape[0], []
        largest: list[Floats] = []
        change = self.scores.change(relative, rng)
        rows, columns = (alike(some, self.c) for some in signs(self.c.shape, relative, rng))
        pairs = (self.scores, self.c), (change, self.c * rows * columns)
        layers = [(scores.kind(sequences), xp.astype(c, sequences.dtype)[:, None]) for scores, c in pairs]
        assert self.values is not None
        values = self.values.kind(sequences)
        for piece in _pieces(sequences, 2 * heads):
            some = sequences[piece]
            asked = xp.concat([scores.turned(some[:, -1]) + c for scores, c in layers])
            scores = xp.permute_dims(asked, (1, 0, 2)) @ some.swapaxes(1, 2)
            largest.append(xp.max(xp.abs(scores[:, :heads])))
            weights, growth = softmax(scores[:, :heads]), xp.expm1(scores[:, heads:])
            mean = xp.sum(weights * growth, axis=-1, keepdims=True)
            mixed = xp.concat([weights, weights * (growth - mean) / (1 + mean)], axis=1) @ some
            parts.append(values.summed(mixed.reshape(2 * len(some), heads, -1)).reshape(len(some), 2, -1))
        told = xp.concat(parts)
        return told[:, 0], told[:, 1], float(xp.max(xp.stack(largest)))

    def _at_last(self, sequences: Floats, absent: NDArray[np.bool_] | None, values: Matrices) -> Floats:
        """Answers at the last position, all heads at once: where products with matrices are cheap, reading tokens once counts."""
        xp, parts = array_namespace(sequences), []
        for piece in _pieces(sequences, self.scores.shape[0]):
            some = sequences[piece]
            asked = xp.permute_dims(self.scores.turned(some[:, -1]) + self.c[:, None], (1, 0, 2))
            mixed = _mixed(asked, some, False, None if absent is None else absent[piece])
            parts.append(self.b + values.summed(mixed))
        answers: Floats = xp.concat(parts)
        return answers[:, 0] if self.scalar else answers


def _pieces(X: Floats, queries: int) -> list[slice]:
    """Parts of a batch with so many queries each, which the cache of this machine holds, or the memory of a device."""
    size = max(1, (2**20 if isinstance(X, np.ndarray) else 2**27) // (queries * X.shape[2]))
    return [slice(start, start + size) for start in range(0, max(1, len(X)), size)]


def _mixed(asked: Floats, X: Floats, causal: bool, absent: NDArray[np.bool_] | None, most: int = 2**20) -> Floats:
    """Tokens mixed by the softmax of their products with ``asked (batch, queries, width)``.

    On the host about ``most`` scores at a time: fresh memory for all of a large batch takes longer than the arithmetic.
    """
    size = max(1, most // (asked.shape[1] * X.shape[1])) if isinstance(X, np.ndarray) else len(X)
    if len(X) > size:
        parts = [slice(i, i + size) for i in range(0, len(X), size)]
        return np.concatenate([_mixed(asked[part], X[part], causal, None if absent is None else absent[part]) for part in parts])
    scores = asked @ X.swapaxes(1, 2)
    if causal:
        scores[:, ~np.tri(X.shape[1], dtype=bool)] = -np.inf
    if absent is not None:
        scores[array_namespace(scores).broadcast_to(absent, scores.shape)] = -np.inf
    return softmax(scores, spent=True) @ X
