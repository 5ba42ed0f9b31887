"""Pictures as inline SVG, HTML or PNG: no script, no fonts, nothing fetched. Each carries its text alternative."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from unsoftmax.models import Floats
from unsoftmax.report.chapter import Text

COLD, WARM = np.array([33, 102, 172]), np.array([178, 24, 43])  # blue and red of one lightness: read alike by colour-blind eyes
CELLS = 96  # a larger matrix is averaged down to this many cells a side
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 360.0, 190.0, 46.0, 10.0, 28.0  # of a chart; letters stay legible on a phone
SMALLEST = 1e-17  # where logarithmic scales end


def heat_map(matrix: Floats, told: str) -> Markup:
    """A matrix as coloured cells, blue below zero and red above; an embedded PNG, because a thousand cells are too many shapes."""
    shown = _shrunk(np.asarray(matrix))
    share = shown / (float(np.abs(shown).max()) or 1.0)
    ends = np.where(share[..., None] > 0, WARM, COLD)
    pixels = np.rint(255 + (ends - 255) * np.abs(share[..., None]) ** 0.7).astype(np.uint8)
    return Markup('<img class="map" alt="{}" width="{}" height="{}" src="data:image/png;base64,{}">').format(
        told, pixels.shape[1], pixels.shape[0], b64encode(_png(pixels)).decode()
    )


def _shrunk(matrix: Floats) -> Floats:
    rows, columns = (np.array_split(np.arange(n), min(n, CELLS)) for n in matrix.shape)
    if max(matrix.shape) <= CELLS:
        return matrix
    return np.array([[matrix[np.ix_(r, c)].mean() for c in columns] for r in rows])


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """RGB pixels ``(rows, columns, 3)`` as a PNG file."""
    rows, columns, _ = pixels.shape
    scan = b"".join(b"\0" + row.tobytes() for row in pixels)  # each row starts with its filter: none
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(scan, 9)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def bars(rows: Sequence[tuple[Text, float | None, Text]], *, logarithmic: bool = False) -> Markup:
    """Bars as a list of (label, length, number); the numbers are text, so no alternative is needed."""
    lengths = [0.0 if length is None else float(length) for _, length, _ in rows]
    if logarithmic:
        low = min((np.log10(max(length, SMALLEST)) for length in lengths if length > 0), default=0.0) - 1.0
        high = max((np.log10(length) for length in lengths if length > 0), default=0.0)
        shares = [0.0 if length <= 0 else (np.log10(max(length, SMALLEST)) - low) / (high - low) for length in lengths]
    else:
        top = max(lengths, default=0.0) or 1.0
        shares = [length / top for length in lengths]
    body = Markup("").join(
        Markup(
            '<li><span class="name">{}</span><span class="track"><i style="width:{:.1f}%"></i></span><span>{}</span></li>'
        ).format(label, 100 * share, number)
        for (label, _, number), share in zip(rows, shares, strict=True)
    )
    return Markup('<ul class="bars">{}</ul>').format(body)


def falling(values: Sequence[float], told: str, mark: int | None = None) -> Markup:
    """Positive numbers in falling order on a logarithmic axis, such as singular values; a dashed line after ``mark`` of them."""
    numbers = np.maximum(np.asarray(values, dtype=np.float64), 0.0)
    top = int(np.ceil(np.log10(numbers.max()))) if numbers.max() > 0 else 0
    logs = np.log10(np.maximum(numbers, 10.0 ** (top - 17)))
    bottom = min(top - 1, int(np.floor(logs.min())))
    x = _across(len(numbers))
    dots = _joined('<circle cx="{:.1f}" cy="{:.1f}" r="2.6"/>', zip(x, _down(logs, bottom, top), strict=True))
    line = Markup("")
    if mark is not None and 0 < mark < len(numbers):
        at = (x[mark - 1] + x[mark]) / 2
        line = Markup('<line class="mark" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(at, TOP, HEIGHT - BOTTOM)
    return _svg(_decades(bottom, top) + line + dots, told)


def signed(values: Sequence[float], told: str) -> Markup:
    """Numbers above and below zero, as upright bars."""
    numbers = np.asarray(values, dtype=np.float64)
    reach = float(np.abs(numbers).max()) or 1.0
    middle, half = (TOP + HEIGHT - BOTTOM) / 2, (HEIGHT - BOTTOM - TOP) / 2
    each = (WIDTH - 8) / len(numbers)
    heights = half * np.abs(numbers) / reach
    shapes = _joined(
        '<rect class="{}" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"/>',
        (
            ("up" if n > 0 else "down", 4 + i * each + 0.1 * each, middle - h if n > 0 else middle, 0.8 * each, h)
            for i, (n, h) in enumerate(zip(numbers, heights, strict=True))
        ),
    )
    zero = Markup('<line class="axis" x1="0" x2="{}" y1="{}" y2="{}"/>').format(WIDTH, middle, middle)
    return _svg(shapes + zero, told)


def trade(points: Sequence[tuple[str, float | None, float | None]], told: str, close: float, rough: float) -> Markup:
    """Defences as numbered dots: across, the harm to honest users; upwards, the error of the copy that an attacker gets.

    None upwards is a dot above the frame: no copy at all. Errors below 1e-8 lie at the foot. The bands: copies that pass for the
    original, rough ones, useless ones.
    """
    height, left, right, low, high = 300.0, LEFT, WIDTH - 6.0, -8.0, 0.5
    foot, ceiling = height - 44.0, 34.0

    def y(log: float) -> float:
        return foot - (min(max(log, low), high) - low) / (high - low) * (foot - ceiling)

    def x(harm: float | None) -> float:
        log = -8.0 if not harm else min(max(np.log10(harm), -7.0), 0.0)
        return left + 14 + (log + 8.0) / 8.0 * (right - left - 28)

    bands = Markup("")
    for name, top, base in (
        ("far", ceiling, y(np.log10(rough))),
        ("rough", y(np.log10(rough)), y(np.log10(close))),
        ("close", y(np.log10(close)), foot),
    ):
        bands += Markup('<rect class="{}" x="{}" y="{:.1f}" width="{}" height="{:.1f}"/>').format(
            name, left, top, right - left, base - top
        )
    grid = Markup("")
    for k in range(-8, 1, 2):
        grid += Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(left, right, y(k), y(k)) + _label(
            left - 5, y(k) + 4, k, "end"
        )
    for k in range(-6, 1, 2):
        grid += _label(x(10.0**k), foot + 20, k, "middle")
    words = _joined(
        '<text x="{:.1f}" y="{:.1f}" text-anchor="{}" aria-hidden="true">{}</text>',
        [
            (x(0.0), foot + 20, "middle", "none"),
            ((left + right) / 2, height - 8, "middle", "error added to honest answers →"),
            (left, 12, "start", "↑ error of the stolen copy"),
            (0.0, ceiling - 8, "start", "no copy"),
        ],
    )
    dots = Markup("")
    placed: list[tuple[float, float]] = []
    for name, harm, error in points:
        at = (x(harm), ceiling - 12 if error is None else y(np.log10(max(error, SMALLEST))))
        while any(abs(at[0] - a) < 15 and abs(at[1] - b) < 15 for a, b in placed):  # beside another one, not on it
            at = (at[0] + 15.5, at[1])
        placed.append(at)
        dots += Markup(
            '<circle class="dot" cx="{0:.1f}" cy="{1:.1f}" r="7.5"/><text class="in" x="{0:.1f}" y="{2:.1f}">{3}</text>'
        ).format(at[0], at[1], at[1] + 3.5, name)
    return _svg(bands + grid + words + dots, told, height)


def _across(count: int) -> Floats:
    return np.asarray(LEFT + 12 + (WIDTH - LEFT - 24) * np.arange(count) / max(1, count - 1))


def _down(logs: Floats, bottom: int, top: int) -> Floats:
    return np.asarray(TOP + (HEIGHT - BOTTOM - TOP) * (top - logs) / (top - bottom))


def _decades(bottom: int, top: int) -> Markup:
    """Lines and powers of ten for a logarithmic axis, five at most."""
    step = max(1, -(-(top - bottom) // 4))
    drawn = Markup("")
    for k in range(top, bottom - 1, -step):
        y = float(_down(np.array([k]), bottom, top)[0])
        drawn += Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(LEFT, WIDTH, y, y) + _label(
            LEFT - 5, y + 4, k, "end"
        )
    return drawn


def _label(x: float, y: float, power: int, anchor: str) -> Markup:
    """A power of ten at an axis."""
    if power == 0:
        return Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">1</text>').format(x, y, anchor)
    return Markup(
        '<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">10<tspan dy="-5" font-size="9">{}</tspan></text>'
    ).format(x, y, anchor, str(power).replace("-", "−"))


def _joined(form: str, rows: object) -> Markup:
    return Markup("").join(Markup(form).format(*row) for row in rows)  # type: ignore[attr-defined]  # its stub forgets join


def _svg(body: Markup, told: str, height: float = HEIGHT) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(WIDTH, height, told, body)
