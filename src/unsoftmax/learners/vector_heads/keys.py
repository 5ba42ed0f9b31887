"""Key steps: which tokens are asked together, so that one answer tells all heads' weights of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from unsoftmax.learners.vector_heads.values import Values
from unsoftmax.linalg import left_inverse, right_inverse, short
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """Groups of key steps ``U (groups, size, width)`` and, for each group, how an answer tells all heads' weights of its steps.

    Attributes:
        values: of the heads.
        U: the steps.
        seen: ``(groups, blocks, heads / blocks * size, k)``: what each step adds to the coordinates of an answer, in as many
            blocks as coordinates tell heads apart.
        solvers: their inverses.
    """

    values: Values
    U: Floats
    seen: Floats
    solvers: Floats

    @classmethod
    def of(cls, values: Values, U: Floats) -> Keys:
        """For these steps ``(groups, size, width)``."""
        seen = seen_by(values.V, U, 1) if values.dual is None else seen_by(values.left, U, values.heads)
        return cls(values, U, seen, right_inverse(seen, careful=values.dual is None))

    @property
    def flat(self) -> Floats:
        """All steps, ``(groups * size, width)``."""
        return self.U.reshape(-1, self.U.shape[2])

    @property
    def inverse(self) -> Floats:
        """``(width, keys)``: a vector from its products with all steps, where these span all directions."""
        return left_inverse(self.flat)

    def one(self, group: int) -> Keys:
        """One group alone."""
        some = slice(group, group + 1)
        return Keys(self.values, self.U[some], self.seen[some], self.solvers[some])

    def weights(self, told: Floats) -> tuple[Floats, float]:
        """Weights ``(heads, groups, size, n)`` of all steps, and what stays unexplained, from answers ``(n, groups, outputs)``.

        Answers are those to steps of length one, less what their last token alone is answered with.
        """
        xp = array_namespace(told)
        n, (groups, size, _) = len(told), self.U.shape
        parts = self.values.coordinates(told.reshape(n * groups, -1))
        parts = xp.permute_dims(parts.reshape(len(parts), n, groups, -1), (2, 0, 1, 3))
        found = parts @ self.solvers
        found = found + (parts - found @ self.seen) @ self.solvers  # large solvers round, and sums of theirs cancel
        off = float(xp.max(xp.abs(parts - found @ self.seen)))
        found = found.reshape(groups, parts.shape[1], n, -1, size)
        return xp.permute_dims(found, (1, 3, 0, 4, 2)).reshape(-1, groups, size, n), off

    @property
    def alone(self) -> Floats:
        """How much the weight of each step amplifies an error of the answers, ``(heads, groups, size)``; steps of length one."""
        return self._amplified(self.solvers)

    @property
    def together(self) -> Floats:
        """The same of the sum of a group's weights, ``(heads, groups, 1)``."""
        groups, blocks, k, _ = self.solvers.shape
        split = self.solvers.reshape(groups, blocks, k, -1, self.U.shape[1])
        return self._amplified(array_namespace(split).sum(split, axis=4))

    def _amplified(self, solvers: Floats) -> Floats:
        xp = array_namespace(solvers)
        sizes = xp.sqrt(xp.sum(solvers * (self.values.metric @ solvers), axis=2)).reshape(len(solvers), self.values.heads, -1)
        by_head: Floats = xp.permute_dims(sizes, (1, 0, 2))
        return by_head


def seen_by(left: Floats, U: Floats, blocks: int) -> Floats:
    """What steps ``(groups, size, width)`` add to coordinates: ``(groups, blocks, heads / blocks * size, k)``."""
    xp = array_namespace(left)
    groups, size, width = U.shape
    heads, _, k = left.shape
    seen = (U.reshape(-1, width) @ left).reshape(blocks, heads // blocks, groups, size, k)
    by_group: Floats = xp.permute_dims(seen, (2, 0, 1, 3, 4)).reshape(groups, blocks, -1, k)
    return by_group


def grouped(U: Floats, size: int) -> Floats:
    """Arrange steps ``(n, width)`` in groups of at most ``size``; the last group is filled up with the first steps."""
    groups = -(-len(U) // size)
    size = -(-len(U) // groups)
    missing = groups * size - len(U)
    filled: Floats = array_namespace(U).concat([U, U[:missing]]) if missing else U
    return filled.reshape(groups, size, -1)


def spread_keys(values: Values, U: Floats, ranges: Sequence[Floats] = (), *, across: Floats | None = None, turns: int = 5) -> Keys:
    """Keys near ``U (groups, size, width)``, orthonormal in each group, whose weights amplify errors little.

    Random steps as many as a head's rank see one of many heads badly, by chance. A few turns along the gradient of the logarithms
    of all inverses mend that; the groups stay well conditioned together. The ``ranges (width, rank)`` of matrices that
    are to be read from these keys alone are counted like values. Keys that lie ``across`` orthonormal rows stay so.
    """
    xp, turned = array_namespace(U), U
    left, blocks = (values.V, 1) if values.right is None or values.loose is not None else (values.left, values.heads)
    frames = [(left / xp.linalg.vector_norm(left, axis=(1, 2), keepdims=True), blocks)]
    for rank in sorted({basis.shape[1] for basis in ranges}):
        alike = [basis for basis in ranges if basis.shape[1] == rank]
        frames.append((xp.stack(alike), len(alike)))
    if isinstance(U, np.ndarray) and values.dual is not None:  # where keys lie needs few digits; what they are is told in all
        turned, frames = short(U), [(short(left), parts) for left, parts in frames]
    for _ in range(turns):
        gradient = 0.0 * turned
        for left, parts in frames:
            seen = xp.astype(seen_by(left, turned, parts), U.dtype, copy=False)
            inverse = left_inverse(seen) if seen.shape[2] > seen.shape[3] else right_inverse(seen)
            pull = inverse @ (inverse.swapaxes(2, 3) @ inverse)
            pull = pull.swapaxes(2, 3) / xp.sum(inverse**2, axis=(2, 3))[:, :, None, None]
            by_key = xp.permute_dims(pull.reshape(len(U), len(left), U.shape[1], -1), (0, 2, 1, 3)).reshape(len(U) * U.shape[1], -1)
            by_key = xp.astype(by_key, left.dtype, copy=False)
            gradient = gradient + (by_key @ left.swapaxes(1, 2).reshape(-1, U.shape[2])).reshape(U.shape)
        turned = _upright(turned + 0.3 * gradient / xp.linalg.vector_norm(gradient, axis=(1, 2), keepdims=True), across)
    return Keys.of(values, _upright(xp.astype(turned, U.dtype, copy=False), across))


def _upright(U: Floats, across: Floats | None) -> Floats:
    """Steps made orthonormal in each group, which they almost are, and brought ``across`` these rows."""
    xp = array_namespace(U)
    if across is not None and len(across):
        rows = xp.astype(across, U.dtype, copy=False)
        U = U - (U @ rows.T) @ rows
    one = xp.eye(U.shape[1], dtype=U.dtype, device=device(U))
    squares, turn = U @ U.swapaxes(1, 2), one
    for _ in range(4):  # Newton's steps, whose products with the steps themselves are put off to the end
        step = 1.5 * one - 0.5 * squares
        turn, squares = step @ turn, step @ squares @ step
    upright: Floats = turn @ U
    return upright


def copies_for(size: int) -> int:
    """Copies of the last token beside ``size`` keys: balances the errors of its weight and of the keys' weights."""
    return max(1, round(float(np.sqrt(size))))
