"""A model as numbers for the record and as pictures for the page."""

from __future__ import annotations

from typing import Any

import numpy as np

from unsoftmax.models import FFN, Attention, Floats, Model, Transformer
from unsoftmax.report import figures
from unsoftmax.report.chapter import Figure
from unsoftmax.report.map_figure import heat_map
from unsoftmax.report.told import Teller

SHOWN_HEADS = 16  # heads drawn one by one; the rest is in the weights file
SHOWN_BARS = 128  # longer vectors are drawn as maps
SCALE = "Colours and axes mean the same for every head."


def model_numbers(model: Model | None) -> dict[str, Any] | None:
    """What the pictures of a model show, as numbers: singular values of each W, the range of each block, the common scales."""
    head = _attention(model)
    network = _network(model)
    numbers: dict[str, Any] = {}
    if head is not None:
        numbers["heads"] = [{"singular_values": np.linalg.svd(W, compute_uv=False).tolist(), "W": _range(W)} for W in head.W]
        numbers["reach"] = {"W": _reach(head.W)}
        for name, block in (("V", head.V), ("c", head.c if head.has_c else None)):
            if block is not None:
                numbers["reach"][name] = _reach(block)
                for entry, part in zip(numbers["heads"], block, strict=True):
                    entry[name] = _range(part)
    if network is not None:
        numbers["layers"] = [_range(weights) for weights in network.weights]
    return numbers or None


def model_figures(tell: Teller, model: Model | None) -> list[list[Figure]]:
    """Heat maps of W, singular values, values and biases, a row for each head; then the layers of a network."""
    numbers = tell.record.get("model")
    if not numbers:
        return []
    head, network = _attention(model), _network(model)
    drawn: list[list[Figure]] = []
    if head is not None:
        drawn += [_head(tell, head, h) for h in range(min(head.heads, SHOWN_HEADS))]
    if network is not None:
        layers = enumerate(network.weights)
        drawn.append(
            [
                _map(tell, weights, f"Layer {i + 1} of the network", f"/model/layers/{i}", axes=("output", "input"))
                for i, weights in layers
            ]
        )
    return drawn


def _head(tell: Teller, head: Attention, h: int) -> list[Figure]:
    of = "" if head.heads == 1 else f" of head {h + 1}"
    at = f"/model/heads/{h}"
    values = tell.value(f"{at}/singular_values")
    every = [value for entry in tell.value("/model/heads") for value in entry["singular_values"]]
    ranks = tell.record.get("ranks") or []
    mark = ranks[h] if h < len(ranks) and ranks[h] < len(values) else None
    ends = "" if mark is None else "; past the dashed line only rounding is left"
    told = tell(
        f"Singular values of W{of}: {len(values)}, from {{{at}/singular_values/0:.3g}} down to "
        f"{{{at}/singular_values/{len(values) - 1}:.3g}}{ends}"
    )
    reach = tell.value("/model/reach")
    drawn = [
        _map(tell, head.W[h], f"Score matrix W{of}", f"{at}/W", reach["W"], ("earlier token", "last token")),
        Figure(told, figures.falling(values, str(told), mark, (max(every), min(every)))),
    ]
    for name, block in (("V", head.V), ("c", head.c if head.has_c else None)):
        if block is None:
            continue
        title = f"{'Values V' if name == 'V' else 'Query bias c'}{of}"
        vector = block[h] if block[h].ndim == 1 else None
        if vector is not None and len(vector) <= SHOWN_BARS:
            told = tell(f"{title}: {len(vector)} entries from {{{at}/{name}/smallest:.3g}} to {{{at}/{name}/largest:.3g}}")
            drawn.append(Figure(told, figures.signed(vector.tolist(), str(told), reach[name])))
        else:
            flat = block[h].reshape(len(block[h]), -1).T
            drawn.append(_map(tell, flat, title, f"{at}/{name}", reach[name], ("output", "token entry")))
    return drawn


def _map(
    tell: Teller, matrix: Floats, title: str, at: str, reach: float | None = None, axes: tuple[str, str] = ("row", "column")
) -> Figure:
    rows, columns = matrix.shape
    told = tell(f"{title}: {rows} by {columns} entries from {{{at}/smallest:.3g}} to {{{at}/largest:.3g}}")
    alternative = f"{told}; rows by {axes[0]}, columns by {axes[1]}; blue below zero, red above"
    return Figure(told, heat_map(matrix, alternative, reach, axes))


def _attention(model: Model | None) -> Attention | None:
    head = model.attention if isinstance(model, Transformer) else model
    return head if isinstance(head, Attention) else None


def _network(model: Model | None) -> FFN | None:
    return model if isinstance(model, FFN) else model.ffn if isinstance(model, Transformer) else None


def _range(block: Any) -> dict[str, float]:
    array = np.asarray(block)
    return {"smallest": float(array.min()), "largest": float(array.max())}


def _reach(block: Any) -> float:
    return float(np.abs(np.asarray(block)).max())
