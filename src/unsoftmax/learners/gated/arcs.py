"""Where a piecewise quadratic, homogeneous function bends along a half circle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.learners.gated.settings import GATES
from unsoftmax.models import Floats


@dataclass(eq=False)
class Arc:
    """A stretch of the circle on which the function is one form ``a + b cos 2t + c sin 2t``, from three of its answers."""

    places: list[float]
    values: list[Floats]
    errors: list[float]
    chosen: tuple[int, int, int] = field(default=(0, 1, 2))

    @property
    def low(self) -> float:
        """The first place known to belong to it."""
        return self.places[self.chosen[0]]

    @property
    def high(self) -> float:
        """The last one."""
        return self.places[self.chosen[2]]

    def shares(self, t: float) -> Floats:
        """Weights ``(3,)`` of the three answers in the form's value at ``t``."""
        x = [self.places[i] for i in self.chosen]
        shares = []
        for i in range(3):
            j, k = (i + 1) % 3, (i + 2) % 3
            shares.append(np.sin(t - x[j]) * np.sin(t - x[k]) / (np.sin(x[i] - x[j]) * np.sin(x[i] - x[k])))
        return np.array(shares)

    def value(self, t: float) -> Floats:
        """The form continued to ``t``, ``(outputs,)``."""
        return np.asarray(self.shares(t) @ np.array([self.values[i] for i in self.chosen]))

    def error(self, t: float) -> float:
        """Error to expect of ``value(t)``."""
        return float(np.abs(self.shares(t)) @ np.array([self.errors[i] for i in self.chosen]))

    def holds(self, t: float, value: Floats, error: float) -> bool:
        """Whether an answer lies on the continued form."""
        return bool(np.linalg.norm(self.value(t) - value) <= RELU.trust * (self.error(t) + error))

    def stretch(self, t: float, value: Floats, error: float) -> None:
        """Include an answer that lies on the form; the outermost places and the one nearest to their middle define it."""
        self.places.append(t)
        self.values.append(value)
        self.errors.append(error)
        places = np.array(self.places)
        low, high = int(np.argmin(places)), int(np.argmax(places))
        gap = np.abs(places - (places[low] + places[high]) / 2)
        gap[[low, high]] = np.inf
        self.chosen = (low, int(np.argmin(gap)), high)

    def form(self, around: float, reach: float) -> Floats:
        """Coefficients ``(3, outputs)`` of ``1, cos 2(t - around), sin 2(t - around)``, from values within ``reach``."""
        before, here, after = (self.value(around + k * reach) for k in (-1, 0, 1))
        bow = ((before + after) / 2 - here) / (2 * np.sin(reach) ** 2)
        return np.stack([here + bow, -bow, (after - before) / (2 * np.sin(2 * reach))])


@dataclass(eq=False)
class Gap:
    """Unknown ground between two arcs; ``bend`` is where one is guessed, ``probes`` what is asked next.

    ``coarse``: the probes stand as far apart as the errors of the arcs ask for, so that two bends may lie between them.
    ``found``: one bend was; the arcs reach closer to it now, and are looked at once more.
    """

    left: Arc
    right: Arc
    probes: tuple[float, ...] = ()
    bend: float | None = None
    coarse: bool = False
    found: bool = False


def crossings(left: Arc, right: Arc) -> list[tuple[float, float]]:
    """Places between two arcs where their forms meet, each with the change of slope there.

    The forms differ by ``(gate · x)(up · x)`` if one neuron's hyperplane lies between them: it vanishes at two places.
    """
    around = (left.high + right.low) / 2
    reach = (right.low - left.high) / 2
    gap = right.form(around, reach) - left.form(around, reach)
    direction = np.linalg.svd(gap, full_matrices=False)[2][0]
    a, b, c = gap @ direction
    size = float(np.hypot(b, c))
    if size == 0 or abs(a) > size:
        return []
    turn, half = float(np.arctan2(c, b)), float(np.arccos(-a / size))
    slope = 2 * float(np.sqrt(max(size * size - a * a, 0.0)))
    found = []
    for root in ((turn + half) / 2, (turn - half) / 2):
        place = around + (root + np.pi / 2) % np.pi - np.pi / 2
        if left.high < place < right.low:
            found.append((float(place), slope))
    return sorted(found)


