"""Heads that share their hyperplanes (W_2 = 1.7 W_1, W_2 = -W_1, width 1): opened by copies, then fitted together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from scipy.special import expit

from unsoftmax.errors import OR_NO_HEADS, NotIdentifiableError
from unsoftmax.learners.scalar_heads.loewner import MANY, Split, split_sigmoids
from unsoftmax.learners.scalar_heads.measure import Background, Station, orthonormal
from unsoftmax.learners.scalar_heads.pairs import Copies, Probe, Task
from unsoftmax.learners.scalar_heads.polish import relative_errors
from unsoftmax.learners.scalar_heads.settings import SCALAR
from unsoftmax.learners.scalar_heads.walk import Crossing, Line
from unsoftmax.models import Floats


@dataclass
class Members:
    """The heads of one cluster at the walk's step (zoom 1): values V·u, normals W^T u, offsets c·u."""

    values: Floats
    normals: Floats
    offsets: Floats


def open_cluster(line: Line, crossing: Crossing, size: float, *, biased: bool) -> Task:
    """Tell the heads at one crossing apart: about ``30 + 11 * (width + 1)`` questions for two heads, twice that for up to five."""
    width = len(line.start)
    powers = 2.0 ** -np.arange(2.0, 32.0, 2.0)[::-1] * (1.0 + abs(crossing.t))
    seen = yield [line.probe(crossing.t + sign * w, SCALAR.zoom) for w in powers for sign in (-1.0, 1.0)]
    levels = np.array(seen).reshape(-1, 2) / SCALAR.zoom
    settled = np.abs(levels - [crossing.low, crossing.high]).max(axis=1) <= 16 * SCALAR.same * size
    if not settled.any():
        raise _unresolved("no place where they are alone")
    wide = float(powers[int(np.argmax(settled))])
    step = SCALAR.zoom * line.step * line.direction
    # so near to where a score vanishes, as a sum of large terms, it has the size at which sigmoids are 0 or 1
    blur = 4 * SCALAR.rounding * SCALAR.saturated * (1.0 + abs(crossing.t)) / wide
    for fraction in (0.02, 0.005, 0.001, 2e-4, 4e-5, 0.06):
        token = line.token(crossing.t + fraction * wide)
        base = yield from split_at(step, token, blur=blur)
        if base is not None and _accounts_for(base, crossing, size):
            break
    else:
        raise _unresolved("their response to copies is no sum of a few sigmoids")
    normals = np.zeros((len(base.values), width))
    for i in range(width):
        move = line.reach * fraction * wide
        for _ in range(8):
            found = yield from split_at(step, token + move * np.eye(width)[i], blur=blur)
            if found is not None and len(found.values) == len(base.values):
                order = match(base, found)
                if np.abs(found.values[order] - base.values).max() <= SCALAR.same_values * np.abs(base.values).max():
                    break
            move /= 4.0
        else:
            raise _unresolved("their number changes from token to token")
        normals[:, i] = (found.scores[order] - base.scores) / move
    offsets = (base.scores - normals @ token) if biased else np.zeros(len(base.values))
    return Members(base.values / SCALAR.zoom, normals / SCALAR.zoom, offsets / SCALAR.zoom)


def _accounts_for(found: Split, crossing: Crossing, size: float) -> bool:
    """Whether the heads found explain the levels on both sides of the crossing: none of them was saturated, hence overlooked."""
    still = np.abs(found.scores) < 1e-9  # a head with W = 0 stays half on
    low = found.background + found.values[~still & (found.scores < 0.0)].sum() + found.values[still].sum() / 2.0
    high = found.background + found.values[~still & (found.scores > 0.0)].sum() + found.values[still].sum() / 2.0
    return (
        len(found.values) > 0 and max(abs(low / SCALAR.zoom - crossing.low), abs(high / SCALAR.zoom - crossing.high)) <= 1e-6 * size
    )


def _unresolved(why: str) -> NotIdentifiableError:
    return NotIdentifiableError(
        f"Two or more heads lie too close together to be told apart with float64 answers: {why}. "
        f"Their W agree to about 1e-6 or better; only a merged head is known there. {OR_NO_HEADS}"
    )


