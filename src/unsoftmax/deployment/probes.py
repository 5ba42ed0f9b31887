"""Telling embeddings: sequences of natural and other sizes, in pairs of twins, chosen so that every tensor of a checkpoint shows.

A twin differs from its sequence by one percent. What a change of weights does to the answers is nearly the same for both; what
rounding does is not. All numbers are on the grid of bfloat16, so that no endpoint rounds them on arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unsoftmax.deployment.checkpoint import Checkpoint, View, by_length
from unsoftmax.deployment.jacobian import jacobian_rows
from unsoftmax.models import Floats

LENGTHS = (2, 3, 4, 6, 8, 12, 16, 24)
SCALES = (1.0, 1.0, 0.125, 0.5, 4.0)  # of the natural size; the natural one more often
STEP = 0.01  # a twin's distance, against the size of the tokens
PAIRS = 4  # in one call: as a request, it is answered by one replica
NATURAL = 1 / 3  # share of the pairs that is drawn and not chosen
WORK = 4e10  # multiplications that the choice of probes may cost, roughly half a minute on one core


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One call: ``(2 * PAIRS, length, width)``, sequences at even places and their twins behind them."""

    sequences: Floats
    natural: bool


def on_grid(values: Floats) -> Floats:
    """Numbers rounded to bfloat16, as float64.

    >>> float(on_grid(np.array([1.01]))[0])
    1.0078125
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.asarray(rounded.view(np.float32), dtype=np.float64)


def natural_size(checkpoint: Checkpoint) -> float:
    """The rms of a token's entries: as in the token table, else 1."""
    if checkpoint.vocabulary is None:
        return 1.0
    return float(np.sqrt(np.mean(checkpoint.vocabulary**2))) or 1.0


def drawn_calls(
    checkpoint: Checkpoint, count: int, rng: np.random.Generator, *, max_length: int | None = None, max_norm: float | None = None
) -> list[Probe]:
    """Calls of twins: lengths, sizes and kinds (words of the token table, Gaussian, one loud token, repeated ones) in turn."""
    size = natural_size(checkpoint)
    lengths = [n for n in LENGTHS if max_length is None or n <= max_length] or [1]
    calls = []
    for number in range(count):
        length = lengths[number % len(lengths)]
        scale = SCALES[(number // len(lengths)) % len(SCALES)]
        tokens = _tokens(checkpoint, size, length, number % 4, rng) * scale
        if max_norm is not None:
            norms = np.linalg.norm(tokens, axis=2, keepdims=True) * (1 + 4 * STEP)
            tokens = tokens * np.minimum(1.0, max_norm / np.maximum(norms, np.finfo(float).tiny))
        twins = tokens + STEP * float(np.sqrt(np.mean(tokens**2))) * rng.normal(size=tokens.shape)
        both = np.empty((2 * len(tokens), *tokens.shape[1:]))
        both[0::2], both[1::2] = tokens, twins
        calls.append(Probe(on_grid(both), natural=scale == 1.0))
    return calls


def _tokens(checkpoint: Checkpoint, size: float, length: int, kind: int, rng: np.random.Generator) -> Floats:
    shape = (PAIRS, length, checkpoint.width)
    if kind == 0 and checkpoint.vocabulary is not None:
        return np.asarray(checkpoint.vocabulary[rng.integers(len(checkpoint.vocabulary), size=shape[:2])])
    tokens = size * rng.normal(size=shape)
    if kind == 2:
        tokens[:, rng.integers(length)] *= 8.0
    if kind == 3:
        tokens[:, ::2] = tokens[:, :1]  # the others differ: scores between two groups of tokens
    return tokens


def chosen_calls(pool: Sequence[Probe], responses: Floats, count: int) -> list[int]:
    """Which calls of a pool to ask: some as they come, then for each tensor in turn the one that shows it best.

    Args:
        pool: the calls.
        responses: how strongly each tensor shows in each call, against rounding, ``(tensors, calls)``.
        count: calls to choose.
    """
    count = min(count, len(pool))
    natural = [i for i, probe in enumerate(pool) if probe.natural]
    taken = natural[: int(np.ceil(NATURAL * count))]
    order = np.argsort(-responses, axis=1)
    weakest = np.argsort(responses.max(axis=1))  # what shows least chooses first
    reached = np.zeros(len(responses), dtype=int)
    chosen = set(taken)
    while len(chosen) < count:
        for tensor in weakest:
            while reached[tensor] < len(pool) and order[tensor, reached[tensor]] in chosen:
                reached[tensor] += 1
            if reached[tensor] < len(pool) and len(chosen) < count:
                chosen.add(int(order[tensor, reached[tensor]]))
    return sorted(chosen)


def affordable(checkpoint: Checkpoint, wanted: int) -> int:
    """How many calls can be looked at before choosing; a large checkpoint is given fewer to choose from."""
    weights = sum(int(tensor.numel()) for key, tensor in checkpoint.tensors.items() if "embed" not in key)
    each = 6.0 * weights * 2 * PAIRS * float(np.mean(LENGTHS))
    return int(min(2 * wanted, WORK / each))


def shown_by(
    checkpoint: Checkpoint, calls: Sequence[Probe], noise: Sequence[Floats], view: View | None, rng: np.random.Generator
) -> tuple[list[str], Floats]:
    """How strongly a relative change of each tensor shows in each pair, in units of rounding, ``(tensors, calls)``."""
    ones = [probe.sequences[0::2] for probe in calls]
    places = by_length(ones)
    batches = [np.concatenate([ones[i] for i in held]) for held in places.values()]
    outputs = [checkpoint(batch[:1], view=view).shape[1] for batch in batches]
    directions = [rng.normal(size=(len(batch), size)) / np.sqrt(size) for batch, size in zip(batches, outputs, strict=True)]
    rows = jacobian_rows(checkpoint, batches, directions, view)
    order = np.argsort([i for held in places.values() for i in held])
    scale = np.asarray([level[0::2] for level in noise])
    names, found = [], []
    for key, part in rows.items():
        strength = np.sqrt(part.squares().reshape(len(calls), -1)[order]) * checkpoint.size_of(key) / scale
        if np.max(strength) > 1.0:  # else not even a tensor of other numbers would show: a key's bias, which softmax forgets
            names.append(key)
            found.append(strength)
    return names, np.asarray(found).reshape(len(names), len(calls), -1)
