"""A model as numbers for the record and as pictures for the page."""

from __future__ import annotations

from typing import Any

import numpy as np

from unsoftmax.models import Attention, Floats, Model
from unsoftmax.report import figures
from unsoftmax.report.chapter import Figure
from unsoftmax.report.deep_figures import deep_numbers, drawn_layers
from unsoftmax.report.map_figure import heat_map
from unsoftmax.report.told import Teller


def model_numbers(model: Model | None) -> dict[str, Any] | None:
    """What the pictures of a model show, as numbers: singular values of each W, the range of each block, the common scales."""
    if model is None:
        return None
    numbers: dict[str, Any] = deep_numbers(model)
    heads = [(layer, h) for layer in drawn_layers(model) for h in range(layer.heads)]
    if heads:
        numbers["heads"] = [_head_numbers(layer, h) for layer, h in heads]
        ends = [(name, entry[name]) for entry in numbers["heads"] for name in ("W", "V", "c") if name in entry]
        numbers["reach"] = {
            name: max(max(abs(part["smallest"]), abs(part["largest"])) for other, part in ends if other == name)
            for name in dict.fromkeys(name for name, _ in ends)
        }
    if model.matrices:
        numbers["layers"] = [_range(weights) for weights in model.matrices]
    return numbers or None


def _head_numbers(layer: Attention, h: int) -> dict[str, Any]:
    values = np.linalg.svd(layer.W[h], compute_uv=False)
    rank = int(np.sum(values > 1e-6 * values[0]))
    numbers = {"singular_values": values.tolist(), "rank": rank, "size": float(np.linalg.norm(values)), "W": _range(layer.W[h])}
    if layer.V is not None:
        numbers["V"] = _range(layer.V[h])
    if layer.has_c:
        numbers["c"] = _range(layer.c[h])
    return numbers


def model_figures(tell: Teller, model: Model | None, most: int = 16) -> list[list[Figure]]:
    """Heat maps of W, singular values, values and biases, a row for each of the first heads; then the layers of a network."""
    numbers = tell.record.get("model")
    if not numbers or model is None:
        return []
    layers = drawn_layers(model)
    heads = [(layer, h, n) for n, layer in enumerate(layers) for h in range(layer.heads)]
    drawn: list[list[Figure]] = []
    for number, (layer, h, n) in enumerate(heads[:most]):
        of = "" if len(heads) == 1 else f" of head {h + 1}"
        of += "" if len(layers) == 1 else f" in layer {n + 1}"
        of += "" if "profiles" not in numbers else ", of a token on itself"
        drawn.append(_head(tell, layer, h, number, of))
    if model.matrices:
        names = [f"Layer {i + 1} of the network" for i in range(len(model.matrices))]
        named = zip(names if model.anatomy is None else model.anatomy.tables, model.matrices, strict=True)
        drawn.append(
            [_map(tell, block, name, f"/model/layers/{i}", axes=("output", "input")) for i, (name, block) in enumerate(named)]
        )
    return drawn


def _head(tell: Teller, head: Attention, h: int, number: int, of: str) -> list[Figure]:
    at = f"/model/heads/{number}"
    values = tell.value(f"{at}/singular_values")
    every = [value for entry in tell.value("/model/heads") for value in entry["singular_values"]]
    ranks = tell.record.get("ranks") or []
    mark = ranks[number] if number < len(ranks) and ranks[number] < len(values) else None
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
        if vector is not None and len(vector) <= 128:
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


def _range(block: Any) -> dict[str, float]:
    array = np.asarray(block)
    return {"smallest": float(array.min()), "largest": float(array.max())}