def split_at(step: Floats, token: Floats, background: Background | None = None, *, blur: float = 0.0) -> Task:
    """Split the response at one place; more copies if two heads do not explain it. ``blur``: what scores are off by."""
    found: Split | None = None
    responses = np.zeros(0)
    for kinds in (SCALAR.few, MANY):
        fresh = yield [Probe(step, token, copies) for copies in kinds[len(responses) :]]
        responses = np.concatenate([responses, fresh])
        known = np.zeros(len(kinds))
        if background is not None:
            ratio = np.array([a / b for a, b in kinds])
            known = background(np.tile((token + step) - token, (len(kinds), 1)), np.tile(token, (len(kinds), 1)), ratio)
        found = split_sigmoids(kinds, responses - known, (SCALAR.split_noise + blur) * float(np.abs(responses).max()))
        if found is not None and len(found.values) <= 2:
            return found
    return found


def match(base: Split, found: Split) -> Floats:
    """The order of ``found`` that pairs it with ``base``: values do not change with the token, scores change little."""
    scale = np.abs(base.values).max()
    cost = np.abs(base.values[:, None] - found.values[None]) / scale + 0.05 * np.abs(base.scores[:, None] - found.scores[None])
    return np.asarray(scipy.optimize.linear_sum_assignment(cost)[1])


@dataclass
class Sample:
    """Questions on a cluster: steps and tokens as the target saw them, ratios of copies, responses."""

    u: Floats
    x: Floats
    ratio: Floats
    responses: Floats


def measure_cluster(place: Station, *, biased: bool, rng: np.random.Generator) -> Task:
    """All heads of a cluster: copies at tiny steps, then a joint fit. Returns ``[W | c]``, V of the members, and the sample."""
    width, length = len(place.step), np.linalg.norm(place.step)
    ahead = place.normal / np.linalg.norm(place.normal)
    token = place.token + 1.5 * ahead / np.linalg.norm(place.normal)  # on the hyperplane itself all scores would be zero
    terms = float(np.linalg.norm(place.normal) * np.linalg.norm(place.token)) + abs(float(place.offset))
    base = yield from split_at(place.step, token, place.background, blur=4 * SCALAR.rounding * terms)
    if base is None or not len(base.values):
        raise _unresolved("their response to copies is no sum of a few sigmoids")
    across = orthonormal(place.step)[1:]
    sides = []
    for direction in across:
        move = 0.3 * length / terms
        for _ in range(8):
            found = yield from split_at(place.step + move * direction, token, place.background, blur=4 * SCALAR.rounding * terms)
            if found is not None and len(found.values) == len(base.values):
                break
            move /= 4.0
        else:
            raise _unresolved("their number changes from step to step")
        order = match(base, found)
        sides.append(((found.values[order] - base.values) / move, (found.scores[order] - base.scores) / move))
    values = np.outer(base.values, place.step) / length**2
    scores = np.zeros((len(base.values), width, width + 1))
    homogeneous = np.append(token, float(biased))
    if sides:
        values = values + np.stack([side[0] for side in sides], axis=1) @ across
        column = np.stack([side[1] for side in sides], axis=1) @ across
        scores += column[:, :, None] * homogeneous / (homogeneous @ homogeneous)
    # each member's own row: all normals of a cluster are parallel, in proportion to the scores at this token
    row = np.append(place.normal, place.offset) / 1.5
    scores += base.scores[:, None, None] * np.outer(place.step, row) / length**2
    sample = Sample(np.zeros((0, width)), np.zeros((0, width)), np.zeros(0), np.zeros(0))
    unknowns = scores.size + values.size
    for share in (place.share / 8.0, place.share / 2.0, place.share):
        fresh = yield from _sample(place, scores, share, int(1.3 * unknowns) + 20, rng)
        sample = (
            fresh
            if share < place.share / 4.0
            else Sample(*(np.concatenate(pair) for pair in zip(_all(sample), _all(fresh), strict=True)))
        )
        scores, values = fit_members(scores, values, sample, place.background, biased=biased)
    return scores, values, sample


def _all(sample: Sample) -> tuple[Floats, Floats, Floats, Floats]:
    return sample.u, sample.x, sample.ratio, sample.responses


def _sample(place: Station, scores: Floats, share: float, count: int, rng: np.random.Generator) -> Task:
    """Random moves around the station, brought back to moderate scores of the largest member; several numbers of copies."""
    width = len(place.step)
    kinds: tuple[Copies, ...] = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4))
    ahead = place.normal / np.linalg.norm(place.normal)
    lead = scores[int(np.argmax(np.linalg.norm(scores, axis=(1, 2))))]
    probes = []
    for i in range(count):
        step, token = rng.normal(size=width), rng.normal(size=width)
        step = place.step + share * np.linalg.norm(place.step) * step / np.linalg.norm(step)
        token = place.token + share * np.linalg.norm(place.token) * token / np.linalg.norm(token)
        row = step @ lead
        gap = rng.uniform(-2.0, 2.0) - row[:width] @ token - row[width]
        probes.append(Probe(step, token + ahead * gap / (row[:width] @ ahead), kinds[i % len(kinds)]))
    responses = yield probes
    x = np.stack([probe.x for probe in probes])
    u = (x + np.stack([probe.u for probe in probes])) - x
    return Sample(u, x, np.array([probe.copies[0] / probe.copies[1] for probe in probes]), np.array(responses))


