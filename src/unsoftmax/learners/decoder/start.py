"""Sums of exponentials: a start from a product design, and the fit. The first rough idea of every head."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.decoder.fitting import Features, Fit, varpro
from unsoftmax.models import Floats


def on_sphere(points: Floats, radius: float) -> Floats:
    """Points moved to the sphere."""
    return np.asarray(points * (radius / np.linalg.norm(points, axis=-1, keepdims=True)))


def counts(most: int, number: int, step: float) -> tuple[int, ...]:
    """Zero tokens from which answers are extrapolated to infinitely many: shorter by degrees, the longest ``most``."""
    return tuple(round(most / (1 + step * j)) for j in range(number))


def extrapolated(values: Floats, zeros: tuple[int, ...], order: int = 0) -> Floats:
    """A coefficient of the polynomial in ``1 / k`` through ``values (counts, ...)``: by default its value at zero."""
    powers = np.vander(1.0 / np.array(zeros), increasing=True)
    return np.asarray(np.tensordot(np.linalg.inv(powers)[order], values, axes=1))


def exponentials(x: Floats, answers: Floats, b: Floats) -> Fit:
    """Fit ``answers (n, outputs) = sum_h exp(b_h.x) A_h`` from a start ``b (heads, dims)``; ``x (n, dims)``."""
    heads, dims = b.shape

    def model(theta: Floats) -> Features:
        raised = np.exp(np.clip(x @ theta.reshape(heads, dims).T, -50, 50))

        def slopes(A: Floats) -> Floats:
            each: Floats = np.asarray(np.einsum("nh,na,ho->noha", raised, x, A, optimize=True))
            return each.reshape(len(x), answers.shape[1], heads * dims)

        return Features(raised, 0.0, slopes)

    return varpro(model, b.ravel(), answers)


def decomposed(G: Floats, heads: int, y: Floats, w: Floats, rng: np.random.Generator) -> Floats | None:
    """A start for ``exponentials`` from ``G[j, k] = sum_h A_h exp(b_h.y_j) exp(b_h.w_k)``: generalised eigenvectors of two slices.

    Returns ``b (heads, dims of y and w)``, or None where no two slices have real eigenvectors.
    """
    J, K, outputs = G.shape
    right = np.linalg.svd(G.reshape(J * K, outputs), full_matrices=False)[2][:heads]
    core = G @ right.T
    left = np.linalg.svd(core.reshape(J, K * heads), full_matrices=False)[0][:, :heads]
    core = np.einsum("ja,jkh->kah", left, core)
    best, found = 0.0, None
    for _ in range(200):
        one, two = (np.tensordot(a, core, axes=1) for a in rng.normal(size=(2, K)))
        if np.linalg.cond(two) > 1e12:
            continue
        values, vectors = np.linalg.eig(one @ np.linalg.inv(two))
        if np.abs(values.imag).max() > 1e-9 * np.abs(values).max():
            continue
        gaps = np.abs(values.real[:, None] - values.real) / (np.abs(values.real[:, None]) + np.abs(values.real))
        quality = float((gaps + np.eye(heads)).min()) / np.linalg.cond(vectors.real)
        if quality > best:
            best, found = quality, vectors.real
    if found is None:
        return None
    E = left @ found  # exp(b.y_j), each head at a scale of its own
    E *= np.sign(np.median(np.sign(E) * np.abs(E) ** 0.5, axis=0) + 1e-300)
    E = np.maximum(E, 1e-3 * np.abs(E).max(axis=0))
    along = np.linalg.lstsq(np.column_stack([y, np.ones(J)]), np.log(E), rcond=None)[0][:-1].T
    rows = np.linalg.pinv(left @ found) @ G.transpose(1, 0, 2)  # (K, heads, outputs), each a multiple of A_h
    rows = rows @ right.T
    mean = np.linalg.svd(rows.transpose(1, 0, 2))[2][:, 0]
    across = np.abs(np.einsum("kho,ho->kh", rows, mean)) + 1e-300
    beside = np.linalg.lstsq(np.column_stack([w, np.ones(K)]), np.log(across), rcond=None)[0][:-1].T
    return np.concatenate([along, beside], axis=1)
