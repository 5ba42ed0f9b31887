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

import itertools
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import NotInFamilyError, tried
from unsoftmax.learners.ffn.lattice import subset_sum
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.design import telling_points
from unsoftmax.learners.smooth.learner import scattered
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import FFN, Floats
from unsoftmax.models.activations import activation_named
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned

AMBIGUITY = "equal up to the order and the scale of the neurons"
Mask = NDArray[np.bool_]


class Squares(Curves):
    """Squared ReLU neurons; of each row the largest number stands still in a fit, for its scale does not show."""

    def sizes(self, points: Floats) -> Floats:
        """Size of the numbers that such a target adds up at ``points``, ``(n,)``."""
        lengths = np.linalg.norm(points, axis=1)[:, None] / np.sqrt(points.shape[1])
        inner = lengths * np.linalg.norm(self.normal, axis=1) + np.abs(self.shift)
        rest = lengths[:, 0] * np.linalg.norm(self.linear) + np.abs(self.constant).max(initial=0.0)
        return np.asarray(inner**2 @ np.linalg.norm(self.out, axis=1) + rest)

    def free(self, linear: bool) -> Mask:
        """Which of all parameters a fit moves."""
        normal = np.ones(self.normal.shape, dtype=bool)
        normal[np.arange(self.neurons), np.argmax(np.abs(self.normal), axis=1)] = False
        rest = self.shift.size + self.out.size + self.constant.size
        return np.concatenate([normal.ravel(), np.ones(rest, dtype=bool), np.full(self.linear.size, linear)])

    def derivatives(self, points: Floats, weights: Floats, free: Mask) -> Floats:  # type: ignore[override]
        """Derivatives of the weighted answers in the free parameters, ``(outputs * n, free)``."""
        return np.asarray(Curves.derivatives(self, points, weights, True)[:, free])

    def moved_by(self, step: Floats, free: Mask) -> Squares:  # type: ignore[override]
        """The function with its free parameters changed."""
        whole = np.zeros(len(free))
        whole[free] = step
        moved = Curves.moved_by(self, whole, True)
        assert isinstance(moved, Squares)
        return moved

    def of_unit_rows(self) -> Squares:
        """The same function, each row of length one."""
        lengths = np.linalg.norm(self.normal, axis=1)
        return replace(
            self, out=self.out * lengths[:, None] ** 2, normal=self.normal / lengths[:, None], shift=self.shift / lengths
        )


