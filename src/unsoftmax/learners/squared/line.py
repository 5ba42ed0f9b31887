"""The pieces of a piecewise quadratic function on a line, each separated from the next by one jump of the curvature."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.squared.pieces import Piece, astride, between, share
from unsoftmax.learners.squared.settings import SQUARES
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Floor


class Line:
    """The pieces on one line ``start + t direction``, ``|t| <= reach``."""

    def __init__(self, questions: Questions, start: Floats, direction: Floats, reach: float, max_neurons: int) -> None:
        self.questions, self.start, self.direction, self.reach, self.max_neurons = questions, start, direction, reach, max_neurons
        self.size = 0.0

    def ask(self, places: Floats) -> Piece:
        """Answers at places, with the errors to expect of them."""
        answers = self.questions.ask(self.start + places[:, None] * self.direction)
        grown = 1 + places**2
        self.size = max(self.size, SQUARES.room * float((np.linalg.norm(answers, axis=1) / grown).max()))
        if self.size == 0:
            raise NotInFamilyError("The target answers nothing but zeros on a line.")
        floor = self.questions.floor
        return Piece(places, answers, floor.absolute + floor.relative * self.size * grown)

    def begun(self, place: float, stretch: float) -> Piece:
        """Three answers close together."""
        return self.ask(place + SQUARES.begin * stretch * np.array([-1.0, 0.0, 1.0]))

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
                if len(pieces) > self.max_neurons + 1:
                    raise NotInFamilyError(f"More than {self.max_neurons} bends on one line; allow more neurons.")
                if len(self.questions.points) - before > SQUARES.patience * (len(pieces) + 16):
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
        if self.reach < SQUARES.farthest:
            return self.begun(sign * self.reach * (1 - SQUARES.begin), self.reach)
        piece = self.ask(sign * self.reach / np.array([1.0, 2.0, 4.0]))
        place = sign * self.reach / 4 / SQUARES.nearer
        while abs(place) > 1:
            look = self.ask(np.array([place]))
            if not self._agrees(piece, look):
                break
            piece, place = piece.joined(look), place / SQUARES.nearer
        return piece

    def _agrees(self, piece: Piece, look: Piece) -> bool:
        off = np.linalg.norm(look.answers - piece(look.places), axis=1)
        return bool((off <= SQUARES.sure * (look.errors + piece.doubt(look.places))).all())

    def _holds(self, piece: Piece) -> bool:
        """Whether answers of one piece lie on a parabola."""
        off = np.linalg.norm(piece.answers - piece(piece.places), axis=1)
        return bool((off <= SQUARES.sure * piece.errors).all())

    def _longer(self, piece: Piece, look: Piece) -> Piece | None:
        """A piece with one more answer, if that belongs to it; half way there too, where a short piece is continued far."""
        if not self._agrees(piece, look):
            return None
        longer, goal = piece.joined(look), float(look.places[0])
        if piece.doubt(look.places)[0] > SQUARES.far * look.errors[0]:
            nearest = piece.low if goal < piece.low else piece.high
            longer = longer.joined(self.ask(np.array([(nearest + goal) / 2])))
        return longer if self._holds(longer) else None

    def _told(self, pieces: list[Piece], i: int) -> tuple[list[Piece], int]:
        """The pieces after a look at two neighbours: made one, or more, or taken as they are; and where to look next."""
        left, right = pieces[i], pieces[i + 1]
        bend = self.bend(left, right)
        goal = between(left, right)
        if bend is not None:
            place, _, one = bend
            if one and place - left.high <= left.high - left.low:
                return pieces, i + 1
            if one:
                goal = left.high + SQUARES.end * (place - left.high)
            else:
                for k in (i, i + 1):
                    if 0 < k < len(pieces) - 1 and astride(pieces[k], place):
                        before, after, piece = pieces[k - 1], pieces[k + 1], pieces[k]
                        goal = between(before, after)
                        if piece.low < goal < piece.high:  # it would be begun in the same place
                            goal = between(before, after, 0.5 + SQUARES.beside)
                        fresh = self.begun(goal, min(goal - before.high, after.low - goal, 1 + abs(goal)))
                        return [*pieces[:k], fresh, *pieces[k + 1 :]], max(0, k - 1)
                here = share(left, right, place)
                if abs(here - 0.5) < SQUARES.inside:  # near the strongest bend, on the side where more room is left for others
                    goal = between(left, right, here + (SQUARES.beside if here < 0.5 else -SQUARES.beside))
        stretch = min(goal - left.high, right.low - goal)
        if stretch <= SQUARES.closest * (1 + abs(goal)):
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
        beside = self.ask(goal + SQUARES.begin * min(stretch, 1 + abs(goal)) * np.array([-1.0, 1.0]))
        return [*pieces[: i + 1], look.joined(beside), *pieces[i + 1 :]], i

    def bend(self, left: Piece, right: Piece) -> tuple[float, Floats, bool] | None:
        """Where pieces meet, the jump ``C`` of ``C (t - place)^2``, and whether that is all by which they differ; None: nothing."""
        middle, half = (left.high + right.low) / 2, (right.low - left.high) / 2

        def differ(units: Floats) -> tuple[Floats, Floats]:
            t = middle + half * units
            return right(t) - left(t), SQUARES.sure * (left.doubt(t) + right.doubt(t))

        (first, centre, last), doubt = differ(np.array([-1.0, 0.0, 1.0]))
        if np.linalg.norm(first) <= doubt[0] and np.linalg.norm(last) <= doubt[2]:
            return None
        square, slope = (first + last) / 2 - centre, (last - first) / 2
        top = -float(square @ slope) / max(2 * float(square @ square), 1e-300)
        # an answer this near to a faint bend may have been taken for one of the piece on its other side
        if abs(top) >= 1 + np.sqrt((doubt[0] + doubt[2]) / max(float(np.linalg.norm(square)), 1e-300)):
            return middle + half * top, square / half**2, False
        gap, allowed = differ(np.array([top]))
        slanted = float(np.linalg.norm(slope + 2 * top * square))  # a slope across the jump, where answers are vectors
        one = float(np.linalg.norm(gap)) <= allowed[0] and slanted <= (doubt[0] + doubt[2]) / 2
        return middle + half * top, square / half**2, bool(one)


def first_bend(oracle: Oracle, floor: Floor, rng: np.random.Generator) -> float:
    """The place of the first bend on a random line.

    Raises:
        NotInFamilyError: none is a jump of the curvature alone.
    """
    questions = Questions(oracle, floor=floor, max_norm=None)
    start, direction = rng.normal(size=(2, questions.width))
    return Line(questions, start, direction / np.linalg.norm(direction), SQUARES.farthest, 1).first()
