"""The affine hull of an embedding table: what token sequences can show of a head, and tokens that span it well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from unsoftmax.errors import NotIdentifiableError
from unsoftmax.learners.tokens.settings import KNOWN_TOKENS
from unsoftmax.models import Attention, Floats

Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Hull:
    """The affine hull of the embeddings: ``embeddings = centre + coordinates @ basis.T``, and tokens that span it well.

    Attributes:
        tokens: indices of ``dimension + 1`` tokens in general position.
        offset: whether the hull misses the origin, so that a constant cannot be told from a linear term.
    """

    embeddings: Floats
    centre: Floats
    basis: Floats
    coordinates: Floats
    tokens: Indices
    offset: bool

    @classmethod
    def of(cls, embeddings: Floats) -> Hull:
        """Directions in which no two embeddings differ beyond rounding are left out."""
        centre = embeddings.mean(axis=0)
        if not np.ptp(embeddings, axis=0).any():
            raise NotIdentifiableError(
                f"All {len(embeddings)} embeddings are equal, so every sequence looks the same and nothing of W shows. "
                "Check the embedding table."
            )
        _, sizes, rows = np.linalg.svd(embeddings - centre, full_matrices=False)
        tiny = 1e-10 * max(float(sizes[0]), float(np.linalg.norm(embeddings)) * 1e-3)
        basis = rows[: int((sizes > tiny).sum())].T
        coordinates = (embeddings - centre) @ basis
        raised = np.column_stack([coordinates / np.sqrt(np.mean(coordinates**2)), np.ones(len(embeddings))])
        tokens = well_placed(raised, np.ones(len(raised)), raised.shape[1])
        outside = centre - basis @ (basis.T @ centre)
        offset = bool(np.linalg.norm(outside) > 1e-8 * np.linalg.norm(embeddings, axis=1).max())
        return cls(embeddings, centre, basis, coordinates, tokens, offset)

    @property
    def dimension(self) -> int:
        """Dimension of the affine hull."""
        return int(self.basis.shape[1])

    def affine(self, at_tokens: Floats) -> tuple[Floats, Floats]:
        """Slope ``(dimension, …)`` and constant of the affine map of the coordinates with these values at ``tokens``."""
        raised = np.column_stack([self.coordinates[self.tokens], np.ones(len(self.tokens))])
        solution = np.linalg.solve(raised, at_tokens)
        return np.asarray(solution[:-1]), np.asarray(solution[-1])

    def leverage(self) -> Floats:
        """How much errors at ``tokens`` are magnified at each embedding, at least 1."""
        raised = np.column_stack([self.coordinates, np.ones(len(self.embeddings))])
        shares = np.linalg.solve(raised[self.tokens].T, raised.T)
        return np.asarray(np.maximum(np.abs(shares).sum(axis=0), 1.0))

    def head(self, columns: Floats, values: Floats, scalar: bool, error: float, noise: float) -> Attention:
        """The head with ``basis.T (W x + c) = columns (tokens, dimension)`` and one-token answers ``values (tokens, outputs)``."""
        slope, constant = self.affine(columns)  # column = slope.T y + constant
        worth, base = self.affine(values)
        W = self.basis @ slope.T @ self.basis.T
        c = self.basis @ constant - W @ self.centre
        V = self.basis @ worth
        b = base - self.centre @ V
        outside = self.centre - self.basis @ (self.basis.T @ self.centre)
        if self.offset:  # constants act as linear terms on these tokens
            share = outside / (outside @ outside)
            W, V = W + np.outer(c, share), V + np.outer(share, b)
            c, b = np.zeros_like(c), np.zeros_like(b)
        spread = float(np.linalg.cond(np.column_stack([self.coordinates[self.tokens], np.ones(len(self.tokens))])))
        has_bias = np.abs(c).max() > KNOWN_TOKENS.safety * error * spread
        has_constant = np.abs(b).max() > KNOWN_TOKENS.safety * noise * spread
        return Attention(
            W=W[None],
            V=V.T if scalar else V[None],
            c=c[None] if has_bias else None,
            b=(b[0] if scalar else b) if has_constant else None,
        )


def well_placed(rows: Floats, weights: Floats, count: int) -> Indices:
    """Indices of ``count`` rows ``(n, k)`` that span their space well; rows of larger weight are preferred."""
    sizes = np.linalg.norm(rows, axis=1)
    scaled = rows * (weights / np.where(sizes > 0, sizes, 1.0))[:, None]
    return np.asarray(qr(scaled.T, mode="r", pivoting=True)[1][:count])
