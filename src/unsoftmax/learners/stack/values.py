"""Values of every head along a first set of directions, and with them the ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.stack.crowd import crowd_values
from unsoftmax.learners.stack.heads import Base, at_ratios, scores_along
from unsoftmax.learners.stack.known import Known, ranks_of
from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.settings import STACK, Settings
from unsoftmax.learners.stack.sigmoids import Fit, fit_sigmoids
from unsoftmax.models import Floats


def read_values(limit: Limit, base: Base, settings: Settings, rng: np.random.Generator) -> Known:
    """Fit the values of more and more directions until their ranks are exceeded."""
    frame = base.frame
    sphere, T = frame.sphere, frame.C
    tilts = STACK.tilts if base.loudest <= settings.calm else STACK.tilts[2:] + STACK.tilts[:2]  # scores near enough to start from
    [(tilted, fit, sure)] = _along(limit, base, [[frame.step(frame.v, part * base.beta) for part in tilts]], settings, rng)
    loud, base = base, _calmed(base, tilted, fit, settings.calm)
    if base.loudest < loud.loudest:  # two steps that are nearly one tell little about what lies between them
        [(tilted, fit, far)] = _along(limit, base, [[base.step]], settings, rng)
        base, sure = replace(base, fit=fit), min(sure, far)
    steps, tables = [loud.step, tilted], [loud.fit.A, fit.A]
    angle = settings.turn * min(1.0, settings.calm / base.loudest)
    if frame.third is not None:
        few = frame.crowded[:2]
        if base.heads > STACK.plane:
            few = frame.crowded
            way = [
                frame.step(np.cos(turn * angle) * frame.v + np.sin(turn * angle) * frame.third, base.beta) for turn in STACK.turns
            ]
            [(step, fit, far)] = _along(limit, base, [way], settings, rng)
            steps, tables, sure = [*steps, step], [*tables, fit.A], min(sure, far)
        first = np.asarray(np.linalg.solve(np.array(steps) @ few.T, np.stack(tables, axis=1)))
        return crowd_values(limit, base, few, first, sure, settings, rng)
    rows = sphere.on(T)
    directions = np.linalg.qr(np.concatenate([frame.v[None], rows]).T)[0].T[1 : len(T)]  # with v they span all that is outside S
    count, batch = 0, 6
    while True:
        ways = [
            [frame.step(np.cos(turn * angle) * frame.v + np.sin(turn * angle) * q, base.beta) for turn in STACK.turns]
            for q in directions[count : count + batch]
        ]
        for step, fit, far in _along(limit, base, ways, settings, rng):
            steps.append(step)
            tables.append(fit.A)
            sure = min(sure, far)
        count = min(count + batch, len(directions))
        basis, values = _solved(np.array(steps), np.stack(tables, axis=1))
        ranks = ranks_of(values, settings.cliff)
        wanted = settings.directions(max(ranks), base.heads)
        if len(steps) >= wanted or count == len(directions):
            used = T[: count + (sphere.norm == "layer")]
            return Known(basis, values, used, ranks, len(steps) >= max(ranks) + 3, sure)
        batch = max(1, min(count // 4, wanted - len(steps)))


def _calmed(base: Base, tilted: Floats, fit: Fit, calm: float) -> Base:
    """The base at a step short enough for fits to find their way from it to others, for no question.

    Scores and values are linear in the step, and two of them span all that point along ``a`` and ``v``.
    """
    frame, two = base.frame, np.stack([base.step, tilted])
    found, part = base, 1.0
    while found.loudest > calm and part > 2.0**-6:
        part *= 0.8
        share = np.linalg.lstsq(two.T, frame.step(frame.v, part * base.beta), rcond=None)[0]
        z, A = (np.tensordot(share, np.stack(pair), axes=1) for pair in ((base.fit.z, fit.z), (base.fit.A, fit.A)))
        found = replace(base, fit=replace(fit, z=z, A=A), beta=part * base.beta)
    return found


def _solved(steps: Floats, tables: Floats) -> tuple[Floats, Floats]:
    """An orthonormal basis of the steps, and the values ``(heads, n, outputs)`` of its rows."""
    basis = np.linalg.qr(steps.T)[0].T
    return basis, np.asarray(np.linalg.solve(steps @ basis.T, tables))


def _along(
    limit: Limit, base: Base, ways: list[list[Floats]], settings: Settings, rng: np.random.Generator
) -> list[tuple[Floats, Fit, float]]:
    """For each direction the step taken, the first of its ``ways`` that can be fitted, the fit, and how sure labels are."""
    frame, n = base.frame, len(base.readers)
    found: list[tuple[Floats, Fit, float] | None] = [None] * len(ways)
    least = 0.0
    for attempt in range(len(ways[0])):
        todo = [i for i, one in enumerate(found) if one is None]
        if not todo:
            break
        steps = np.stack([ways[i][attempt] for i in todo])
        readers = np.tile(base.readers, (len(steps), 1))
        told = at_ratios(limit, frame, readers, np.repeat(steps, n, axis=0), settings)
        for i, step, answers in zip(todo, steps, told.reshape(len(steps), n, *told.shape[1:]), strict=True):
            length = float(np.linalg.norm(step) / np.linalg.norm(base.step))
            fit, sure = _fitted(answers, base, settings, length, rng, limit.like)
            least = max(least, sure)
            if fit is not None:
                found[i] = (step, fit, sure)
    if any(one is None for one in found):
        raise _unlabelled(sum(one is None for one in found), least)
    return [one for one in found if one is not None]


def _fitted(
    answers: Floats, base: Base, settings: Settings, length: float, rng: np.random.Generator, like: Any
) -> tuple[Fit | None, float]:
    """The fit in the order of the base's heads, and how sure that order is; None if it is not, or no fit is.

    ``length``: of this step over that of the base.
    """
    A, z = base.fit.A * length, base.fit.z * length
    starts = [z, scores_along(answers, settings.odds, A)]
    fit = fit_sigmoids(answers, settings.odds, starts, floor=settings.floor, accept=settings.accept, rng=rng, like=like)
    if fit.residual > settings.accept:
        return None, 0.0
    cost = np.sum((fit.A[:, None] - A[None]) ** 2, axis=2) / np.sum(A**2, axis=1)
    cost += np.mean((fit.z[:, :, None] - z[:, None, :]) ** 2, axis=0) / (0.1 + np.mean(z**2, axis=0))
    rows, columns = scipy.optimize.linear_sum_assignment(cost)
    order = rows[np.argsort(columns)]
    cost = cost[order]
    own = np.diag(cost)
    swapped = (cost + cost.T) / (own[:, None] + own[None] + 1e-300)
    np.fill_diagonal(swapped, np.inf)
    sure = float(swapped.min()) if len(cost) > 1 else np.inf
    return (replace(fit, A=fit.A[order], z=fit.z[:, order]) if sure >= STACK.sure else None), sure


def _unlabelled(count: int, sure: float) -> NotInFamilyError:
    return NotInFamilyError(
        f"In {max(1, count)} directions the answers of the limit are no sum of the heads found, or heads cannot be followed "
        f"(the next best assignment costs {sure:.2g} times the best). Two heads may be nearly equal, or the target is no stack of "
        "pre-norm attention blocks.",
        evidence={"assignment": sure},
    )
