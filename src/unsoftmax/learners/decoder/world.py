"""A closed world: keys and last tokens in a small subspace, where scores and values of all heads come out exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.decoder.fitting import Features, varpro
from unsoftmax.learners.decoder.limit import Limit
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Heads as tokens of a subspace see them.

    Attributes:
        frame: ``(width, q)``, an orthonormal basis of the subspace.
        beyond: ``(width, width - q)``, a basis of the rest: the outputs at which the projector along the last token drops out.
        B: ``(heads, q, q)``: the score of a key ``frame @ p`` one place before ``frame @ x`` is ``p @ B[h] @ x``.
        Q: ``(heads, q, q)``, symmetric: the score of a token with itself.
        V: ``(heads, q, width)``: what a token ``frame @ p`` adds is ``p @ V[h]``.
        residual: of the joint fit, relative.
    """

    frame: Floats
    beyond: Floats
    B: Floats
    Q: Floats
    V: Floats
    residual: float

    @property
    def heads(self) -> int:
        """Number of heads in all layers."""
        return len(self.B)

    def own(self, x: Floats) -> Floats:
        """``exp`` of the score of ``frame @ x`` with itself, ``(n, heads)``."""
        return np.asarray(np.exp(np.einsum("na,hab,nb->nh", x, self.Q, x, optimize=True)))


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Answers less those to the last token alone: keys ``p`` (zero rows for none), last tokens ``x`` in the frame, zero tokens."""

    p: Floats
    x: Floats
    zeros: Floats
    moved: Floats

    @property
    def keyed(self) -> Floats:
        """One where there is a key, else zero."""
        return np.asarray(self.p.any(axis=1), dtype=np.float64)


def shares(P: Floats, X: Floats, zeros: Floats) -> tuple[Floats, Floats]:
    """Attention on the key and on the last token, each ``(n, heads)``, from their raised scores."""
    total = zeros[:, None] + P + X
    return np.asarray(P / total), np.asarray(X / total)


def asked_pairs(limit: Limit, frame: Floats, p: Floats, x: Floats, zeros: Floats, alone: Floats, *, rough: bool = False) -> Pairs:
    """Ask keys ``p (n, q)`` before ``x (n, q)``; ``alone (n, width)`` are the answers to the last tokens by themselves."""
    told = np.zeros((len(p), limit.width))
    keyed = p.any(axis=1)
    for k in np.unique(zeros).tolist():
        for with_key in (False, True):
            rows = np.flatnonzero((zeros == k) & (keyed == with_key))
            if len(rows):
                tokens = x[rows, None] if not with_key else np.stack([p[rows], x[rows]], axis=1)
                told[rows] = limit.ask(tokens @ frame.T, int(k), rough=rough)
    return Pairs(p, x, np.asarray(zeros, dtype=np.float64), told - alone)


def joint_fit(pairs: Pairs, frame: Floats, beyond: Floats, B: Floats, Q: Floats) -> World:
    """All heads at once from a start: scores nonlinear, values linear, outputs beyond the subspace."""
    heads, q = len(B), frame.shape[1]
    upper = np.triu_indices(q)
    scale = limit_radius(frame)
    crossed = np.einsum("na,nb->nab", pairs.p, pairs.x).reshape(len(pairs.p), -1) / scale**2
    squared = pairs.x[:, upper[0]] * pairs.x[:, upper[1]] / scale**2
    keyed = pairs.keyed[:, None]
    answers = pairs.moved @ beyond

    def model(theta: Floats) -> Features:
        cross, square = np.split(theta.reshape(heads, -1), [q * q], axis=1)
        P = np.exp(np.clip(crossed @ cross.T, -40, 40)) * keyed
        X = np.exp(np.clip(squared @ square.T, -40, 40))
        a, b = shares(P, X, pairs.zeros)
        columns = a[:, :, None] * pairs.p[:, None] + (b[:, :, None] - 1) * pairs.x[:, None]

        def slopes(A: Floats) -> Floats:
            A = A.reshape(heads, q, -1)
            key, last = np.einsum("nq,hqo->nho", pairs.p, A), np.einsum("nq,hqo->nho", pairs.x, A)
            of_key = (a * (1 - a))[:, :, None] * key - (a * b)[:, :, None] * last
            of_last = (b * (1 - b))[:, :, None] * last - (a * b)[:, :, None] * key
            one = np.einsum("nho,nk->nohk", of_key, crossed)
            two = np.einsum("nho,nk->nohk", of_last, squared)
            return np.concatenate([one, two], axis=3).reshape(len(a), answers.shape[1], -1)

        return Features(columns.reshape(len(a), -1), 0.0, slopes)

    start = np.concatenate([B.reshape(heads, -1), (2 * Q - Q * np.eye(q))[:, upper[0], upper[1]]], axis=1) * scale**2
    fit = varpro(model, start.ravel(), answers)
    cross, square = np.split(fit.theta.reshape(heads, -1) / scale**2, [q * q], axis=1)
    symmetric = np.zeros((heads, q, q))
    symmetric[:, upper[0], upper[1]] = square
    symmetric = (symmetric + symmetric.transpose(0, 2, 1)) / 2
    V = fit.A.reshape(heads, q, -1) @ beyond.T
    return World(frame, beyond, cross.reshape(heads, q, q), symmetric, V, fit.residual)


def limit_radius(frame: Floats) -> float:
    """Length of normalised tokens."""
    return float(np.sqrt(len(frame)))
