"""The one-layer Transformer while it is being learned, and the questions asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from unsoftmax.learners.transformer.settings import TRANSFORMER
from unsoftmax.models import Floats, softmax
from unsoftmax.oracles.base import LastPosition, Oracle
from unsoftmax.results import Floor


class Network(Protocol):
    """What the attention stands in front of: a sum of neurons, each with a normal and a shift, and an affine part."""

    @property
    def out(self) -> Floats:
        """``(neurons, outputs)``."""

    @property
    def normal(self) -> Floats:
        """``(neurons, width)``."""

    def before(self, points: Floats) -> Floats:
        """Pre-activations ``(n, neurons)``."""

    def __call__(self, points: Floats) -> Floats:
        """Values ``(n, outputs)``."""

    def gradients(self, points: Floats) -> Floats:
        """Derivatives ``(n, outputs, width)``."""


Kind = TypeVar("Kind", bound=Network)


@dataclass(frozen=True, slots=True, eq=False)
class Mixture(Generic[Kind]):
    """``f(X) = network(x_N + mix @ (mean - x_N))`` with ``mean`` the softmax average of the tokens.

    ``network`` is the target on one token. Without residual ``mix`` is the identity; with residual it is ``(1 + V)^-1 V``.
    """

    network: Kind
    mix: Floats
    W: Floats
    c: Floats

    def parts(self, X: Floats) -> tuple[Floats, Floats, Floats]:
        """Attention weights ``(n, length)``, mean minus last token ``(n, width)`` and the point the network sees ``(n, width)``."""
        last = X[:, -1]
        weights = softmax(np.einsum("nlw,nw->nl", X, last @ self.W.T + self.c))
        moved = np.einsum("nl,nlw->nw", weights, X - last[:, None])
        return weights, moved, last + moved @ self.mix.T

    def __call__(self, X: Floats) -> Floats:
        """Answers ``(n, outputs)``."""
        return self.network(self.parts(X)[2])


class Sequences:
    """Asks sequences of any length and keeps every answer, grouped by length; ``asked`` counts them."""

    def __init__(self, oracle: Oracle, *, floor: Floor, max_norm: float | None) -> None:
        self.oracle = LastPosition(oracle)
        self.floor = floor
        self.max_norm = max_norm
        self.kept: list[tuple[Floats, Floats]] = []
        self.asked = 0

    def ask(self, X: Floats, *, keep: bool = True) -> Floats:
        """Answers ``(n, outputs)`` to ``X (n, length, width)``."""
        size = max(1, TRANSFORMER.chunk_numbers // (X.shape[1] * X.shape[2]))
        answers = np.concatenate([self.oracle(np.ascontiguousarray(X[i : i + size])) for i in range(0, len(X), size)])
        answers = answers.reshape(len(X), -1)
        self.asked += len(X)
        if keep:
            self.kept.append((X, answers))
        return answers

    def pairs(self, last: Floats, step: Floats, *, keep: bool = True) -> Floats:
        """Answers to the two tokens ``[last + step; last]``."""
        return self.ask(np.stack([last + step, last], axis=1), keep=keep)

    def shorten(self, points: Floats, bound: float = 0.999) -> Floats:
        """Points pulled inside the allowed length."""
        if self.max_norm is None:
            return points
        norms = np.maximum(np.linalg.norm(points, axis=-1, keepdims=True), 1e-300)
        return np.asarray(points * np.minimum(1.0, bound * self.max_norm / norms))
