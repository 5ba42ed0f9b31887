"""Error against queries, both logarithmic: one line for each defence, with a band where several seeds were run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from markupsafe import Markup

from unsoftmax.report.svg import SMALLEST, drawing, line, power, text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 440.0, 330.0, 52.0, 408.0, 28.0, 276.0


def curve_figure(curves: Sequence[tuple[str, Sequence[dict[str, Any]]]], told: str, close: float) -> Markup:
    """Lines named by the numbers of their rows; ``close`` is the error up to which a copy passes for the original."""
    shown = [(name, [p for p in points if p["error"] is not None and p["queries"] > 0]) for name, points in curves]
    shown = [(name, points) for name, points in shown if points]
    if not shown:
        return drawing(text(WIDTH / 2, HEIGHT / 2, "no copy at any of these budgets"), told, HEIGHT, WIDTH, "curve")
    errors = [
        np.log10(max(p[key], SMALLEST)) for _, ps in shown for p in ps for key in ("error", "low", "high") if p[key] is not None
    ]
    asked = [np.log10(p["queries"]) for _, ps in shown for p in ps]
    low, high = int(np.floor(min(errors))), max(int(np.floor(min(errors))) + 1, int(np.ceil(max(errors))), 0)
    least, most = int(np.floor(min(asked))), max(int(np.floor(min(asked))) + 1, int(np.ceil(max(asked))))

    def x(queries: float) -> float:
        return float(LEFT + (np.log10(queries) - least) / (most - least) * (RIGHT - LEFT))

    def y(error: float) -> float:
        return float(FOOT - (np.log10(max(error, SMALLEST)) - low) / (high - low) * (FOOT - TOP))

    body = Markup("")
    step = max(1, -(-(high - low) // 6))
    for k in range(high, low - 1, -step):
        body += line(LEFT, y(10.0**k), RIGHT, y(10.0**k)) + power(LEFT - 5, y(10.0**k) + 4, k, "end")
    for k in range(least, most + 1):
        body += line(x(10.0**k), FOOT, x(10.0**k), FOOT + 4, "axis") + power(x(10.0**k), FOOT + 19, k, "middle")
    if 10.0**low <= close <= 10.0**high:
        body += line(LEFT, y(close), RIGHT, y(close), "mark")
        body += text(LEFT + 4, y(close) - 4, "a close copy below", "start", "number")
    for (name, points), dashes in zip(shown, cycle(("none", "6 3", "2 3", "8 3 2 3", "1 4"))):  # one is endless
        body += _run(name, [(x(p["queries"]), y(p["error"])) for p in points], _band(points, x, y), dashes)
    body += text((LEFT + RIGHT) / 2, HEIGHT - 12, "queries asked →") + text(2, 14, "↑ error of the copy, over the spread", "start")
    return drawing(body, told, HEIGHT, WIDTH, "curve")


def _band(points: Sequence[dict[str, Any]], x: Any, y: Any) -> str:
    """The corners of the area between the best and the worst run, where every point has both."""
    if len(points) < 2 or any(p["low"] is None or p["high"] is None or p["runs"] < 2 for p in points):
        return ""
    corners = [(x(p["queries"]), y(p["high"])) for p in points] + [(x(p["queries"]), y(p["low"])) for p in reversed(points)]
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)


def _run(name: str, places: list[tuple[float, float]], band: str, dashes: str) -> Markup:
    body = Markup('<polygon class="band" points="{}"/>').format(band) if band else Markup("")
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    body += Markup('<polyline class="run" stroke-dasharray="{}" points="{}"/>').format(dashes, path)
    body += Markup("").join(Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3"/>').format(*place) for place in places)
    return body + text(places[-1][0] + 6, places[-1][1] + 4, name, "start", "number")
