"""The common ground of the drawings: sizes, axes and labels as inline SVG; no script, no fonts, nothing fetched."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from unsoftmax.models import Floats

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 360.0, 190.0, 46.0, 10.0, 34.0  # of a chart; letters stay legible on a phone
SMALLEST = 1e-17  # where logarithmic scales end


def drawing(body: Markup, told: str, height: float = HEIGHT, width: float = WIDTH, name: str = "") -> Markup:
    """A whole picture with its text alternative."""
    form = '<svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}"{}>{}</svg>'
    return Markup(form).format(width, height, told, Markup(' class="{}"').format(name) if name else "", body)


def joined(form: str, rows: object) -> Markup:
    """One shape for each row."""
    return Markup("").join(Markup(form).format(*row) for row in rows)  # type: ignore[attr-defined]  # its stub forgets join


def text(x: float, y: float, words: object, anchor: str = "middle", name: str = "") -> Markup:
    """Words at a place; read by nobody who hears the alternative instead."""
    form = '<text x="{:.1f}" y="{:.1f}" text-anchor="{}"{}>{}</text>'
    return Markup(form).format(x, y, anchor, Markup(' class="{}"').format(name) if name else "", words)


def power(x: float, y: float, exponent: int, anchor: str) -> Markup:
    """A power of ten at an axis."""
    if exponent == 0:
        return text(x, y, "1", anchor, "tick")
    small = Markup('10<tspan dy="-5" font-size="9">{}</tspan>').format(str(exponent).replace("-", "−"))
    return text(x, y, small, anchor, "tick")


def line(x1: float, y1: float, x2: float, y2: float, name: str = "grid") -> Markup:
    """A straight line."""
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(name, x1, y1, x2, y2)


def across(count: int) -> Floats:
    """Places for that many points from left to right."""
    return np.asarray(LEFT + 12 + (WIDTH - LEFT - 24) * np.arange(count) / max(1, count - 1))


def down(logs: Floats, bottom: float, top: float) -> Floats:
    """Heights on a logarithmic axis."""
    return np.asarray(TOP + (HEIGHT - BOTTOM - TOP) * (top - logs) / (top - bottom))


def decades(bottom: int, top: int) -> Markup:
    """Lines and powers of ten for a logarithmic axis, five at most."""
    step = max(1, -(-(top - bottom) // 4))
    drawn = Markup("")
    for k in range(top, bottom - 1, -step):
        y = float(down(np.array([k]), bottom, top)[0])
        drawn += line(LEFT, y, WIDTH, y) + power(LEFT - 5, y + 4, k, "end")
    return drawn


def counted(x: Floats, count: int, words: str) -> Markup:
    """The axis below points that are counted: the first, the last, and what they are."""
    drawn = text(float(x[0]), HEIGHT - BOTTOM + 14, "1") if count > 1 else Markup("")
    drawn += text(float(x[-1]), HEIGHT - BOTTOM + 14, count)
    return drawn + text((LEFT + WIDTH) / 2, HEIGHT - 5, words)
