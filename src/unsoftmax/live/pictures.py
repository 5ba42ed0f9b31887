"""The pictures of the live page: W as heat maps, and the error as it falls."""

from __future__ import annotations

import numpy as np

from unsoftmax.models import Model
from unsoftmax.report.map_figure import heat_map
from unsoftmax.report.svg import HEIGHT, LEFT, WIDTH, decades, down, drawing, joined, text


def head_maps(model: Model, most: int = 12) -> list[dict[str, str]]:
    """The W of the first heads of all layers, in one colour scale; the matrices of a network where there are no heads."""
    heads = [(f"W of layer {n + 1}, head {h + 1}", W) for n, layer in enumerate(model.attentions) for h, W in enumerate(layer.W)]
    if len(model.attentions) == 1:
        heads = [("W" if len(heads) == 1 else f"W of head {h + 1}", W) for h, (_, W) in enumerate(heads)]
    shown = (heads or [(f"weights of layer {n + 1}", matrix) for n, matrix in enumerate(model.matrices)])[:most]
    reach = max((float(np.abs(matrix).max()) for _, matrix in shown), default=0.0) or 1.0
    return [
        {"caption": name, "drawing": str(heat_map(matrix, f"{name}, {matrix.shape[0]} by {matrix.shape[1]} entries", reach))}
        for name, matrix in shown
    ]


def error_curve(errors: list[tuple[int, float]]) -> str:
    """Errors against queries, on a logarithmic axis of errors."""
    asked = np.array([queries for queries, _ in errors], dtype=np.float64)
    logs = np.log10(np.maximum([error for _, error in errors], 1e-17))
    bottom, top = int(np.floor(logs.min())), int(np.ceil(logs.max()))
    top = max(top, bottom + 1)
    x = LEFT + (WIDTH - LEFT - 12) * asked / max(1.0, asked.max())
    y = down(logs, bottom, top)
    dots = joined('<circle cx="{:.1f}" cy="{:.1f}" r="2.6"/>', zip(x, y, strict=True))
    axis = text(WIDTH - 12, HEIGHT - 20, f"{int(asked.max()):,}", "end") + text((LEFT + WIDTH) / 2, HEIGHT - 5, "queries asked")
    told = f"Error of the model of the moment on answers it had not seen: last {errors[-1][1]:.1e} after {errors[-1][0]:,} queries"
    return str(drawing(decades(bottom, top) + dots + axis, told))
