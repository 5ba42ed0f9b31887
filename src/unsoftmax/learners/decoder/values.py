"""Values of every head on every direction, and their outputs inside the closed world."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.decoder.fitting import Features, Fit, varpro
from unsoftmax.learners.decoder.limit import Limit
from unsoftmax.learners.decoder.start import on_sphere
from unsoftmax.learners.decoder.world import Pairs, World, limit_radius, shares
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """``V (heads, width, width)``: a token ``p`` adds ``p @ V[h]``; the worst relative residual of the fits behind it."""

    V: Floats
    residual: float


def inner_values(world: World, pairs: Pairs) -> Floats:
    """``V (heads, q, width)`` of the closed world with its outputs inside the subspace, from the answers of the joint fit."""
    P = np.exp(np.einsum("na,hab,nb->nh", pairs.p, world.B, pairs.x, optimize=True)) * pairs.keyed[:, None]
    a, b = shares(P, world.own(pairs.x), pairs.zeros)
    tokens = a[:, :, None] * pairs.p[:, None] + (b[:, :, None] - 1) * pairs.x[:, None]  # (n, heads, q)
    inside = _inside(world, tokens.reshape(len(a), -1), pairs.x, pairs.moved)
    return world.V + inside.reshape(world.heads, -1, world.frame.shape[1]) @ world.frame.T


def _inside(world: World, columns: Floats, x: Floats, moved: Floats) -> Floats:
    """Linear unknowns ``(columns, q)`` at the outputs of the subspace, where answers have lost their part along ``x``."""
    q = world.frame.shape[1]
    project = np.eye(q) - np.einsum("na,nb->nab", x, x) / limit_radius(world.frame) ** 2
    rows = np.einsum("nc,nab->nacb", columns, project).reshape(len(x) * q, -1)
    return np.asarray(np.linalg.lstsq(rows, (moved @ world.frame).ravel(), rcond=None)[0]).reshape(-1, q)


def key_fit(world: World, answers: Floats, x: Floats, zeros: Floats, b: Floats) -> Fit:
    """One key before last tokens ``x (n, q)``: its scores ``b (heads, q)`` nonlinear, what it adds linear."""
    heads, q = b.shape
    own = world.own(x)
    last = np.einsum("nq,hqo->nho", x, world.V @ world.beyond)
    radius = limit_radius(world.frame)

    def model(theta: Floats) -> Features:
        P = np.exp(np.clip(x @ theta.reshape(heads, q).T / radius, -40, 40))
        a, own_share = shares(P, own, zeros)

        def slopes(A: Floats) -> Floats:
            moved = (a * (1 - a))[:, :, None] * A - (a * own_share)[:, :, None] * last
            return np.asarray(np.einsum("nho,nq->nohq", moved, x / radius)).reshape(len(x), answers.shape[1], -1)

        return Features(a, np.einsum("nh,nho->no", own_share - 1, last), slopes)

    fit = varpro(model, radius * b.ravel(), answers)
    return Fit(fit.theta / radius, fit.A, fit.residual)


def read_values(limit: Limit, world: World, pairs: Pairs, x: Floats, alone: Floats) -> Values:
    """Values on all directions: ``3 * heads + 8`` answers each. ``x (n, q)`` with answers ``alone`` to them by themselves.

    Raises:
        NotInFamilyError: the heads of the closed world do not explain keys outside it.
    """
    heads, q = world.heads, world.frame.shape[1]
    radius = limit_radius(world.frame)
    inner = inner_values(world, pairs)
    whole = World(world.frame, world.beyond, world.B, world.Q, inner, world.residual)
    count = limit.settings.probes * (3 * heads + 8)
    rows = np.arange(count) % len(x)
    zeros = np.array(limit.settings.behind)[np.arange(count) // len(x) % 2 if count > len(x) else np.arange(count) % 2]
    first = radius * np.eye(q)[0]
    V = np.einsum("ia,hao->hio", world.frame, inner)
    pending, worst = list(range(world.beyond.shape[1])), 0.0
    for step in limit.settings.steps:
        keys = on_sphere(first @ world.frame.T + step * radius * world.beyond.T[pending], radius)
        told = np.zeros((len(pending), count, limit.width))
        for k in np.unique(zeros).tolist():
            at = np.flatnonzero(zeros == k)
            lasts = np.broadcast_to((x[rows[at]] @ world.frame.T)[None], (len(pending), len(at), limit.width))
            tokens = np.stack([np.broadcast_to(keys[:, None], lasts.shape), lasts], axis=2)
            told[:, at] = limit.ask(tokens.reshape(-1, 2, limit.width), int(k)).reshape(len(pending), len(at), -1)
        told -= alone[rows]
        failed = []
        short = 1 / np.sqrt(1 + step**2)
        for i, direction in enumerate(pending):
            fit = key_fit(whole, told[i] @ world.beyond, x[rows], zeros, short * radius * world.B[:, 0])
            if not limit.explains(fit.residual, told[i] @ world.beyond):
                failed.append(direction)
                continue
            worst = max(worst, fit.residual)
            outer = fit.A @ world.beyond.T
            P = np.exp(x[rows] @ fit.theta.reshape(heads, q).T)
            a, b = shares(P, whole.own(x[rows]), zeros.astype(float))
            last = np.einsum("nh,nq,hqo->no", b - 1, x[rows], inner, optimize=True)
            outer = outer + _inside(world, a, x[rows], told[i] - last) @ world.frame.T
            added = (outer / short - radius * inner[:, 0]) / (step * radius)
            V += world.beyond[:, direction][None, :, None] * added[:, None]
        pending = failed
        if not pending:
            return Values(V, worst)
    raise NotInFamilyError(
        f"{len(pending)} of {world.beyond.shape[1]} directions are not explained by the {heads} heads found.",
        evidence={"heads": heads, "unexplained": len(pending)},
    )
