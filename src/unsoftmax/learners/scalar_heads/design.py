"""Choosing tokens that let one head speak: its own score near zero, all other scores far from zero. Linear algebra only."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.scalar_heads.settings import SCALAR
from unsoftmax.models import Floats


def standpoints(normals: Floats, offsets: Floats, head: int, *, rng: np.random.Generator, reach: float) -> Floats:
    """Tokens ``(n, width)`` at which the score ``normals @ x + offsets`` of ``head`` is zero and those of all others are large.

    Random tokens on the head's hyperplane, and tokens that give all others equal scores: with the best signs seen, and all off.
    """
    width = normals.shape[1]
    others = [j for j in range(len(normals)) if j != head]
    normal, sizes = normals[head], np.linalg.norm(normals, axis=1)
    x = (
        reach
        * rng.normal(size=(SCALAR.candidates, width))
        / np.sqrt(width)
        * 2.0 ** rng.integers(-1, 3, size=(SCALAR.candidates, 1))
    )
    x = x - np.outer((x @ normal + offsets[head]) / (normal @ normal), normal)
    if not others:
        return np.asarray(x[:1])
    rows = np.concatenate([normals[others], normal[None]])
    best = x[np.argsort(-_worth(x, normals[others], offsets[others], reach))[:32]]
    signs = np.concatenate([np.sign(best @ normals[others].T + offsets[others]), -np.ones((1, len(others)))])
    equal = reach / np.sqrt(width) * np.array([0.5, 1.0, 2.0])[:, None, None] * signs * sizes[others]
    wanted = np.concatenate([equal - offsets[others], np.full((*equal.shape[:2], 1), -offsets[head])], axis=2)
    designed = wanted.reshape(-1, len(rows)) @ np.linalg.pinv(rows).T  # as far as the equations allow
    designed -= np.outer((designed @ normal + offsets[head]) / (normal @ normal), normal)
    return np.concatenate([x, designed])


def _worth(x: Floats, normals: Floats, offsets: Floats, reach: float) -> Floats:
    """Smallest score per length; with offsets the length counts from ``reach``, since a bias does not shrink with x."""
    floor = reach**2 if offsets.any() else 0.0
    return np.asarray(np.abs(x @ normals.T + offsets).min(axis=1) / np.sqrt((x**2).sum(axis=1) + floor))


def patterns(normals: Floats, offsets: Floats, extra: Floats, *, rng: np.random.Generator, reach: float) -> tuple[Floats, Floats]:
    """Tokens whose saturated on/off patterns, together with the row of ones, determine every head's value.

    ``extra`` holds the activations of heads that no token switches. Returns tokens ``(n, width)`` and the activation rows, the
    row of ones first: greedily the pattern that adds most to the smallest singular value, among tokens with large scores.
    """
    count, width = normals.shape
    rows = [np.ones(count + len(extra))]
    tokens: list[Floats] = []
    x = reach * rng.normal(size=(40 * SCALAR.candidates, width)) / np.sqrt(width)
    if offsets.any():  # heads with large biases are switched by long tokens only
        x *= 2.0 ** rng.integers(-1, 5, size=(len(x), 1))
    pools = [x, -x]
    if 0 < count <= width:  # one head on, the others off, by least norm; and all off
        wanted = 2.0 * np.concatenate([np.eye(count), np.zeros((1, count))]) - 1.0
        sizes = np.linalg.norm(normals, axis=1) * reach / np.sqrt(width)
        pools.append((wanted * sizes - offsets) @ np.linalg.pinv(normals).T)
    x = np.concatenate(pools)
    scores = x @ normals.T + offsets
    worth = _worth(x, normals, offsets, reach) if count else np.ones(len(x))
    order = np.argsort(-worth)
    numbers = (scores[order] > 0.0) @ 2.0 ** np.arange(count)  # one for each pattern: sorting rows would take ten times as long
    first = np.unique(numbers, return_index=True)[1]
    chosen = order[np.sort(first)]  # the best token of every pattern, best first
    activations = np.concatenate([(scores[chosen] > 0.0).astype(np.float64), np.tile(extra, (len(chosen), 1))], axis=1)
    quality = worth[chosen] / worth[chosen].max()
    while len(rows) < count + len(extra) and len(first):
        gains = np.array([_gain(rows, row) for row in activations]) * quality
        pick = int(np.argmax(gains))
        if gains[pick] < 1e-9:
            break
        rows.append(activations[pick])
        tokens.append(x[chosen[pick]])
    return np.array(tokens).reshape(-1, width), np.array(rows)


def _gain(rows: list[Floats], row: Floats) -> float:
    return float(np.linalg.svd(np.array([*rows, row]), compute_uv=False)[-1])
