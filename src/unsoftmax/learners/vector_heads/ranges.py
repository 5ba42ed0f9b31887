"""Ranges of heads: which answers a head can give, and how those of several are told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from unsoftmax.learners.vector_heads.answers import Answers
from unsoftmax.learners.vector_heads.spectra import least_singular, spectra
from unsoftmax.linalg import alike, on_host
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Ranges, given by orthonormal rows each, taken apart: ``dual (outputs, all ranks)`` gives the coordinates along the rows.

    ``weakest (all ranks,)`` is the combination of rows that comes nearest to zero.
    """

    bases: tuple[Floats, ...]
    rows: Floats
    dual: Floats
    conditioning: float
    weakest: Floats

    @classmethod
    def of(cls, bases: Sequence[Floats]) -> Split:
        """Of rows ``(rank, outputs)`` of each head; they must not outnumber the outputs."""
        xp = array_namespace(bases[0])
        rows = xp.concat(list(bases))
        orthonormal, triangle = xp.linalg.qr(rows.T)
        inverse = xp.linalg.inv(triangle)
        (largest, _), (smallest, weakest) = (_largest(matrix) for matrix in (triangle.T, inverse))
        return cls(tuple(bases), rows, orthonormal @ inverse.T, largest * smallest, weakest)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The rank of each range."""
        return tuple(map(len, self.bases))

    def parts(self, rows: Floats) -> list[Floats]:
        """Coordinates ``(n, rank)`` of each head, of rows ``(n, outputs)``."""
        apart, ends = rows @ self.dual, np.cumsum(self.sizes)
        apart = apart + (rows - apart @ self.rows) @ self.dual  # the rounding of a large dual, which nothing else would show
        return [apart[:, end - size : end] for size, end in zip(self.sizes, ends, strict=True)]

    def padded(self, rank: int) -> Floats:
        """The dual with columns of zeros, so that every head has ``rank`` of them."""
        xp, ends = array_namespace(self.dual), np.cumsum(self.sizes)
        pieces = []
        for size, end in zip(self.sizes, ends, strict=True):
            pieces.append(self.dual[:, end - size : end])
            if size < rank:
                pieces.append(xp.zeros((len(self.dual), rank - size), dtype=self.dual.dtype, device=device(self.dual)))
        whole: Floats = xp.concat(pieces, axis=1)
        return whole

    def loose(self, least: float) -> Floats:
        """Combinations ``(n, heads, outputs)`` of the ranges' rows that are shorter than ``least`` times the longest."""
        xp = array_namespace(self.rows)
        left, sizes, _ = np.linalg.svd(on_host(self.rows), full_matrices=False)
        weights = left.T[sizes < least * sizes[0]]
        ends = np.cumsum(self.sizes)
        parts = [alike(weights[:, end - len(b) : end], b) @ b for end, b in zip(ends, self.bases, strict=True)]
        combined: Floats = xp.stack(parts, axis=1)
        return combined

    @property
    def most_dependent(self) -> int:
        """The range with the largest part in the weakest combination."""
        parts = np.split(on_host(self.weakest), np.cumsum(self.sizes)[:-1])
        return int(np.argmax([np.linalg.norm(part) for part in parts]))


def _largest(matrix: Floats) -> tuple[float, Floats]:
    """The largest singular value of a matrix and its left singular vector, to a percent, by repeated multiplication."""
    xp = array_namespace(matrix)
    vector = matrix @ xp.ones(matrix.shape[1], dtype=matrix.dtype, device=device(matrix))
    for _ in range(24):
        vector = matrix @ (matrix.T @ (vector / xp.linalg.vector_norm(vector)))
    size = float(xp.linalg.vector_norm(vector))
    return float(np.sqrt(size)), vector / size


def stacked(blocks: Sequence[Floats]) -> Floats:
    """Blocks of several sizes filled up with zeros: ``(blocks, most rows, most columns)``."""
    xp, first = array_namespace(blocks[0]), blocks[0]
    shape = tuple(max(block.shape[i] for block in blocks) for i in (0, 1))
    whole: Floats = xp.zeros((len(blocks), *shape), dtype=first.dtype, device=device(first))
    for number, block in enumerate(blocks):
        whole[number, : block.shape[0], : block.shape[1]] = block
    return whole


def ill(answers: Answers) -> float:
    """Relative error of values through projectors beyond which more questions are worth their price.

    Random ranges that fill all outputs have a condition number of a few times the width.
    """
    return max(1e-11, 64 * answers.floor.relative * answers.width)


def ranges_of(blocks: Sequence[Floats], answers: Answers, units: float = 64.0) -> list[Floats]:
    """Orthonormal rows that span the rows of each block as far as the answers, off by so many ``units`` of rounding, can tell."""
    found = zip(spectra([block.T for block in blocks]), blocks, strict=True)
    return [columns.T[: int((sizes > units * rounding(block, answers)).sum())] for (sizes, columns), block in found]


def independent(blocks: Floats, answers: Answers) -> bool:
    """Whether squares tell already that the rows of every block ``(heads, n, outputs)`` are independent: each range has ``n``."""
    return all(least > 64.0 * rounding(block, answers) for least, block in zip(least_singular(blocks), blocks, strict=True))


def rounding(block: Floats, answers: Answers) -> float:
    """The largest singular value that rounding of the answers leads to in a block of values."""
    largest = float(array_namespace(block).max(abs(block)))
    return float(answers.floor.of(largest * answers.reach) / answers.reach * np.sqrt(max(block.shape)))
