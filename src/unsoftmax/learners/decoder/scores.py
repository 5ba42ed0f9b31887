"""Ranks, groups, and the scores of every head at every distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.decoder.limit import Limit
from unsoftmax.learners.decoder.order import Heads
from unsoftmax.learners.decoder.readings import Reader, Readings
from unsoftmax.learners.decoder.rotary import Group, find_base, keys_from_turns, queries_of, spread_out
from unsoftmax.learners.decoder.settings import Settings
from unsoftmax.learners.decoder.start import on_sphere
from unsoftmax.models import Floats
from unsoftmax.models.base import Places


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The heads, what the base and the worst group leave in units of the reading errors, and the drop that ends the ranks.

    ``lasts (n, width)`` are last tokens from all of space whose answers alone are known.
    """

    heads: Heads
    lasts: Floats
    base_misfit: float
    misfit: float
    cliff: float


def value_rank(V: Floats, rough: float) -> tuple[int, float]:
    """The rank that all ``V (heads, width, width)`` share: where singular values drop most below ``rough``, and how far."""
    spectra = np.linalg.svd(V, compute_uv=False)
    spectra = spectra / spectra[:, :1]
    drops = spectra[:, :-1] / np.maximum(spectra[:, 1:], 1e-16)
    drops = np.where(spectra[:, 1:] < rough, drops, 1.0)
    ranks = np.argmax(drops, axis=1) + 1
    if len(set(ranks.tolist())) > 1 or drops.max() <= 1.0 or ranks[0] % 2:
        raise NotInFamilyError(
            f"The heads' values have ranks {sorted(set(ranks.tolist()))}; in a decoder with rotary positions "
            "all heads have one even rank.",
            evidence={"value_ranks": ranks.tolist()},
        )
    return int(ranks[0]), float(drops[:, ranks[0] - 1].min())


def shared_values(V: Floats, rank: int) -> list[Places]:
    """Heads whose values read the same directions of a token: they share values, and keys."""
    spaces = np.linalg.svd(V)[0][:, :, :rank]
    apart = np.array([[np.linalg.norm(a - b @ (b.T @ a), 2) for b in spaces] for a in spaces])
    labels = np.argmax(apart < 0.3, axis=1)  # groups agree to about the error of V; others are off by almost one
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def distances(rank: int, farthest: int) -> Floats:
    """At which anchors are read: near ones for fast rotations, far ones for slow ones."""
    far = np.geomspace(rank + 1, max(farthest, rank + 2), rank + 2)
    return np.unique(np.concatenate([np.arange(1, rank + 1), np.round(far)])).astype(np.float64)


def read_scores(limit: Limit, V: Floats, longest: int, rng: np.random.Generator) -> Scored:
    """Scores of all heads: ranks and groups from the values, then anchors at many distances, then all tokens near anchors.

    Raises:
        NotInFamilyError: ranks differ, or no rotary base explains how scores change with the distance.
    """
    rank, cliff = value_rank(V, limit.settings.cliff)
    groups = shared_values(V, rank)
    value, out = np.zeros((len(V), rank, limit.width)), np.zeros((len(V), limit.width, rank))
    for group in groups:
        space = np.linalg.svd(np.concatenate(list(V[group]), axis=1))[0][:, :rank].T
        value[group], out[group] = space, np.einsum("hio,ri->hor", V[group], space)
    exact = np.einsum("hri,hor->hio", value, out)
    settings = limit.settings
    reader = Reader(limit, exact, limit.noise)
    farthest = min(settings.farthest, longest - settings.zeros - 2)
    count, total = rank + settings.spare, int(np.ceil(settings.more * limit.width))
    tokens = mild(limit, exact, 2 * (total + count), rng)
    keys, lasts = tokens[0 : 2 * count : 2], tokens[1 : 2 * count : 2]
    base, left = _base(_grid(reader, keys[: settings.curves], lasts[: settings.curves], distances(rank, farthest)), rank, settings)
    offsets = np.unique(np.minimum(settings.turns, farthest)).astype(np.float64)
    anchors = _grid(reader, keys, lasts, offsets)
    known = [_anchored(anchors, group, rank, base, settings) for group in groups]
    rest, beside = tokens[2 * count :], min(count, settings.partners or count)
    n, a = (np.repeat(b.ravel(), len(settings.near)) for b in np.indices((total, beside)))
    o = np.tile(np.minimum(settings.near, farthest).astype(np.float64), total * beside)
    everything = anchors.readings.joined(reader.read(rest[n], lasts[a], o)).joined(reader.read(keys[a], rest[total + n], o))
    query, key = np.zeros((2, len(V), rank, limit.width))
    worst = 0.0
    for group, start in zip(groups, known, strict=True):
        found = spread_out(everything, group, (keys, lasts), start, base, settings.spread_steps)
        query[group], key[group] = found.query, found.key
        worst = max(worst, found.misfit)
        if not (found.left <= settings.explained or found.misfit <= settings.errors):
            raise NotInFamilyError(
                f"Keys and queries of rank {rank} leave {found.left:.1e} of the scores: they are no bilinear form.",
                evidence={"rotary_base": base, "score_misfit": found.misfit},
            )
    labels = np.zeros(len(V), dtype=np.intp)
    for number, group in enumerate(groups):
        labels[group] = number
    return Scored(Heads(query, key, value, out, labels, base), np.concatenate([lasts, rest[total:]]), left, worst, cliff)


