"""The number of heads, and all of them in a closed world: the product design, steps to further keys, self scores, the joint fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.decoder.limit import Limit
from unsoftmax.learners.decoder.start import counts, decomposed, exponentials, extrapolated, on_sphere
from unsoftmax.learners.decoder.world import Pairs, World, asked_pairs, joint_fit
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """Last tokens ``y_j + w_k`` in a subspace: ``frame (width, dims)``, the points in it, and what they are answered alone.

    Attributes:
        frame: orthonormal basis of the subspace, those of ``y`` first.
        outputs: basis of the rest, where answers are looked at.
        y: ``(J, dims - 2)``.
        w: ``(K, 2)``.
        zeros: numbers of zero tokens.
        alone: ``(counts, J * K, width)``: answers without a key.
    """

    frame: Floats
    outputs: Floats
    y: Floats
    w: Floats
    zeros: tuple[int, ...]
    alone: Floats

    @property
    def points(self) -> Floats:
        """``(J * K, dims)``."""
        return products(self.y, self.w)


@dataclass(frozen=True, slots=True, eq=False)
class Closed:
    """A closed world with the answers behind it: last tokens ``x (n, q)`` and what they are answered alone."""

    world: World
    pairs: Pairs
    x: Floats
    alone: Floats
    gap: float


def products(y: Floats, w: Floats) -> Floats:
    """All ``y_j + w_k`` as rows."""
    return np.concatenate([np.repeat(y, len(w), axis=0), np.tile(w, (len(y), 1))], axis=1)


def find_heads(limit: Limit, rng: np.random.Generator) -> Closed:
    """All heads in a small subspace, exactly.

    Raises:
        NotInFamilyError: no number of heads explains the answers there.
    """
    best = np.inf
    for attempt in range(limit.settings.attempts):
        found = _attempt(limit, 2 * 3**attempt, rng)
        if found is not None:
            if limit.explains(found.world.residual, found.pairs.moved):
                return found
            best = min(best, found.world.residual)
    raise NotInFamilyError(
        f"No number of softmax heads explains the answers behind zero tokens (the best leaves {best:.1e} of them). Scores that are "
        "no bilinear form (QK-norm, a soft-cap), biases, sinks, short windows, other norms or attention, or more heads than the "
        "width allows would do that.",
        evidence={"joint_residual": best},
    )


def _attempt(limit: Limit, choice: int, rng: np.random.Generator) -> Closed | None:
    width, radius = limit.width, limit.radius
    dims = max(6, width // 4)
    basis = np.linalg.qr(rng.normal(size=(width, width)))[0]
    frame, outputs = basis[:, :dims], basis[:, dims:]
    first = on_sphere(rng.normal(size=dims), radius)
    heads, rows, columns, G = 0, limit.settings.rows, limit.settings.columns, np.zeros(0)
    design = None
    while design is None or 2 * heads > rows:
        rows, columns = max(rows, 2 * heads), max(columns, 3 if heads <= 6 else 4)
        design, G = _design(limit, frame, outputs, first, rows, columns, choice, rng)
        spectrum = np.asarray(np.linalg.svd(G, compute_uv=False), dtype=np.float64)
        heads, gap = number_of_heads(spectrum)
        if heads > outputs.shape[1] - 2:
            return None
    _demand_products(G, heads, len(design.w))
    b = decomposed(G.reshape(len(design.y), len(design.w), -1), heads, design.y, design.w, rng)
    if b is None:
        return None
    fit = exponentials(design.points, G, b)
    b = fit.theta.reshape(heads, dims)
    q = 3 if heads <= 6 else 4
    inside = np.linalg.qr(np.column_stack([first, rng.normal(size=(dims, q - 1))]))[0]
    inside[:, 0] = first / radius
    keys, scores, values = [radius * np.eye(q)[0]], [b], [fit.A]
    for i in range(1, q):
        keys.append(on_sphere(np.eye(q)[0] + limit.settings.step * np.eye(q)[i], radius))
        told = _changes(limit, design, frame @ inside @ keys[-1]) @ outputs
        step = exponentials(design.points, told, b)
        scores.append(step.theta.reshape(heads, dims))
        values.append(step.A)
    back = np.linalg.inv(np.array(keys))
    B = np.einsum("ab,bhm,mc->hac", back, np.array(scores), inside)
    V = np.einsum("ab,bho->hao", back, np.array(values))
    small = frame @ inside
    Q = _own_scores(limit, small, outputs, V, design.zeros, rng)
    x, alone, pairs = _asked(limit, small, B, Q, heads, rng)
    beyond = np.linalg.svd(small.T)[2][q:].T
    return Closed(joint_fit(pairs, small, beyond, B, Q), pairs, x, alone, gap)


def _demand_products(G: Floats, heads: int, columns: int) -> None:
    """Refuse scores that are no bilinear form: else answers at one ``w`` of ``y_j + w_k`` are a linear map of those at another."""
    _, spectrum, right = np.linalg.svd(G, full_matrices=False)
    core = (G @ right[:heads].T).reshape(-1, columns, heads)
    rest = spectrum[heads:]
    error = float(np.sqrt(np.sum(rest**2) / max(1, (len(G) - heads) * (G.shape[1] - heads))))  # of an entry: what no head explains
    off, ratios = [], []
    for k in range(1, columns):
        turned = np.linalg.lstsq(core[:, 0], core[:, k], rcond=None)[0]
        left = float(np.linalg.norm(core[:, k] - core[:, 0] @ turned))
        off.append(left / float(np.linalg.norm(core[:, k])))
        ratios.append(left / (error * float(np.sqrt(len(core) * (heads + np.sum(turned**2))) + 1e-300)))
    if min(off) > 2e-3 and min(ratios) > 10:
        raise NotInFamilyError(
            f"Scores are no bilinear form of two tokens ({min(off):.1e} of what a key changes is left): queries and keys are "
            "normalised (QK-norm, as in Qwen3 or Gemma 3), or scores are capped (a soft-cap, as in Gemma 2).",
            evidence={"products_off": min(off)},
        )


def number_of_heads(spectrum: Floats) -> tuple[int, float]:
    """Where singular values drop most, and how far."""
    drops = spectrum[:-1] / np.maximum(spectrum[1:], 1e-300 + 1e-14 * spectrum[0])
    at = int(np.argmax(drops))
    return at + 1, float(drops[at])


def _design(
    limit: Limit,
    frame: Floats,
    outputs: Floats,
    first: Floats,
    rows: int,
    columns: int,
    choice: int,
    rng: np.random.Generator,
) -> tuple[Design, Floats]:
    """Of ``choice`` times as many last tokens those at which answers are most nearly linear in one over the zero tokens."""
    dims, radius = frame.shape[1], limit.radius
    y = on_sphere(rng.normal(size=(choice * rows, dims - 2)), radius * np.sqrt(0.8))
    w = on_sphere(rng.normal(size=(columns, 2)), radius * np.sqrt(0.2))
    zeros = counts(limit.zeros, limit.settings.counts, limit.settings.shorter)
    key = frame @ first
    x = products(y, w[:1]) @ frame.T
    three = zeros[0], zeros[len(zeros) // 2], zeros[-1]
    own = np.stack([limit.ask(x[:, None], k, rough=True) for k in three])
    pair = np.stack([np.broadcast_to(key, x.shape), x], axis=1)
    told = [k * (limit.ask(pair, k, rough=True) - own[i]) for i, k in ((0, three[0]), (2, three[2]))]
    bent = np.linalg.norm(told[0] - told[1], axis=1) + zeros[0] * np.linalg.norm(own[0] - 2 * own[1] + own[2], axis=1)
    kept = np.argsort(bent / np.linalg.norm(told[0], axis=1))[:rows]
    y = y[kept]
    x = products(y, w) @ frame.T
    alone = np.stack([limit.ask(x[:, None], k, rough=True) for k in zeros])
    design = Design(frame, outputs, y, w, zeros, alone)
    return design, _changes(limit, design, key) @ outputs


def _changes(limit: Limit, design: Design, key: Floats) -> Floats:
    """``sum_h exp(key.B_h x) V_h^T key`` at the design's points ``(J * K, width)``, extrapolated to infinitely many zero tokens."""
    x = design.points @ design.frame.T
    pairs = np.stack([np.broadcast_to(key, x.shape), x], axis=1)
    told = [k * (limit.ask(pairs, k, rough=True) - one) for k, one in zip(design.zeros, design.alone, strict=True)]
    return extrapolated(np.stack(told), design.zeros)


