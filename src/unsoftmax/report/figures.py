"""Pictures as inline SVG: no script, no fonts, nothing fetched. Every picture carries its own text alternative."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models import Floats

INK, LINE, BAR = "#1f2933", "#c3ccd6", "#0b6e99"
COLD, WARM = np.array([33, 102, 172]), np.array([178, 24, 43])  # blue and red of one lightness: read alike by colour-blind eyes
CELLS = 96  # a larger matrix is averaged down to this many cells a side


def heat_map(matrix: Floats, caption: str) -> str:
    """A matrix as coloured cells, blue below zero and red above; an embedded PNG, because a thousand cells are too many shapes."""
    shown = _shrunk(np.asarray(matrix))
    share = shown / (float(np.abs(shown).max()) or 1.0)
    ends = np.where(share[..., None] > 0, WARM, COLD)
    pixels = np.rint(255 + (ends - 255) * np.abs(share[..., None]) ** 0.7).astype(np.uint8)
    title = escape(f"{caption}. {matrix.shape[0]} by {matrix.shape[1]} entries, from {matrix.min():.3g} to {matrix.max():.3g}.")
    return f'<img class="map" alt="{title}" src="data:image/png;base64,{b64encode(_png(pixels)).decode()}">'


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """RGB pixels ``(rows, columns, 3)`` as a PNG file."""
    rows, columns, _ = pixels.shape
    scan = b"".join(b"\0" + row.tobytes() for row in pixels)  # each row starts with its filter: none
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(scan, 9)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def bars(values: Sequence[float], labels: Sequence[str], caption: str, *, logarithmic: bool = False) -> str:
    """Horizontal bars with their labels and numbers."""
    numbers = np.asarray(values, dtype=np.float64)
    lengths = _log_lengths(numbers) if logarithmic else numbers / (numbers.max() or 1.0)
    rows = []
    for i, (label, length, value) in enumerate(zip(labels, lengths, numbers, strict=True)):
        y = 22 * i
        number = f"{int(value):,}" if float(value).is_integer() and not logarithmic else f"{value:.2g}"
        rows.append(
            f'<text x="120" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="128" y="{y + 3}" width="{max(1.0, 360 * length):.1f}" height="15" rx="2" fill="{BAR}"/>'
            f'<text x="{134 + max(1.0, 360 * length):.1f}" y="{y + 14}">{number}</text>'
        )
    told = "; ".join(f"{label}: {value:.3g}" for label, value in zip(labels, numbers, strict=True))
    return _svg(f"0 0 600 {22 * len(rows) + 4}", "".join(rows), escape(f"{caption}. {told}"), "bars")


def line(values: Sequence[float], caption: str) -> str:
    """Positive numbers in falling order on a logarithmic axis, such as singular values."""
    numbers = np.asarray(values, dtype=np.float64)
    top = float(numbers.max()) or 1.0
    logs = np.log10(np.maximum(numbers / top, 1e-17))
    deepest = min(-1.0, float(np.floor(logs.min())))
    x = 60 + 520 * np.arange(len(numbers)) / max(1, len(numbers) - 1)
    y = 12 + 150 * logs / deepest
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.4" fill="{BAR}"/>' for a, b in zip(x, y, strict=True))
    grid = "".join(
        f'<line x1="56" x2="590" y1="{12 + 150 * k / deepest:.1f}" y2="{12 + 150 * k / deepest:.1f}" stroke="{LINE}"/>'
        f'<text x="50" y="{16 + 150 * k / deepest:.1f}" text-anchor="end">{top * 10.0**k:.0e}</text>'
        for k in np.linspace(0, deepest, 4)
    )
    title = escape(f"{caption}. Largest {top:.3g}, smallest {numbers.min():.3g}, {len(numbers)} in all.")
    return _svg("0 0 600 172", grid + dots, title, "line")


def _svg(box: str, body: str, title: str, kind: str) -> str:
    return f'<svg class="{kind}" viewBox="{box}" role="img" aria-label="{title}" xmlns="http://www.w3.org/2000/svg"><title>{title}</title>{body}</svg>'


def _log_lengths(numbers: Floats) -> Floats:
    logs = np.log10(np.maximum(numbers, 1e-17))
    return np.asarray((logs + 17.0) / 17.0).clip(0.02, 1.0)


def _shrunk(matrix: Floats) -> Floats:
    rows, columns = (np.array_split(np.arange(n), min(n, CELLS)) for n in matrix.shape)
    if max(matrix.shape) <= CELLS:
        return matrix
    return np.array([[matrix[np.ix_(r, c)].mean() for c in columns] for r in rows])


def defences(values: Sequence[float | None], labels: Sequence[str], caption: str) -> str:
    """Errors by defence as bars on a logarithmic axis; None is told in words."""
    rows = []
    for i, (label, value) in enumerate(zip(labels, values, strict=True)):
        y = 22 * i
        length = 0.0 if not value else 220 * float(_log_lengths(np.array([value]))[0])
        number = "no model" if value is None else f"{value:.1e}" if value else "0"
        bar = f'<rect x="156" y="{y + 3}" width="{length:.1f}" height="15" rx="2" fill="{BAR}"/>' if length else ""
        rows.append(
            f'<text x="150" y="{y + 14}" text-anchor="end">{escape(label)}</text>{bar}'
            f'<text x="{161 + length:.1f}" y="{y + 14}">{number}</text>'
        )
    told = "; ".join(f"{label}: {'no model' if v is None else f'{v:.1e}'}" for label, v in zip(labels, values, strict=True))
    return _svg(f"0 0 440 {22 * len(rows) + 4}", "".join(rows), escape(f"{caption}. {told}"), "bars")
