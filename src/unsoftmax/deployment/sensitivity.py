"""The smallest change of each tensor that would have shown."""

from __future__ import annotations

import numpy as np

from unsoftmax.deployment.checkpoint import Checkpoint
from unsoftmax.deployment.coherence import SURE, Coherence, Pairs
from unsoftmax.models import Floats


def smallest_changes(
    checkpoint: Checkpoint, names: list[str], strength: Floats, found: Coherence, pairs: Pairs
) -> tuple[dict[str, float | None], dict[str, str]]:
    """By layer: the relative rms change that would show in the tensor that shows least (None: none would), and that tensor's name.

    A change in a random direction of relative size e moves an answer by e times ``strength`` (in units of float32 rounding); it
    shows once its energy, weighed for this tensor, exceeds what is explained plus chance.
    """
    weights = strength**2 / np.maximum(np.sum(strength**2, axis=1, keepdims=True), np.finfo(float).tiny)
    signal = np.sum(weights * strength**2, axis=1)
    rough = weights @ pairs.rough
    chance = np.sqrt(np.sum((weights * pairs.rough[None]) ** 2, axis=1))  # of the product of two independent roundings, at most
    needed = (found.allowed[1:] * rough + SURE * np.minimum(chance, found.error[1:] * rough)) / np.maximum(
        signal, np.finfo(float).tiny
    )
    visible = np.sqrt(needed)
    largest: dict[str, float] = {}
    weakest: dict[str, str] = {}
    for name, change in zip(names, visible, strict=True):
        layer = checkpoint.layer_of(name)
        if change > largest.get(layer, 0.0):
            largest[layer], weakest[layer] = float(change), name
    return {layer: change if change < 1.0 else None for layer, change in largest.items()}, weakest
