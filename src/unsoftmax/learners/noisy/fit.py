"""Maximum likelihood over all answers: predictions, slopes, damped Gauss-Newton, and standard errors that hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from unsoftmax.learners.noisy.probes import Probes
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.learners.threads import threads_for
from unsoftmax.models import Attention, Floats


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """One head while it is being fitted; with ``left`` and ``right`` ``(width, rank)``, ``W = left right^T``.

    ``c`` and ``b`` are fitted where ``with_c`` and ``with_b`` say so, and zero otherwise.
    """

    W: Floats
    v: Floats
    c: Floats
    b: float = 0.0
    left: Floats | None = None
    right: Floats | None = None
    with_c: bool = True
    with_b: bool = True

    @classmethod
    def start(cls, v: Floats, b: float) -> Head:
        """A head that looks nowhere in particular: W = 0."""
        return cls(W=np.zeros((len(v), len(v))), v=v, c=np.zeros(len(v)), b=b)

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return len(self.v)

    @property
    def free(self) -> int:
        """Number of free parameters; the factors' own symmetries do not count."""
        width = self.width
        rank = width if self.left is None else self.left.shape[1]
        return rank * (2 * width - rank) + width + width * self.with_c + self.with_b

    def model(self) -> Attention:
        """As a frozen model."""
        return Attention.single(W=self.W, v=self.v, c=self.c if self.with_c else None, b=self.b)

    def without(self, *, c: bool, b: bool) -> Head:
        """The same head with the query bias or the constant fixed at zero."""
        return replace(
            self,
            c=np.zeros(self.width) if c else self.c,
            b=0.0 if b else self.b,
            with_c=self.with_c and not c,
            with_b=self.with_b and not b,
        )

    def of_rank(self, rank: int) -> Head:
        """The nearest head of this rank, in balanced factors."""
        U, values, Vt = np.linalg.svd(self.W)
        root = np.sqrt(values[:rank])
        left, right = U[:, :rank] * root, Vt[:rank].T * root
        return replace(self, W=left @ right.T, left=left, right=right)

    def moved(self, step: Floats) -> Head:
        """The head after a step in its coordinates, ordered as in ``jacobian``."""
        width = self.width
        if self.left is None or self.right is None:
            W, left, right, used = self.W + step[: width**2].reshape(width, width), None, None, width**2
        else:
            size = self.left.size
            left = self.left + step[:size].reshape(self.left.shape)
            right = self.right + step[size : 2 * size].reshape(self.right.shape)
            W, used = left @ right.T, 2 * size
        v = self.v + step[used : used + width]
        used += width
        c = self.c + step[used : used + width] if self.with_c else self.c
        b = self.b + float(step[-1]) if self.with_b else self.b
        return replace(self, W=W, v=v, c=c, b=b, left=left, right=right)


def weights(head: Head, probes: Probes) -> tuple[Floats, Floats, Floats]:
    """Softmax weight of all copies of the key, of all copies of its negative, and of the last token."""
    image = probes.last @ head.W.T + head.c
    score, own = np.einsum("md,md->m", probes.keys, image), np.einsum("md,md->m", probes.last, image)
    # copies that are not there have no exponent at all, or else the largest one would not be among those that count
    up = np.where(probes.plus > 0, score + np.log(np.maximum(probes.plus, 1.0)), -np.inf)
    down = np.where(probes.minus > 0, -score + np.log(np.maximum(probes.minus, 1.0)), -np.inf)
    top = np.maximum(np.maximum(up, down), own)
    up, down, rest = np.exp(up - top), np.exp(down - top), np.exp(own - top)
    total = up + down + rest
    return up / total, down / total, rest / total


def predicted(head: Head, probes: Probes) -> Floats:
    """What the head answers."""
    up, down, rest = weights(head, probes)
    answers: Floats = head.b + (up - down) * (probes.keys @ head.v) + rest * (probes.last @ head.v)
    return answers


def slopes(head: Head, probes: Probes) -> tuple[Floats, Floats, Floats]:
    """Predictions, and their derivatives ``(count, width)`` by ``W x + c`` and by v."""
    up, down, rest = weights(head, probes)
    key, last = probes.keys @ head.v, probes.last @ head.v
    mean = (up - down) * key + rest * last
    by_score = key * (up + down) - mean * (up - down)
    by_image = by_score[:, None] * probes.keys + (rest * (last - mean))[:, None] * probes.last
    by_value = (up - down)[:, None] * probes.keys + rest[:, None] * probes.last
    return head.b + mean, by_image, by_value


