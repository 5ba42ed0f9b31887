"""A residual around the attention, seen through the network: the map from attended tokens to equivalent single tokens."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.behind_network.lines import Mixing, Target
from unsoftmax.learners.behind_network.settings import BEHIND
from unsoftmax.linalg import INSIDE
from unsoftmax.models import Floats


def residual_mixing(
    target: Target, place: Floats, value: Floats, length: float, max_norm: float | None, rng: np.random.Generator
) -> Mixing:
    """``M = (I + V)^-1 V`` of ``f(X) = g(x_N + V sum_i a_i x_i)``, from vector answers with at least ``width`` outputs.

    The answer to ``[x + u; x]`` is that to the single token ``x + t M u``; with k copies of ``x + u``, to ``x + t_k M u`` with
    ``t_k = k / (k + exp(-z))``. Both tokens are found by quasi-Newton steps on the one-token target; they lie on one ray
    from x, and the ratio of their distances gives z, hence ``t`` and ``M u``. Price: about ``70 d`` queries.
    """
    width = len(place)
    nudge = length / 4096  # the Jacobian must hold for the shortest steps
    around = target.one(place + nudge * np.eye(width))
    jacobian = (around - value).T / nudge
    left, sizes, _ = np.linalg.svd(jacobian, full_matrices=False)
    if sizes[-1] <= 1e-9 * sizes[0]:
        raise NotInFamilyError(
            "Copies of a token do not act as for a plain head, and the one-token answers see only "
            f"{int((sizes > 1e-9 * sizes[0]).sum())} of {width} directions: a residual, if that is the cause, cannot be resolved "
            "here. `unsoftmax diagnose` names the family.",
            evidence={"singular_values": sizes.tolist()},
        )
    axes = np.linalg.qr(rng.normal(size=(width, width)))[0]
    mixing: Mixing | None = None
    for power in (3, 5, 2, 1, 0):  # short steps are easy to invert, longer ones are more accurate
        if power == 5 and mixing is not None:
            continue
        better = _mixing_at(target, place, value, length * 4.0**-power * axes, jacobian, left, max_norm, mixing)
        if better is None and mixing is not None:
            break
        mixing = better
    if mixing is None:
        raise NotInFamilyError(
            "The answers to a repeated token are neither those of a plain head nor those of a head with a residual: the equivalent "
            "single tokens could not be found or do not lie on one ray. Run `unsoftmax diagnose` to see the target's family.",
        )
    return mixing


def _mixing_at(
    target: Target,
    place: Floats,
    value: Floats,
    moves: Floats,
    jacobian: Floats,
    left: Floats,
    max_norm: float | None,
    mixing: Mixing | None,
) -> Mixing | None:
    """M from attended tokens ``place + moves``, or None where their equivalents cannot be found or lie on no common ray."""
    stay = np.broadcast_to(place, moves.shape)
    size = float(np.linalg.norm(moves[0]))
    found = []
    for copies in (1, BEHIND.residual_copies):
        answers = target.pair(place + moves, stay, copies)
        start = None
        if mixing is not None:  # scores grow with the moves
            start = moves @ mixing.matrix.T * (copies / (copies + np.exp(-mixing.scores * size)))[:, None]
        shifts = _equivalent(target, place, value, answers, jacobian, left, max_norm, start)
        if shifts is None:
            return None
        found.append(shifts)
    once, often = found
    ratio = np.einsum("bi,bi->b", once, often) / np.einsum("bi,bi->b", often, often)
    off_ray = np.linalg.norm(once - ratio[:, None] * often, axis=1) / np.linalg.norm(often, axis=1)
    if (off_ray > 1e-4).any() or (ratio < 1.05 / BEHIND.residual_copies).any() or (ratio > 0.98).any():
        return None
    odds = BEHIND.residual_copies * (1 - ratio) / (BEHIND.residual_copies * ratio - 1)  # exp(-z)
    # off the ray there is nothing but error, and along the ray it is as large
    return Mixing(np.linalg.solve(moves, once * (1 + odds)[:, None]).T, float(off_ray.max()), -np.log(odds) / size)


def _equivalent(
    target: Target,
    place: Floats,
    value: Floats,
    answers: Floats,
    jacobian: Floats,
    left: Floats,
    max_norm: float | None,
    start: Floats | None,
) -> Floats | None:
    """The displacements ``(batch, width)`` from ``place`` whose one-token answers are ``answers``: Broyden, all rows at once."""
    noise = target.noise(np.vstack([answers, value]))
    wanted = (answers - value) @ left
    inverse = np.broadcast_to(np.linalg.inv(left.T @ jacobian), (len(answers), *jacobian.shape[1:], jacobian.shape[1])).copy()
    shift = np.einsum("bij,bj->bi", inverse, wanted) if start is None else start
    misses = wanted
    move = shift
    best = np.full(len(answers), np.inf)
    settled = shift.copy()
    for _ in range(BEHIND.residual_max_steps):
        if not np.abs(shift).max() < BEHIND.farthest * (1.0 + float(np.abs(place).max())):
            return None
        points = place + shift
        if max_norm is not None:  # the move that is made is the one that counts
            points = points * np.minimum(1.0, INSIDE * max_norm / np.linalg.norm(points, axis=1))[:, None]
            move, shift = move + (points - place - shift), points - place
        now = wanted - (target.one(points) - value) @ left
        size = np.linalg.norm(now, axis=1)
        better = size < best
        settled[better], best[better] = shift[better], size[better]
        if not np.isfinite(size).all() or (size > 1e3 * np.linalg.norm(wanted, axis=1) + noise).any():
            return None
        if (best <= 4 * noise).all() or (not better.any() and (best <= 1e3 * noise).all()):
            return settled
        change = misses - now  # what the last move did to the answers
        guess = np.einsum("bij,bj->bi", inverse, change)
        scale = np.einsum("bi,bi->b", move, guess)
        scale = np.where(np.abs(scale) > 1e-300, scale, np.inf)
        inverse += np.einsum("bi,bj->bij", (move - guess) / scale[:, None], np.einsum("bi,bij->bj", move, inverse))
        misses = now
        move = np.einsum("bij,bj->bi", inverse, now)
        shift = shift + move
    return settled if (best <= 1e3 * noise).all() else None
