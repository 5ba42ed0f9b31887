"""Low-rank matrices from rank-one measurements ``z_i = u_i·W·x_i``: a fast factored solver, and the nuclear norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from unsoftmax.learners.non_adaptive.settings import FIXED
from unsoftmax.models import Floats


@dataclass(frozen=True, eq=False)
class Fit:
    """A candidate ``W`` and its relative misfit on the measurements that it was fitted to."""

    W: Floats
    misfit: float


def measure(W: Floats, u: Floats, x: Floats) -> Floats:
    """``u_i·W·x_i`` for rows of ``u`` and ``x``."""
    return np.asarray(np.einsum("mi,mi->m", u @ W, x))


def factor_jacobian(u: Floats, x: Floats, A: Floats, B: Floats) -> Floats:
    """Derivative of ``u_i·A B^T·x_i`` in the entries of A and of B, ``(measurements, A.size + B.size)``."""
    parts = (np.einsum("mi,mr->mir", u, x @ B), np.einsum("mi,mr->mir", x, u @ A))
    return np.hstack([part.reshape(len(u), -1) for part in parts])


def fit_rank(
    u: Floats, x: Floats, z: Floats, rank: int, rng: np.random.Generator, starts: int, solved: float = FIXED.solved
) -> Fit:
    """The best rank-``rank`` fit found: spectral start, alternating least squares, Levenberg-Marquardt; then random starts.

    For Gaussian rows the mean of ``z_i u_i x_i^T`` is W, which is where the first start comes from.
    """
    size = float(np.linalg.norm(z)) or 1.0
    best = Fit(np.zeros((u.shape[1], x.shape[1])), 1.0)
    spectral = (u * z[:, None]).T @ x / len(z)
    for start in range(starts):
        noise = rng.normal(size=spectral.shape) * np.linalg.norm(spectral) / spectral.shape[0]
        left, values, right = np.linalg.svd(spectral + (noise if start else 0.0))
        A, B = left[:, :rank] * np.sqrt(values[:rank]), right[:rank].T * np.sqrt(values[:rank])
        A, B = _alternate(u, x, z, A, B)
        A, B = _newton(u, x, z, A, B, solved)
        W = A @ B.T
        misfit = float(np.linalg.norm(z - measure(W, u, x))) / size
        best = Fit(W, misfit) if misfit < best.misfit else best
        if best.misfit <= solved:
            break
    return best


def _alternate(u: Floats, x: Floats, z: Floats, A: Floats, B: Floats) -> tuple[Floats, Floats]:
    """Alternating least squares: with B fixed the measurements are linear in A, and the other way round."""
    before = np.inf
    for _ in range(FIXED.alternations):
        A = _half(u, x @ B, z)
        A = np.linalg.qr(A)[0]
        B = _half(x, u @ A, z)
        misfit = float(np.linalg.norm(z - np.einsum("mr,mr->m", u @ A, x @ B)))
        if misfit > FIXED.stalled * before or misfit <= FIXED.solved * np.linalg.norm(z):
            break
        before = misfit
    return A, B


def _half(rows: Floats, seen: Floats, z: Floats) -> Floats:
    """The factor F with ``rows_i·F·seen_i = z_i`` in the least-squares sense; slightly damped, for rank-deficient ``seen``."""
    design = np.einsum("mi,mr->mir", rows, seen).reshape(len(z), -1)
    gram = design.T @ design
    gram[np.diag_indices_from(gram)] += 1e-12 * np.trace(gram) / len(gram) + 1e-300
    return np.asarray(cho_solve(cho_factor(gram), design.T @ z).reshape(rows.shape[1], -1))


def _newton(u: Floats, x: Floats, z: Floats, A: Floats, B: Floats, solved: float) -> tuple[Floats, Floats]:
    """Levenberg-Marquardt on both factors; the damping also takes care of their gauge freedom."""
    left, values, right = np.linalg.svd(A @ B.T)
    rank = A.shape[1]
    A, B = left[:, :rank] * np.sqrt(values[:rank]), right[:rank].T * np.sqrt(values[:rank])  # balanced factors
    damping = 1e-4
    residual = z - np.einsum("mr,mr->m", u @ A, x @ B)
    misfit = float(np.linalg.norm(residual))
    size = float(np.linalg.norm(z)) or 1.0
    history: list[float] = []
    for _ in range(FIXED.newton_steps):
        if misfit <= 1e-2 * solved * size:
            break
        history.append(misfit)
        if len(history) > 12 and misfit > 0.9 * history[-12]:  # twelve steps without a tenth: a local minimum
            break
        jacobian = factor_jacobian(u, x, A, B)
        gram, slope = jacobian.T @ jacobian, jacobian.T @ residual
        diagonal = np.diag_indices_from(gram)
        mean = np.trace(gram) / len(gram)
        for _ in range(8):
            damped = gram.copy()
            damped[diagonal] += damping * mean
            step = cho_solve(cho_factor(damped), slope)
            dA, dB = step[: A.size].reshape(A.shape), step[A.size :].reshape(B.shape)
            new = z - np.einsum("mr,mr->m", u @ (A + dA), x @ (B + dB))
            if np.linalg.norm(new) < misfit:
                break
            damping *= 8
        else:
            break
        A, B, residual, misfit = A + dA, B + dB, new, float(np.linalg.norm(new))
        damping = max(damping / 8, 1e-13)
    return A, B


def nuclear_norm(u: Floats, x: Floats, z: Floats, iterations: int = 4000, tolerance: float = 1e-9) -> Fit:
    """The matrix of least nuclear norm that meets all measurements, by Douglas-Rachford splitting.

    Alternates the projection onto ``{W: u_i·W·x_i = z_i}``, whose Gram matrix is ``(u u^T) * (x x^T)``, with soft thresholding of
    the singular values.
    """
    gram = (u @ u.T) * (x @ x.T)
    gram[np.diag_indices_from(gram)] *= 1 + 1e-12
    factors = cho_factor(gram)

    def project(matrix: Floats) -> Floats:
        gap = cho_solve(factors, z - measure(matrix, u, x))
        return np.asarray(matrix + (u * gap[:, None]).T @ x)

    point = project(np.zeros((u.shape[1], x.shape[1])))
    threshold = 0.3 * float(np.linalg.norm(point, 2))
    W = point
    for _ in range(iterations):
        W = project(point)
        left, values, right = np.linalg.svd(2 * W - point, full_matrices=False)
        step = (left * np.maximum(values - threshold, 0.0)) @ right - W
        point = point + step
        if np.linalg.norm(step) <= tolerance * np.linalg.norm(W):
            break
    size = float(np.linalg.norm(z)) or 1.0
    return Fit(W, float(np.linalg.norm(z - measure(W, u, x))) / size)