def jacobian(head: Head, probes: Probes) -> tuple[Floats, Floats]:
    """Predictions and their derivatives by all coordinates: W (or its factors), v, c, b."""
    answers, by_image, by_value = slopes(head, probes)
    count = len(probes)
    if head.left is None or head.right is None:
        blocks = [(by_image[:, :, None] * probes.last[:, None, :]).reshape(count, -1)]
    else:
        blocks = [
            (by_image[:, :, None] * (probes.last @ head.right)[:, None, :]).reshape(count, -1),
            (probes.last[:, :, None] * (by_image @ head.left)[:, None, :]).reshape(count, -1),
        ]
    blocks.append(by_value)
    if head.with_c:
        blocks.append(by_image)
    if head.with_b:
        blocks.append(np.ones((count, 1)))
    return answers, np.concatenate(blocks, axis=1)


def _parts(head: Head, probes: Probes) -> list[slice]:
    """Rows at a time, so that the derivatives stay within the memory limit."""
    columns = head.width * (head.width if head.left is None else 2 * head.left.shape[1]) + 2 * head.width + 1
    size = max(1, NOISY.fit_chunk_bytes // (8 * columns))
    return [slice(start, start + size) for start in range(0, len(probes), size)]


def normal_equations(head: Head, probes: Probes, weight: Floats) -> tuple[Floats, Floats]:
    """``J^T diag(weight) J`` and ``J^T diag(weight) residual``."""
    matrix: Any = 0.0
    vector: Any = 0.0
    for rows in _parts(head, probes):
        answers, J = jacobian(head, probes[rows])
        J *= np.sqrt(weight[rows])[:, None]
        matrix = matrix + J.T @ J
        vector = vector + J.T @ (np.sqrt(weight[rows]) * (probes.answers[rows] - answers))
    return matrix, vector


def cost(head: Head, probes: Probes, weight: Floats) -> float:
    """Weighted sum of squared residuals."""
    return float(weight @ (probes.answers - predicted(head, probes)) ** 2)


def fit(head: Head, probes: Probes, weight: Floats | None = None, ridge: float = 0.0) -> Head:
    """Damped Gauss-Newton from ``head`` to the nearest least-squares head; deterministic, at most ``MAX_STEPS`` steps.

    ``ridge`` times the sum of the squares of W is added to the cost, for heads of full rank.
    """
    with threads_for(head.free):
        return _fitted(head, probes, np.ones(len(probes)) if weight is None else weight, ridge)


def _fitted(head: Head, probes: Probes, weight: Floats, ridge: float) -> Head:
    damping = 1e-3
    current = cost(head, probes, weight) + ridge * float(np.sum(head.W**2))
    entries = np.arange(head.W.size)
    for _ in range(NOISY.max_steps):
        matrix, vector = normal_equations(head, probes, weight)
        if ridge:
            matrix[entries, entries] += ridge
            vector[entries] -= ridge * head.W.ravel()
        scale = np.diag(matrix) + 1e-12 * np.diag(matrix).max() + np.finfo(float).tiny
        accepted = False
        for _ in range(NOISY.max_rejections):
            step = np.asarray(np.linalg.solve(matrix + np.diag(damping * scale), vector), dtype=np.float64)
            trial = head.moved(step)
            value = cost(trial, probes, weight) + ridge * float(np.sum(trial.W**2))
            if value < current:
                accepted = True
                break
            damping *= 8
        if not accepted:
            break
        noise = value / max(1, len(probes) - head.free)
        small = float(step @ matrix @ step) <= NOISY.negligible_step**2 * noise * head.free and damping <= 1e-3
        head, current = trial, value
        if head.left is not None:
            head = head.of_rank(head.left.shape[1])  # balanced factors keep the coordinates well scaled
        damping = max(damping / 8, 1e-12)
        if small:
            break
    return head


@dataclass(frozen=True, slots=True, eq=False)
class Errors:
    """Standard errors, shaped like the parameters.

    Attributes:
        W: ``(width, width)``.
        v: ``(width,)``.
        c: ``(width,)``; zeros where c is not fitted.
        b: of the constant.
        noise: root mean square residual, corrected for the parameters fitted.
        reach: standard errors on either side of a 95% interval (Student's t).
        freedom: answers beyond the parameters fitted.
    """

    W: Floats
    v: Floats
    c: Floats
    b: float
    noise: float
    reach: float
    freedom: int


def standard_errors(head: Head, probes: Probes, weight: Floats | None = None) -> Errors:
    """The HC2 sandwich: right also where the errors depend on the question, as those of float32 targets do."""
    weight = np.ones(len(probes)) if weight is None else weight
    matrix, _ = normal_equations(head, probes, weight)
    inverse = _inverse(head, matrix)
    covariance = np.zeros_like(matrix)
    squares = 0.0
    rounding = np.finfo(float).eps * float(np.abs(probes.answers).max())  # answers that fit exactly are still only float64
    for rows in _parts(head, probes):
        answers, J = jacobian(head, probes[rows])
        J *= np.sqrt(weight[rows])[:, None]
        residual = np.sqrt(weight[rows]) * (probes.answers[rows] - answers)
        pulled = J @ inverse
        leverage = np.minimum(np.einsum("mp,mp->m", pulled, J), 1 - 1e-6)
        pulled *= (np.hypot(residual, rounding * np.sqrt(weight[rows])) / np.sqrt(1 - leverage))[:, None]
        covariance += pulled.T @ pulled
        squares += float(residual @ residual)
    freedom = max(1, len(probes) - head.free)
    # a direction that few answers depend on has few residuals to show it: the textbook variance is the least
    least = max(squares / freedom, rounding**2) * np.diag(inverse)
    short = np.diag(covariance) < least
    covariance[short, short] = least[short]
    return unpacked(head, covariance, np.sqrt(squares / freedom / weight.mean()), float(stdtrit(freedom, 0.975)), freedom)


def entry_variance(head: Head, errors: Errors, ridge: float = 0.0) -> float:
    """Mean square of W's entries without the noise in them; with a ridge, which shrinks them, what it took away added."""
    if ridge == 0.0:
        return float(np.mean(head.W**2) - np.mean(errors.W**2))
    left = 1 / (1 / np.maximum(errors.W, 1e-150) ** 2 + ridge / max(errors.noise, 1e-150) ** 2)
    return float(np.mean(head.W**2) + np.mean(left))


def _inverse(head: Head, matrix: Floats) -> Floats:
    """Inverse of the normal matrix, on the complement of the factors' own symmetries."""
    values, vectors = np.linalg.eigh(matrix)
    gauge = 0 if head.left is None else head.left.shape[1] ** 2
    inverse = np.zeros_like(values)
    inverse[gauge:] = 1 / np.maximum(values[gauge:], np.finfo(float).eps * values[-1])
    result: Floats = (vectors * inverse) @ vectors.T
    return result


def unpacked(head: Head, covariance: Floats, noise: float, reach: float, freedom: int) -> Errors:
    """Standard errors of the parameters from the covariance of a head's coordinates."""
    width = head.width
    variance = np.diag(covariance)
    if head.left is None or head.right is None:
        by_entry, used = variance[: width**2].reshape(width, width), width**2
    else:
        rank, used = head.left.shape[1], 2 * head.left.size
        blocks = covariance[:used, :used].reshape(2, width, rank, 2, width, rank)
        own_left = np.einsum("ikil->ikl", blocks[0, :, :, 0])
        own_right = np.einsum("jkjl->jkl", blocks[1, :, :, 1])
        by_entry = (
            np.einsum("ikl,jk,jl->ij", own_left, head.right, head.right)
            + 2 * np.einsum("ikjl,jk,il->ij", blocks[0, :, :, 1], head.right, head.left)
            + np.einsum("jkl,ik,il->ij", own_right, head.left, head.left)
        )
    v = variance[used : used + width]
    used += width
    c = variance[used : used + width] if head.with_c else np.zeros(width)
    b = float(np.sqrt(variance[-1])) if head.with_b else 0.0
    return Errors(np.sqrt(np.maximum(by_entry, 0.0)), np.sqrt(v), np.sqrt(c), b, float(noise), reach, freedom)


def linear_start(head: Head, probes: Probes) -> Head:
    """W and c by linear least squares from the scores that unsaturated answers show, the last token's own score taken as 0."""
    pairs = probes[~probes.single]
    key, last, answers = pairs.keys @ head.v, pairs.last @ head.v, pairs.answers - head.b
    usable = np.abs(answers) < NOISY.saturated * key
    if not usable.any():
        return head
    pairs, key, last, answers = pairs[usable], key[usable], last[usable], answers[usable]
    square, linear, constant = pairs.plus * (key - answers), answers - last, pairs.minus * (key + answers)
    root = np.sqrt(linear**2 + 4 * square * constant)
    score = np.log(np.where(linear < 0, 2 * constant / (root - linear), (linear + root) / (2 * square)))
    rows = (pairs.keys[:, :, None] * np.pad(pairs.last, ((0, 0), (0, 1)), constant_values=1.0)[:, None, :]).reshape(len(pairs), -1)
    slope = key * (1 - (answers / key) ** 2)  # how strongly each answer shows its score
    rows *= slope[:, None]
    matrix = rows.T @ rows
    found = np.linalg.solve(matrix + 1e-6 * np.trace(matrix) / len(matrix) * np.eye(len(matrix)), rows.T @ (slope * score))
    image = found.reshape(head.width, head.width + 1)
    return replace(head, W=image[:, :-1], c=image[:, -1] if head.with_c else head.c)
