"""All heads fitted to all answers of the limit at once: no question more, and no matrix larger than that of one head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from unsoftmax.learners.stack.limit import Batch
from unsoftmax.learners.stack.settings import STACK
from unsoftmax.linalg import singular
from unsoftmax.models import Attention, Floats


@dataclass(frozen=True, slots=True, eq=False)
class Polished:
    """The heads that fit all answers best, and what they leave of them, relative."""

    model: Attention
    misfit: float


@dataclass(frozen=True, slots=True, eq=False)
class _Answers:
    """All answers to sequences of so many keys.

    Attributes:
        steps: ``(n, keys, width)``.
        affine: ``(n, width + 1)``: last tokens, and a one.
        odds: ``(n, keys)``: logarithm of how often the key stands over how often the last token does.
        moved: ``(n, outputs)``, zero at outputs that do not tell the limit.
        use: ``(n, outputs)``: one where they do.
    """

    steps: Floats
    affine: Floats
    odds: Floats
    moved: Floats
    use: Floats

    @classmethod
    def of(cls, batches: list[Batch]) -> list[_Answers]:
        """Batches, joined by their number of keys."""
        found = []
        for keys in sorted({batch.keys.shape[1] for batch in batches}):
            some = [batch for batch in batches if batch.keys.shape[1] == keys]
            readers, use = (np.concatenate([getattr(batch, name) for batch in some]) for name in ("readers", "clean"))
            found.append(
                cls(
                    np.concatenate([batch.steps for batch in some]),
                    np.concatenate([readers, np.ones((len(readers), 1))], axis=1),
                    np.concatenate([np.tile(np.log(batch.counts / batch.copies), (len(batch.keys), 1)) for batch in some]),
                    np.where(use, np.concatenate([batch.moved for batch in some]), 0.0),
                    use.astype(np.float64),
                )
            )
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Predicted:
    """What heads make of them.

    Attributes:
        mean: ``(heads, n, width)``: step to the average token.
        effect: ``(heads, n, keys, outputs)``: derivative of answers by the score of each key.
        gap: ``(n, outputs)``: what is left.
    """

    mean: Floats
    effect: Floats
    gap: Floats

    @classmethod
    def of(cls, told: _Answers, scores: Floats, V: Floats) -> _Predicted:
        """The answers of heads with ``scores (heads, width, width + 1)``, W beside c."""
        z = np.einsum("njk,hnk->hnj", told.steps, told.affine @ scores.swapaxes(1, 2), optimize=True) + told.odds
        most = np.maximum(z.max(2, keepdims=True), 0.0)
        shares = np.exp(z - most)
        weights = shares / (shares.sum(2, keepdims=True) + np.exp(-most))
        mean = np.einsum("hnj,njk->hnk", weights, told.steps, optimize=True)
        said = mean @ V
        effect = (told.steps[None] @ V[:, None] - said[:, :, None]) * weights[..., None] * told.use[:, None]
        return cls(mean, effect, (told.moved - said.sum(0)) * told.use)


@dataclass(frozen=True, slots=True, eq=False)
class _Tangent:
    """Changes ``one right^T + left two^T`` of a matrix that keep its rank, scaled as if this were all that is fitted.

    Attributes:
        left: ``(rows, rank)``, orthonormal.
        right: ``(columns, rank)``, orthonormal.
        rows, columns: square roots of the inverse moments of what the matrix is multiplied with on either side.
        inner: the same on the left and on the right factor.
    """

    left: Floats
    right: Floats
    rows: Floats
    columns: Floats
    inner: tuple[Floats, Floats]

    @classmethod
    def of(cls, matrix: Floats, rank: int, above: Floats, beside: Floats) -> _Tangent:
        """``above, beside``: moments of what the matrix is multiplied with from the left and from the right."""
        u, _, v = singular(matrix)
        u, v = u[:, :rank], v[:rank].T
        return cls(u, v, _root(above), _root(beside), (_root(u.T @ above @ u), _root(v.T @ beside @ v)))

    @property
    def size(self) -> int:
        """Numbers in a change."""
        return self.left.size + self.right.size

    def parts(self, change: Floats) -> tuple[Floats, Floats]:
        """``one`` and ``two`` of a flat change."""
        one, two = _cut(change, [0, self.left.size])
        return self.rows @ one.reshape(self.left.shape) @ self.inner[1], self.columns @ two.reshape(self.right.shape) @ self.inner[
            0
        ]

    def pulled(self, one: Floats, two: Floats) -> Floats:
        """The transpose of ``parts``."""
        return np.concatenate([(self.rows @ one @ self.inner[1]).ravel(), (self.columns @ two @ self.inner[0]).ravel()])

    def matrix(self, change: Floats) -> Floats:
        """The change of the matrix."""
        one, two = self.parts(change)
        return np.asarray(one @ self.right.T + self.left @ two.T)


def polished(
    batches: list[Batch], model: Attention, score_ranks: Sequence[int], value_ranks: Sequence[int], floor: float
) -> Polished | None:
    """Gauss-Newton over W, c and V of all heads, ranks as given, until the answers are explained to ``floor``, relative.

    Each step is a least-squares problem solved by products with the Jacobian, which is never built: fewer where they cost more, so
    that a fit takes seconds to a minute. None where all answers of all heads together are more than memory should hold.
    """
    assert model.V is not None
    if model.heads * sum(batch.keys.size for batch in batches) > STACK.polish:
        return None
    answers = _Answers.of(batches)
    size = max(float(np.sqrt(sum(np.sum(told.moved**2) for told in answers))), 1e-300)
    scores, V = np.concatenate([model.W, model.c[:, :, None]], axis=2), np.asarray(model.V)
    now = [_Predicted.of(told, scores, V) for told in answers]
    cost, steps = _cost(now), int(np.clip(4e8 / sum(one.effect.size for one in now), 80, 400))
    while cost > floor * size and steps >= 10:
        tangents = [_tangents(answers, now, h, scores[h], V[h], score_ranks[h], value_ranks[h]) for h in range(len(V))]
        changes = _step(answers, now, tangents, steps, 0.3 * floor * size / cost)
        trial = _of_rank(scores + changes[0], score_ranks), _of_rank(V + changes[1], value_ranks)
        then = [_Predicted.of(told, *trial) for told in answers]
        reached = _cost(then)
        slow = reached > 0.5 * cost
        if reached < cost:
            (scores, V), now, cost = trial, then, reached
        if slow:
            steps //= 4  # where answers hardly tell a direction, long solutions leave the tangent: shorter ones do not
    return Polished(Attention(scores[:, :, :-1], V, scores[:, :, -1]), cost / size)


def _cost(now: list[_Predicted]) -> float:
    return float(np.sqrt(sum(np.sum(one.gap**2) for one in now)))


def _tangents(
    answers: list[_Answers], now: list[_Predicted], h: int, scores: Floats, V: Floats, score_rank: int, value_rank: int
) -> tuple[_Tangent, _Tangent]:
    """Changes of the scores and of the values of one head."""
    keys, means = np.zeros((2, len(V), len(V)))
    readers = np.zeros((len(V) + 1, len(V) + 1))
    for told, one in zip(answers, now, strict=True):
        pull = np.linalg.norm(one.effect[h], axis=2)  # (n, keys)
        flat = (pull[..., None] * told.steps).reshape(-1, len(V))
        seen = np.linalg.norm(pull, axis=1)[:, None] * told.affine
        keys, readers, means = keys + flat.T @ flat, readers + seen.T @ seen, means + one.mean[h].T @ one.mean[h]
    beside = readers / max(float(np.trace(readers)), 1e-300)
    return _Tangent.of(scores, score_rank, keys, beside), _Tangent.of(V, value_rank, means, np.eye(V.shape[1]))


@dataclass(frozen=True, slots=True, eq=False)
class _Linear:
    """The derivative of the answers of one shape by changes of all heads, side by side.

    Attributes:
        told: the answers.
        mean: ``(heads, n, width)``.
        effect: ``(n, keys * heads, outputs)``.
        asked: ``(n, score ranks)``: right factors of all heads on last tokens.
        keyed: ``(n, keys, score ranks)``: left factors on steps.
        valued: ``(n, value ranks)``: left factors of the values on mean steps.
        made: ``(outputs, value ranks)``: right factors of the values.
        starts: where each head begins among the score ranks, and among the value ranks.
    """

    told: _Answers
    mean: Floats
    effect: Floats
    asked: Floats
    keyed: Floats
    valued: Floats
    made: Floats
    starts: tuple[list[int], list[int]]

    @classmethod
    def of(cls, told: _Answers, one: _Predicted, tangents: list[tuple[_Tangent, _Tangent]]) -> _Linear:
        """At the heads whose predictions these are."""
        heads, n, keys, outputs = one.effect.shape
        flat = told.steps.reshape(n * keys, -1)
        first, second = zip(*tangents, strict=True)
        starts = tuple([0, *np.cumsum([t.left.shape[1] for t in some])[:-1].tolist()] for some in (first, second))
        return cls(
            told,
            one.mean,
            one.effect.transpose(1, 2, 0, 3).reshape(n, keys * heads, outputs),
            told.affine @ np.concatenate([t.right for t in first], axis=1),
            (flat @ np.concatenate([t.left for t in first], axis=1)).reshape(n, keys, -1),
            np.concatenate([mean @ t.left for mean, t in zip(one.mean, second, strict=True)], axis=1),
            np.concatenate([t.right for t in second], axis=1),
            (starts[0], starts[1]),
        )

    def forward(self, changes: list[tuple[Floats, Floats, Floats, Floats]]) -> Floats:
        """What changes do to the answers, ``(n, outputs)``."""
        a, b, d = (np.concatenate([change[i] for change in changes], axis=1) for i in (0, 1, 3))
        n, keys, width = self.told.steps.shape
        both = (self.told.steps.reshape(n * keys, width) @ a).reshape(n, keys, -1) * self.asked[:, None]
        both += self.keyed * (self.told.affine @ b)[:, None]
        z = np.add.reduceat(both, self.starts[0], axis=2).reshape(n, -1)
        through = np.concatenate([mean @ change[2] for mean, change in zip(self.mean, changes, strict=True)], axis=1)
        total = np.einsum("nq,nqo->no", z, self.effect) + through @ self.made.T + self.valued @ d.T
        return np.asarray(total * self.told.use)

    def backward(self, gap: Floats) -> list[tuple[Floats, Floats, Floats, Floats]]:
        """The transpose of ``forward``."""
        gap = gap * self.told.use
        n, keys, width = self.told.steps.shape
        ranks = self.asked.shape[1], self.made.shape[1]
        pull = np.einsum("nqo,no->nq", self.effect, gap).reshape(n, keys, -1)
        spread = np.repeat(pull, np.diff([*self.starts[0], ranks[0]]), axis=2)
        a = self.told.steps.reshape(n * keys, width).T @ (spread * self.asked[:, None]).reshape(n * keys, -1)
        b = self.told.affine.T @ (spread * self.keyed).sum(1)
        through, d = gap @ self.made, gap.T @ self.valued
        first = zip(*(_cut(x, self.starts[0]) for x in (a, b)), strict=True)
        second = zip(*(_cut(x, self.starts[1]) for x in (through, d)), strict=True)
        return [(one, two, mean.T @ three, four) for (one, two), (three, four), mean in zip(first, second, self.mean, strict=True)]


def _step(
    answers: list[_Answers], now: list[_Predicted], tangents: list[tuple[_Tangent, _Tangent]], steps: int, enough: float
) -> tuple[Floats, Floats]:
    """The changes of scores and values that explain all of what is left, or all but a share of ``enough``."""
    starts = [0, *np.cumsum([size for pair in tangents for size in (pair[0].size, pair[1].size)]).tolist()]
    cuts = [0, *np.cumsum([one.gap.size for one in now[:-1]]).tolist()]
    parts = [_Linear.of(told, one, tangents) for told, one in zip(answers, now, strict=True)]

    def forward(change: Floats) -> Floats:
        pieces = iter(_cut(change, starts[:-1]))
        changes = [(*first.parts(next(pieces)), *second.parts(next(pieces))) for first, second in tangents]
        return np.concatenate([part.forward(changes).ravel() for part in parts])

    def backward(flat: Floats) -> Floats:
        gaps = [gap.reshape(one.gap.shape) for gap, one in zip(_cut(flat, cuts), now, strict=True)]
        pulled = [part.backward(gap) for part, gap in zip(parts, gaps, strict=True)]
        found = []
        for h, (first, second) in enumerate(tangents):
            a, b, c, d = (np.sum([one[h][i] for one in pulled], axis=0) for i in range(4))
            found += [first.pulled(a, b), second.pulled(c, d)]
        return np.concatenate(found)

    gap = np.concatenate([one.gap.ravel() for one in now])
    operator = scipy.sparse.linalg.LinearOperator((len(gap), starts[-1]), matvec=forward, rmatvec=backward, dtype=np.float64)
    change = _cut(scipy.sparse.linalg.lsmr(operator, gap, atol=0.0, btol=enough, conlim=0.0, maxiter=steps)[0], starts[:-1])
    return (
        np.stack([first.matrix(one) for (first, _), one in zip(tangents, change[::2], strict=True)]),
        np.stack([second.matrix(one) for (_, second), one in zip(tangents, change[1::2], strict=True)]),
    )


def _cut(numbers: Floats, starts: list[int]) -> list[Floats]:
    """Parts along the last axis; a fit asks for a hundred thousand, and ``np.split`` takes as long for each as a product."""
    return [numbers[..., a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]


def _of_rank(matrices: Floats, ranks: Sequence[int]) -> Floats:
    parts = ((singular(matrix), rank) for matrix, rank in zip(matrices, ranks, strict=True))
    return np.stack([(left[:, :rank] * values[:rank]) @ right[:rank] for (left, values, right), rank in parts])


def _root(moments: Floats) -> Floats:
    """The square root of the inverse; directions that were never asked stay as they are."""
    values, vectors = np.linalg.eigh(moments)
    inverse = np.where(values > 1e-10 * values[-1], 1 / np.sqrt(np.maximum(values, 1e-300)), 0.0)
    return np.asarray((vectors * inverse) @ vectors.T)
