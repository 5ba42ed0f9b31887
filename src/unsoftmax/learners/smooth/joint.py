"""All parameters of a one-layer Transformer with a smooth or gated network at once, fitted to every answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from unsoftmax.learners.smooth.answers import Answers, Neurons
from unsoftmax.learners.smooth.fitting import fitted
from unsoftmax.learners.transformer.model import Mixture, Network, Sequences
from unsoftmax.learners.transformer.shared import attention_rows
from unsoftmax.models import Floats
from unsoftmax.models.activations import Activation


class Body(Neurons, Network, Protocol):
    """A network that attention may stand in front of, and that a fit may move."""

    @property
    def phi(self) -> Activation:
        """Of its neurons or gates."""

    @property
    def neurons(self) -> int:
        """Their number."""


Kind = TypeVar("Kind", bound=Body)


@dataclass(frozen=True, slots=True, eq=False)
class JointFit:
    """Gauss–Newton on network, scores, query bias and values.

    Args:
        answers: those to one token.
        sequences: those to more.
        left: column space of W, ``(width, rank)``; a W of low rank is moved along matrices of that rank only.
        bias: whether ``c`` is fitted.
        values: whether ``mix`` is fitted.
        free: which of the network's parameters are fitted, in its own words.
    """

    answers: Answers
    sequences: Sequences
    left: Floats | None
    bias: bool
    values: bool
    free: Any

    def run(self, model: Mixture[Kind]) -> tuple[Mixture[Kind], float]:
        """The fitted model and its misfit, in expected errors."""
        own = self.answers.clear(model.network)
        groups = [(X, y, own.weights(model.network, model.parts(X)[2])) for X, y in self.sequences.kept]
        weights = own.weights(model.network, own.points)

        def gaps(current: Mixture[Kind]) -> Floats:
            alone = (own.answers - current.network(own.points)) * weights[:, None]
            rest = [((y - current(X)) * sizes[:, None]).T.ravel() for X, y, sizes in groups]
            return np.concatenate([alone.T.ravel(), *rest])

        def derivatives(current: Mixture[Kind]) -> Floats:
            alone = current.network.derivatives(own.points, weights, self.free)
            rows = [self._rows(current, X, sizes) for X, _, sizes in groups]
            return np.concatenate([np.pad(alone, ((0, 0), (0, rows[0].shape[1] - alone.shape[1]))), *rows])

        return fitted(model, gaps, derivatives, self._moved)

    def _rows(self, model: Mixture[Kind], X: Floats, weights: Floats) -> Floats:
        """Weighted derivatives ``(outputs * n, parameters)`` of the answers to ``X``."""
        blocks = [model.network.derivatives(model.parts(X)[2], weights, self.free)]
        blocks += attention_rows(model, X, weights, self.left, bias=self.bias, values=self.values)
        return np.concatenate(blocks, axis=1)

    def _moved(self, model: Mixture[Kind], step: Floats) -> Mixture[Kind]:
        width = len(model.W)
        size = model.network.derivatives(np.zeros((1, width)), np.ones(1), self.free).shape[1]
        network, rest = model.network.moved_by(step[:size], self.free), step[size:]
        if self.left is None:
            W, rest = model.W + rest[: width * width].reshape(width, width), rest[width * width :]
        else:
            rank = self.left.shape[1]
            tall, rest = rest[: width * rank].reshape(width, rank), rest[width * rank :]
            flat, rest = rest[: width * rank].reshape(rank, width), rest[width * rank :]
            right = self.left.T @ model.W
            W = (self.left + tall) @ (right + flat)
        c, rest = (model.c + rest[:width], rest[width:]) if self.bias else (model.c, rest)
        mix = model.mix + rest.reshape(width, width) if self.values else model.mix
        return replace(model, network=network, W=W, c=c, mix=mix)
