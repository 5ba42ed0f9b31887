"""Bars and series as HTML and SVG; each carries its text alternative or is text itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from unsoftmax.report.chapter import Text
from unsoftmax.report.svg import BOTTOM, HEIGHT, SMALLEST, TOP, WIDTH, across, counted, decades, down, drawing, joined, line, text


def bars(rows: Sequence[tuple[Text, float | None, Text]], *, logarithmic: bool = False) -> Markup:
    """Bars as a list of (label, length, number); the numbers are text, so no alternative is needed.

    Logarithmic bars stand on an axis of powers of ten, which begins a decade below the shortest.
    """
    lengths = [0.0 if length is None else float(length) for _, length, _ in rows]
    axis = Markup("")
    if logarithmic:
        logs = [np.log10(max(length, SMALLEST)) for length in lengths if length > 0] or [0.0]
        low, high = int(np.floor(min(logs))) - 1, int(np.ceil(max(logs)))
        high = max(high, low + 1)
        shares = [0.0 if length <= 0 else (np.log10(max(length, SMALLEST)) - low) / (high - low) for length in lengths]
        axis = _axis(low, high)
    else:
        top = max(lengths, default=0.0) or 1.0
        shares = [length / top for length in lengths]
    body = Markup("").join(
        Markup(
            '<li><span class="name">{}</span><span class="track"><i style="width:{:.1f}%"></i></span><span>{}</span></li>'
        ).format(label, 100 * share, number)
        for (label, _, number), share in zip(rows, shares, strict=True)
    )
    return Markup('<ul class="bars">{}</ul>{}').format(body, axis)


def _axis(low: int, high: int) -> Markup:
    """Powers of ten below logarithmic bars."""
    step = max(1, -(-(high - low) // 4))
    ticks = joined(
        '<span style="left:{:.1f}%">{}</span>',
        (
            (100 * (k - low) / (high - low), Markup("10<sup>{}</sup>").format(str(k).replace("-", "−")))
            for k in range(low, high + 1, step)
        ),
    )
    return Markup('<div class="scale" aria-hidden="true"><span class="ticks">{}</span></div>').format(ticks)


def falling(values: Sequence[float], told: str, mark: int | None = None, reach: tuple[float, float] | None = None) -> Markup:
    """Positive numbers in falling order on a logarithmic axis, such as singular values; a dashed line after ``mark`` of them.

    ``reach`` holds the largest and the smallest number of all series that are drawn side by side, for one axis.
    """
    numbers = np.maximum(np.asarray(values, dtype=np.float64), 0.0)
    largest, smallest = (float(numbers.max()), float(numbers.min())) if reach is None else reach
    top = int(np.ceil(np.log10(largest))) if largest > 0 else 0
    bottom = min(top - 1, int(np.floor(np.log10(max(smallest, 10.0 ** (top - 17))))))  # below is nothing but rounding
    logs = np.log10(np.maximum(numbers, 10.0**bottom))
    x = across(len(numbers))
    dots = joined('<circle cx="{:.1f}" cy="{:.1f}" r="2.6"/>', zip(x, down(logs, bottom, top), strict=True))
    ends = Markup("")
    if mark is not None and 0 < mark < len(numbers):
        at = (x[mark - 1] + x[mark]) / 2
        ends = line(at, TOP, at, HEIGHT - BOTTOM, "mark")
    return drawing(decades(bottom, top) + ends + dots + counted(x, len(numbers), "singular value, by rank"), told)


def signed(values: Sequence[float], told: str, reach: float | None = None) -> Markup:
    """Numbers above and below zero, as upright bars; ``reach`` is the end of an axis that several pictures share."""
    numbers = np.asarray(values, dtype=np.float64)
    reach = reach or float(np.abs(numbers).max()) or 1.0
    left, foot = 46.0, HEIGHT - BOTTOM
    middle, half = (TOP + foot) / 2, (foot - TOP) / 2
    each = (WIDTH - left) / len(numbers)
    heights = half * np.abs(numbers) / reach
    shapes = joined(
        '<rect class="{}" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"/>',
        (
            ("up" if n > 0 else "down", left + i * each + 0.1 * each, middle - h if n > 0 else middle, 0.8 * each, h)
            for i, (n, h) in enumerate(zip(numbers, heights, strict=True))
        ),
    )
    axis = line(left, middle, WIDTH, middle, "axis") + line(left, TOP, WIDTH, TOP) + line(left, foot, WIDTH, foot)
    for y, label in ((TOP, f"{reach:.2g}"), (middle, "0"), (foot, f"−{reach:.2g}")):
        axis += text(left - 5, y + 4, label, "end", "tick")
    x = np.asarray(left + each * (np.arange(len(numbers)) + 0.5), dtype=np.float64)
    return drawing(axis + shapes + counted(x, len(numbers), "entry"), told)
