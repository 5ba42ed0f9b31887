"""Keys as many as outputs, of heads whose ranges nearly depend on each other: what each answer leaves open is read from mixtures.

Of the weights behind such an answer a combination or two are hardly told. But scores are linear in the last token: a mixture of
last tokens has the mixture of their scores. So an answer to a mixture holds as many equations as there are weights, for one unknown
of each last token: a few of them take the place of a second question for each last token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import array_namespace

from unsoftmax.learners.vector_heads.answers import Answers
from unsoftmax.learners.vector_heads.asked import Asked, Scores, demand
from unsoftmax.learners.vector_heads.keys import Keys, copies_for
from unsoftmax.learners.vector_heads.settings import SEVERAL
from unsoftmax.linalg import alike, left_inverse, on_host, singular
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What is known of each ``W_h x + c_h``: ranges, biases, and its coordinates for the first of all last tokens.

    Attributes:
        ranges: orthonormal columns ``(width, rank)`` of each head.
        within: coordinates ``(rank, n)`` in them at the first last tokens, without the bias.
        c: ``(heads, width)``.
    """

    ranges: list[Floats]
    within: list[Floats]
    c: Floats


def pinned(
    answers: Answers,
    ask: Callable[[Floats], Asked],
    keys: Keys,
    x: Floats,
    known: LowRank,
    count: int,
    grain: float,
    rng: np.random.Generator,
) -> Scores:
    """Scores of the last tokens ``x (n, width)`` that ``known`` does not hold; of each answer ``count`` combinations are weak.

    ``SEVERAL.mixtures`` times ``count`` more questions, of tokens on the ``grain``.
    """
    host, first = on_host(x), known.within[0].shape[1]
    rows = len(host) - first
    signs = rng.choice([-1.0, 1.0], size=(SEVERAL.mixtures * count, rows)) / np.sqrt(rows)
    mixtures = np.round(signs @ host[first:] / grain) * grain
    told = ask(array_namespace(x).concat([x[first:], alike(mixtures, x)]))
    p, off = keys.weights(told.told)
    demand(told.of(answers, keys, p, off))
    weakest = Weakest.of(keys, count)
    settled, added = weakest.settled(on_host(p), told.length, known, mixtures @ np.linalg.inv(host))
    found, grown = demand(told.of(answers, weakest.sure, alike(settled, x), off)), np.sqrt(1 + added**2)
    return replace(found, z=found.z[:, :, :rows], errors=found.errors[:, :, :rows] * grown, noise=found.noise * grown)


@dataclass(frozen=True, slots=True, eq=False)
class Weakest:
    """Combinations ``along (heads, keys, n)`` of weights that move an answer least, and how much they amplify its errors ``(n,)``.

    ``sure`` are the keys that leave them out.
    """

    sure: Keys
    along: Floats
    amplified: Floats

    @classmethod
    def of(cls, keys: Keys, count: int) -> Weakest:
        """So many of each group."""
        groups, size, _ = keys.U.shape
        weakest = np.stack([singular(on_host(seen[0]))[0][:, -count:] for seen in keys.seen])
        apart = np.zeros((weakest.shape[1] // size, groups, size, groups, count))
        for group, directions in enumerate(weakest):
            apart[:, group, :, group] = directions.reshape(-1, size, count)
        there = alike(weakest, keys.U)[:, None]
        seen = keys.solvers @ there
        sure = replace(keys, solvers=keys.solvers - seen @ there.swapaxes(2, 3))
        return cls(sure, apart.reshape(len(apart), groups * size, -1), np.linalg.norm(on_host(seen)[:, 0], axis=1).reshape(-1))

    def settled(self, p: Floats, length: float, known: LowRank, shares: Floats) -> tuple[Floats, float]:
        """Weights ``p (heads, groups, size, n)`` of last tokens, and of mixtures of them, moved so that scores become linear.

        ``shares (mixtures, all last tokens)`` says what is in the mixtures. Also the error that the weakest combinations
        add to scores, over that which these have without them.
        """
        heads, groups, size, n = p.shape
        last, flat, count = n - len(shares), on_host(self.sure.flat), self.along.shape[2]
        first, start, copies = shares.shape[1] - last, p, copies_for(size)
        weight = 1 / on_host(self.sure.alone).reshape(heads, -1, 1)
        seen = [flat @ on_host(basis) for basis in known.ranges]
        through = weight * np.stack([basis @ on_host(left_inverse(basis)) for basis in seen])
        within = np.stack([basis @ on_host(w) for basis, w in zip(seen, known.within, strict=True)])
        offset = (on_host(known.c) @ flat.T)[:, :, None] - np.log(copies) / length
        sums = np.repeat(self.along.reshape(heads, groups, size, -1).sum(axis=2), size, axis=1)
        parts = np.zeros((count, n))
        # what the answers tell of a combination, in units of the error of a weighted score
        told = np.repeat((size + copies) / (length * self.amplified), n)
        for _ in range(2):  # each to first order
            by_key, rest = p.reshape(heads, -1, n), np.repeat(1 - p.sum(axis=2), size, axis=1)
            z = np.log(by_key / rest) / length - offset
            slopes = (self.along[..., None] / by_key[:, :, None] + sums[..., None] / rest[:, :, None]) / length
            off = weight * (z[:, :, last:] - within @ shares[:, :first].T) - through @ (z[:, :, :last] @ shares[:, first:].T)
            system = np.zeros((len(shares), *slopes.shape))
            system[..., :last] = np.einsum("hkl,hlqn->hkqn", through, slopes[..., :last], optimize=True)
            system[..., :last] *= shares[:, None, None, None, first:]
            for mixture, row in enumerate(system):
                row[..., last + mixture] = -weight * slopes[..., last + mixture]
            equations = system.reshape(off.size, count * n)
            wanted = np.moveaxis(off, 2, 0).reshape(-1) + equations @ parts.reshape(-1)
            basis, triangle = np.linalg.qr(np.concatenate([equations, np.diag(told)]))
            inverse = np.linalg.inv(triangle)
            parts = (inverse @ (basis[: off.size].T @ wanted)).reshape(count, n)
            p = start + (self.along @ parts).reshape(p.shape)
        errors = (inverse**2).sum(axis=1).reshape(count, n)
        added = ((weight[..., None] * slopes) ** 2 * errors)[..., :last].sum(axis=2).mean()
        return p, float(np.sqrt(added))
