"""Where a piecewise linear function bends along a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats


def nearness(relative: float) -> float:
    """Half the distance of a pair of probes that finds a slope, for answers of this relative precision."""
    return float(max(RELU.near, RELU.apart * np.sqrt(relative)))


@dataclass(eq=False)
class Piece:
    """A stretch of the line on which the function is known to be straight, from its two outermost answers."""

    low: float
    high: float
    low_value: Floats
    high_value: Floats
    low_error: float
    high_error: float

    @property
    def slope(self) -> Floats:
        """Change of the function per unit of the line, ``(outputs,)``."""
        return (self.high_value - self.low_value) / (self.high - self.low)

    def value(self, t: float) -> Floats:
        """The straight continuation at ``t``."""
        if abs(t - self.low) < abs(t - self.high):  # from the nearer end: the far one may carry a large rounding error
            return self.low_value + self.slope * (t - self.low)
        return self.high_value + self.slope * (t - self.high)

    def error(self, t: float) -> float:
        """Error to expect of ``value(t)``; it grows with the distance from the two answers."""
        share = (t - self.low) / (self.high - self.low)
        return abs(1 - share) * self.low_error + abs(share) * self.high_error

    def holds(self, t: float, value: Floats, error: float) -> bool:
        """Whether an answer lies on the straight continuation."""
        return bool(np.linalg.norm(self.value(t) - value) <= RELU.trust * (self.error(t) + error))

    def stretch(self, t: float, value: Floats, error: float) -> None:
        """Include an answer that lies on the line."""
        if t > self.high:
            self.high, self.high_value, self.high_error = t, value, error
        elif t < self.low:
            self.low, self.low_value, self.low_error = t, value, error


def crossing(left: Piece, right: Piece) -> float:
    """Where the two straight continuations come closest (they meet there, if one bend lies between them)."""
    bend = right.slope - left.slope
    middle = (left.high + right.low) / 2
    gap = left.value(middle) - right.value(middle)
    with np.errstate(divide="ignore", invalid="ignore"):  # two lines that run alike meet nowhere: not a number
        return middle + float(np.float64(gap @ bend) / np.float64(bend @ bend))


@dataclass(eq=False)
class Interval:
    """Unknown ground between two pieces.

    Attributes:
        left, right: the pieces.
        probe: the place asked next.
        bend: where a bend is guessed.
        sure: whether the left piece was found to reach up to the bend, and the right one down to it.
        lone: an answer that lies on neither piece, with its place and error: a new piece begins there.
    """

    left: Piece
    right: Piece
    probe: float = 0.0
    bend: float | None = None
    sure: tuple[bool, bool] = (False, False)
    lone: tuple[float, Floats, float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class KinkSearch:
    """Finds every bend on ``[-reach, reach]``, one question per step, about ``4`` per bend.

    Two known pieces are continued to their crossing, and the function is asked just left and just right of it. A bend is accepted
    only if the left answer lies on the left piece AND the right one on the right piece: the value at the crossing itself lies on
    both lines even where the right piece begins earlier. An answer on neither begins a new piece, and one more beside it gives its
    slope. Pieces of vector answers meet only if there is one bend between them, and one of the two answers is enough. All open
    intervals are asked in one call.

    Args:
        ask: places ``(n,)`` to answers ``(n, outputs)``.
        noise: places ``(n,)`` to the error to expect of each answer.
        scale: length on which the line is thought to vary; only sets where probe distances stop shrinking.
        most: more bends than that refuse the function.
        near: see ``nearness``.
        lean: one answer beside a bend is enough, on the side of which less is known.
    """

    ask: Callable[[Floats], Floats]
    noise: Callable[[Floats], Floats]
    scale: float
    most: int
    near: float = RELU.near
    lean: bool = False

    def run(self, known: list[Piece]) -> list[Piece]:
        """The straight pieces from the first of those ``known`` to the last, in order; bends lie at the crossings of neighbours.

        A piece between the ends is worth its two questions: bends that cancel leave both ends on one straight line.
        """
        return self._searched(list(known), [Interval(left, right) for left, right in pairwise(known)])

    def confirmed(self, pieces: list[Piece], share: float) -> list[Piece]:
        """The pieces once every bend has answers on both sides, no more than ``share`` of the usual distance of bends off."""
        strict = replace(self, lean=False)
        for _ in range(RELU.again):
            bends = np.array([crossing(left, right) for left, right in pairwise(pieces)])
            if len(bends) == 0:
                break
            usual = float(np.median(np.diff(np.arcsinh(bends / self.scale)))) if len(bends) > 1 else 0.0
            todo = []
            for t, left, right in zip(bends, pieces, pieces[1:], strict=False):
                limit = max(share * usual, 4 * self.near)
                far = [abs(np.arcsinh(t / self.scale) - np.arcsinh(end / self.scale)) for end in (left.high, right.low)]
                if max(far) > limit:
                    todo.append(Interval(left, right, sure=(far[0] <= limit, far[1] <= limit)))
            if not todo:
                break
            pieces = strict._searched(list(pieces), todo)
        return pieces

    def _searched(self, pieces: list[Piece], todo: list[Interval]) -> list[Piece]:
        bends = len(pieces) - 1 - len(todo)
        for _ in range(RELU.rounds):
            waiting: list[Interval] = []
            for interval in todo:
                if not self._plan(interval, pieces, todo):
                    waiting.append(interval)
            if not waiting:
                return _joined(pieces)
            places = np.array([interval.probe for interval in waiting])
            todo = []
            for interval, answer, error in zip(waiting, self.ask(places), self.noise(places), strict=True):
                found = self._digest(interval, answer, float(error), pieces)
                bends += not found
                todo += found
            self._give_up_if_smooth(len(pieces), bends, len(todo))
        raise NotInFamilyError(
            f"The search for bends on a line did not end after {RELU.rounds} rounds; the target is not a ReLU network."
        )

    def _give_up_if_smooth(self, pieces: int, bends: int, todo: int) -> None:
        if pieces > self.most + 2 or (pieces > 100 and bends < pieces // 10):
            raise NotInFamilyError(
                f"{pieces} linear pieces on one line and {bends} sharp bends between them, {todo} intervals still open: the target "
                f"is not a ReLU network of at most {self.most} neurons. If it is larger, raise `max_neurons`; a smooth network "
                "cannot be learned this way.",
                evidence={"pieces": pieces, "bends": bends},
            )

    def _near(self, t: float) -> float:
        return self.near * (self.scale + abs(t))

    def _middle(self, low: float, high: float) -> float:
        """The middle in a scale that is linear near 0 and logarithmic far out: bends crowd near 0 and are sparse far out."""
        return float(self.scale * np.sinh((np.arcsinh(low / self.scale) + np.arcsinh(high / self.scale)) / 2))

    def _plan(self, interval: Interval, pieces: list[Piece], todo: list[Interval]) -> bool:
        """Choose the next probe of an interval; True if it is closed without asking."""
        left, right = interval.left, interval.right
        gap = right.low - left.high
        middle = self._middle(left.high, right.low)
        interval.bend = None
        if interval.lone is not None:
            place = interval.lone[0]
            tries = [place + self._near(place) * wider for wider in (RELU.wider if self.lean else 1.0, 1.0)]
            interval.probe = next((other for other in tries if other < right.low), (place + right.low) / 2)
            return False
        if _straight(left, right):
            if max(left.high - left.low, right.high - right.low) < 0.01 * gap:
                interval.probe = middle  # the continuation is too uncertain to exclude a faint bend: one look in between
                return False
            _merge(left, right, pieces, todo)
            return True
        bend = float(np.linalg.norm(right.slope - left.slope))
        if bend > 0:
            t = crossing(left, right)
            if left.high < t < right.low:
                error = left.error(t) + right.error(t) + float(self.noise(np.array([t]))[0])
                reach = max(1.5 * RELU.trust * error / bend, self._near(t))
                before, beyond = t - left.high, right.low - t
                if (interval.sure[0] or before > reach) and (interval.sure[1] or beyond > reach):
                    if _meet(left, right, t):
                        interval.sure = (True, True) if any(interval.sure) else (beyond > before, before >= beyond)
                    first = interval.sure[1] or (not interval.sure[0] and before >= beyond)
                    interval.probe, interval.bend = t - reach if first else t + reach, t
                    return all(interval.sure)
        interval.sure = (False, False)
        if gap < 8 * self._near(middle):
            return True  # closer together than can be resolved: one bend stands for all of them
        interval.probe = middle - min(self._near(middle), gap / 8)
        return False

    def _digest(self, interval: Interval, value: Floats, error: float, pieces: list[Piece]) -> list[Interval]:
        """What an answer says about an interval: the intervals that remain of it (none: a bend is found)."""
        left, right, t = interval.left, interval.right, interval.probe
        if interval.lone is not None:
            place, first, its_error = interval.lone
            if self.lean and right.holds(t, value, error) and t - place > 2 * self._near(place):
                right.stretch(t, value, error)  # a bend lies between: once more, nearer
                return [interval]
            piece = Piece(place, t, first, value, its_error, error)
            pieces.append(piece)
            return [Interval(left, piece), Interval(piece, right)]
        sides = (left, right) if interval.bend is None or t < interval.bend else (right, left)
        for side in sides:
            if side.holds(t, value, error):
                side.stretch(t, value, error)
                if interval.bend is None or side is sides[1]:
                    return [Interval(left, right)]
                interval.sure = (interval.sure[0] or side is left, interval.sure[1] or side is right)
                return [] if all(interval.sure) or self.lean else [interval]
        interval.lone = (t, value, error)
        return [interval]


def _meet(left: Piece, right: Piece, t: float) -> bool:
    """Whether the continuations of two pieces of a vector-valued function meet at ``t``, and would hardly do so by chance.

    Lines in space that meet have one bend between them: where there are more they pass each other.
    """
    if len(left.low_value) == 1:
        return False
    error = RELU.trust * (left.error(t) + right.error(t))
    apart = float(np.linalg.norm(left.value(t) - right.value(t)))
    return apart <= error <= RELU.passing * float(np.linalg.norm(right.slope - left.slope)) * (right.low - left.high)


def _straight(left: Piece, right: Piece) -> bool:
    """Whether two pieces may lie on one straight line."""
    return (
        left.holds(right.low, right.low_value, right.low_error)
        and left.holds(right.high, right.high_value, right.high_error)
        and right.holds(left.low, left.low_value, left.low_error)
    )


def _joined(pieces: list[Piece]) -> list[Piece]:
    """The pieces in order, without chords, and with neighbours joined that turned out to be one (they were begun at both ends).

    A chord is a pair of probes that fell on both sides of one bend: its ends lie on its neighbours' lines.
    """
    ordered = sorted(pieces, key=lambda piece: piece.low)
    chords = [
        piece
        for before, piece, after in zip(ordered, ordered[1:], ordered[2:], strict=False)
        if before.holds(piece.low, piece.low_value, piece.low_error) and after.holds(piece.high, piece.high_value, piece.high_error)
    ]
    ordered = [piece for piece in ordered if piece not in chords]
    kept = ordered[:1]
    for piece in ordered[1:]:
        if _straight(kept[-1], piece):
            kept[-1].stretch(piece.high, piece.high_value, piece.high_error)
        else:
            kept.append(piece)
    return kept


def _merge(left: Piece, right: Piece, pieces: list[Piece], todo: list[Interval]) -> None:
    """Two pieces that are one: the left one takes over."""
    left.stretch(right.high, right.high_value, right.high_error)
    pieces.remove(right)
    for interval in todo:
        if interval.left is right:
            interval.left = left
