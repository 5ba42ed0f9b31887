"""Ranks, groups, and the scores of every head at every distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.decoder.limit import Limit
from unsoftmax.learners.decoder.order import Heads
from unsoftmax.learners.decoder.readings import Reader, Readings
from unsoftmax.learners.decoder.rotary import Group, factored, find_base, fit_group, spread_out, waves
from unsoftmax.learners.decoder.settings import LOGITS
from unsoftmax.learners.decoder.start import on_sphere
from unsoftmax.models import Floats
from unsoftmax.models.base import Places


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The heads, what the base and the worst group leave in units of the reading errors, and the drop that ends the ranks."""

    heads: Heads
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
    labels = np.argmax(apart < 0.01, axis=1)  # groups agree to about the error of V; others are off by almost one
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
    rank, cliff = value_rank(V, 1e3 * limit.accept)
    groups = shared_values(V, rank)
    value, out = np.zeros((len(V), rank, limit.width)), np.zeros((len(V), limit.width, rank))
    for group in groups:
        space = np.linalg.svd(np.concatenate(list(V[group]), axis=1))[0][:, :rank].T
        value[group], out[group] = space, np.einsum("hio,ri->hor", V[group], space)
    exact = np.einsum("hri,hor->hio", value, out)
    reader = Reader(limit, exact, limit.noise)
    offsets = distances(rank, min(LOGITS.farthest, longest - LOGITS.zeros - 2))
    count = max(4, rank // 2)
    total = int(np.ceil(LOGITS.more * limit.width))
    tokens = mild(limit, exact, 2 * (total + count), rng)
    keys, lasts = tokens[0 : 2 * count : 2], tokens[1 : 2 * count : 2]
    i, j = (np.repeat(a.ravel(), len(offsets)) for a in np.indices((count, count)))
    anchors = reader.read(keys[i], lasts[j], np.tile(offsets, count * count))
    base, left = _base(anchors, offsets, rank)
    known = [_anchored(anchors, i, j, offsets, group, rank, base, rng) for group in groups]
    rest = tokens[2 * count :]
    n, a = (np.repeat(b.ravel(), len(LOGITS.near)) for b in np.indices((total, count)))
    o = np.tile(np.array(LOGITS.near, dtype=np.float64), total * count)
    everything = anchors.joined(reader.read(rest[n], lasts[a], o)).joined(reader.read(keys[a], rest[total + n], o))
    query, key = np.zeros((2, len(V), rank, limit.width))
    worst = 0.0
    for group, start in zip(groups, known, strict=True):
        found = spread_out(everything, group, (keys, lasts), start, base)
        query[group], key[group] = found.query, found.key
        worst = max(worst, found.misfit)
        if not found.left <= LOGITS.explained:
            raise NotInFamilyError(
                f"Keys and queries of rank {rank} leave {found.left:.1e} of the scores: they are no bilinear form.",
                evidence={"rotary_base": base, "score_misfit": found.misfit},
            )
    labels = np.zeros(len(V), dtype=np.intp)
    for number, group in enumerate(groups):
        labels[group] = number
    return Scored(Heads(query, key, value, out, labels, base), left, worst, cliff)


def mild(limit: Limit, V: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Tokens ``(count, width)`` that attend to themselves least, of twice as many: strong ones would drown what is read."""
    x = on_sphere(rng.normal(size=(2 * count, limit.width)), limit.radius)
    moved = limit.ask(x[:, None], LOGITS.zeros, rough=True) - limit.ask(x[:, None], 0, rough=True)
    columns = np.einsum("nj,hjo->nho", x, V)
    columns -= np.einsum("nho,no,np->nhp", columns, x, x, optimize=True) / limit.width
    lost = -np.einsum("nho,no->nh", np.linalg.pinv(columns.transpose(0, 2, 1)), moved)
    kept = np.argsort(-lost.min(axis=1), kind="stable")[:count]
    return np.asarray(x[rng.permutation(kept)])


def _base(anchors: Readings, offsets: Floats, rank: int) -> tuple[float, float]:
    """The rotary base from the best-read pairs of anchors."""
    heads = anchors.scores.shape[1]
    scores, errors = (a.T.reshape(heads, -1, len(offsets)).reshape(-1, len(offsets)) for a in (anchors.scores, anchors.errors))
    worst = errors.max(axis=1)
    best = np.argsort(worst)[: LOGITS.channels]
    best = best[np.isfinite(worst[best])]
    if not len(best):
        raise NotInFamilyError("No score could be read at every distance: heads saturate.")
    base, left = find_base(offsets, scores[best], errors[best], rank)
    typical = float(np.sqrt(np.mean((scores[best] / errors[best]) ** 2)))
    if not left <= max(100.0, LOGITS.explained * typical):
        raise NotInFamilyError(
            f"No rotary base explains how scores change with the distance (the best, {base:.6g}, leaves {left / typical:.1e} of "
            "them): frequencies are scaled, only a part of each head rotates, or positions enter in another way.",
            evidence={"rotary_base": base, "base_misfit": left},
        )
    return base, left


def _anchored(
    anchors: Readings, i: Places, j: Places, offsets: Floats, group: Places, rank: int, base: float, rng: np.random.Generator
) -> Group:
    """Keys and queries of a group at the anchors: waves of every pair, factored, then fitted together.

    Raises:
        NotInFamilyError: no keys and queries of that rank explain the scores.
    """
    count, half = int(i.max()) + 1, rank // 2
    curves = waves(offsets, rank, base)
    keys, queries = [], []
    for h in group.tolist():
        pairs = np.zeros((count * count, rank))
        for n, (s, e) in enumerate(
            zip(anchors.scores[:, h].reshape(-1, len(offsets)), anchors.errors[:, h].reshape(-1, len(offsets)), strict=True)
        ):
            ok = np.isfinite(e)
            pairs[n] = np.linalg.lstsq(curves[ok] / e[ok, None], s[ok] / e[ok], rcond=None)[0]
        key, query = factored(pairs.reshape(count, count, rank), rank)
        keys.append(key[:half] + 1j * key[half:])
        queries.append(query[:half] + 1j * query[half:])
    aligned = []
    for key, query in zip(keys, queries, strict=True):  # one complex number for each frequency is free: take the first head's
        turn = np.sum(np.conj(key) * keys[0], axis=1) / np.sum(np.abs(key) ** 2, axis=1)
        query = query / np.conj(turn)[:, None]
        aligned.append(np.concatenate([query.real, query.imag]))
    start = np.concatenate([keys[0].real, keys[0].imag]), np.array(aligned)
    points = np.eye(count)
    best: Group | None = None
    for _ in range(LOGITS.starts):
        fit = fit_group(points[i], points[j], anchors.offsets, anchors.scores[:, group], anchors.errors[:, group], base, start)
        if best is None or fit.left < best.left:
            best = fit
        if best.left <= LOGITS.explained:
            return best
        start = rng.normal(size=start[0].shape), rng.normal(size=start[1].shape)
    assert best is not None
    raise NotInFamilyError(
        f"Rotary positions do not explain how scores change with the distance: {best.left:.1e} of them is left at base {base:.6g}.",
        evidence={"rotary_base": base, "score_misfit": best.misfit},
    )
