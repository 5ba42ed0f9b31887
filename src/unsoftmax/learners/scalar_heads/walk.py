"""Finding the heads: with a long step u every sigmoid is a jump, and along a line of x each head jumps once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

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
    """How long u and x must be to saturate the scores, by factors of 16: 12 questions, with a bias c 34 more."""
    half = float(pairs.total @ direction) / 2.0
    powers = 2.0 ** np.array(EXPONENTS)
    lone = pairs.respond(SCALAR.walk_far * direction[None], np.zeros((1, len(token))))[0][0] / SCALAR.walk_far
    rounding = SCALAR.same * (np.abs(pairs.total).sum() + pairs.size + abs(lone) + abs(pairs.constant) / SCALAR.walk_far)
    if abs(lone - half) <= rounding:
        levels = pairs.respond(powers[:, None] * direction, powers[:, None] * token)[0] / powers
        noise = 2.0**-48 * abs(pairs.constant) / powers  # short tokens drown in a constant
        size = max(np.abs(levels[np.abs(levels) > 2.0**10 * noise]).max(initial=0.0), pairs.size)
        if (np.abs(levels - half) <= SCALAR.same * size * 16 + noise).all():
            return Scales(1.0, 1.0, biased=False, flat=True)
        settled = float(powers[_settled(levels, size, noise)])
        return Scales(settled, settled, biased=False, flat=False)
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


def _settled(levels: Floats, size: float, noise: Floats | float) -> int:
    """Index from which the levels no longer change."""
    moving = np.flatnonzero(np.abs(levels - levels[-1]) > 2.0**-30 * size + noise)
    return min(len(levels) - 1, int(moving[-1]) + 1 if len(moving) else 0)


def walk(pairs: Pairs, line: Line, points: int, limit: float = SCALAR.zoom_limit) -> tuple[list[Crossing], float, float]:
    """All jumps along a line, the level far to its left, the size of the levels: ``points + 2`` questions and about 20 a jump."""
    angles = (np.arange(points) + 0.5) / points * np.pi - np.pi / 2.0
    ticks = np.concatenate([[-(2.0**20)], np.tan(angles), [2.0**20]])
    steps = np.repeat(SCALAR.zoom * line.step * line.direction[None], len(ticks), axis=0)
    heights = pairs.respond(steps, line.reach * (line.start + ticks[:, None] * line.along))[0] / SCALAR.zoom
    size = float(max(np.abs(heights).max(), pairs.size * line.step))
    cells = [((ticks[i], heights[i]), (ticks[i + 1], heights[i + 1])) for i in range(points + 1)]
    moving = [cell for cell in cells if abs(cell[0][1] - cell[1][1]) > SCALAR.same * size]
    if len(moving) > SCALAR.most_moving * len(cells):
        raise NotIdentifiableError(
            f"With a long step the answers move almost everywhere ({len(moving)} of {len(cells)} places), where each head jumps "
            "once: more heads than places, or no heads with bilinear scores. `unsoftmax diagnose` tells."
        )
    tasks = [_isolate(line, left, right, size, limit) for left, right in moving]
    found = [crossing for part in run_together(tasks, pairs.respond_to) for crossing in part]
    return sorted(found, key=lambda crossing: crossing.t), float(heights[0]), size


Point = tuple[float, float]


def _isolate(line: Line, left: Point, right: Point, size: float, limit: float) -> Task:
    """Bisect one cell until each jump in it is a single sigmoid, or as close to others as the zoom can tell."""
    found: list[Crossing] = []
    stack = [(left, right, SCALAR.zoom, np.inf)]  # the last: a jump that several heads share, as seen at a lower zoom
    for _ in range(400):  # a cell with many jumps ends long before
        if not stack:
            break
        low, high, zoom, shared = stack.pop()
        if abs(low[1] - high[1]) <= SCALAR.same * size:
            continue
        middle = _between(low[0], high[0])
        if not low[0] < middle < high[0]:
            continue
        level = (yield [line.probe(middle, zoom)])[0] / zoom
        if abs(level - low[1]) <= SCALAR.same * size:
            stack.append(((middle, level), high, zoom, shared))
        elif abs(level - high[1]) <= SCALAR.same * size:
            stack.append((low, (middle, level), zoom, shared))
        else:
            crossing = yield from _fit(line, low, high, (middle, level), zoom, size)
            if crossing is None:  # a level of its own: jumps on both sides
                stack += [(low, (middle, level), zoom, shared), ((middle, level), high, zoom, shared)]
                continue
            jump = abs(crossing.jump)
            if abs(jump - shared) <= 64 * SCALAR.same * size:  # the same jump, of which a high zoom shows the shape less well
                crossing = replace(crossing, single=False)
            if crossing.single or zoom * 64.0 > limit:
                found.append(crossing)
            else:
                zoom *= 64.0
                ends = yield [line.probe(low[0], zoom), line.probe(high[0], zoom)]
                stack.append(((low[0], ends[0] / zoom), (high[0], ends[1] / zoom), zoom, jump))
    return found


def _between(low: float, high: float) -> float:
    """The middle in angle: positions are tangents."""
    return float(np.tan((np.arctan(low) + np.arctan(high)) / 2.0))


def _fit(line: Line, low: Point, high: Point, middle: Point, zoom: float, size: float) -> Task:
    """Read one sigmoid through a point on its slope and check it; None if the point is on a level, not on a slope."""
    jump = high[1] - low[1]
    step = (high[0] - low[0]) / 64.0
    for _ in range(8):
        level = (yield [line.probe(middle[0] + step, zoom)])[0] / zoom
        if abs(level - middle[1]) <= SCALAR.same * size:
            return None
        if min(abs(level - low[1]), abs(level - high[1])) > SCALAR.same * size:
            break
        step /= 8.0
    levels = np.array([middle[1], level])
    scores = log_odds(levels - low[1], high[1] - levels)
    slope = float(scores[1] - scores[0]) / step
    sign = 1.0  # log-odds towards `high` always rise with t; the head's own direction comes from the copies below
    if not np.isfinite(slope) or slope <= 0.0:
        return Crossing(middle[0], sign, low[1], high[1], zoom, False, jump)
    t = middle[0] - float(scores[0]) / slope
    for _ in range(SCALAR.tries):
        crossing, t, slope = yield from _judged(line, low[1], high[1], t, slope, zoom, size)
        if crossing.single or not (np.isfinite(t) and slope > 0.0):
            break
    return crossing


def _judged(line: Line, low: float, high: float, t: float, slope: float, zoom: float, size: float) -> Task:
    """The crossing near ``t``, whether it is one head's, and place and slope as read again there; 7 questions."""
    jump = high - low
    width = SCALAR.saturated / slope
    places = [t, t + 1.5 / slope, t - 3.0 / slope, t - width, t + width]
    seen = yield [*(line.probe(place, zoom) for place in places), line.probe(t, zoom, (2, 1)), line.probe(t - width, zoom, (2, 1))]
    centre, near, far, below, above, double, double_below = (value / zoom for value in seen)
    # scores are differences of numbers of size slope * t; a blur of 0.02 still tells 1/3 from 2/3 and one sigmoid from two
    blur = min(2.0**-46 * slope * (1.0 + abs(t)) + 2.0**-30, 0.02)
    levels = low + jump / (1.0 + np.exp([0.0, -1.5, 3.0]))
    smooth = bool((np.abs([centre, near, far] - levels) <= blur * abs(jump) + SCALAR.same * size).all())
    smooth = smooth and abs(below - low) <= 4 * SCALAR.same * size and abs(above - high) <= 4 * SCALAR.same * size
    share = (double - double_below) / jump  # 2/3 if the head turns on with t, 1/3 if it turns off
    rising = abs(share - 2.0 / 3.0) < abs(share - 1.0 / 3.0)
    single = bool(smooth and abs(share - (2.0 / 3.0 if rising else 1.0 / 3.0)) <= blur + 16 * SCALAR.same * size / abs(jump))
    # both fully saturated, unlike the ends of the cell; scores near zero are read much better than those the place was found from
    bottom, top = (below, above) if single else (low, high)
    exact = log_odds(np.array([centre, near]) - bottom, top - np.array([centre, near]))
    better = float(exact[1] - exact[0]) * slope / 1.5
    place = t - float(exact[0]) / better if better else np.nan
    if single and np.isfinite(place):
        t, slope = place, better
    jump = above - below
    return Crossing(t, (slope if rising else -slope) / zoom, below, above, zoom, single, jump if rising else -jump), place, better
