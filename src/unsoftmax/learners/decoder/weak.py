"""Values of all heads where scores are so small that answers hardly bend: heads are told apart by the ranks of their values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.decoder.answers import collected
from unsoftmax.learners.decoder.limit import Limit
from unsoftmax.learners.decoder.order import Heads
from unsoftmax.learners.decoder.polish import polished
from unsoftmax.learners.decoder.settings import LOGITS
from unsoftmax.learners.decoder.start import on_sphere
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """Heads as one last token ``x`` shows them.

    Attributes:
        x: the last token.
        keys: ``(width, width - heads)``, an orthonormal basis of the keys that no head scores.
        outputs: ``(width, width - 1)``, a basis of what its answers show.
        V: ``(heads, width - heads, width - 1)``: values of these keys.
        b: ``(heads, width)``: the score of a key ``p`` one place before ``x`` is ``b[h] @ p``.
        gap: how much more is left with one head less.
    """

    x: Floats
    keys: Floats
    outputs: Floats
    V: Floats
    b: Floats
    gap: float

    @property
    def whole(self) -> Floats:
        """Values in all of space, zero where they are not known."""
        return np.asarray(self.keys @ self.V @ self.outputs.T)


def weak_values(limit: Limit, rng: np.random.Generator) -> tuple[Floats, float]:
    """Values ``(heads, width, width)`` of weak heads, and the gap behind their number.

    A key ``p`` before a last token ``x`` changes the answer by ``sum_h V_h^T (p - x) / 2`` and, to first order in the scores, by a
    quadratic form, ``sum_h (b_h.p) V_h^T p / 4``. Keys that no head scores form a space on which all these forms vanish; between
    it and its complement they are ``heads`` mixtures of the values. A single head's values are a mixture of low rank.

    Raises:
        NotInFamilyError: no number of heads, or no rank, explains the answers so.
    """
    mark = len(limit.asked)
    tokens = on_sphere(rng.normal(size=(limit.settings.weak_tokens, limit.width)), limit.radius)
    found = [_local(limit, x, rng) for x in tokens]
    first = found[0]
    matched = [first, *(_matched(first, other) for other in found[1:])]
    rank = _ranks(first)
    V = np.mean([one.whole for one in matched], axis=0)
    for _ in range(200):  # what one token does not show, others do
        V = np.mean([one.whole + V - one.keys @ (one.keys.T @ V @ one.outputs) @ one.outputs.T for one in matched], axis=0)
    start = _as_heads(matched, V, rank)
    data = collected(limit.asked[mark:], 1 / limit.settings.repeats)
    fit = polished(start, data, limit.noise, replace(limit.settings, draws=0), rng)
    return fit.heads.V, first.gap


def _local(limit: Limit, x: Floats, rng: np.random.Generator) -> Local:
    """Ask keys before one last token: as many as the linear and the quadratic part have unknowns, and a quarter more."""
    width = limit.width
    i, j = np.triu_indices(width)
    count = int(np.ceil(1.25 * (width + len(i))))
    z = on_sphere(rng.normal(size=(count, width)), limit.radius)
    outputs = np.linalg.svd(x[None])[2][1:].T
    limit.alone(x[None])
    none = limit.ask(x[None, None], 1)[0]
    told = (limit.ask(np.stack([z, np.broadcast_to(x, z.shape)], axis=1), 0) - none) @ outputs
    few = 2 * width  # behind zero tokens, which tell a head's size from how much the last token attends to itself
    limit.ask(np.stack([z[:few], np.broadcast_to(x, z[:few].shape)], axis=1), 4)
    columns = np.concatenate([z, z[:, i] * z[:, j] * np.where(i == j, 1.0, 2.0)], axis=1)
    linear, quadratic = np.split(np.linalg.lstsq(columns, told, rcond=None)[0], [width])
    forms = np.zeros((width - 1, width, width))
    forms[:, i, j] = forms[:, j, i] = 4 * quadratic.T
    scored, keys, gap = _unscored(forms, limit.settings.weak_gap)
    mixtures = 2 * np.einsum("ik,oij,jz->kzo", scored, forms, keys)
    single = _of_low_rank(mixtures, rng)
    sizes = np.linalg.lstsq(single.reshape(len(single), -1).T, (keys.T @ linear).ravel(), rcond=None)[0]
    V = 2 * sizes[:, None, None] * single
    shares = np.linalg.lstsq(V.reshape(len(V), -1).T, mixtures.reshape(len(V), -1).T, rcond=None)[0]
    return Local(x, keys, outputs, V, shares @ scored.T, gap)


def _unscored(forms: Floats, least: float) -> tuple[Floats, Floats, float]:
    """Directions that heads score, ``(width, heads)``, those that none does, and the gap behind the number of heads.

    On the latter all forms vanish; of every number of heads the best space is looked for, and the first is taken behind which
    little is left.
    """
    width = forms.shape[1]
    before, size = 1.0, float(np.sum(forms**2))
    for heads in range(1, width // 2 + 1):
        basis = np.linalg.eigh(np.einsum("oij,ojk->ik", forms, forms))[1]
        for _ in range(100):
            seen = forms @ basis[:, : width - heads]
            basis = np.linalg.eigh(np.einsum("oij,okj->ik", seen, seen))[1]
        keys = basis[:, : width - heads]
        left = float(np.sum((keys.T @ forms @ keys) ** 2)) / size
        if before > least * left:
            return basis[:, width - heads :], keys, before / left
        before = left
    raise NotInFamilyError("Scores are weak, and no number of heads explains what keys change.", evidence={"head_gap": 1.0})


def _of_low_rank(mixtures: Floats, rng: np.random.Generator) -> Floats:
    """The matrices of lowest rank among mixtures of ``(heads, a, b)``, one for each head, each of unit size."""
    heads, _, b = mixtures.shape
    basis = np.linalg.svd(mixtures.reshape(heads, -1), full_matrices=False)[2].reshape(mixtures.shape)
    if heads == 1:
        return np.asarray(basis)
    for rank in range(2, (b + 1) // 2 + 1, 2):
        found: list[Floats] = []
        for tried in range(LOGITS.weak_starts * heads):
            c, sizes = _lowered(basis, rank, rng)
            if sizes[rank] < LOGITS.weak_drop * sizes[rank - 1] and all(abs(c @ other) < 0.9 for other in found):
                found.append(c)
            if len(found) == heads:
                return np.asarray(np.einsum("gh,hab->gab", np.array(found), basis))
            if tried + 1 == LOGITS.weak_first and not found:
                break
    raise NotInFamilyError(
        "Scores are weak, and values of single heads, which have a low rank, are not found among their mixtures."
    )


def _lowered(basis: Floats, rank: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """A mixture that is nearly of this rank, from a random one: cut off, projected back, and so on. With its singular values."""
    c, sizes = rng.normal(size=len(basis)), np.zeros(0)
    for _ in range(LOGITS.weak_rounds):
        c /= np.linalg.norm(c)
        left, sizes, right = np.linalg.svd(np.tensordot(c, basis, axes=1), full_matrices=False)
        cut = (left[:, :rank] * sizes[:rank]) @ right[:rank]
        new = np.einsum("hab,ab->h", basis, cut)
        new /= np.linalg.norm(new)
        done = np.abs(new - c).max() < 1e-6
        c = new
        if done:
            break
    return np.asarray(c), np.asarray(sizes)


def _matched(first: Local, other: Local) -> Local:
    """The other token's heads in the order of the first one's."""
    if len(first.V) != len(other.V):
        raise NotInFamilyError(f"Scores are weak: one token shows {len(first.V)} heads, another {len(other.V)}.")
    seen = first.keys @ (first.keys.T @ other.whole @ first.outputs) @ first.outputs.T
    alike = np.einsum("hio,gio->hg", first.whole, seen) / np.linalg.norm(seen, axis=(1, 2))
    order = np.argmax(alike, axis=1)
    if len(set(order.tolist())) < len(order):
        raise NotInFamilyError("Scores are weak, and two tokens do not show the same heads.")
    return replace(other, V=other.V[order], b=other.b[order])


def _ranks(one: Local) -> int:
    """The rank of the values: where singular values drop most."""
    spectrum = np.mean(np.linalg.svd(one.V, compute_uv=False), axis=0)
    return 1 + int(np.argmax(spectrum[:-1] / spectrum[1:]))


def _as_heads(found: list[Local], V: Floats, rank: int) -> Heads:
    """Heads that score keys as those tokens do: one rotary pair for each token, which is free at distance 0 and at distance 1."""
    base, n, heads = 2.0, len(found), len(V)
    angles = base ** (-np.arange(n) / n)
    dual = np.linalg.pinv(np.array([one.x for one in found])).T
    query, key = np.zeros((2, heads, 2 * n, V.shape[1]))
    query[:, :n] = dual
    for j, one in enumerate(found):
        key[:, n + j] = one.b / np.sin(angles[j])
    left, sizes, right = np.linalg.svd(V)
    value = np.swapaxes(left[:, :, :rank] * sizes[:, None, :rank], 1, 2)
    return Heads(query, key, value, np.swapaxes(right[:, :rank], 1, 2), np.arange(heads), base)
