"""Strangers of a third sort for ``benchmarks/hunt.py unseen``: twenty-two foreign bodies that nothing was tuned on.

Each is a head (or two) with something foreign of strength ``effect``, 1e-9 to 1; 0 is the head itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from truth import Drawn, Head, softmax

import unsoftmax as us

Answer = Callable[[np.ndarray], np.ndarray]


class Stage:
    """One head, its pieces for a batch of sequences, and what else a foreign body may need."""

    def __init__(self, effect: float, rng: np.random.Generator) -> None:
        self.head, self.effect, self.rng = Head(rng), effect, rng
        self.width = self.head.width
        self.other = us.Attention.single(rng.normal(size=self.head.W.shape) / np.sqrt(self.width), rng.normal(size=self.width))
        self.cut, self.noise = int(rng.integers(2, 30)), np.random.default_rng(int(rng.integers(2**32)))
        self.last: np.ndarray | None = None

    def weighed(self, X: np.ndarray, weights: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
        return np.einsum("bn,bn->b", weights, X @ self.head.v if values is None else values)

    def mixed(self, X: np.ndarray, strange: np.ndarray) -> np.ndarray:
        plain = self.head.answer(X)
        return plain + self.effect * (strange - plain)


def alibi_by_head(s: Stage, X: np.ndarray) -> np.ndarray:
    """Two heads, each with a slope of its own."""
    back = np.arange(X.shape[1])[::-1]
    second = softmax(np.einsum("bnd,de,be->bn", X, s.other.W[0], X[:, -1]) - s.effect * 4 * back)
    return s.weighed(X, softmax(s.head.scores(X) - s.effect * back)) + s.weighed(X, second, X @ s.other.V[0])


def temperature_by_length(s: Stage, X: np.ndarray) -> np.ndarray:
    return s.head.answer(X, s.head.scores(X) * (1 + s.effect * (X.shape[1] > s.cut)))


def cosine(s: Stage, X: np.ndarray) -> np.ndarray:
    keys, query = X / (np.linalg.norm(X, axis=2, keepdims=True) + 1e-12), X[:, -1] @ s.head.W.T
    return s.mixed(X, s.head.answer(X, 4 * np.einsum("bnd,bd->bn", keys, query / (np.linalg.norm(query, axis=1)[:, None] + 1e-12))))


def normed_values(s: Stage, X: np.ndarray) -> np.ndarray:
    normed = X / (np.linalg.norm(X, axis=2, keepdims=True) + 1e-12)
    return s.mixed(X, s.weighed(X, softmax(s.head.scores(X)), normed @ s.head.v))


def relu_weights(s: Stage, X: np.ndarray) -> np.ndarray:
    weights = np.maximum(s.head.scores(X), 0)
    return s.mixed(X, s.weighed(X, weights / (weights.sum(axis=1, keepdims=True) + 1e-9)))


def sigmoid_weights(s: Stage, X: np.ndarray) -> np.ndarray:
    weights = 1 / (1 + np.exp(-np.clip(s.head.scores(X), -700, 700)))
    return s.mixed(X, s.weighed(X, weights / weights.sum(axis=1, keepdims=True)))


def off_by_one(s: Stage, X: np.ndarray) -> np.ndarray:
    """Softmax with a one in the denominator."""
    scores = s.head.scores(X)
    top = np.maximum(scores.max(axis=1, keepdims=True), 0)
    weights = np.exp(scores - top)
    return s.mixed(X, s.weighed(X, weights / (weights.sum(axis=1, keepdims=True) + np.exp(-top))))


def top_p(s: Stage, X: np.ndarray) -> np.ndarray:
    """Of the weights only the largest that make up 1 - effect of all."""
    weights = softmax(s.head.scores(X))
    order = np.argsort(-weights, axis=1)
    before = np.cumsum(np.take_along_axis(weights, order, axis=1), axis=1) - np.take_along_axis(weights, order, axis=1)
    kept = np.zeros_like(weights)
    np.put_along_axis(kept, order, (before < 1 - s.effect).astype(float), axis=1)
    weights = weights * np.maximum(kept, weights == weights.max(axis=1, keepdims=True))
    return s.weighed(X, weights / weights.sum(axis=1, keepdims=True))


def eviction(s: Stage, X: np.ndarray) -> np.ndarray:
    """A cache that keeps the first token and the most recent ones."""
    kept = X if X.shape[1] <= s.cut + 1 else np.concatenate([X[:, :1], X[:, -s.cut :]], axis=1)
    return s.mixed(X, s.head.answer(kept))


def grouped(s: Stage, X: np.ndarray) -> np.ndarray:
    """Softmax within groups of four tokens, and the mean of the groups."""
    parts = [X[:, at : at + 4] for at in range(0, X.shape[1], 4)]
    scores = [np.einsum("bnd,de,be->bn", part, s.head.W, X[:, -1]) for part in parts]
    answers = [s.weighed(part, softmax(score)) for part, score in zip(parts, scores, strict=True)]
    return s.mixed(X, np.mean(answers, axis=0))


def clipped_answers(s: Stage, X: np.ndarray) -> np.ndarray:
    return np.clip(s.head.answer(X), -1 / s.effect, 1 / s.effect)


def tanh_answers(s: Stage, X: np.ndarray) -> np.ndarray:
    return np.tanh(s.effect * s.head.answer(X)) / s.effect


def rounded_tokens(s: Stage, X: np.ndarray) -> np.ndarray:
    """Tokens rounded up or down by chance."""
    return s.head.answer(s.effect * np.floor(X / s.effect + s.noise.random(X.shape)))


def rounded_weights(s: Stage, X: np.ndarray) -> np.ndarray:
    weights = softmax(s.head.scores(X))
    return s.weighed(X, s.effect * np.round(weights / s.effect))


def differential(s: Stage, X: np.ndarray) -> np.ndarray:
    """The difference of two softmaxes on the same values, one of them through a soft-cap."""
    second = np.einsum("bnd,de,be->bn", X, s.other.W[0], X[:, -1])
    return s.weighed(X, softmax(s.head.scores(X)) - s.effect * softmax(2 * np.tanh(second / 2)))


def gate_by_first(s: Stage, X: np.ndarray) -> np.ndarray:
    return s.head.answer(X) * (1 + s.effect * np.tanh(X[:, 0] @ s.other.V[0]))


def neighbours(s: Stage, X: np.ndarray) -> np.ndarray:
    """Answers leak from one sequence of a batch to the next."""
    plain = s.head.answer(X)
    return plain + s.effect * (np.roll(plain, 1) - plain)


def stale(s: Stage, X: np.ndarray) -> np.ndarray:
    """A little of the answer before."""
    plain = s.head.answer(X)
    before, s.last = (plain[:1] if s.last is None else s.last), plain[-1:]
    return plain + s.effect * (before - plain)


def repeats_merged(s: Stage, X: np.ndarray) -> np.ndarray:
    """Tokens that occurred before count less."""
    scores = s.head.scores(X)
    for row, tokens in enumerate(X):
        first = np.unique(tokens, axis=0, return_index=True)[1]
        again = np.ones(len(tokens), dtype=bool)
        again[first] = False
        scores[row, again] -= s.effect * 5
    return s.head.answer(X, scores)


def long_tokens_cut(s: Stage, X: np.ndarray) -> np.ndarray:
    """Tokens longer than 3 sqrt(width) are shortened a little."""
    lengths = np.linalg.norm(X, axis=2, keepdims=True) + 1e-300
    limit = 3 * np.sqrt(s.width)
    return s.head.answer(X * np.where(lengths > limit, (limit / lengths) ** s.effect, 1.0))


def self_excluded(s: Stage, X: np.ndarray) -> np.ndarray:
    """The last token does not attend to itself, where there are others."""
    return s.mixed(
        X, s.head.answer(X, np.where(np.arange(X.shape[1]) == X.shape[1] - 1, -30.0 * (X.shape[1] > 1), s.head.scores(X)))
    )


def even_lengths(s: Stage, X: np.ndarray) -> np.ndarray:
    return s.head.answer(X) + s.effect * (X.shape[1] % 2 == 0) * s.other(X)


BODIES: dict[str, Callable[[Stage, np.ndarray], np.ndarray]] = {
    body.__name__.replace("_", " "): body
    for body in (
        alibi_by_head, temperature_by_length, cosine, normed_values, relu_weights, sigmoid_weights, off_by_one, top_p, eviction,
        grouped, clipped_answers, tanh_answers, rounded_tokens, rounded_weights, differential, gate_by_first, neighbours, stale,
        repeats_merged, long_tokens_cut, self_excluded, even_lengths,
    )
}  # fmt: skip


def unseen(kind: str, effect: float, rng: np.random.Generator) -> Drawn:
    """A head with this foreign body."""
    stage = Stage(effect, rng)
    return stage.width, stage.head.model, lambda X: BODIES[kind](stage, X)
