"""Pictures of deep models: the model as a whole, and a row of cards for the heads of each layer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from unsoftmax.models import Attention, Model
from unsoftmax.report.anatomy_figure import anatomy_figure
from unsoftmax.report.chapter import Chapter, Figure, Grid
from unsoftmax.report.head_cards import map_card, profile_card
from unsoftmax.report.told import Teller


def drawn_layers(model: Model) -> tuple[Attention, ...]:
    """The heads of each layer, first layer first; where scores turn with the distance, those of a token on itself."""
    if model.attentions or model.anatomy is None:
        return model.attentions
    return tuple(Attention(layer.scores(0.0), layer.V, layer.c) for layer in model.anatomy.layers)


def deep_numbers(model: Model, farthest: int = 64) -> dict[str, Any]:
    """The parts of a deep model, and what its heads look at up to so many tokens apart, as plain data; nothing for others."""
    anatomy = model.anatomy
    if anatomy is None:
        return {}
    numbers: dict[str, Any] = {
        "anatomy": {
            "norm": anatomy.norm,
            "before": [asdict(part) for part in anatomy.before],
            "blocks": [[asdict(part) for part in parts] for parts in anatomy.blocks],
            "behind": [asdict(part) for part in anatomy.behind],
        },
        "layer_of_head": [i + 1 for i, layer in enumerate(anatomy.layers) for _ in layer.heads],
    }
    if anatomy.layers[0].base is not None:
        distances = np.arange(farthest + 1.0)
        profiles = [layer.profile(distances) for layer in anatomy.layers]
        numbers["distances"] = distances.astype(int).tolist()
        numbers["profiles"] = [
            {"equal": e.tolist(), "spread": s.tolist(), "peak": int(np.argmax(e))}
            for equal, spread in profiles
            for e, s in zip(equal, spread, strict=True)
        ]
    return numbers


def model_picture(tell: Teller) -> list[list[Figure]]:
    """The picture of the whole model, for models that are deep."""
    anatomy = (tell.record.get("model") or {}).get("anatomy")
    return [[anatomy_figure(anatomy)]] if anatomy else []


def layer_chapters(tell: Teller, model: Model | None, shown: int = 4) -> list[Chapter]:
    """A row of cards for the heads of each layer; those after the first ``shown`` layers are folded."""
    numbers = tell.record.get("model") or {}
    if model is None or not numbers.get("layer_of_head"):
        return []
    grids = _profile_grids(tell) if "profiles" in numbers else _map_grids(tell, drawn_layers(model))
    words = (
        "Each card is one head: scores between two tokens by how far they are apart. The line is the mean score where the two are "
        "equal (captions tell its peak), the band the root mean square where they are not; bars are singular values at distance 0."
        if "profiles" in numbers
        else "Each card is one head: its score matrix W and its values V (blue below zero, red above), and singular values of W."
    )
    sentences = (words, "Colours and axes mean the same for every head.")
    found = [Chapter("The heads, layer by layer", sentences=sentences, grids=grids[:shown])]
    left = grids[shown:]
    return [*found, Chapter("The heads of later layers", grids=left, folded=True)] if left else found


def _profile_grids(tell: Teller) -> list[Grid]:
    numbers = tell.record["model"]
    profiles, heads, distances = numbers["profiles"], numbers["heads"], numbers["distances"]
    reach = max(max(map(abs, (*one["equal"], *one["spread"]))) for one in profiles) or 1.0
    top, last = _longest(heads), len(distances) - 1
    figures = []
    for i, (one, head) in enumerate(zip(profiles, heads, strict=True)):
        at = f"/model/profiles/{i}"
        caption = tell(f"{_name(numbers, i)}: peak {{{at}/equal/{one['peak']}:.3g}} at distance {{{at}/peak}}")
        ends = tell(
            f"{caption}; scores of other tokens spread by {{{at}/spread/0:.3g}} at once and {{{at}/spread/{last}:.3g}} "
            f"{{/model/distances/{last}}} apart"
        )
        drawing = profile_card(distances, one["equal"], one["spread"], head["singular_values"], reach, top, str(ends))
        figures.append(Figure(caption, drawing))
    return _by_layer(tell, figures)


def _map_grids(tell: Teller, layers: tuple[Attention, ...]) -> list[Grid]:
    numbers = tell.record["model"]
    heads = [(W, V) for layer in layers if layer.V is not None for W, V in zip(layer.W, layer.V, strict=True)]
    top, figures = _longest(numbers["heads"]), []
    for i, ((W, V), head) in enumerate(zip(heads, numbers["heads"], strict=True)):
        at = f"/model/heads/{i}"
        caption = tell(f"{_name(numbers, i)}: rank {{{at}/rank}}, scores of size {{{at}/size:.3g}}")
        told = tell(
            f"{caption}; entries of W from {{{at}/W/smallest:.3g}} to {{{at}/W/largest:.3g}}, "
            f"of V from {{{at}/V/smallest:.3g}} to {{{at}/V/largest:.3g}}"
        )
        figures.append(Figure(caption, map_card(W, V, head["singular_values"], numbers["reach"], top, str(told))))
    return _by_layer(tell, figures)


def _by_layer(tell: Teller, figures: list[Figure]) -> list[Grid]:
    """Cards in rows, one for each layer."""
    numbers = tell.record["model"]
    layers = numbers["layer_of_head"]
    return [
        Grid(f"Layer {n}: {parts[0]['words']}", [figure for figure, layer in zip(figures, layers, strict=True) if layer == n])
        for n, parts in enumerate(numbers["anatomy"]["blocks"], start=1)
    ]


def _name(numbers: dict[str, Any], i: int) -> str:
    """A head by its number in its layer."""
    layers = numbers["layer_of_head"]
    return f"Head {i - layers.index(layers[i]) + 1}"


def _longest(heads: list[dict[str, Any]]) -> float:
    return max(head["singular_values"][0] for head in heads) or 1.0