def _own_scores(
    limit: Limit, small: Floats, outputs: Floats, V: Floats, zeros: tuple[int, ...], rng: np.random.Generator
) -> Floats:
    """Scores of tokens with themselves, symmetric ``(heads, q, q)``: what a last token alone adds per zero token, values known."""
    heads, q = V.shape[:2]
    upper = np.triu_indices(q)
    x = on_sphere(rng.normal(size=(4 * len(upper[0]), q)), limit.radius)
    told = np.stack([limit.ask((x @ small.T)[:, None], k, rough=True) @ outputs for k in zeros])
    slope = extrapolated(told, zeros, order=1)
    raised = np.stack([np.linalg.lstsq(np.einsum("a,hao->oh", one, V), s, rcond=None)[0] for one, s in zip(x, slope, strict=True)])
    squares = x[:, upper[0]] * x[:, upper[1]]
    Q = np.zeros((heads, q, q))
    for h in range(heads):
        weights = np.clip(raised[:, h], 0.0, 1.0)
        logs = np.log(np.maximum(raised[:, h], 1e-3))
        entries = np.linalg.lstsq(squares * weights[:, None], logs * weights, rcond=None)[0]
        Q[h][upper] = entries
        Q[h] = (Q[h] + Q[h].T) / 2
    return Q


def _asked(limit: Limit, small: Floats, B: Floats, Q: Floats, heads: int, rng: np.random.Generator) -> tuple[Floats, Floats, Pairs]:
    """Pairs in the closed world with mild scores: four keys and twice none before each last token."""
    q, radius = small.shape[1], limit.radius
    count = limit.settings.probes * (24 if heads <= 6 else 12 + 3 * heads)
    x = on_sphere(rng.normal(size=(4 * count, q)), radius)
    own = np.einsum("na,hab,nb->nh", x, Q, x, optimize=True)
    x = x[np.argsort(own.max(axis=1))[:count]]
    p = on_sphere(rng.normal(size=(count, 4 * len(limit.settings.several), q)), radius)
    scores = np.abs(np.einsum("nka,hab,nb->nkh", p, B, x, optimize=True)).max(axis=2)
    kept = np.argsort(scores, axis=1)[:, : 2 * len(limit.settings.several) : 2]
    p = np.take_along_axis(p, kept[:, :, None], axis=1)
    p = np.concatenate([p, np.zeros((count, len(limit.settings.alone), q))], axis=1)
    alone = limit.alone(x @ small.T)
    each = p.shape[1]
    zeros = np.tile(np.array([*limit.settings.several, *limit.settings.alone]), count)
    pairs = asked_pairs(limit, small, p.reshape(-1, q), np.repeat(x, each, axis=0), zeros, np.repeat(alone, each, axis=0))
    return x, alone, pairs
