"""The layer as a least-squares problem: patterns, features, and the linearised map with its adjoint, never as a matrix.

All heads ride in one array: patterns have shape ``(examples, queries * heads, length)``, so that every heavy step is one
matrix product. With head ``h``'s scores ``q·Theta_h·k`` the features are ``H = [A_1 K | … | A_m K | linear]`` and the values
follow by linear least squares, which leaves only the Theta to search for (variable projection).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from unsoftmax.learners.from_examples.settings import EXAMPLES
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Examples in coordinates that suit the search.

    Attributes:
        queries: ``(examples, queries, query_width)``; a last column of ones stands for the query bias c.
        keys: ``(examples, length, key_width)``: what the scores see of each token.
        values: ``(examples, length, value_width)``: what the answers see of each token.
        blocked: ``(examples, queries, length)``: True where a query may not look, or None.
        linear: ``(examples * queries, columns)``: features without parameters of their own (constant, residual).
        answers: ``(examples * queries, outputs)``, zero in rows that do not count.
        kept: ``(examples * queries, 1)``: 1.0 where the answer counts, 0.0 elsewhere, or None where all count.
    """

    queries: Floats
    keys: Floats
    values: Floats
    blocked: NDArray[np.bool_] | None
    linear: Floats
    answers: Floats
    kept: Floats | None

    @property
    def equations(self) -> int:
        """Numbers to be explained."""
        rows = self.answers.shape[0] if self.kept is None else int(self.kept.sum())
        return int(rows * self.answers.shape[1])

    def unknowns(self, heads: int) -> int:
        """Free parameters of a layer with that many heads."""
        score = self.queries.shape[2] * self.keys.shape[2]
        outputs = self.answers.shape[1]
        return int(heads * (score + self.values.shape[2] * outputs) + self.linear.shape[1] * outputs)


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """The layer at given Theta ``(query_width, heads * key_width)``, its values solved for.

    Attributes:
        patterns: softmax weights ``(examples, queries * heads, length)``.
        features: ``H``, ``(rows, heads * value_width + columns)``.
        inverse: ``T`` with ``H T`` an orthonormal basis of the features.
        careful_basis: that basis where it had to be computed with care, else None.
        values: ``(heads * value_width + columns, outputs)``.
        error: answers minus fit, ``(rows, outputs)``.
    """

    theta: Floats
    patterns: Floats
    features: Floats
    inverse: Floats
    careful_basis: Floats | None
    values: Floats
    error: Floats

    def basis(self) -> Floats:
        """Orthonormal basis of the features; made on demand, because a rejected step never needs it."""
        return self.features @ self.inverse if self.careful_basis is None else self.careful_basis

    @property
    def size(self) -> float:
        """Euclidean norm of the error."""
        return float(np.linalg.norm(self.error))


def patterns_of(problem: Problem, theta: Floats) -> Floats:
    """Softmax weights of every head, ``(examples, queries * heads, length)``."""
    examples, _, key_width = problem.keys.shape
    asked = problem.queries.reshape(-1, problem.queries.shape[2]) @ theta
    scores = asked.reshape(examples, -1, key_width) @ problem.keys.transpose(0, 2, 1)
    if problem.blocked is not None:
        heads = scores.shape[1] // problem.queries.shape[1]
        scores[np.repeat(problem.blocked, heads, axis=1)] = -np.inf
    scores -= scores.max(axis=2, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=2, keepdims=True)
    return scores


def features_of(problem: Problem, patterns: Floats) -> Floats:
    """The columns that the values multiply; rows that do not count are zero."""
    rows = problem.answers.shape[0]
    features = np.concatenate([(patterns @ problem.values).reshape(rows, -1), problem.linear], axis=1)
    return features if problem.kept is None else features * problem.kept


def evaluate(problem: Problem, theta: Floats) -> Point:
    """Solve for the values at ``theta``: Cholesky, or a truncated SVD where features are linearly dependent."""
    patterns = patterns_of(problem, theta)
    features = features_of(problem, patterns)
    inverse, basis = _orthonormal(features)

    def solve(rows: Floats) -> Floats:
        seen = inverse.T @ (features.T @ rows) if basis is None else basis.T @ rows
        return np.asarray(inverse @ seen)

    values = solve(problem.answers)
    error = problem.answers - features @ values
    correction = solve(error)  # one refinement: the error then carries rounding only
    return Point(theta, patterns, features, inverse, basis, values + correction, error - features @ correction)


