"""Finding the heads: with a long step u every sigmoid is a jump, and along a line of x each head jumps once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from unsoftmax.errors import NotIdentifiableError
from unsoftmax.learners.scalar_heads.pairs import Pairs, Probe, Task, log_odds, run_together
from unsoftmax.learners.scalar_heads.settings import SCALAR
from unsoftmax.models import Floats

EXPONENTS = tuple(range(-12, 29, 4))


@dataclass(frozen=True, slots=True)
class Scales:
    """Lengths at which scores are just saturated: ``step`` for u, ``reach`` for x; and whether a bias c or any W shows."""

    step: float
    reach: float
    biased: bool
    flat: bool  # no answer depends on x: every W is zero


@dataclass(frozen=True, slots=True)
class Line:
    """Tokens ``reach * (start + t * along)`` with step ``step * direction``."""

    direction: Floats
    start: Floats
    along: Floats
    step: float
    reach: float

    def token(self, t: float) -> Floats:
        """The token at ``t``."""
        return self.reach * (self.start + t * self.along)

    def probe(self, t: float, zoom: float, copies: tuple[int, int] = (1, 1)) -> Probe:
        """The question at ``t`` with a step ``zoom`` times as long."""
        return Probe(zoom * self.step * self.direction, self.token(t), copies)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the response jumps on a line: position, change of score per unit t at zoom 1, levels on both sides (at zoom 1).

    ``jump`` is V_h·u for step 1 and ``slope`` its head's, if one head alone jumps here (``single``); else several share the place.
    """

    t: float
    slope: float
    low: float
    high: float
    zoom: float
    single: bool
    jump: float


def telling(pairs: Pairs, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """A direction and a token for which values that add up to nothing do not cancel: 16 questions, or 32 without a bias c.

    Where every head is on, such answers look as if every head were half on, and a bias or a W would be overlooked.
    """
    directions, tokens = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in rng.normal(size=(2, 16, len(pairs.total))))
    moved = np.zeros(len(tokens))
    for length in (0.0, SCALAR.walk_far):
        moved = np.abs(pairs.respond(SCALAR.walk_far * directions, length * tokens)[0]) / SCALAR.walk_far
        if (moved > SCALAR.same * pairs.size).any():
            break
    best = int(np.argmax(moved))
    return directions[best], tokens[best]


def find_scales(pairs: Pairs, direction: Floats, token: Floats) -> Scales:
    """How long u and x must be to saturate the scores, by factors of 16: 6 questions, with a bias c 34, where no W shows 12."""
    half = float(pairs.total @ direction) / 2.0
    powers = 2.0 ** np.array(EXPONENTS)
    lone = pairs.respond(SCALAR.walk_far * direction[None], np.zeros((1, len(token))))[0][0] / SCALAR.walk_far
    rounding = SCALAR.same * (np.abs(pairs.total).sum() + pairs.size + abs(lone) + abs(pairs.constant) / SCALAR.walk_far)
    if abs(lone - half) <= rounding:
        settled = _settled_early(pairs, direction, token, half, powers)
        return Scales(1.0 if settled is None else settled, 1.0 if settled is None else settled, biased=False, flat=settled is None)
    zero = np.zeros((len(powers), len(token)))
    levels = pairs.respond(powers[:, None] * direction, zero)[0] / powers
    noise = 2.0**-48 * abs(pairs.constant) / powers
    size = max(float(np.abs(levels[np.abs(levels) > 2.0**10 * noise]).max(initial=0.0)), pairs.size)
    step = float(powers[_settled(levels, size, noise)])
    long = np.repeat(SCALAR.zoom**2 * step * direction[None], len(powers), axis=0)
    sides = np.stack([pairs.respond(long, sign * powers[:, None] * token)[0] for sign in (1.0, -1.0)]) / (SCALAR.zoom**2 * step)
    moved = np.abs(sides - levels[-1]).max(axis=0) > SCALAR.same * size * 16
    if not moved.any():
        return Scales(step, 1.0, biased=True, flat=True)
    settled = max(_settled(side, size, noise[-1]) for side in sides)
    first = int(np.argmax(moved))
    return Scales(step, float(np.sqrt(powers[first] * powers[max(settled, first)])), biased=True, flat=False)


def _settled_early(pairs: Pairs, direction: Floats, token: Floats, half: float, powers: Floats) -> float | None:
    """The length from which the levels no longer change, by bisection: 5 questions. None where none moves any, asked of all."""

    def level(i: int) -> float:
        return float(pairs.respond(powers[i] * direction[None], powers[i] * token[None])[0][0] / powers[i])

    last = level(len(powers) - 1)
    size = max(abs(last), pairs.size)
    noise = 2.0**-48 * abs(pairs.constant) / powers  # short tokens drown in a constant
    if abs(last - half) <= SCALAR.same * size * 16:
        levels = np.array([level(i) for i in range(len(powers) - 1)])
        if (np.abs(levels - half) <= SCALAR.same * size * 16 + noise[:-1]).all():
            return None
    low, high = -1, len(powers) - 1  # levels at `low` still move
    while high - low > 1:
        middle = (low + high) // 2
        moves = abs(level(middle) - last) > 2.0**-30 * size + noise[middle]
        low, high = (middle, high) if moves else (low, middle)
    return float(powers[high])


