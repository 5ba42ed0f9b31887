"""All parameters of a one-layer Transformer with a smooth network at once, fitted to every answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.fitting import fitted
from unsoftmax.learners.transformer.model import Mixture, Sequences
from unsoftmax.learners.transformer.shared import attention_rows
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class JointFit:
    """Gauss–Newton on network, scores, query bias and values.

    Args:
        answers: those to one token.
        sequences: those to more.
        left: column space of W, ``(width, rank)``; a W of low rank is moved along matrices of that rank only.
        bias: whether ``c`` is fitted.
        values: whether ``mix`` is fitted.
        linear: whether the network's linear part is fitted.
    """

    answers: Answers
    sequences: Sequences
    left: Floats | None
    bias: bool
    values: bool
    linear: bool

    def run(self, model: Mixture[Curves]) -> tuple[Mixture[Curves], float]:
        """The fitted model and its misfit, in expected errors."""
        own = self.answers.clear(model.network)
        groups = [(X, y, own.weights(model.network, model.parts(X)[2])) for X, y in self.sequences.kept]
        weights = own.weights(model.network, own.points)

        def gaps(current: Mixture[Curves]) -> Floats:
            alone = (own.answers - current.network(own.points)) * weights[:, None]
            rest = [((y - current(X)) * sizes[:, None]).T.ravel() for X, y, sizes in groups]
            return np.concatenate([alone.T.ravel(), *rest])

        def derivatives(current: Mixture[Curves]) -> Floats:
            alone = current.network.derivatives(own.points, weights, self.linear)
            rows = [self._rows(current, X, sizes) for X, _, sizes in groups]
            return np.concatenate([np.pad(alone, ((0, 0), (0, rows[0].shape[1] - alone.shape[1]))), *rows])

        return fitted(model, gaps, derivatives, self._moved)

    def _rows(self, model: Mixture[Curves], X: Floats, weights: Floats) -> Floats:
        """Weighted derivatives ``(outputs * n, parameters)`` of the answers to ``X``."""
        blocks = [model.network.derivatives(model.parts(X)[2], weights, self.linear)]
        blocks += attention_rows(model, X, weights, self.left, bias=self.bias, values=self.values)
        return np.concatenate(blocks, axis=1)

    def _moved(self, model: Mixture[Curves], step: Floats) -> Mixture[Curves]:
        (neurons, outputs), width = model.network.out.shape, len(model.W)
        size = neurons * (width + 1 + outputs) + outputs + (outputs * width if self.linear else 0)
        network, rest = model.network.moved_by(step[:size], self.linear), step[size:]
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