def mild(limit: Limit, V: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Tokens ``(count, width)`` that attend to themselves least, of twice as many: strong ones would drown what is read."""
    x = on_sphere(rng.normal(size=(2 * count, limit.width)), limit.radius)
    moved = limit.ask(x[:, None], limit.settings.zeros, rough=True) - limit.ask(x[:, None], 0, rough=True)
    columns = np.einsum("nj,hjo->nho", x, V)
    columns -= np.einsum("nho,no,np->nhp", columns, x, x, optimize=True) / limit.width
    lost = -np.einsum("nho,no->nh", np.linalg.pinv(columns.transpose(0, 2, 1)), moved)
    kept = np.argsort(-lost.min(axis=1), kind="stable")[:count]
    return np.asarray(x[rng.permutation(kept)])


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Scores of all keys before all last tokens at all distances: in that order, or as ``(keys, lasts, offsets, heads)``."""

    readings: Readings
    offsets: Floats
    shape: tuple[int, int, int, int]

    @property
    def scores(self) -> Floats:
        """As a grid."""
        return self.readings.scores.reshape(self.shape)

    @property
    def errors(self) -> Floats:
        """As a grid."""
        return self.readings.errors.reshape(self.shape)


def _grid(reader: Reader, keys: Floats, lasts: Floats, offsets: Floats) -> Grid:
    i, j = (np.repeat(a.ravel(), len(offsets)) for a in np.indices((len(keys), len(lasts))))
    read = reader.read(keys[i], lasts[j], np.tile(offsets, len(keys) * len(lasts)))
    return Grid(read, offsets, (len(keys), len(lasts), len(offsets), read.scores.shape[1]))


def _base(grid: Grid, rank: int, settings: Settings) -> tuple[float, float]:
    """The rotary base from the best-read pairs of anchors."""
    scores, errors = (np.moveaxis(a, 2, 3).reshape(-1, len(grid.offsets)) for a in (grid.scores, grid.errors))
    worst = errors.max(axis=1)
    best = np.argsort(worst)[: settings.channels]
    best = best[np.isfinite(worst[best])]
    if not len(best):
        raise NotInFamilyError("No score could be read at every distance: heads saturate.")
    base, left = find_base(grid.offsets, scores[best], errors[best], rank)
    typical = float(np.sqrt(np.mean((scores[best] / errors[best]) ** 2)))
    if not left <= max(100.0, settings.explained * typical):
        raise NotInFamilyError(
            f"No rotary base explains how scores change with the distance (the best, {base:.6g}, leaves {left / typical:.1e} of "
            "them): frequencies are scaled, only a part of each head rotates, or positions enter in another way.",
            evidence={"rotary_base": base, "base_misfit": left},
        )
    return base, left


def _anchored(grid: Grid, group: Places, rank: int, base: float, settings: Settings) -> Group:
    """Keys and queries of a group at the anchors.

    Raises:
        NotInFamilyError: no keys and queries of that rank explain the scores.
    """
    scores, errors = grid.scores[..., group], grid.errors[..., group]
    beside = [np.concatenate(list(np.moveaxis(a, 3, 0)), axis=1) for a in (scores, errors)]  # heads of a group have the same keys
    key = keys_from_turns(beside[0], beside[1], grid.offsets, rank, base)
    found = queries_of(key, scores, errors, grid.offsets, base)
    if not (found.left <= settings.explained or found.misfit <= settings.errors):
        raise NotInFamilyError(
            f"Rotary positions do not explain how scores change with the distance: {found.left:.1e} of them is left at base "
            f"{base:.6g}.",
            evidence={"rotary_base": base, "score_misfit": found.misfit},
        )
    return found
