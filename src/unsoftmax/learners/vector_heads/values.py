"""Values of all heads: from slices in all directions, or the sum of all split by the projectors on their ranges."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import array_namespace, device

from unsoftmax.learners.vector_heads.answers import Answers
from unsoftmax.learners.vector_heads.ranges import Split, ill, ranges_of, stacked
from unsoftmax.learners.vector_heads.settings import SEVERAL
from unsoftmax.learners.vector_heads.slices import Slices, Switches, slices_for
from unsoftmax.linalg import on_host
from unsoftmax.models import Floats
from unsoftmax.models.matrices import Matrices

WITHIN = 64.0  # units of the expected error by which a switched answer may be off; a switch that fails is off by a value


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Every head's values ``V_h = left_h @ right_h``, and how answers are read as sums of them.

    Attributes:
        left: ``(heads, width, k)``.
        right: ``(heads, k, outputs)``; rows of zeros fill up heads of smaller rank. None where ``left`` is V itself.
        dual: ``(outputs, heads * k)``, which turns an answer into each head's coordinates along ``right``; None where ranges are
            not independent enough, and only all heads together explain an answer.
        ranks: of each head's values.
        conditioning: of the ranges, or of the directions where all were asked.
        direct: all directions were asked, of every head.
        loose: ``(n, heads, outputs)``, combinations of the heads' values that all but cancel: how much of them each head has is
            known worse than the rest. None where there are none.
    """

    left: Floats
    right: Floats | None
    dual: Floats | None
    ranks: tuple[int, ...]
    conditioning: float
    direct: bool = False
    loose: Floats | None = None

    @property
    def V(self) -> Floats:
        """The values themselves, ``(heads, width, outputs)``."""
        whole: Floats = self.left if self.right is None else self.left @ self.right
        return whole

    @property
    def matrices(self) -> Matrices:
        """The same in factors, where that is less."""
        return Matrices(self.left) if self.right is None else Matrices.product(self.left, self.right)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return int(self.left.shape[0])

    @property
    def outputs(self) -> int:
        """Length of an answer."""
        return int((self.left if self.right is None else self.right).shape[2])

    def ordered(self) -> Values:
        """The same with the largest values first."""
        xp, order = array_namespace(self.left), np.argsort(-self.sizes, kind="stable")
        there = xp.asarray(order, device=device(self.left))
        right = None if self.right is None else xp.take(self.right, there, axis=0)
        dual = self.dual
        if dual is not None:
            dual = xp.take(dual.reshape(len(dual), self.heads, -1), there, axis=1).reshape(len(dual), -1)
        ranks = tuple(self.ranks[head] for head in order)
        loose = None if self.loose is None else xp.take(self.loose, there, axis=1)
        return replace(self, left=xp.take(self.left, there, axis=0), right=right, dual=dual, ranks=ranks, loose=loose)

    def coordinates(self, told: Floats) -> Floats:
        """Answers ``(n, outputs)`` as each head's coordinates ``(heads, n, k)``, or ``(1, n, outputs)`` of all together."""
        if self.dual is None:
            return told[None]
        apart: Floats = array_namespace(told).permute_dims((told @ self.dual).reshape(len(told), self.heads, -1), (1, 0, 2))
        return apart

    @property
    def metric(self) -> Floats:
        """How errors of answers go together in coordinates: ``(heads, k, k)``, or ``(1, outputs, outputs)`` of all together."""
        xp = array_namespace(self.left)
        if self.dual is None:
            return xp.eye(self.outputs, dtype=self.left.dtype, device=device(self.left))[None]  # type: ignore[no-any-return]
        rows = xp.permute_dims(self.dual.reshape(self.outputs, self.heads, -1), (1, 2, 0))
        squares: Floats = rows @ rows.swapaxes(1, 2)
        return squares

    def errors(self, answers: Answers) -> Floats:
        """Relative error of each V, ``(heads,)``; split from their sum, faint ones share the error of the others."""
        sizes = self.sizes
        share = np.ones(len(sizes)) if self.direct else self.conditioning * sizes.max() / np.maximum(sizes, 1e-300)
        return np.asarray(answers.floor.relative * share)

    @property
    def sizes(self) -> Floats:
        """The Frobenius norm of each head's values, on the host: rows of ``right`` are orthonormal."""
        return on_host(array_namespace(self.left).linalg.vector_norm(self.left, axis=(1, 2)))


def group_size(outputs: int, heads: int, rank: int, part: float = 1.0) -> int:
    """Keys per question: as many as the outputs and the rank of the values tell apart, or ``part`` of that."""
    return int(max(1, part * min(outputs / heads, rank)))


