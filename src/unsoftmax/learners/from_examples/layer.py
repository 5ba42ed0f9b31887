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

from unsoftmax.models import Floats

# Below this share of the largest singular value a feature direction counts as absent: its values are set to zero
# (least-norm solution) instead of being blown up. It sits well above the rounding of a QR of well-scaled columns.
RANK_CUT = 1e-11
# Cholesky QR squares the condition number; a second round repairs it as long as the first stays clear of singular.
CHOLESKY_CUT = 1e-5


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
        basis: orthonormal basis of the features.
        values: ``(heads * value_width + columns, outputs)``.
        error: answers minus fit, ``(rows, outputs)``.
    """

    theta: Floats
    patterns: Floats
    features: Floats
    basis: Floats
    values: Floats
    error: Floats

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
    """Solve for the values at ``theta``: one QR, or a truncated SVD where features are linearly dependent."""
    patterns = patterns_of(problem, theta)
    features = features_of(problem, patterns)
    basis, inverse = _orthonormal(features)
    values = inverse @ (basis.T @ problem.answers)
    error = problem.answers - features @ values
    correction = inverse @ (basis.T @ error)  # one refinement: the error then carries rounding only
    return Point(theta, patterns, features, basis, values + correction, error - features @ correction)


def _orthonormal(features: Floats) -> tuple[Floats, Floats]:
    """Basis ``Q`` of the columns and ``T`` with ``features @ T = Q``: least-squares solutions are ``T @ Q.T @ answers``.

    Two rounds of Cholesky QR, which is all matrix products; an SVD with small directions cut where that is not safe.
    """
    columns = features.shape[1]
    inverse = np.eye(columns)
    basis = features
    try:
        for _ in range(2):
            triangle = scipy.linalg.cholesky(basis.T @ basis, check_finite=False)
            diagonal = np.diag(triangle)
            if diagonal.min() < CHOLESKY_CUT * diagonal.max():
                raise scipy.linalg.LinAlgError
            back = scipy.linalg.solve_triangular(triangle, np.eye(columns), check_finite=False)
            basis, inverse = basis @ back, inverse @ back
    except scipy.linalg.LinAlgError:
        left, sizes, right = scipy.linalg.svd(features, full_matrices=False, check_finite=False)
        keep = sizes > RANK_CUT * max(float(sizes[0]), np.finfo(float).tiny)
        return left[:, keep], right[keep].T / sizes[keep]
    return basis, inverse


class Linearised:
    """How the error moves with Theta around a point, the values following (Kaufman's form of variable projection).

    ``forward`` maps a change of Theta to a change of the fit, ``adjoint`` is its transpose; ``precision`` may be float32:
    the steps are corrected by the next float64 evaluation, and single precision halves the time.
    """

    def __init__(self, problem: Problem, point: Point, precision: type[np.floating[Any]] = np.float64) -> None:
        examples, stacked, _ = point.patterns.shape
        self.shape = point.theta.shape
        self.rows = examples * problem.queries.shape[1]
        self.heads = stacked // problem.queries.shape[1]
        split = self.heads * problem.values.shape[2]
        self.queries = problem.queries.reshape(self.rows, -1).astype(precision, copy=False)
        self.precision = precision
        self.keys = problem.keys.astype(precision, copy=False)
        self.keys_across = np.ascontiguousarray(self.keys.transpose(0, 2, 1))
        self.tokens = problem.values.astype(precision, copy=False)
        self.tokens_across = np.ascontiguousarray(self.tokens.transpose(0, 2, 1))
        self.patterns = point.patterns.astype(precision, copy=False)
        self.values = point.values[:split].astype(precision)
        self.basis = point.basis.astype(precision, copy=False)
        self.kept = None if problem.kept is None else problem.kept.astype(precision)

    def project(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Remove what the values can explain, and rows that do not count."""
        if self.kept is not None:
            rows = rows * self.kept
        return np.asarray(rows - self.basis @ (self.basis.T @ rows))

    def forward(self, theta: NDArray[Any]) -> NDArray[Any]:
        """Change of the fit, ``(rows, outputs)``."""
        examples, stacked, _ = self.patterns.shape
        moved = (self.queries @ theta).reshape(examples, stacked, -1) @ self.keys_across
        self._through_softmax(moved)
        return self.project((moved @ self.tokens).reshape(self.rows, -1) @ self.values)

    def adjoint(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Gradient in Theta of the inner product with ``rows`` (already projected)."""
        examples, stacked, _ = self.patterns.shape
        pulled = (rows @ self.values.T).reshape(examples, stacked, -1) @ self.tokens_across
        self._through_softmax(pulled)
        return np.asarray(self.queries.T @ (pulled @ self.keys).reshape(self.rows, -1))

    def _through_softmax(self, scores: NDArray[Any]) -> None:
        """Replace a change of the scores by the change of the patterns, in place; the map is its own transpose."""
        mean = np.einsum("esl,esl->es", scores, self.patterns)
        scores -= mean[:, :, None]
        scores *= self.patterns
