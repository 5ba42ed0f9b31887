"""The sphere that norms put every token on, and sparse tokens on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.stack.settings import STACK
from unsoftmax.models import Floats
from unsoftmax.models.stack import Norm


def support(width: int) -> int:
    """Coordinates of a sparse token: four, fewer where that would leave too few outputs to read."""
    return max(2, min(4, width // 4))


@dataclass(frozen=True, slots=True)
class Sphere:
    """Normalised tokens: vectors of length ``sqrt(width)``, with mean zero after a LayerNorm."""

    width: int
    norm: Norm

    @property
    def radius(self) -> float:
        """Length of a normalised token."""
        return float(np.sqrt(self.width))

    @property
    def dimension(self) -> int:
        """Dimension of the space that normalised tokens span."""
        return self.width - (self.norm == "layer")

    def flat(self, vectors: Floats) -> Floats:
        """``vectors (..., width)`` without what no normalised token has."""
        return vectors - vectors.mean(-1, keepdims=True) if self.norm == "layer" else vectors

    def on(self, coordinates: NDArray[np.int_]) -> Floats:
        """Vectors that span those which vanish outside ``coordinates``, nested in their order: ``(n, width)``."""
        rows = np.eye(self.width)[coordinates]
        return rows[1:] - rows[:-1] if self.norm == "layer" else rows

    def spread(self, rows: Floats, rng: np.random.Generator) -> Floats:
        """A random unit vector in the span of ``rows``."""
        vector = rng.normal(size=len(rows)) @ np.linalg.qr(rows.T)[0].T
        return np.asarray(vector / np.linalg.norm(vector))

    def complement(self, rows: Floats) -> Floats:
        """An orthonormal basis ``(n, width)`` of the directions of normalised tokens that are orthogonal to ``rows``."""
        whole = np.concatenate([rows, np.ones((1, self.width))]) if self.norm == "layer" else rows
        _, values, right = np.linalg.svd(whole, full_matrices=True)
        rank = int((values > 1e-10 * values[0]).sum()) if len(whole) else 0
        return np.asarray(right[rank:])

    def dense(self, count: int, rng: np.random.Generator) -> Floats:
        """Random tokens ``(count, width)`` on the sphere."""
        tokens = self.flat(rng.normal(size=(count, self.width)))
        return np.asarray(tokens * (self.radius / np.linalg.norm(tokens, axis=1, keepdims=True)))

    def sparse(self, support: NDArray[np.int_], rng: np.random.Generator) -> Floats:
        """A random token on the sphere that vanishes outside ``support``."""
        token = np.zeros(self.width)
        values = rng.normal(size=len(support))
        token[support] = values - values.mean() if self.norm == "layer" else values
        return np.asarray(token * (self.radius / np.linalg.norm(token)))

    def readers(self, first: NDArray[np.int_], pool: NDArray[np.int_], rng: np.random.Generator, known: Floats) -> Floats:
        """Sparse tokens, one per coordinate of ``first``, the others of their support in ``pool``: ``(n, width)``.

        Together with ``known (m, width)`` they shall be as far from affinely dependent as the best of many draws; and where a draw
        can, every coordinate is zero in one of them, so that every output can be read.
        """
        best, well = None, (False, -1.0)
        others = max(int(self.norm == "layer"), min(support(self.width) - 1, len(pool) - 2))
        for _ in range(STACK.draws):
            tokens = np.zeros((len(first), self.width))
            for token, coordinate in zip(tokens, first, strict=True):
                beside = rng.choice(pool[pool != coordinate], size=others, replace=False)
                weights = np.ones(others) if self.norm == "layer" else rng.choice([-1.0, 1.0], size=others)
                token[coordinate], token[beside] = 1.0, -weights / max(1, others)
                token *= rng.choice([-1.0, 1.0]) * self.radius / np.linalg.norm(token)
            affine = np.concatenate(
                [np.concatenate([known, tokens]) / self.radius, np.full((len(known) + len(first), 1), 0.5)], axis=1
            )
            values = np.linalg.svd(affine, compute_uv=False)
            smallest = float(values[min(len(affine), self.dimension + 1) - 1])
            good = (bool((tokens == 0).any(0).all()), smallest)
            if good > well:
                best, well = tokens, good
        assert best is not None
        return best
