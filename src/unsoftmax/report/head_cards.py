"""Heads as small cards: what a head looks at, or its maps of W and V, with its singular values below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from unsoftmax.models import Floats
from unsoftmax.report.map_figure import small_map
from unsoftmax.report.svg import drawing, joined, line, text


def map_card(W: Floats, V: Floats, values: Sequence[float], reach: dict[str, float], top: float, told: str) -> Markup:
    """W and V side by side, singular values of W below; ``reach`` holds the entries of full colour, ``top`` the longest bar."""
    body = text(31.0, 10.0, "W") + text(99.0, 10.0, "V")
    body += small_map(W, 1.0, 14.0, 60.0, reach["W"]) + small_map(np.swapaxes(V, 0, 1), 69.0, 14.0, 60.0, reach["V"])
    return drawing(body + _spectrum(values, top, 82.0), told, height=122.0, width=130.0, name="card")


def profile_card(
    distances: Sequence[int],
    equal: Sequence[float],
    spread: Sequence[float],
    values: Sequence[float],
    reach: float,
    top: float,
    told: str,
) -> Markup:
    """Scores against distance, as a line for equal tokens and a band for others; singular values of W below."""
    left, right, head, foot = 22.0, 128.0, 5.0, 70.0
    x = left + (right - left) * np.asarray(distances, dtype=np.float64) / max(distances)
    middle, half = (head + foot) / 2, (foot - head) / 2

    def heights(scores: Floats) -> Floats:
        return np.asarray(middle - half * scores / reach)

    band = np.asarray(spread, dtype=np.float64)
    edge = [*zip(x, heights(band), strict=True), *zip(x[::-1], heights(-band)[::-1], strict=True)]
    body = line(left, middle, right, middle, "axis") + line(left, head, left, foot, "axis")
    body += Markup('<polygon class="spread" points="{}"/>').format(_points(edge))
    body += Markup('<polyline class="profile" points="{}"/>').format(
        _points([*zip(x, heights(np.asarray(equal, dtype=np.float64)), strict=True)])
    )
    for y, label in ((head + 6, f"{reach:.2g}"), (middle + 3, "0"), (foot, f"−{reach:.2g}")):
        body += text(left - 3, y, label, "end")
    body += text(left, foot + 11, distances[0]) + text(right, foot + 11, distances[-1], "end")
    body += text((left + right) / 2, foot + 11, "tokens apart")
    return drawing(body + _spectrum(values, top, 88.0), told, height=128.0, width=130.0, name="card")


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def _spectrum(values: Sequence[float], top: float, y: float) -> Markup:
    """Singular values as bars from left to right, those that are not rounding alone."""
    kept = [value for value in values if value > 1e-6 * max(values)]
    each = min(126.0 / max(1, len(kept)), 12.0)
    bars = joined(
        '<rect class="down" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>',
        ((2 + i * each, y + 28.0 * (1 - value / top), 0.8 * each, 28.0 * value / top) for i, value in enumerate(kept)),
    )
    return bars + line(1.0, y + 28.0, 129.0, y + 28.0, "axis") + text(129.0, y + 38.0, "singular values", "end")
