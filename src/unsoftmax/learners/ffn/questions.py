"""One-token questions to an oracle: asked, remembered for the final fit, and each with the error to expect of its answer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats
from unsoftmax.oracles.base import LastPosition, Oracle
from unsoftmax.results import Floor

Answered = tuple[Floats, Floats]  # points ``(n, width)`` that were asked before, and their answers ``(n, outputs)``


class Questions:
    """Asks points ``(n, width)`` as sequences of one token and keeps every answer.

    Attributes:
        points: every point asked, ``(asked, width)``.
        answers: ``(asked, outputs)``.
        references: for every point one that certainly lies in the same linear piece, with the widest margin known;
            the fit reads the activation pattern there, because the point itself may sit right beside a bend.
        offset, slope: size of the numbers inside the target, ``offset + slope * |x|``; the rounding error is relative to it.
        marked: how many of the points were drawn at random for a fit.
        beside: in how many cells between the bends of a line gradients were told, by steps as short as these are narrow.
    """

    def __init__(self, oracle: Oracle, *, floor: Floor, max_norm: float | None, seen: Answered | None = None) -> None:
        self.oracle = LastPosition(oracle)
        self.width = oracle.width
        self.floor = floor
        self.max_norm = max_norm
        self.offset = 0.0
        self.slope = 0.0
        self.marked = self.beside = 0
        self._points: list[Floats] = [] if seen is None else [seen[0]]
        self._answers: list[Floats] = [] if seen is None else [seen[1]]
        self._references: list[Floats] = [points.copy() for points in self._points]

    def ask(self, points: Floats) -> Floats:
        """Answers ``(n, outputs)`` to ``points (n, width)``; each point is its own reference until told otherwise."""
        points = np.ascontiguousarray(points, dtype=np.float64)
        if not np.all(np.isfinite(points)):  # slopes of a step are infinite: never blame the target for such a question
            raise NotInFamilyError(
                "The target's one-token answers jump: the bends on a line have no finite slopes beside them. It is no ReLU "
                "network; neurons that step (sign, or tanh and sigmoid with very large weights) answer so."
            )
        if self.max_norm is not None:
            norms = np.linalg.norm(points, axis=1)
            long = norms > self.max_norm * (1 - 1e-12)
            points[long] *= (self.max_norm * (1 - 1e-12) / norms[long])[:, None]
        size = max(1, RELU.chunk_numbers // self.width)
        answers = np.concatenate([self.oracle(points[i : i + size, None, :]) for i in range(0, len(points), size)])
        answers = answers.reshape(len(points), -1)
        self._points.append(points)
        self._answers.append(answers)
        self._references.append(points.copy())
        return answers

    def at_origin(self) -> Floats:
        """The answer ``(1, outputs)`` where all inputs are 0; asked if it is not known."""
        for points, answers in zip(self._points, self._answers, strict=True):
            zero = ~points.any(axis=1)
            if zero.any():
                return answers[zero][:1]
        return self.ask(np.zeros((1, self.width)))

    def relocate(self, call: int, references: Floats) -> None:
        """Set the references of the ``call``-th call of ``ask``."""
        self._references[call] = references

    def settle(self, kept: NDArray[np.bool_], references: Floats) -> None:
        """Forget answers that are not ``kept (asked,)`` and set the references of all, ``(asked, width)``."""
        self._points, self._answers, self._references = [self.points[kept]], [self.answers[kept]], [references[kept]]

    def of(self, calls: list[int]) -> tuple[Floats, Floats, Floats]:
        """Points, references and answers of some calls of ``ask``."""
        points, references, answers = (
            np.concatenate([kept[call] for call in calls]) for kept in (self._points, self._references, self._answers)
        )
        return points, references, answers

    @property
    def calls(self) -> int:
        """How often ``ask`` was called."""
        return len(self._points)

    @property
    def points(self) -> Floats:
        """Every point asked, ``(asked, width)``."""
        return np.concatenate(self._points)

    @property
    def answers(self) -> Floats:
        """Every answer, ``(asked, outputs)``."""
        return np.concatenate(self._answers)

    @property
    def references(self) -> Floats:
        """A point well inside the linear piece of each point asked, ``(asked, width)``."""
        return np.concatenate(self._references)

    def noise(self, points: Floats) -> Floats:
        """Error to expect of each answer, ``(n,)``."""
        return np.asarray(self.floor.absolute + self.floor.relative * (self.offset + self.slope * np.linalg.norm(points, axis=-1)))