@dataclass(frozen=True, eq=False)
class Piece:
    """Answers ``(n, outputs)`` at places ``(n,)`` of a line, with the errors to expect of them; three or more make a parabola."""

    places: Floats
    answers: Floats
    errors: Floats

    @property
    def low(self) -> float:
        """Where it begins."""
        return float(self.places.min())

    @property
    def high(self) -> float:
        """Where it ends."""
        return float(self.places.max())

    def _powers(self, t: Floats) -> Floats:
        nearest = self.places[np.argmin(self.errors)]  # where answers are told best no digits are to cancel
        return np.asarray(((t - nearest) / (self.high - self.low))[:, None] ** np.arange(3))

    @cached_property
    def _solve(self) -> Floats:
        rows = self._powers(self.places) / self.errors[:, None]
        scales = np.linalg.norm(rows, axis=0)
        return np.asarray(np.linalg.pinv(rows / scales) / scales[:, None])

    def __call__(self, t: Floats) -> Floats:
        """Values ``(n, outputs)``, continued where need be."""
        return np.asarray(self._powers(t) @ (self._solve @ (self.answers / self.errors[:, None])))

    def doubt(self, t: Floats) -> Floats:
        """Error to expect of them, ``(n,)``."""
        return np.asarray(np.linalg.norm(self._powers(t) @ self._solve, axis=1))

    def joined(self, *others: Piece) -> Piece:
        """One piece of the answers of all."""
        pieces = (self, *others)
        return Piece(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("places", "answers", "errors")))


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The bends on a line, and the quadratic form left of all of them.

    In coordinates ``(t, u)``, ``x = start + t axes[0] + u @ axes[1:]``, the function is the form of the first cell plus
    ``sum_k jumps[k] relu(t - places[k] + slopes[k]·u)^2``.

    Attributes:
        start: ``(width,)``.
        axes: orthonormal rows ``(width, width)``, the line's direction first.
        places: ``(bends,)``, in order.
        jumps: ``(bends, outputs)``.
        slopes: ``(bends, width - 1)``.
        form: ``(outputs, width, width)``, symmetric.
    """

    start: Floats
    axes: Floats
    places: Floats
    jumps: Floats
    slopes: Floats
    form: Floats

    def at(self, places: Floats, aside: Floats) -> Floats:
        """Points from their coordinates."""
        return np.asarray(self.start + places[:, None] * self.axes[0] + aside @ self.axes[1:])

    def crossed(self, places: Floats, aside: Floats, share: float) -> Mask:
        """Whether steps ``aside (n, width - 1)`` from places on the line come near or across a hyperplane, ``(n,)``."""
        before, change = places[:, None] - self.places, aside @ self.slopes.T
        return np.asarray((np.abs(change) > share * np.abs(before)).any(axis=1))


@dataclass(frozen=True, slots=True)
class SquaredNetworkLearner:
    """Recover ``A relu(B x + b)^2 + c`` (+ a linear skip), all of it unknown.

    Price, with ``m`` neurons, ``d`` coordinates, ``p`` outputs and ``g = max(1, p // 2)``: ``4..9 m + 16`` for the line,
    ``(d - 1) (d + 4) / 2 + 2`` for one cell whole, ``(d - 1) ceil(m / g)`` for the rows and a few repeated, ``max(8, 0.3 P / p)``
    random points with ``P = m (d + 1 + p) + p``, and 12 checks. Another line where the first one does not tell all.

    Assumes: answers in float64; hyperplanes of different neurons differ; with a bound on the length of tokens, all of them are
    crossed within it. A quadratic path beside the neurons is refused.

    Args:
        floor: how coarse the answers are.
        max_norm: no token longer than this is asked.
        max_neurons: refuse a target with more bends on one line.
        farthest: place on the line from which it is looked at: bends beyond are one in ten thousand.
        nearer: factor between further places from there inwards.
        room: size of the numbers inside the target, over the largest of the first answers (terms cancel in them).
        begin: distance between the three places that begin a piece, as a share of the stretch in which it lies.
        end: share of the way from a piece to its bend at which it is asked once more.
        sure: expected errors within which answers are the same.
        far: expected errors that a short piece may gather on the way to a further answer that is not looked at half way too.
        closest: stretch, relative to its distance, in which bends are not told apart any more.
        patience: questions per piece (and 16 more) on a line, at which the target is no piecewise quadratic function.
        aside: step off the line, as a share of the distance to the next bend on it.
        aside_first: the same in the first cell.
        clear: share of the distance from a hyperplane that a step may have come nearer to it.
        shorter: factor of steps that are repeated.
        repairs: rounds of that.
        binary: how near to 0 or 1 the solution of a linear system must be to be read as a choice of sides.
        explained: error of that choice, relative to all forms, that the fit can take back.
        precise: the same where the choice is found by a lattice, which takes more digits.
        extra: random points near by, as a share of ``P / outputs``.
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
    farthest: float = 2.0**20
    nearer: float = 16.0
    room: float = 8.0
    begin: float = 2.0**-10
    end: float = 0.8
    sure: float = 8.0
    far: float = 100.0
    closest: float = 2.0**-22
    patience: int = 24
    aside: float = 2.0**-3
    aside_first: float = 2.0**-8
    clear: float = 0.7
    shorter: float = 8.0
    repairs: int = 8
    binary: float = 0.1
    explained: float = 1e-4
    precise: float = 1e-8
    extra: float = 0.3
    attempts: int = 3

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
        cell, rows = (width - 1) * (width + 4) // 2 + 2, (width - 1) * -(-neurons // max(1, outputs // 2))
        random = max(BENDS.least, int(self.extra * parameters))
        ranges = {
            "line": (4 * neurons, 9 * neurons + 48),
            "one cell": (cell, 3 * cell),
            "rows": (rows, 2 * rows + 2 * width),
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
        reach = self.farthest if self.max_norm is None else min(self.farthest, self.max_norm / 2)
        start = rng.normal(size=width) * min(1.0, reach / (4 * np.sqrt(width)))
        axes = np.linalg.qr(rng.normal(size=(width, width)))[0].T
        phase(questions.oracle, "line")
        line = Line(self, questions, start, axes[0], reach)
        pieces = line.read()
        cells = Steps(self, line, pieces, axes).read()
        squares = self._sided(cells, self._answers(questions))
        phase(questions.oracle, "random points")
        neurons, outputs = squares.out.shape
        count = max(BENDS.least, int(self.extra * (neurons * (width + 1 + outputs) + outputs) / outputs))
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
        return Learned(model=network, ambiguity=AMBIGUITY, evidence=evidence)

    def _sided(self, cells: Cells, answers: Answers) -> Squares:
        """The neurons with their active sides, so that no quadratic form is left beside them, and what is linear solved for."""
        width, outputs = len(cells.start), cells.jumps.shape[1]
        rows = np.c_[np.ones(len(cells.places)), cells.slopes]
        upper = np.triu_indices(width)
        terms = np.einsum("kp,ki,kj->kpij", cells.jumps, rows, rows)[:, :, *upper].reshape(len(rows), -1)
        goal = -cells.form[:, *upper].ravel()
        size = float(np.linalg.norm(terms, axis=1).sum() + np.linalg.norm(goal))
        lengths = np.linalg.norm(terms, axis=1)
        solution, _, _, values = np.linalg.lstsq((terms / lengths[:, None]).T, goal, rcond=None)
        solution /= lengths
        turned = np.asarray(solution > 0.5)
        plain = len(rows) <= terms.shape[1] and bool(np.abs(solution - turned).max() <= self.binary)
        if len(rows) > terms.shape[1] or values.min() <= self.explained * values.max():  # forms that are not independent
            chosen = subset_sum(terms, goal, error=self.precise * size)
            turned, plain = (turned, False) if chosen is None else (chosen, True)
        if not plain or np.linalg.norm(turned @ terms - goal) > self.explained * size:
            raise NotInFamilyError(
                f"The target is piecewise quadratic with {len(rows)} bends on a line, but no choice of their sides leaves squared "
                "ReLU neurons alone: a quadratic path beside them, leaky squares, two neurons of one hyperplane that look opposite "
                "ways, or a neuron that does not bend on the line.",
                evidence={"neurons": len(rows)},
            )
        sign = np.where(turned, -1.0, 1.0)
        normal = sign[:, None] * (rows @ cells.axes)
        shift = -normal @ cells.start - sign * cells.places
        empty = np.zeros((outputs, width))
        squares = Squares(activation_named("relu2"), sign[:, None] * cells.jumps, normal, shift, empty, empty[:, 0]).of_unit_rows()
        weights = answers.weights(squares, answers.points)[:, None]
        columns = np.c_[squares.phi.value(squares.before(answers.points)), answers.points, np.ones(len(answers.points))] * weights
        scales = np.linalg.norm(columns, axis=0)
        solved = np.linalg.lstsq(columns / np.maximum(scales, 1e-300), answers.answers * weights, rcond=1e-14)[0]
        solved /= np.maximum(scales, 1e-300)[:, None]
        neurons = squares.neurons
        return replace(squares, out=solved[:neurons], linear=solved[neurons:-1].T, constant=solved[-1])


class Line:
    """The pieces on one line ``start + t direction``, ``|t| <= reach``."""

    def __init__(self, given: SquaredNetworkLearner, questions: Questions, start: Floats, direction: Floats, reach: float) -> None:
        self.given, self.questions, self.start, self.direction, self.reach = given, questions, start, direction, reach
        self.size = 0.0

    def ask(self, places: Floats) -> Piece:
        """Answers at places, with the errors to expect of them."""
        answers = self.questions.ask(self.start + places[:, None] * self.direction)
        grown = 1 + places**2
        self.size = max(self.size, self.given.room * float((np.linalg.norm(answers, axis=1) / grown).max()))
        if self.size == 0:
            raise NotInFamilyError("The target answers nothing but zeros on a line.")
        floor = self.given.floor
        return Piece(places, answers, floor.absolute + floor.relative * self.size * grown)

    def begun(self, place: float, stretch: float) -> Piece:
        """Three answers close together."""
        return self.ask(place + self.given.begin * stretch * np.array([-1.0, 0.0, 1.0]))

    def read(self) -> list[Piece]:
        """The pieces in order, each separated from the next by one bend.

        Raises:
            NotInFamilyError: there is none; too many; or something that is no jump of the curvature alone.
        """
        pieces = [self._outer(-1.0), self.begun(0.0, 1.0), self._outer(1.0)]
        asked, before = -1, len(self.questions.points)
        while asked != len(self.questions.points):  # what was told by short pieces is looked at once more with long ones
            asked = len(self.questions.points)
            i = 0
            while i < len(pieces) - 1:
                pieces, i = self._told(pieces, i)
                if len(pieces) > self.given.max_neurons + 1:
                    raise NotInFamilyError(f"More than {self.given.max_neurons} bends on one line; allow more neurons.")
                if len(self.questions.points) - before > self.given.patience * (len(pieces) + 16):
                    raise NotInFamilyError("The pieces on a line take more and more questions: no squared ReLU neurons.")
        if len(pieces) == 1:
            raise NotInFamilyError("The target does not bend on a line.")
        return pieces

    def first(self) -> float:
        """The place of the first bend, singled out without the others."""
        pieces, i = [self._outer(-1.0), self._outer(1.0)], 0
        while i == 0:
            pieces, i = self._told(pieces, 0)
            if len(pieces) == 1:
                raise NotInFamilyError("The target does not bend on a line.")
        bend = self.bend(pieces[0], pieces[1])
        assert bend is not None
        return bend[0]

    def _outer(self, sign: float) -> Piece:
        """The last piece on one side: from very far, where no bend lies, to as near as it reaches; or where tokens end."""
        if self.reach < self.given.farthest:
            return self.begun(sign * self.reach * (1 - self.given.begin), self.reach)
        piece = self.ask(sign * self.reach / np.array([1.0, 2.0, 4.0]))
        place = sign * self.reach / 4 / self.given.nearer
        while abs(place) > 1:
            look = self.ask(np.array([place]))
            if not self._agrees(piece, look):
                break
            piece, place = piece.joined(look), place / self.given.nearer
        return piece

    def _agrees(self, piece: Piece, look: Piece) -> bool:
        off = np.linalg.norm(look.answers - piece(look.places), axis=1)
        return bool((off <= self.given.sure * (look.errors + piece.doubt(look.places))).all())

    def _holds(self, piece: Piece) -> bool:
        """Whether answers of one piece lie on a parabola."""
        off = np.linalg.norm(piece.answers - piece(piece.places), axis=1)
        return bool((off <= self.given.sure * piece.errors).all())

    def _longer(self, piece: Piece, look: Piece) -> Piece | None:
        """A piece with one more answer, if that belongs to it; half way there too, where a short piece is continued far."""
        if not self._agrees(piece, look):
            return None
        longer, goal = piece.joined(look), float(look.places[0])
        if piece.doubt(look.places)[0] > self.given.far * look.errors[0]:
            nearest = piece.low if goal < piece.low else piece.high
            longer = longer.joined(self.ask(np.array([(nearest + goal) / 2])))
        return longer if self._holds(longer) else None

    def _told(self, pieces: list[Piece], i: int) -> tuple[list[Piece], int]:
        """The pieces after a look at two neighbours: made one, or more, or taken as they are; and where to look next."""
        left, right = pieces[i], pieces[i + 1]
        bend = self.bend(left, right)
        goal = _between(left, right)
        if bend is not None:
            place, _, one = bend
            if one and place - left.high <= left.high - left.low:
                return pieces, i + 1
            if one:
                goal = left.high + self.given.end * (place - left.high)
            else:
                astride = [k for k in (i, i + 1) if 0 < k < len(pieces) - 1 and _astride(pieces[k], place)]
                if astride:
                    before, after = pieces[astride[0] - 1], pieces[astride[0] + 1]
                    goal = _between(before, after)
                    fresh = self.begun(goal, min(goal - before.high, after.low - goal, 1 + abs(goal)))
                    return [*pieces[: astride[0]], fresh, *pieces[astride[0] + 1 :]], max(0, astride[0] - 1)
                if left.high < place < right.low and abs(_share(left, right, place) - 0.5) < 0.4:
                    goal = place
        stretch = min(goal - left.high, right.low - goal)
        if stretch <= self.given.closest * (1 + abs(goal)):
            raise NotInFamilyError(
                f"At {goal:.3g} on a line two pieces of the target differ by more than one jump of the curvature: squared ReLU "
                "neurons have continuous slopes. Kinks (ReLU), gates or jumps beside them are not learned, nor two hyperplanes "
                "that lie so close together.",
                evidence={"place": goal},
            )
        look = self.ask(np.array([goal]))
        if bend is None and self._holds(whole := left.joined(look, right)):
            return [*pieces[:i], whole, *pieces[i + 2 :]], i
        for k, side in ((i, left), (i + 1, right)):
            longer = self._longer(side, look) if bend is not None else None
            if longer is not None:
                return [*pieces[:k], longer, *pieces[k + 1 :]], i
        beside = self.ask(goal + self.given.begin * min(stretch, 1 + abs(goal)) * np.array([-1.0, 1.0]))
        return [*pieces[: i + 1], look.joined(beside), *pieces[i + 1 :]], i

    def bend(self, left: Piece, right: Piece) -> tuple[float, Floats, bool] | None:
        """Where pieces meet, the jump ``C`` of ``C (t - place)^2``, and whether that is all by which they differ; None: nothing."""
        middle, half = (left.high + right.low) / 2, (right.low - left.high) / 2

        def differ(units: Floats) -> tuple[Floats, Floats]:
            t = middle + half * units
            return right(t) - left(t), self.given.sure * (left.doubt(t) + right.doubt(t))

        (first, centre, last), doubt = differ(np.array([-1.0, 0.0, 1.0]))
        if np.linalg.norm(first) <= doubt[0] and np.linalg.norm(last) <= doubt[2]:
            return None
        square, slope = (first + last) / 2 - centre, (last - first) / 2
        top = -float(square @ slope) / max(2 * float(square @ square), 1e-300)
        if abs(top) >= 1:
            return middle + half * top, square / half**2, False
        gap, allowed = differ(np.array([top]))
        slanted = float(np.linalg.norm(slope + 2 * top * square))  # a slope across the jump, where answers are vectors
        one = float(np.linalg.norm(gap)) <= allowed[0] and slanted <= (doubt[0] + doubt[2]) / 2
        return middle + half * top, square / half**2, bool(one)


def _share(left: Piece, right: Piece, place: float) -> float:
    """Where a place lies between two pieces, 0 to 1, in a measure that is fine near the start and coarse far out."""
    low, high, here = np.arcsinh([left.high, right.low, place])
    return float((here - low) / (high - low))


def _between(left: Piece, right: Piece) -> float:
    """Half way from one piece to the next, in that measure."""
    return float(np.sinh(np.arcsinh([left.high, right.low]).mean()))


def _astride(piece: Piece, place: float) -> bool:
    """Whether a piece that was just begun has a bend in its midst, and is none."""
    width = piece.high - piece.low
    return len(piece.places) == 3 and piece.low - width <= place <= piece.high + width


def first_bend(oracle: Oracle, floor: Floor, rng: np.random.Generator) -> float:
    """The place of the first bend on a random line.

    Raises:
        NotInFamilyError: none is a jump of the curvature alone.
    """
    given, questions = SquaredNetworkLearner(floor=floor), Questions(oracle, floor=floor, max_norm=None)
    start, direction = rng.normal(size=(2, questions.width))
    return Line(given, questions, start, direction / np.linalg.norm(direction), given.farthest).first()


class Steps:
    """Answers beside a line: the form of the first cell, and the rows of the neurons."""

    def __init__(self, given: SquaredNetworkLearner, line: Line, pieces: list[Piece], axes: Floats) -> None:
        bends = [line.bend(left, right) for left, right in itertools.pairwise(pieces)]
        self.given, self.line, self.questions, self.axes, self.pieces = given, line, line.questions, axes, pieces
        self.places = np.array([bend[0] for bend in bends if bend is not None])
        self.jumps = np.stack([bend[1] for bend in bends if bend is not None])
        self.aside = np.eye(len(axes) - 1)
        (bends_on, outputs), span = self.jumps.shape, float(np.ptp(self.places)) + 1.0
        each = max(1, outputs // 2)  # bends that one answer of so many numbers tells
        self.ends = [*range(each, bends_on, each), bends_on]  # cells that are stepped from: so many bends lie before them
        outer = min(span, line.reach - float(np.abs(self.places).max()))
        self.first = float(self.places[0]) - outer * np.array([1.0, 0.5])
        self.at = np.array([pieces[end].high for end in self.ends[:-1]] + [self.places[-1] + outer])
        after = np.append(self.places, np.inf)[self.ends]
        margins = np.minimum(self.at - self.places[np.array(self.ends) - 1], after - self.at)
        self.lengths = given.aside * margins[:, None] * np.ones(len(self.aside))
        self.length = given.aside_first * outer / 2

    def read(self) -> Cells:
        """The rows, once no step crosses a hyperplane.

        Raises:
            NotInFamilyError: steps cross one however short they are.
        """
        phase(self.questions.oracle, "one cell")
        corner = self._corner()
        phase(self.questions.oracle, "rows")
        on = np.concatenate([self.pieces[end](place[None]) for end, place in zip(self.ends, self.at[:, None], strict=True)])
        steps = self._steps(np.ones(self.lengths.shape, dtype=bool), np.zeros((*self.lengths.shape, self.jumps.shape[1])))
        for _ in range(self.given.repairs):
            cells = self._solved(corner, on, steps)
            if cells.crossed(*self._corner_steps(), self.given.clear).any():
                self.length /= self.given.shorter
                corner = self._corner()
                continue
            at, aside = np.repeat(self.at, len(self.aside)), np.concatenate(self.lengths[:, :, None] * self.aside)
            crossed = cells.crossed(at, aside, self.given.clear).reshape(self.lengths.shape)
            if not crossed.any():
                return cells
            self.lengths[crossed] /= self.given.shorter
            steps = self._steps(crossed, steps)
        raise NotInFamilyError("Steps off a line cross hyperplanes however short they are: several nearly meet on it.")

    def _ask(self, places: Floats, aside: Floats) -> Floats:
        return self.questions.ask(self.line.start + places[:, None] * self.axes[0] + aside @ self.axes[1:])

    def _steps(self, wanted: Mask, known: Floats) -> Floats:
        """Answers to the wanted steps off the line, the others as they are known, ``(cells, width - 1, outputs)``."""
        cell, axis = np.nonzero(wanted)
        told = known.copy()
        if len(cell):
            told[cell, axis] = self._ask(self.at[cell], self.lengths[cell, axis][:, None] * self.aside[axis])
        return told

    def _corner_steps(self) -> tuple[Floats, Floats]:
        """Places and steps aside in the first cell: none, each axis both ways, two at once; at the second place none and each."""
        unit = self.aside
        pairs = [unit[i] + unit[j] for i, j in itertools.combinations(range(len(unit)), 2)]
        none = np.zeros((1, len(unit)))
        near = np.concatenate([none, unit, -unit, np.reshape(pairs, (len(pairs), len(unit)))])
        aside = np.concatenate([near, none, unit]) * self.length
        return np.repeat(self.first, [len(near), 1 + len(unit)]), aside

    def _corner(self) -> tuple[Floats, Floats, Floats]:
        """Slopes aside at the first place ``(width - 1, outputs)``, how they change along the line, and the form of two steps."""
        answers, h, n = self._ask(*self._corner_steps()), self.length, len(self.aside)
        here, up, down = answers[0], answers[1 : n + 1], answers[n + 1 : 2 * n + 1]
        slopes, own = (up - down) / (2 * h), (up + down - 2 * here) / (2 * h * h)
        form = np.zeros((n, n, len(here)))
        form[np.arange(n), np.arange(n)] = own
        for (i, j), both in zip(itertools.combinations(range(n), 2), answers[2 * n + 1 :], strict=False):
            form[i, j] = form[j, i] = ((both - here) / h - slopes[i] - slopes[j] - h * (own[i] + own[j])) / (2 * h)
        there, beyond = answers[-n - 1], answers[len(answers) - n :]
        changes = ((beyond - there) / h - h * own - slopes) / (self.first[1] - self.first[0])
        return slopes, changes, form

    def _solved(self, corner: tuple[Floats, Floats, Floats], on: Floats, steps: Floats) -> Cells:
        """The rows that steps from these cells tell, from the first cell on."""
        slopes, changes, form = corner
        n, outputs = slopes.shape
        own = form[np.arange(n), np.arange(n)]
        rows = np.zeros((len(self.places), n))
        start = 0
        for c, end in enumerate(self.ends):
            h, before = self.lengths[c], self.at[c] - self.places[:end]
            gain = steps[c] - on[c] - h[:, None] * (slopes + (self.at[c] - self.first[0]) * changes) - h[:, None] ** 2 * own
            pull = rows[:start] * h  # of the bends whose rows are known
            gain -= (2 * pull * before[:start, None] + pull**2).T @ self.jumps[:start]
            squares = np.linalg.lstsq(self.jumps[start:end].T, gain.T, rcond=None)[0] + before[start:, None] ** 2
            rows[start:end] = (np.sqrt(np.maximum(squares, 0.0)) - before[start:, None]) / h
            start = end
        first = self.pieces[0](self.first[0] + np.array([-1.0, 0.0, 1.0]) * (self.first[1] - self.first[0]))
        along = (first[0] + first[2] - 2 * first[1]) / (2 * (self.first[1] - self.first[0]) ** 2)
        whole = np.zeros((outputs, n + 1, n + 1))
        whole[:, 0, 0] = along
        whole[:, 0, 1:] = whole[:, 1:, 0] = changes.T / 2
        whole[:, 1:, 1:] = form.transpose(2, 0, 1)
        return Cells(self.line.start, self.axes, self.places, self.jumps, rows, whole)
