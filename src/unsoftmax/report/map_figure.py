"""A matrix as a heat map with axes and a colour scale: an embedded PNG, because a thousand cells are too many shapes."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from unsoftmax.models import Floats
from unsoftmax.report.svg import WIDTH, drawing, text


def heat_map(matrix: Floats, told: str, reach: float | None = None, axes: tuple[str, str] = ("row", "column")) -> Markup:
    """A matrix as coloured cells, blue below zero and red above; ``reach`` is the entry of full colour, or its own largest.

    Give maps that are compared one ``reach``, so that a colour means the same in all of them.
    """
    shown = _shrunk(np.asarray(matrix))
    reach = reach or float(np.abs(shown).max()) or 1.0
    rows, columns = np.shape(matrix)
    left, top, side, thick = 34.0, 22.0, 258.0, 12.0  # the map's place and size, and the width of its colour scale
    width, height = (side * max(0.22, min(1.0, ratio)) for ratio in (columns / rows, rows / columns))
    body = _picture(_colours(shown / reach), left, top, width, height, "cells")
    body += text(left, top - 7, f"{axes[1]} 1", "start") + text(left + width, top - 7, columns, "end")
    body += text(left - 5, top + 10, "1", "end") + text(left - 5, top + height, rows, "end")
    if height > 130.0:  # the name of its rows has room beside it
        form = '<text transform="translate({:g} {:.1f}) rotate(-90)" text-anchor="middle">{}</text>'
        body += Markup(form).format(left - 9, top + height / 2, axes[0])
    bar, foot = left + side + 12, top + max(height, 60.0)
    body += _picture(_colours(np.linspace(1.0, -1.0, 64)[:, None]), bar, top, thick, foot - top, "scale")
    for y, label in ((top + 9, f"{reach:.2g}"), ((top + foot) / 2 + 4, "0"), (foot, f"−{reach:.2g}")):
        body += text(bar + thick + 4, y, label, "start")
    return drawing(body, told, height=foot + 6, width=WIDTH, name="map")


def small_map(matrix: Floats, x: float, y: float, side: float, reach: float) -> Markup:
    """A square of coloured cells without axes, as a part of another drawing."""
    return _picture(_colours(_shrunk(np.asarray(matrix), 48) / (reach or 1.0)), x, y, side, side, "cells")


def _picture(pixels: NDArray[np.uint8], x: float, y: float, width: float, height: float, name: str) -> Markup:
    form = '<image class="{}" x="{:g}" y="{:g}" width="{:.1f}" height="{:.1f}" preserveAspectRatio="none" '
    return Markup(form + 'href="data:image/png;base64,{}"/>').format(name, x, y, width, height, b64encode(_png(pixels)).decode())


def _colours(share: Floats) -> NDArray[np.uint8]:
    strength = np.minimum(np.abs(share), 1.0)[..., None] ** 0.7  # below 1: small entries are lifted off white
    # red and blue of one lightness: read alike by colour-blind eyes
    ends = np.where(share[..., None] > 0, np.array([178, 24, 43]), np.array([33, 102, 172]))
    return np.asarray(np.rint(255 + (ends - 255) * strength).astype(np.uint8))


def _shrunk(matrix: Floats, most: int = 96) -> Floats:
    """A large matrix averaged down to that many cells a side."""
    rows, columns = (np.array_split(np.arange(n), min(n, most)) for n in matrix.shape)
    if max(matrix.shape) <= most:
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