def _settled(levels: Floats, size: float, noise: Floats | float) -> int:
    """Index from which the levels no longer change."""
    moving = np.flatnonzero(np.abs(levels - levels[-1]) > 2.0**-30 * size + noise)
    return min(len(levels) - 1, int(moving[-1]) + 1 if len(moving) else 0)


@dataclass(frozen=True, slots=True)
class Levels:
    """What answers along a line are held against: the level far to the left, what a second copy adds there, the largest level."""

    height: float
    lift: float
    size: float

    @property
    def close(self) -> float:
        """Levels closer than this are one level."""
        return SCALAR.same * self.size


def walk(pairs: Pairs, line: Line, points: int, limit: float = SCALAR.zoom_limit) -> tuple[list[Crossing], Levels]:
    """All jumps along a line, and its levels: a third of ``points`` or, where most move, all, and 14 a jump."""
    known: dict[float, float] = {}
    for count in (points // 3, 3 * (points // 3)):  # the first places are among the second
        angles = (np.arange(count) + 0.5) / count * np.pi - np.pi / 2.0
        ticks = [SCALAR.build_far, *(float(t) for t in np.round(np.tan(angles), 12)), -SCALAR.build_far]
        fresh = [t for t in ticks if t not in known]
        answers = pairs.respond_to([line.probe(t, SCALAR.zoom) for t in fresh])
        known.update((t, answer / SCALAR.zoom) for t, answer in zip(fresh, answers, strict=True))
        heights = [known[t] for t in ticks]
        size = float(max(np.abs(heights).max(), pairs.size * line.step))
        cells = [((ticks[i], heights[i]), (ticks[i + 1], heights[i + 1])) for i in range(count + 1)]
        moving = [cell for cell in cells if abs(cell[0][1] - cell[1][1]) > SCALAR.same * size]
        if len(moving) <= SCALAR.most_moving * len(cells):
            break
    else:
        raise NotIdentifiableError(
            f"With a long step the answers move almost everywhere ({len(moving)} of {len(cells)} places), where each head jumps "
            "once: more heads than places, or no heads with bilinear scores. `unsoftmax diagnose` tells."
        )
    double = pairs.respond_to([line.probe(ticks[0], SCALAR.zoom, (2, 1))])[0] / SCALAR.zoom
    levels = Levels(heights[0], double - heights[0], size)
    found = [
        crossing
        for part in run_together([_isolate(line, left, right, levels, limit) for left, right in moving], pairs.respond_to)
        for crossing in part
    ]
    return sorted(found, key=lambda crossing: crossing.t), levels


Point = tuple[float, float]


class Cell(NamedTuple):
    """Two places between which the level changes, the zoom to look with, and a jump of several heads, as seen at a lower zoom."""

    low: Point
    high: Point
    zoom: float
    shared: float = np.inf


def _isolate(line: Line, left: Point, right: Point, levels: Levels, limit: float) -> Task:
    """Bisect one cell until each jump in it is a single sigmoid, or as close to others as the zoom can tell.

    The wide sigmoid of a short step is met soon, and tells the place if it is one head's; if it is not, longer steps are taken.
    """
    found: list[Crossing] = []
    stack = [Cell(left, right, SCALAR.first_zoom)]
    for _ in range(400):  # a cell with many jumps ends long before
        if not stack:
            break
        low, high, zoom, shared = cell = stack.pop()
        if abs(low[1] - high[1]) <= levels.close:
            continue
        middle = _between(low[0], high[0])
        if not low[0] < middle < high[0]:
            continue
        level = (yield [line.probe(middle, zoom)])[0] / zoom
        if abs(level - low[1]) <= levels.close:
            stack.append(cell._replace(low=(middle, level)))
            continue
        if abs(level - high[1]) <= levels.close:
            stack.append(cell._replace(high=(middle, level)))
            continue
        slope = yield from _slope(line, cell, (middle, level), levels)
        if slope is None:  # a level of its own: jumps on both sides
            stack += [cell._replace(high=(middle, level)), cell._replace(low=(middle, level))]
            continue
        judged = max(zoom, SCALAR.zoom / (1.0 + abs(middle)))  # scores are as large there, and as blurred, as near the start
        crossing = yield from _fit(line, cell, slope[0], slope[1] * judged / zoom, judged, levels)
        if abs(abs(crossing.jump) - shared) <= 64 * levels.close:  # the same jump, of which a high zoom shows the shape less well
            crossing = replace(crossing, single=False)
        if not crossing.single and zoom < SCALAR.zoom:
            stack.append(cell._replace(zoom=SCALAR.zoom))
        elif crossing.single or zoom * 64.0 > limit:
            found.append(crossing)
        else:
            zoom *= 64.0
            ends = yield [line.probe(low[0], zoom), line.probe(high[0], zoom)]
            stack.append(Cell((low[0], ends[0] / zoom), (high[0], ends[1] / zoom), zoom, abs(crossing.jump)))
    return found


def _between(low: float, high: float) -> float:
    """The middle in angle: positions are tangents."""
    return float(np.tan((np.arctan(low) + np.arctan(high)) / 2.0))


def _slope(line: Line, cell: Cell, middle: Point, levels: Levels) -> Task:
    """Place and slope of a sigmoid through a point on its slope; None if the point is on a level, not on a slope."""
    low, high, zoom = cell.low[1], cell.high[1], cell.zoom
    step = (cell.high[0] - cell.low[0]) / 64.0
    for _ in range(8):
        level = (yield [line.probe(middle[0] + step, zoom)])[0] / zoom
        if abs(level - middle[1]) <= levels.close:
            return None
        if min(abs(level - low), abs(level - high)) > levels.close:
            break
        step /= 8.0
    seen = np.array([middle[1], level])
    scores = log_odds(seen - low, high - seen)
    slope = float(scores[1] - scores[0]) / step
    if not (np.isfinite(slope) and slope > 0.0):
        return np.nan, np.nan
    across = -float(scores[0] + np.copysign(1.5, scores[0])) / slope  # to the other side: far enough to tell the slope well
    level = (yield [line.probe(middle[0] + across, zoom)])[0] / zoom
    far = float(log_odds(np.array(level - low), np.array(high - level)))
    better = (far - float(scores[0])) / across
    slope = better if np.isfinite(better) and better > 0.0 else slope
    return middle[0] - float(scores[0]) / slope, slope


def _fit(line: Line, cell: Cell, t: float, slope: float, zoom: float, levels: Levels) -> Task:
    """Whether there is one sigmoid at ``t``, read again at its own place."""
    low, high = cell.low[1], cell.high[1]
    # log-odds towards `high` always rise with t; the head's own direction comes from the copies
    crossing = Crossing(_between(cell.low[0], cell.high[0]), 1.0, low, high, zoom, False, high - low)
    for _ in range(SCALAR.tries):
        if not (np.isfinite(t) and slope > 0.0):
            break
        crossing, t, slope = yield from _judged(line, low, high, t, slope, zoom, levels)
        if crossing.single:
            break
    return crossing


def _judged(line: Line, low: float, high: float, t: float, slope: float, zoom: float, levels: Levels) -> Task:
    """The crossing near ``t``, whether it is one head's, and place and slope as read again there; 6 questions."""
    jump = high - low
    width = SCALAR.saturated / slope
    places = [t, t + 1.5 / slope, t - 3.0 / slope, t - width, t + width]
    seen = yield [*(line.probe(place, zoom) for place in places), line.probe(t, zoom, (2, 1))]
    centre, near, far, below, above, double = (value / zoom for value in seen)
    # scores near zero are read much better than those the place was found from: what two of them tell, the others confirm
    exact = log_odds(np.array([centre, near]) - low, high - np.array([centre, near]))
    better = float(exact[1] - exact[0]) * slope / 1.5
    if not (np.isfinite(better) and better > 0.0):
        return Crossing(t, 1.0, low, high, zoom, False, jump), np.nan, np.nan
    place = t - float(exact[0]) / better
    # scores are differences of numbers of size slope * t; a blur of 0.02 still tells 1/3 from 2/3 and one sigmoid from two
    blur = min(2.0**-46 * slope * (1.0 + abs(t)) + 2.0**-30, 0.02)
    agreed = max(abs(float(exact[0])), abs(better / slope - 1.0)) <= 4.0 * blur + SCALAR.roughly
    smooth = agreed and abs(far - low - jump * float(expit(better * (t - 3.0 / slope - place)))) <= blur * abs(jump) + levels.close
    smooth = smooth and max(abs(below - low), abs(above - high)) <= 4 * levels.close
    share = (double - below - levels.lift) / jump  # of a second copy: 2/3 if the head turns on with t, 1/3 if it turns off
    on, off = float(expit(exact[0] + np.log(2.0))), float(expit(exact[0] - np.log(2.0)))
    rising = abs(share - on) < abs(share - off)
    single = bool(smooth and abs(share - (on if rising else off)) <= blur + 16 * levels.close / abs(jump))
    if single:  # both ends are fully saturated, unlike those of the cell
        t, slope, jump, low, high = place, better, above - below, below, above
    return Crossing(t, (slope if rising else -slope) / zoom, low, high, zoom, single, jump if rising else -jump), place, better