def fit_members(scores: Floats, values: Floats, sample: Sample, background: Background, *, biased: bool) -> tuple[Floats, Floats]:
    """Gauss-Newton on W, c and V of the members of a cluster; steps that do not help are halved."""
    goal = sample.responses - background(sample.u, sample.x, sample.ratio)
    predicted, jacobian = _responses(scores, values, sample, biased=biased)
    for _ in range(20):
        before = float(np.linalg.norm(goal - predicted))
        move = _solve(jacobian, goal - predicted)
        for _ in range(6):
            trial = _moved(scores, values, move, biased=biased)
            predicted_trial, jacobian_trial = _responses(*trial, sample, biased=biased)
            if np.linalg.norm(goal - predicted_trial) < before:
                break
            move = move / 2.0
        else:
            break
        (scores, values), predicted, jacobian = trial, predicted_trial, jacobian_trial
        if np.linalg.norm(goal - predicted) > 0.5 * before:
            break
    return scores, values


def members_error(scores: Floats, values: Floats, sample: Sample, rounding: float, *, biased: bool) -> float:
    """Largest relative error of a member's W or V to expect from answers with relative ``rounding``, by one simulated draw."""
    _, jacobian = _responses(scores, values, sample, biased=biased)
    size = rounding * (np.abs(sample.responses) + np.abs(sample.u @ values.T).sum(axis=1))
    draw = size * np.random.default_rng(0).normal(size=len(size))  # fixed: no part of the questions
    moved = _moved(scores, values, _solve(jacobian, draw), biased=biased)
    errors = [np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-300) for a, b in zip(moved[1], values, strict=True)]
    of_scores = relative_errors(*(block.reshape(len(scores), -1) for block in (scores, moved[0])))
    return float(max(*errors, of_scores.max()))


def check_members(scores: Floats, values: Floats, sample: Sample, background: Background, *, biased: bool) -> None:
    """Refuse a fit that does not explain its own questions to rounding: a member is missing, or two are taken for one."""
    predicted, _ = _responses(scores, values, sample, biased=biased)
    left = np.abs(sample.responses - background(sample.u, sample.x, sample.ratio) - predicted)
    size = np.abs(sample.responses) + np.abs(sample.u @ values.T).sum(axis=1)
    if (left > SCALAR.misfit * size).any():
        raise _unresolved(f"{len(values)} of them leave a misfit of {float((left / size).max()):.1g}")


def _responses(scores: Floats, values: Floats, sample: Sample, *, biased: bool) -> tuple[Floats, Floats]:
    """Responses of the members and their derivatives in ``[W | c]`` of all members, then V."""
    u = sample.u
    tokens = np.column_stack([sample.x, np.ones(len(u))]) if biased else sample.x
    outer = (u[:, :, None] * tokens[:, None, :]).reshape(len(u), -1)
    flat = scores[:, :, : tokens.shape[1]].reshape(len(scores), -1)
    on = expit(outer @ flat.T + np.log(sample.ratio)[:, None])
    slope = on * (1.0 - on) * (u @ values.T)
    columns = [slope[:, j, None] * outer for j in range(len(scores))] + [on[:, j, None] * u for j in range(len(scores))]
    return (on * (u @ values.T)).sum(axis=1), np.concatenate(columns, axis=1)


def _solve(jacobian: Floats, goal: Floats) -> Floats:
    lengths = np.linalg.norm(jacobian, axis=0)
    lengths[lengths == 0.0] = 1.0
    return np.asarray(np.linalg.lstsq(jacobian / lengths, goal, rcond=2.0**-50)[0] / lengths)


def _moved(scores: Floats, values: Floats, move: Floats, *, biased: bool) -> tuple[Floats, Floats]:
    count, width, columns = scores.shape
    used = columns if biased else columns - 1
    moved = scores.copy()
    moved[:, :, :used] += move[: count * width * used].reshape(count, width, used)
    return moved, values + move[count * width * used :].reshape(count, width)