def _orthonormal(features: Floats) -> tuple[Floats, Floats | None]:
    """``T`` with ``features @ T = Q`` orthonormal, and ``Q`` itself where that product would not give it to enough digits.

    One or two rounds of Cholesky QR, which is all matrix products; an SVD with small directions cut where that is not safe.
    """
    try:
        inverse, spread = _triangular(features)
        if spread > EXAMPLES.one_round:
            return inverse, None
        basis = features @ inverse
        again, _ = _triangular(basis)
        return inverse @ again, basis @ again
    except scipy.linalg.LinAlgError:
        left, sizes, right = scipy.linalg.svd(features, full_matrices=False, check_finite=False)
        keep = sizes > EXAMPLES.rank_cut * max(float(sizes[0]), np.finfo(float).tiny)
        return right[keep].T / sizes[keep], left[:, keep]


def _triangular(columns: Floats) -> tuple[Floats, float]:
    """Inverse of the triangle of a Cholesky QR, and the least entry of its diagonal relative to the largest."""
    triangle = scipy.linalg.cholesky(columns.T @ columns, check_finite=False)
    diagonal = np.diag(triangle)
    spread = float(diagonal.min() / diagonal.max())
    if spread < EXAMPLES.two_rounds:
        raise scipy.linalg.LinAlgError
    return scipy.linalg.lapack.dtrtri(triangle)[0], spread


class Linearised:
    """How the errors move with Theta around points, the values following (Kaufman's form of variable projection).

    Several points (starts that descend side by side) share every matrix product: a change of Theta has shape ``(query_width,
    points, heads * key_width)``, a change of the fits ``(points, rows, outputs)``. ``forward`` maps the one to the other,
    ``adjoint`` is its transpose; ``precision`` may be float32: the steps are corrected by the next float64 evaluation, and
    single precision halves the time.
    """

    def __init__(self, problem: Problem, points: list[Point], precision: type[np.floating[Any]] = np.float64) -> None:
        examples, stacked, length = points[0].patterns.shape
        queries, tokens = problem.queries.shape[1], problem.values.shape[2]
        split = stacked // queries * tokens
        self.rows = examples * queries
        self.shape = (problem.queries.shape[2], len(points), points[0].theta.shape[1])
        self.precision = precision
        self.queries = problem.queries.reshape(self.rows, -1).astype(precision, copy=False)
        self.keys = problem.keys.astype(precision, copy=False)
        self.keys_across = np.ascontiguousarray(self.keys.transpose(0, 2, 1))
        self.tokens = problem.values.astype(precision, copy=False)
        self.tokens_across = np.ascontiguousarray(self.tokens.transpose(0, 2, 1))
        side_by_side = np.stack([p.patterns.reshape(self.rows, -1, length) for p in points], axis=1)
        self.patterns = side_by_side.reshape(examples, -1, length).astype(precision, copy=False)
        self.values = np.stack([p.values[:split] for p in points]).astype(precision)
        bases = [p.basis() for p in points]
        widest = max(basis.shape[1] for basis in bases)  # fewer columns where features depend on each other
        self.basis = np.stack([np.pad(b, ((0, 0), (0, widest - b.shape[1]))) for b in bases]).astype(precision, copy=False)
        self.kept = None if problem.kept is None else problem.kept.astype(precision)

    def project(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Remove what the values can explain, and rows that do not count."""
        if self.kept is not None:
            rows = rows * self.kept
        return np.asarray(rows - self.basis @ (self.basis.transpose(0, 2, 1) @ rows))

    def forward(self, theta: NDArray[Any]) -> NDArray[Any]:
        """Change of the fits, ``(points, rows, outputs)``, the values following."""
        return self.project(self.with_fixed_values(theta))

    def with_fixed_values(self, theta: NDArray[Any]) -> NDArray[Any]:
        """Change of the fits as long as the values stay what they are."""
        examples, stacked, _ = self.patterns.shape
        moved = (self.queries @ theta.reshape(len(theta), -1)).reshape(examples, stacked, -1) @ self.keys_across
        self._through_softmax(moved)
        spoken = (moved @ self.tokens).reshape(self.rows, self.shape[1], -1)
        return np.asarray(spoken.transpose(1, 0, 2) @ self.values)

    def adjoint(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Gradients in Theta of the inner products with ``rows`` (already projected)."""
        examples, stacked, _ = self.patterns.shape
        heard = np.empty((self.rows, self.shape[1], self.values.shape[1]), dtype=self.precision)
        np.matmul(rows, self.values.transpose(0, 2, 1), out=heard.transpose(1, 0, 2))
        pulled = heard.reshape(examples, stacked, -1) @ self.tokens_across
        self._through_softmax(pulled)
        return np.asarray(self.queries.T @ (pulled @ self.keys).reshape(self.rows, -1)).reshape(self.shape)

    def _through_softmax(self, scores: NDArray[Any]) -> None:
        """Replace a change of the scores by the change of the patterns, in place; the map is its own transpose."""
        mean = np.einsum("esl,esl->es", scores, self.patterns)
        scores -= mean[:, :, None]
        scores *= self.patterns
