"""The phases of Chen & Li's provable learner for a multi-head layer, each a function whose result can be looked at.

The layer is ``F(X) = sum_i softmax(X Theta_i X^T) X W_i``. Wherever all heads happen to use the same weights ``p`` in a row,
that row reads ``y = p X S`` with ``S = sum_i W_i``, and ``log(p_a / p_b) = x·Theta_i·(x_a - x_b)`` holds for every head at once: a
slab in the space of matrices that contains all Theta_i. Many slabs cut out a convex body around the affine hull of the heads.
Reference: arXiv 2402.04084. The constants here are ours, found by trial.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from unsoftmax.errors import NotIdentifiableError
from unsoftmax.learners.from_examples.settings import EXAMPLES
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """The convex body ``|normals @ theta - offsets| <= width`` in the space of ``d x d`` matrices (query by key, flattened).

    Attributes:
        normals: ``(slabs, d * d)``.
        offsets: ``(slabs,)``.
        width: half the thickness of the slabs, wide enough that the body is not empty.
        rows: which answers gave the slabs, ``(chosen, 2)``: example and position.
    """

    normals: Floats
    offsets: Floats
    width: float
    rows: NDArray[np.int64]

    def extent(self, direction: Floats) -> float:
        """Length of the body's shadow on a unit direction, by two linear programs."""
        ends = [self._reach(sign * direction) for sign in (1.0, -1.0)]
        return float(sum(ends))

    def _reach(self, direction: Floats) -> float:
        both = np.concatenate([self.normals, -self.normals])
        limits = np.concatenate([self.offsets + self.width, self.width - self.offsets])
        found = scipy.optimize.linprog(-direction, A_ub=both, b_ub=limits, bounds=(None, None), method="highs")
        return float(-found.fun) if found.status == 0 else float("inf")


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Directions in which the heads differ, with the certificate of linear programs.

    Attributes:
        directions: ``(heads - 1, d * d)``, unit length.
        singular_values: of the slab matrix, smallest last: small ones are directions that no slab limits.
        extents: the body's length along each direction.
        elsewhere: the body's length along random directions, for comparison.
    """

    directions: Floats
    singular_values: Floats
    extents: Floats
    elsewhere: Floats


def crude_sum(X: Floats, Y: Floats) -> Floats:
    """Phase 1: ``S`` from the correlation of the summed tokens with the summed answers, as if all weights were equal."""
    tokens, answers = X.sum(axis=1), Y.sum(axis=1)
    return np.asarray(np.linalg.solve(tokens.T @ tokens, tokens.T @ answers))


def row_patterns(X: Floats, Y: Floats, total: Floats) -> tuple[Floats, Floats]:
    """The weights ``p`` (summing to one) with which ``p X S`` comes closest to each answer, and the distance that is left.

    Returns:
        Weights ``(examples, positions, length)`` and relative distances ``(examples, positions)``.
    """
    spoken = X @ total
    steps = spoken[:, :-1] - spoken[:, -1:]
    aims = Y - spoken[:, -1:]
    gram = steps @ steps.transpose(0, 2, 1)
    gram += 1e-9 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(gram.shape[1]) + 1e-30 * np.eye(gram.shape[1])
    weights = np.linalg.solve(gram, steps @ aims.transpose(0, 2, 1)).transpose(0, 2, 1)
    left = np.linalg.norm(aims - weights @ steps, axis=2) / np.sqrt(np.mean(Y**2) * Y.shape[2])
    return np.concatenate([weights, 1.0 - weights.sum(axis=2, keepdims=True)], axis=2), left


def sculpt_body(X: Floats, Y: Floats, total: Floats, *, theta: Floats | None = None) -> Body:
    """Phases 2 and 4: keep the rows best explained by one pattern, turn them into slabs, cut off the outliers.

    Heads ``theta`` from an earlier pass, where there are any, tell beforehand in which rows they agree.

    Raises:
        NotIdentifiableError: too few rows have a clear pattern.
    """
    weights, left = row_patterns(X, Y, total)
    clear = (weights.min(axis=2) > EXAMPLES.least_weight) & _distinct(X)[:, None]
    unknowns = X.shape[2] ** 2
    wanted = 10 * unknowns  # half the rows will be cut off
    if clear.sum() < wanted:
        raise NotIdentifiableError(
            f"Only {int(clear.sum())} answers mix all their tokens visibly, and the body needs {wanted} of them to be thin. "
            f"Record about {int(np.ceil(2.0 * len(X) * wanted / max(int(clear.sum()), 1)))} examples, or use method='fit'."
        )
    if theta is not None and len(theta) > 1 and X.shape[1] > 2:  # with two tokens the distance alone tells it well
        scores = X @ (theta[0] - theta[1]) @ X.transpose(0, 2, 1)
        differ = np.where(clear, scores.max(axis=2) - scores.min(axis=2), np.inf)
        clear &= differ <= np.partition(differ, 3 * wanted, axis=None)[3 * wanted] if differ.size > 3 * wanted else clear
    order = np.argsort(np.where(clear, left, np.inf), axis=None)[: min(wanted, int(clear.sum()))]
    rows = np.stack(np.unravel_index(order, left.shape), axis=1)
    asking, others = X[rows[:, 0], rows[:, 1]], X[rows[:, 0]]
    chosen = weights[rows[:, 0], rows[:, 1]]
    normals = np.einsum("rq,rak->raqk", asking, others[:, :-1] - others[:, -1:]).reshape(len(rows), chosen.shape[1] - 1, -1)
    offsets = np.log(chosen[:, :-1] / chosen[:, -1:])
    for _ in range(EXAMPLES.trims):  # rows where the heads differ by luck look fine one by one but contradict the rest
        centre = _centre(normals, offsets)
        worst = np.abs(normals @ centre - offsets).max(axis=1)
        keep = np.argsort(worst)[: max(int(0.8 * len(worst)), 2)]
        normals, offsets, rows = normals[keep], offsets[keep], rows[keep]
    centre = _centre(normals, offsets)
    flat, level = normals.reshape(-1, normals.shape[2]), offsets.ravel()
    width = max(float(np.quantile(np.abs(flat @ centre - level), 0.9)), 1e-9)
    return Body(flat, level, width, rows)


def minimum_norm_point(body: Body) -> tuple[Body, Floats]:
    """Phase 3a: the point of the body nearest to zero (least-distance programming, Lawson & Hanson), an average head.

    Returns:
        The body, widened by steps of 1.5 until it is not empty, and the point ``(d, d)``.
    """
    size = int(np.sqrt(body.normals.shape[1]))
    for _ in range(40):
        limits = np.concatenate([body.offsets - body.width, -body.offsets - body.width])
        both = np.concatenate([body.normals, -body.normals])
        goal = np.zeros(both.shape[1] + 1)
        goal[-1] = 1.0
        multipliers, _ = scipy.optimize.nnls(np.vstack([both.T, limits]), goal, maxiter=50 * both.shape[1])
        remainder = np.vstack([both.T, limits]) @ multipliers - goal
        if np.linalg.norm(remainder) > 1e-7:
            return body, (-remainder[:-1] / remainder[-1]).reshape(size, size)
        body = Body(body.normals, body.offsets, 1.5 * body.width, body.rows)
    raise NotIdentifiableError(
        "The body stays empty however wide its slabs are: the answers contradict one layer. Use method='fit'."
    )


def refine_sum(X: Floats, Y: Floats, average: Floats, *, share: float = 0.005) -> Floats:
    """Phase 3b: where the average head is far from undecided all heads pick one token, so ``y = x_a S``: regress anew."""
    scores = np.einsum("njq,qk,nak->nja", X, average, X, optimize=True)
    ranked = np.sort(scores, axis=2)
    margin = ranked[:, :, -1] - ranked[:, :, -2]
    order = np.argsort(-margin, axis=None)
    spread = np.linalg.svd(X.reshape(-1, X.shape[2]), compute_uv=False)[-1] / np.sqrt(margin.size)
    count = max(int(share * margin.size), 6 * X.shape[2])
    while True:  # the clearest rows pick similar tokens: take more until every direction is spoken about
        chosen = np.stack(np.unravel_index(order[:count], margin.shape), axis=1)
        picked = X[chosen[:, 0], np.argmax(scores[chosen[:, 0], chosen[:, 1]], axis=1)]
        if count >= margin.size or np.linalg.svd(picked, compute_uv=False)[-1] > 0.5 * np.sqrt(len(picked)) * spread:
            break
        count = min(2 * count, margin.size)
    answers = Y[chosen[:, 0], chosen[:, 1]]
    total = np.linalg.lstsq(picked, answers, rcond=None)[0]
    for _ in range(EXAMPLES.trims):  # rows where one head picked another token stick out
        left = np.linalg.norm(answers - picked @ total, axis=1)
        keep = np.argsort(left)[: int(0.7 * len(left))]
        if np.linalg.svd(picked[keep], compute_uv=False)[-1] < 0.3 * np.sqrt(len(keep)) * spread:
            break  # what is left no longer speaks about every direction
        picked, answers = picked[keep], answers[keep]
        total = np.linalg.lstsq(picked, answers, rcond=None)[0]
    return np.asarray(total)


def span_of_heads(body: Body, heads: int, rng: np.random.Generator, *, probes: int = 8) -> Span:
    """Phase 5: heads differ along the directions that the slabs limit least; linear programs measure the body there and beside."""
    _, sizes, right = np.linalg.svd(body.normals, full_matrices=True)
    directions = right[len(right) - (heads - 1) :]
    others = rng.normal(size=(probes, right.shape[1]))
    others -= (others @ directions.T) @ directions
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    return Span(directions, sizes, np.array([body.extent(u) for u in directions]), np.array([body.extent(u) for u in others]))


def _centre(normals: Floats, offsets: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(normals.reshape(-1, normals.shape[2]), offsets.ravel(), rcond=1e-6)[0])


def _distinct(X: Floats) -> NDArray[np.bool_]:
    """Sequences whose tokens all differ: equal ones leave the weights between them open."""
    apart = np.linalg.norm(X[:, :, None] - X[:, None], axis=3) + 1e9 * np.eye(X.shape[1])
    return np.asarray(apart.min(axis=(1, 2)) > 1e-6 * np.linalg.norm(X, axis=2).max())
