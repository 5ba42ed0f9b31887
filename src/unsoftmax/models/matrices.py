"""One matrix for each head, as such or as a product of two narrow ones, worked with as it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import device

from unsoftmax.models.base import Floats, jittered, signs
from unsoftmax.models.kinds import array_namespace
from unsoftmax.models.places import alike, on_host

Heads = int | slice


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Matrices:
    """Matrices ``(heads, rows, columns)``: ``left`` itself, or ``left (heads, rows, k) @ right (heads, k, columns)``.

    A layer of LLM width has 30 times as many numbers as its factors, so nobody multiplies these before somebody wants to read the
    product. Arrays of any one kind, on any device; what tells single numbers for each head is on the host.
    """

    left: Floats
    right: Floats | None = None

    def __repr__(self) -> str:
        return " @ ".join(map(repr, self.factors))

    @classmethod
    def product(cls, left: Floats, right: Floats) -> Matrices:
        """Of factors, which are kept where they are fewer numbers than their product."""
        (_, rows, k), columns = left.shape, right.shape[2]
        return cls(left, right) if k * (rows + columns) < rows * columns else cls(left @ right)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Heads, rows, columns."""
        heads, rows, _ = self.left.shape
        return heads, rows, int((self.left if self.right is None else self.right).shape[2])

    @property
    def factors(self) -> tuple[Floats, ...]:
        """The arrays that are held."""
        return (self.left,) if self.right is None else (self.left, self.right)

    @property
    def together(self) -> Floats:
        """The matrices themselves, where they are."""
        return self.left if self.right is None else self.left @ self.right

    def whole(self) -> Floats:
        """The matrices themselves, on the host; nobody may write to them."""
        found = on_host(self.together)
        found.setflags(write=False)
        return found

    def at(self, like: Floats) -> Matrices:
        """The same as arrays of the kind of ``like``, on its device."""
        if type(self.left) is type(like) and device(self.left) == device(like):
            return self
        return Matrices(*(alike(on_host(factor), like) for factor in self.factors))

    def kind(self, like: Floats) -> Matrices:
        """The same in numbers as long as those of ``like``, where they are."""
        return Matrices(*(array_namespace(factor).astype(factor, like.dtype, copy=False) for factor in self.factors))

    def some(self, heads: list[int]) -> Matrices:
        """Those of some heads, in this order."""
        xp = array_namespace(self.left)
        there = xp.asarray(heads, device=device(self.left))
        return Matrices(*(xp.take(factor, there, axis=0) for factor in self.factors))

    def after(self, rows: Floats, head: Heads = slice(None)) -> Floats:
        """``rows @ M`` of one head ``(n, columns)``, or of all ``(heads, n, columns)``."""
        found = rows
        for factor in self.factors:
            found = found @ factor[head]
        return found

    def turned(self, rows: Floats, head: Heads = slice(None)) -> Floats:
        """``rows @ M^T`` of one head ``(n, rows of M)``, or of all ``(heads, n, rows of M)``."""
        found = rows
        for factor in self.factors[::-1]:
            found = found @ factor[head].swapaxes(-1, -2)
        return found

    def summed(self, rows: Floats) -> Floats:
        """``sum_h rows_h @ M_h`` of ``(n, heads, rows of M)``: ``(n, columns)``."""
        xp = array_namespace(rows)
        by_head = xp.permute_dims(rows, (1, 0, 2)) @ self.left
        if self.right is None:  # head by head, so that those that cancel do so to the last bit
            alone: Floats = by_head[0] if len(by_head) == 1 else xp.sum(by_head, axis=0)
            return alone
        heads, n, k = by_head.shape
        total: Floats = xp.permute_dims(by_head, (1, 0, 2)).reshape(n, heads * k) @ self.right.reshape(heads * k, -1)
        return total

    @property
    def sizes(self) -> Floats:
        """The Frobenius norm of each head's matrix ``(heads,)``."""
        xp = array_namespace(self.left)
        if self.right is not None:
            squares = (self.left.swapaxes(1, 2) @ self.left) * (self.right @ self.right.swapaxes(1, 2))
            return np.sqrt(np.maximum(on_host(xp.sum(squares, axis=(1, 2))), 0.0))
        if isinstance(self.left, np.ndarray):
            return np.asarray(np.sqrt(np.einsum("hij,hij->h", self.left, self.left)))  # one pass, and no threads to wake
        return on_host(xp.linalg.vector_norm(self.left, axis=(1, 2)))

    @property
    def first_rows(self) -> Floats:
        """The first row of each ``(heads, columns)``, on the host."""
        rows = self.left[:, :1] if self.right is None else self.left[:, :1] @ self.right
        return on_host(rows[:, 0])

    def shows(self, head: int) -> bool:
        """Whether any number of a head's matrix is not zero; the first row tells of most, and large ones take long to look at."""
        xp, left = array_namespace(self.left), self.left[head]
        some = (rows if self.right is None else rows @ self.right[head] for rows in (left[:1], left))
        return any(bool(xp.any(rows != 0)) for rows in some)

    def products(self, sizes: Floats) -> Floats:
        """Inner products of all pairs of heads, ``(heads, heads)``, of the matrices divided by these ``sizes``."""
        xp, (heads, _, k) = array_namespace(self.left), self.left.shape
        scaled = self.left / alike(sizes[:, None, None], self.left)
        if self.right is None:
            flat = scaled.reshape(heads, -1)
            return on_host(flat @ flat.T)
        rows = self.right.reshape(heads * k, -1)
        columns = xp.permute_dims(scaled, (0, 2, 1)).reshape(heads * k, -1)
        squares = ((columns @ columns.T) * (rows @ rows.T)).reshape(heads, k, heads, k)
        return on_host(xp.sum(squares, axis=(1, 3)))

    def apart(self, i: int, j: int, sign: float = 1.0) -> float:
        """The Frobenius norm of the difference of two heads' matrices, the second times ``sign``."""
        if self.right is None:
            return float(np.linalg.norm(on_host(self.left[i] - sign * self.left[j])))
        xp = array_namespace(self.left)
        columns = xp.concat([self.left[i], -sign * self.left[j]], axis=1)
        rows = xp.concat([self.right[i], self.right[j]])
        return float(xp.linalg.matrix_norm(xp.linalg.qr(columns)[1] @ rows))

    def change(self, relative: float, rng: np.random.Generator) -> Matrices:
        """This share of each number, up or down by a sign for each row times one for each column."""
        rows, columns = (alike(some, self.left) for some in signs(self.shape, relative, rng))
        if self.right is None:
            return Matrices(self.left * rows * columns)
        return Matrices(self.left * rows, self.right * columns)

    def jittered(self, relative: float, rng: np.random.Generator) -> Matrices:
        """Numbers off by this share of themselves, as ``jittered`` has it: that too is a product of narrow matrices."""
        if self.right is None:
            return Matrices(jittered(self.left, relative, rng))
        xp, change = array_namespace(self.left), self.change(relative, rng)
        assert change.right is not None
        return Matrices(xp.concat([self.left, change.left], axis=2), xp.concat([self.right, change.right], axis=1))
