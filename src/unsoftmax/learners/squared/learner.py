"""Networks of squared ReLU neurons (``relu(x)^2``), from their answers: piecewise quadratic, with continuous slopes.

1. **A line.** On a line ``x0 + t v`` the answers are pieces of parabolas. Neighbours that one neuron separates differ by a perfect
   square ``C (t - t*)^2``: that alone tells them from neighbours with more bends in between. Three answers begin a piece, and one
   near its end makes it long enough to be continued without losing digits.
2. **One cell whole.** Left of all bends one quadratic form is read in full, by ``d (d + 1) / 2 + d`` answers.
3. **Steps off the line.** From one cell to the next the form changes by ``C ((t - t*) + nu·u)^2``, with ``nu`` the neuron's row
   across the line, in units of its component along it: one answer per coordinate and cell (every few cells of vector answers).
   Once all rows are known, every step is held against them: one that crossed a hyperplane is repeated, shorter.
4. **Sides.** ``relu(z)^2 = z^2 - relu(-z)^2``: which neurons are written the wrong way round is told by the form of the first cell,
   as a linear system or a reduced lattice.
5. **One fit** to all answers, and fresh ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from unsoftmax.errors import NotInFamilyError, tried
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.design import telling_points
from unsoftmax.learners.smooth.learner import scattered
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.learners.squared.line import Line
from unsoftmax.learners.squared.settings import SQUARES
from unsoftmax.learners.squared.sides import sided
from unsoftmax.learners.squared.squares import Squares
from unsoftmax.learners.squared.steps import Steps
from unsoftmax.models import FFN
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned


@dataclass(frozen=True, slots=True)
class SquaredNetworkLearner:
    """Recover ``A relu(B x + b)^2 + c`` (+ a linear skip), all of it unknown.

    Price, with ``m`` neurons, ``d`` coordinates, ``p`` outputs and ``P = m (d + 1 + p) + p``: ``4..9 m + 48`` for the line,
    ``(d - 1) (d + 4) / 2 + 2`` for one cell whole, ``(d - 1) m`` for the rows (with ``p`` outputs ``p / 2`` to ``p - 1`` times
    fewer) and up to as many again, ``max(8, 0.3 P / p)`` random points and 12 checks. Again for another line where one does not
    tell all.

    Assumes: answers in float64; hyperplanes of different neurons differ; with a bound on the length of tokens, all of them are
    crossed within it. A quadratic path beside the neurons is refused.

    Args:
        floor: how coarse the answers are.
        max_norm: no token longer than this is asked.
        max_neurons: refuse a target with more bends on one line.
        attempts: lines.

    >>> from unsoftmax.oracles.local import CallableOracle
    >>> network = FFN([[[0.6, 0.8], [0.0, 1.0]], [[2.0, -1.0]]], [[1.0, 0.5], [0.5]], activation="relu2")
    >>> oracle = CallableOracle(lambda X: network(X[:, 0]), width=2)
    >>> learned = SquaredNetworkLearner().run(oracle, rng=np.random.default_rng(0))
    >>> np.round(learned.model.weights[0], 9) + 0.0
    array([[0.6, 0.8],
           [0. , 1. ]])
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    max_neurons: int = 2048
    attempts: int = 5

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the network; the answers may be scalars or vectors."""
        questions = Questions(oracle, floor=self.floor, max_norm=self.max_norm)
        for attempt in range(self.attempts):
            found = tried(partial(self._on_a_line, questions, rng), NotInFamilyError)
            if not isinstance(found, NotInFamilyError):
                return found
            if attempt == self.attempts - 1:
                raise found
        raise AssertionError("no attempt")

    def price(self, width: int, neurons: int, outputs: int = 1) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """Queries and tokens by phase, each as (low, high); every query is one token. Holds for exact answers and one line."""
        parameters = (neurons * (width + 1 + outputs) + outputs) / outputs
        cell = (width - 1) * (width + 4) // 2 + 2
        fewest, most = ((width - 1) * -(-neurons // max(1, each)) for each in (outputs - 1, outputs // 2))
        random = max(BENDS.least, int(SQUARES.extra * parameters))
        ranges = {
            "line": (4 * neurons, 9 * neurons + 48),
            "one cell": (cell, 3 * cell),
            "rows": (fewest, 2 * most + 2 * width),
            "random points": (random, random),
            "check": (BENDS.checks, BENDS.checks),
        }
        return [(name, bounds, bounds) for name, bounds in ranges.items()]

    def _on_a_line(self, questions: Questions, rng: np.random.Generator) -> Learned:
        """The network, from one line.

        Raises:
            NotInFamilyError: it does not explain the answers; on another line it may.
        """
        width = questions.width
        reach = SQUARES.farthest if self.max_norm is None else min(SQUARES.farthest, self.max_norm / 2)
        start = rng.normal(size=width) * min(1.0, reach / (4 * np.sqrt(width)))
        axes = np.linalg.qr(rng.normal(size=(width, width)))[0].T
        phase(questions.oracle, "line")
        line = Line(questions, start, axes[0], reach, self.max_neurons)
        pieces = line.read()
        cells = Steps(line, pieces, axes).read()
        squares = sided(cells, self._answers(questions))
        phase(questions.oracle, "random points")
        neurons, outputs = squares.out.shape
        count = max(BENDS.least, int(SQUARES.extra * (neurons * (width + 1 + outputs) + outputs) / outputs))
        lengths = squares.lengths() if self.max_norm is None else np.minimum(squares.lengths(), self.max_norm / 2)
        pool = scattered(lengths, BENDS.pool * count, width, rng)
        questions.ask(telling_points(squares, self._answers(questions), pool, count, squares.free(True), rng))
        squares, _ = self._fitted(squares, questions, True)
        strengths = np.linalg.norm(squares.out, axis=1) @ (np.abs(squares.shift) + 1)
        free = bool(np.linalg.norm(squares.linear) > BENDS.skip * strengths)
        if not free:
            squares, _ = self._fitted(replace(squares, linear=np.zeros_like(squares.linear)), questions, False)
        return self._checked(squares, free, questions, float(np.median(lengths)), rng)

    def _answers(self, questions: Questions) -> Answers:
        return Answers(questions.points, questions.answers, self.floor)

    def _fitted(self, squares: Squares, questions: Questions, linear: bool) -> tuple[Squares, float]:
        """All parameters fitted to all answers, and the misfit in expected errors."""
        fitted, misfit = self._answers(questions).fit(squares, squares.free(linear))
        if not misfit <= BENDS.unexplained:
            raise NotInFamilyError(
                f"{squares.neurons} squared ReLU neurons leave the answers unexplained ({misfit:.1e} times the rounding): some "
                "neurons may bend otherwise, or their hyperplanes lie too close together.",
                evidence={"neurons": squares.neurons, "misfit": misfit},
            )
        return fitted.of_unit_rows(), misfit

    def _checked(self, squares: Squares, free: bool, questions: Questions, length: float, rng: np.random.Generator) -> Learned:
        """The network, if it answers fresh points at three distances; fitted to their answers as well."""
        phase(questions.oracle, "check")
        points = scattered(np.array([0.25, 0.5, 1.0]) * length, BENDS.checks, questions.width, rng)
        told = questions.ask(points)
        usual = squares.sizes(points)
        error = float((np.linalg.norm(told - squares(points), axis=1) / usual).max())
        fitted, misfit = self._fitted(squares, questions, free)
        if not error <= BENDS.accept + 300 * self.floor.absolute / float(usual.min()):
            raise NotInFamilyError(
                f"{squares.neurons} squared ReLU neurons miss fresh answers by {error:.1e} of their size.",
                evidence={"neurons": squares.neurons, "check_error": error},
            )
        order = np.argsort(-np.linalg.norm(fitted.out, axis=1), kind="stable")
        network = FFN(
            [fitted.normal[order], fitted.out[order].T],
            [fitted.shift[order], fitted.constant],
            fitted.linear if free else None,
            activation=fitted.phi.name,
        )
        evidence = {
            "neurons": fitted.neurons,
            "activation": fitted.phi.name,
            "skip": free,
            "check_error": error,
            "misfit": misfit,
        }
        return Learned(model=network, ambiguity="equal up to the order and the scale of the neurons", evidence=evidence)
