"""The choice of an owner: each defence by what it costs honest users and what it leaves an attacker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from markupsafe import Markup

from unsoftmax.report.svg import SMALLEST, drawing, line, power, text

WIDTH, HEIGHT, LEFT, RIGHT, FOOT, CEILING = 440.0, 350.0, 62.0, 434.0, 282.0, 54.0
Scale = Callable[[float | None], float]


@dataclass(frozen=True, slots=True)
class Point:
    """A row: its number in the table, the error it adds to honest answers, that of the copy, and how it ended.

    ``ending`` is "stops" (nothing useful came out), "spoils" (a rough, partial or unverified copy) or "fails" (a close copy).
    """

    name: str
    harm: float | None
    error: float | None
    ending: str = "fails"


def trade(points: Sequence[Point], told: str, close: float, rough: float) -> Markup:
    """Marks at their true places on axes that reach as far as the data do; labels stand beside them, with a line to their mark.

    No error upwards is a mark above the frame: no copy at all. An error or harm of exactly zero has a place of its own.
    """
    errors = [np.log10(max(p.error, SMALLEST)) for p in points if p.error]
    harms = [np.log10(max(p.harm, SMALLEST)) for p in points if p.harm]
    low, high = min(-4, int(np.floor(min(errors, default=0.0)))), max(1, int(np.ceil(max(errors, default=0.0))))
    least, most = min(-4, int(np.floor(min(harms, default=0.0)))), max(0, int(np.ceil(max(harms, default=0.0))))

    def y(error: float | None) -> float:
        if error is None:
            return CEILING - 14
        log = low - 0.5 if error == 0 else np.log10(max(error, SMALLEST))
        return float(FOOT - (log - low + 0.5) / (high - low + 0.5) * (FOOT - CEILING))

    def x(harm: float | None) -> float:
        log = least - 1.0 if not harm else np.log10(max(harm, SMALLEST))
        return float(LEFT + 18 + (log - least + 1.0) / (most - least + 1.0) * (RIGHT - LEFT - 36))

    body = _bands(y(rough), y(close)) + _frame(x, y, (low, high), (least, most), zero=any(p.error == 0 for p in points))
    places = [(x(p.harm), y(p.error)) for p in points]
    for point, place, label in zip(points, places, _labels(places), strict=True):
        body += line(*place, *label, "lead") + _mark(*place, point.ending)
        body += text(label[0], label[1] + 4, point.name, name="number")
    return drawing(body, told, HEIGHT, WIDTH, "trade")


def _bands(rough: float, close: float) -> Markup:
    form = '<rect class="{}" x="{:g}" y="{:.1f}" width="{:g}" height="{:.1f}"/>'
    edges = (("far", CEILING - 24, rough), ("rough", rough, close), ("close", close, FOOT + 10))
    return Markup("").join(Markup(form).format(name, LEFT, top, RIGHT - LEFT, max(0.0, foot - top)) for name, top, foot in edges)


def _frame(x: Scale, y: Scale, errors: tuple[int, int], harms: tuple[int, int], *, zero: bool) -> Markup:
    """Grid, powers of ten and the names of the axes."""
    body = line(LEFT, CEILING - 2, RIGHT, CEILING - 2, "axis") + text(LEFT - 5, CEILING - 15, "no copy", "end", "tick")
    step = max(1, -(-(errors[1] - errors[0]) // 6))
    for k in range(errors[1], errors[0] - 1, -step):
        at = y(10.0**k)
        body += line(LEFT, at, RIGHT, at) + power(LEFT - 5, at + 4, k, "end")
    if zero:
        body += text(LEFT - 5, y(0.0) + 4, "0", "end", "tick")
    step = max(1, -(-(harms[1] - harms[0]) // 6))
    for k in range(harms[1], harms[0] - 1, -step):
        at = x(10.0**k)
        body += line(at, FOOT + 10, at, FOOT + 14, "axis") + power(at, FOOT + 28, k, "middle")
    body += text(x(0.0), FOOT + 28, "none", name="tick")
    body += text((LEFT + RIGHT) / 2, HEIGHT - 18, "error added to honest answers, over their spread →")
    return body + text(2, 14, "↑ error of the stolen copy, over the same", "start")


def _mark(x: float, y: float, ending: str) -> Markup:
    """A filled disc where extraction went through, a ring where it left a rough copy, a square where it was stopped."""
    if ending == "stops":
        return Markup('<rect class="stops" x="{:.1f}" y="{:.1f}" width="11" height="11"/>').format(x - 5.5, y - 5.5)
    return Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="4.5"/>').format(ending, x, y)


def _labels(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A place for each number: near its mark, inside the picture, on no mark and on no other number."""
    reaches = (12.0, 20.0, 29.0, 39.0, 50.0, 62.0)  # how far a label may stand from its mark, nearest first
    turns = [np.pi / 12 * k for k in (0, 6, -6, 12, 3, -3, 9, -9, 1, -1, 5, -5, 7, -7, 11, -11)]
    taken: list[tuple[float, float]] = []
    for px, py in places:
        best, fewest = (px, py - reaches[0]), 1e9
        for reach, turn in product(reaches, turns):
            x, y = px + reach * float(np.cos(turn)), py - reach * float(np.sin(turn))
            if not (LEFT + 8 <= x <= RIGHT - 8 and CEILING - 30 <= y <= FOOT + 6):
                continue
            clashes = sum(abs(x - a) < 17.0 and abs(y - b) < 13.0 for a, b in taken) * 4
            clashes += sum(abs(x - a) < 12 and abs(y - b) < 11 for a, b in places)
            if clashes < fewest:
                best, fewest = (x, y), clashes
            if clashes == 0:
                break
        taken.append(best)
    return taken
