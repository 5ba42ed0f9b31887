"""Fresh questions so near to the boundary that only the right model knows which side they are on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.models import Attention, Floats
from unsoftmax.proof.fresh import Fresh
from unsoftmax.results import Bounds


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Questions on either side of the boundary.

    Attributes:
        sequences: ``(2 count, length, width)``; the first half is just on the side of yes.
        labels: which label each should get: an index into the classes.
        margin: how far from the boundary each is, in units of the answers' spread.
    """

    sequences: Floats
    labels: NDArray[np.int_]
    margin: Floats


def margins(model: Attention, X: Floats) -> tuple[Floats, NDArray[np.int_]]:
    """How far the winner is ahead in each answer, and who wins; of one output, "no" and "yes" are two classes, 0 and it."""
    answers = model(X)
    classes = np.stack([np.zeros(len(X)), answers], axis=1) if answers.ndim == 1 else answers
    order = np.argsort(classes, axis=1)
    ranked = np.take_along_axis(classes, order, 1)
    lead: Floats = ranked[:, -1] - ranked[:, -2]
    winner: NDArray[np.int_] = order[:, -1]
    return lead, winner


def boundary_pairs(
    model: Attention,
    bounds: Bounds,
    length: int,
    count: int,
    rng: np.random.Generator,
    *,
    scale: Floats | float = 1.0,
    middle: Floats | float = 0.0,
) -> Pairs:
    """Up to ``count`` pairs of sequences of ``length`` tokens, just on either side of a boundary of ``model``.

    Ends of different labels are drawn at random, entries of standard deviation ``scale`` around ``middle``; the model's own
    boundary between them is found by halving, and left by as little as the error bars allow.
    """
    low, high, spread = _drawn(model, length, count, rng, scale, middle)
    if not len(low):
        return Pairs(np.empty((0, length, model.width)), np.empty(0, dtype=np.int_), np.empty(0))
    a, b = np.zeros(len(low)), np.ones(len(low))
    start = margins(model, low)[1]
    for _ in range(BOUNDARY.bits + 10):
        half = (a + b) / 2
        same = margins(model, _between(low, high, half))[1] == start
        a, b = np.where(same, half, a), np.where(same, b, half)
    reach = _reach(model, bounds, _between(low, high, a), rng)
    step = np.full(len(low), BOUNDARY.finest)
    for _ in range(BOUNDARY.bits):  # as far from the boundary as the margin wants, on both sides
        ahead = [margins(model, _between(low, high, at))[0] for at in (a - step, b + step)]
        near = np.minimum(*ahead) < reach
        step = np.where(near, 2 * step, step)
    sequences = np.concatenate([_between(low, high, a - step), _between(low, high, b + step)])
    lead, winner = margins(model, sequences)
    kept = np.tile(
        (step < 0.25) & (winner[: len(low)] == start) & (winner[len(low) :] != start) & (lead.reshape(2, -1) >= reach).all(axis=0),
        2,
    )
    return Pairs(sequences[kept], winner[kept], lead[kept] / spread)


def _between(low: Floats, high: Floats, share: Floats) -> Floats:
    mixed: Floats = low + share[:, None, None] * (high - low)
    return mixed


def _drawn(
    model: Attention, length: int, count: int, rng: np.random.Generator, scale: Floats | float, middle: Floats | float
) -> tuple[Floats, Floats, float]:
    """Pairs of random sequences that the model labels differently, and the spread of its answers."""
    low: list[Floats] = []
    high: list[Floats] = []
    spread = 0.0
    for _ in range(BOUNDARY.bits):
        drawn = [middle + scale * rng.normal(size=(count, length, model.width)) for _ in range(2)]
        winners = [margins(model, X)[1] for X in drawn]
        spread = max(spread, float(np.std(model(drawn[0]))))
        mixed = np.flatnonzero(winners[0] != winners[1])
        low += list(drawn[0][mixed])
        high += list(drawn[1][mixed])
        if len(low) >= count:
            break
    shape = (0, length, model.width)
    return (np.array(low[:count]) if low else np.empty(shape)), (np.array(high[:count]) if high else np.empty(shape)), spread or 1.0


def _reach(model: Attention, bounds: Bounds, X: Floats, rng: np.random.Generator) -> Floats:
    """How far answers at ``X`` may be off: as models within the error bars differ there, and by rounding."""
    assert model.V is not None
    base = model(X)
    furthest = np.zeros(len(X))
    for _ in range(6):  # models within the error bars
        moved = {
            name: getattr(model, name) + rng.normal(size=np.shape(half)) * half / 1.96
            for name, half in (("W", bounds.W), ("V", bounds.V), ("c", bounds.c), ("b", bounds.b))
            if half is not None
        }
        other = Attention(**{"W": model.W, "V": model.V, "c": model.c, "b": model.b, **moved})
        furthest = np.maximum(furthest, np.abs(other(X) - base).reshape(len(X), -1).max(axis=1))
    values = np.abs(X @ (model.V[0] if model.V.ndim == 3 else model.V[0][:, None])).reshape(len(X), -1).max(axis=1)
    scores = np.abs(np.einsum("bnd,bd->bn", X, X[:, -1] @ model.W[0].T + model.c[0])).max(axis=1)
    off: Floats = BOUNDARY.margin * furthest + BOUNDARY.answer_rounding * (values + np.abs(model.b).max()) * (1 + scores)
    return off


def class_of(model: Attention, X: Floats) -> NDArray[np.int_]:
    """The class that the model tells for each sequence: an index into the labels, smallest first."""
    return margins(model, X)[1]


def beside_boundary(model: Attention, bounds: Bounds, batch: Fresh, rng: np.random.Generator, max_norm: float | None) -> Fresh:
    """As many sequences as ``batch`` holds, of the same length and kind of tokens, in pairs on either side of the boundary.

    Where sequences of that kind all have one label, they are asked as they are.
    """
    count = max(1, len(batch.sequences) // 2)
    spread = np.std(batch.sequences) or 1.0
    pairs = boundary_pairs(model, bounds, batch.length, count, rng, scale=float(spread)).sequences
    if max_norm is not None and len(pairs):
        short = np.linalg.norm(pairs, axis=2).max(axis=1) <= max_norm
        pairs = pairs[np.tile(short.reshape(2, -1).all(axis=0), 2)]
    rest = batch.sequences[: max(0, len(batch.sequences) - len(pairs))]
    lead, _ = margins(model, rest) if len(rest) else (np.empty(0), None)
    sure = rest[lead > 1e-6 * max(float(np.std(lead)), 1e-300)] if len(rest) else rest
    return Fresh(np.concatenate([pairs, sure]), batch.natural)