def direct_values(answers: Answers, slices: Slices) -> Values:
    """Every head's values from slices that cover all directions."""
    heads, count, outputs = slices.Y.shape
    xp = array_namespace(slices.Y)
    # ranks beyond doubt, but of the values all that stands out of rounding: a weak direction left out costs digits of all of W
    # (the largest singular value of n x n independent errors is 2 sqrt(n) of them)
    blocks = list(slices.Y)
    bases, ranks = ranges_of(blocks, answers, units=2.0), tuple(map(len, ranges_of(blocks, answers)))
    solved = xp.linalg.solve(slices.U, xp.permute_dims(slices.Y, (1, 0, 2)).reshape(count, -1))
    blocks = xp.permute_dims(solved.reshape(-1, heads, outputs), (1, 0, 2))
    V = xp.stack([block @ basis.T @ basis for block, basis in zip(blocks, bases, strict=True)])
    conditioning = float(xp.linalg.matrix_norm(slices.U, ord="fro") * xp.linalg.matrix_norm(xp.linalg.inv(slices.U), ord="fro"))
    return Values(V, None, None, ranks, conditioning / count, direct=True)


def split_values(switches: Switches, slices: Slices, reach: float) -> Values:
    """Every head's values: the sum of all, split by the projectors on their ranges.

    Where the ranges are nearly dependent along one or two combinations, those are left ``loose``. Where there are more, or weights
    take up all that an answer tells, the head with the largest part in that is asked for in all directions, some ``width`` queries,
    and taken out of the sum: the ranges of the others are further apart.
    """
    answers, total = switches.answers, switches.totals.total
    split = slices.split or Split.of(ranges_of(list(slices.Y), answers))
    bases, ranks = split.bases, split.sizes
    if answers.floor.relative * split.conditioning < ill(answers):
        left, right = (stacked(part) for part in (split.parts(total), bases))
        return Values(left, right, split.padded(right.shape[1]), ranks, split.conditioning)
    loose = split.loose(answers.floor.relative / ill(answers))
    size = group_size(bases[0].shape[1], len(bases), min(ranks), SEVERAL.fewer)
    unseen = bases[0].shape[1] - len(bases) * size
    if 0 < len(loose) <= SEVERAL.loose and unseen * slices_for(min(ranks)) >= 4 * size * len(loose):
        left, right = (stacked(part) for part in (split.parts(total), bases))
        return Values(left, right, None, ranks, split.conditioning, loose=loose)
    V, left_over = [total] * len(bases), list(range(len(bases)))
    while True:
        for head, part in zip(left_over, split.parts(total), strict=True):
            V[head] = part @ bases[head]
        if answers.floor.relative * split.conditioning < ill(answers) or len(left_over) == 1:
            return Values(array_namespace(total).stack(V), None, None, ranks, split.conditioning)
        head = left_over.pop(split.most_dependent)
        V[head] = whole_head(switches, slices, head, V[head], bases[head], split.conditioning, reach)
        total = total - V[head]
        split = Split.of([bases[other] for other in left_over])


def whole_head(
    switches: Switches, slices: Slices, head: int, estimate: Floats, basis: Floats, conditioning: float, reach: float
) -> Floats:
    """The values of one head, asked for in all directions that the slices leave out.

    A switch that fails shows in an answer outside the range of the head, or far from the estimate.
    """
    answers, xp = switches.answers, array_namespace(estimate)
    base = slices.U[0]
    others = xp.linalg.qr(slices.U.T, mode="complete")[0].T[len(slices.U) :]
    size = float(xp.max(xp.abs(slices.Y))) * answers.floor.relative * WITHIN
    U, Y, todo = [slices.U], [slices.Y[head]], np.arange(len(others))
    for step in reach * np.array([1.0, -1.0, 0.25, -0.25, 2.0**-4, -(2.0**-4)]):  # turn round, then come closer
        directions = base + float(step) * xp.take(others, xp.asarray(todo, device=device(others)), axis=0)
        directions = answers.grid(directions * answers.reach, answers.reach) / answers.reach
        told = switches.of_heads(directions, [head])[:, 0]
        outside, away = (on_host(xp.max(xp.abs(told - near), axis=1)) for near in (told @ basis.T @ basis, directions @ estimate))
        good = (outside < WITHIN * size) & (away < conditioning * size)
        kept = xp.asarray(np.flatnonzero(good), device=device(others))
        U.append(xp.take(directions, kept, axis=0))
        Y.append(xp.take(told, kept, axis=0))
        todo = todo[~good]
        if not len(todo):
            break
    if len(todo):  # where no step works the estimate stands
        U.append(base + xp.take(others, xp.asarray(todo, device=device(others)), axis=0))
        Y.append(U[-1] @ estimate)
    found: Floats = xp.linalg.solve(xp.concat(U), xp.concat(Y)) @ basis.T @ basis
    return found