@dataclass(frozen=True, slots=True, eq=False)
class ArcSearch:
    """Finds every bend between the outermost of the arcs that are known, about six questions each.

    As on a straight line: two arcs are continued to where they meet, the function is asked just left and just right of it, and a
    bend is accepted only if the left answer lies on the left form AND the right one on the right form. All open gaps are asked
    in one call.

    Args:
        ask: angles ``(n,)`` to answers ``(n, outputs)``.
        error: error to expect of each.
    """

    ask: Callable[[Floats], Floats]
    error: float

    def begun(self, starts: list[float]) -> list[Arc]:
        """Arcs at ``starts``, three questions each."""
        places = [[t, t + GATES.step, t + 2 * GATES.step] for t in starts]
        values = self.ask(np.array(places).ravel()).reshape(len(places), 3, -1)
        return [Arc(list(t), list(y), [self.error] * 3) for t, y in zip(places, values, strict=True)]

    def run(self, known: list[Arc]) -> list[Arc]:
        """All arcs in order; bends lie where neighbours meet."""
        arcs = list(known)
        todo = [Gap(left, right) for left, right in pairwise(known)]
        bends = 0
        for _ in range(GATES.rounds):
            waiting = [gap for gap in todo if not self._plan(gap, arcs, todo)]
            if not waiting:
                return _joined(arcs)
            answers = self.ask(np.array([t for gap in waiting for t in gap.probes]))
            todo, start = [], 0
            lone: list[tuple[Gap, dict[float, Floats]]] = []
            for gap in waiting:
                found = dict(zip(gap.probes, answers[start : start + len(gap.probes)], strict=True))
                start += len(gap.probes)
                strange = self._digest(gap, found)
                if strange is None:
                    bends += 1
                    todo += [Gap(gap.left, gap.right, found=True)] if gap.coarse else []
                elif strange:
                    lone.append((gap, strange))
                else:
                    todo.append(Gap(gap.left, gap.right))
            for gap, arc in zip([gap for gap, _ in lone], self._completed(lone), strict=True):
                arcs.append(arc)
                todo += [Gap(gap.left, arc), Gap(arc, gap.right)]
            if len(arcs) > GATES.pieces * bends + 64:
                raise NotInFamilyError(
                    f"Seen from very far the target has {len(arcs)} pieces on a half circle after {bends} bends: it is not made of "
                    "quadratic pieces, as gated networks are.",
                    evidence={"pieces": len(arcs), "bends": bends},
                )
        raise NotInFamilyError("Seen from very far, the target's bends on a half circle cannot be told apart.")

    def _plan(self, gap: Gap, arcs: list[Arc], todo: list[Gap]) -> bool:
        """Choose the next places to ask in a gap; True if it is closed without asking."""
        left, right = gap.left, gap.right
        gap.bend = None
        if _same(left, right):
            _merge(left, right, arcs, todo)
            return True
        width = right.low - left.high
        for place, slope in crossings(left, right):
            error = left.error(place) + right.error(place) + 2 * self.error
            told, close = 1.5 * RELU.trust * error / max(slope, 1e-300), min(GATES.step, width) / 64
            if gap.found and told > GATES.finer * width:
                return True
            reach = max(told, close)
            if left.high + reach < place < right.low - reach:
                gap.bend, gap.probes, gap.coarse = place, (place - reach, place + reach), told > 2 * close
                return False
        if width < GATES.closest:
            return True  # closer together than can be resolved: one bend stands for all of them
        middle, step = (left.high + right.low) / 2, min(GATES.step, width / 8)
        gap.probes = (middle - step, middle, middle + step)
        return False

    def _digest(self, gap: Gap, found: dict[float, Floats]) -> dict[float, Floats] | None:
        """What lies on neither side; None if a bend was found."""
        left, right = gap.left, gap.right
        on_left = {t: left.holds(t, y, self.error) for t, y in found.items()}
        on_right = {t: right.holds(t, y, self.error) for t, y in found.items()}
        places = list(found)
        if gap.bend is not None and on_left[places[0]] and on_right[places[1]]:
            left.stretch(places[0], found[places[0]], self.error)
            right.stretch(places[1], found[places[1]], self.error)
            return None
        strange: dict[float, Floats] = {}
        for i, t in enumerate(places):
            if on_left[t] and all(on_left[s] for s in places[:i]):
                left.stretch(t, found[t], self.error)
            elif on_right[t] and all(on_right[s] for s in places[i:]):
                right.stretch(t, found[t], self.error)
            else:
                strange[t] = found[t]
        return strange

    def _completed(self, lone: list[tuple[Gap, dict[float, Floats]]]) -> list[Arc]:
        """New arcs from answers that lie on no known one, with as many more as make three, ``GATES.step`` apart; one call."""
        wanted = []
        for gap, strange in lone:
            here = list(strange)
            low, high = gap.left.high, gap.right.low
            step = min(GATES.step, (high - low) / 8)
            if len(here) == 2 and here[1] - here[0] < step / 2:  # both sides of a guess, as good as one place
                here = here[:1]
            ladder = [t + k * step for k in (1, -1, 2, -2, 3, -3) for t in here]
            inside = [t for t in ladder if low + step / 2 < t < high - step / 2 and min(abs(t - s) for s in here) > step / 2]
            wanted.append((here, inside[: 3 - len(here)]))
        places = np.array([t for _, more in wanted for t in more])
        answers = list(self.ask(places)) if len(places) else []
        arcs = []
        for (_, strange), (here, more) in zip(lone, wanted, strict=True):
            told = {t: strange[t] for t in here} | {t: answers.pop(0) for t in more}
            order = sorted(told)[:3]
            arcs.append(Arc(order, [told[t] for t in order], [self.error] * 3))
        return arcs


def _same(left: Arc, right: Arc) -> bool:
    """Whether two arcs may belong to one form."""
    own = [(right.places[i], right.values[i], right.errors[i]) for i in right.chosen]
    return all(left.holds(t, y, e) for t, y, e in own)


def _joined(arcs: list[Arc]) -> list[Arc]:
    """The arcs in order, without those whose three places fell on both sides of a bend, and with equal neighbours joined."""
    ordered = sorted(arcs, key=lambda arc: arc.low)
    astride = [
        arc
        for before, arc, after in zip(ordered, ordered[1:], ordered[2:], strict=False)
        if all(
            before.holds(arc.places[i], arc.values[i], arc.errors[i]) or after.holds(arc.places[i], arc.values[i], arc.errors[i])
            for i in arc.chosen
        )
    ]
    ordered = [arc for arc in ordered if arc not in astride]
    kept = ordered[:1]
    for arc in ordered[1:]:
        if _same(kept[-1], arc):
            for i in arc.chosen:
                kept[-1].stretch(arc.places[i], arc.values[i], arc.errors[i])
        else:
            kept.append(arc)
    return kept


def _merge(left: Arc, right: Arc, arcs: list[Arc], todo: list[Gap]) -> None:
    """Two arcs that are one: the left one takes over."""
    for i in right.chosen:
        left.stretch(right.places[i], right.values[i], right.errors[i])
    arcs.remove(right)
    for gap in todo:
        if gap.left is right:
            gap.left = left
