"""Rounded answers: each says that the truth lies in a cell, and questions aimed at a cell's edge halve what is left.

The heads that agree with every cell form a small convex region around the truth. Its analytic centre is the estimate; the next
questions are turned until the centre's answer falls on an edge between two cells, so that each answer cuts the region in two. The
error then falls by a constant factor for every query per parameter, instead of with the root of their number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.noisy.design import frames, recentred, tilted_keys
from unsoftmax.learners.noisy.fit import Head, jacobian, predicted, slopes, weights
from unsoftmax.learners.noisy.probes import Probes, ask_pairs, ask_tokens, joined
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.learners.threads import threads_for
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """What cutting left: the centre, the spread of each coordinate, all answers; ``head`` is None if no single head fits them."""

    head: Head | None
    spread: Floats
    probes: Probes


def cut(
    oracle: Oracle,
    head: Head,
    probes: Probes,
    step: float,
    *,
    queries: int,
    accuracy: float | None,
    length: float,
    norm: float,
    copies: int,
    rng: np.random.Generator,
) -> Cut:
    """Ask up to ``queries`` questions aimed at edges, until W is known to ``accuracy`` (rms standard deviation).

    Tokens are ``length`` long at first, and longer, up to ``norm``, as their scores become known.
    """
    width, parameters = head.width, head.free
    asked, tight = [probes], probes
    largest = float(np.abs(probes.answers).max())
    lengths = [
        copies // 8,
        copies // 4,
        copies // 2,
    ]  # of sequences that confirm it: each edge keeps one half, whatever the truth is
    confirming = NOISY.confirming * len(lengths)
    left = queries - confirming
    while True:
        half = np.full(len(tight), step / 2 + NOISY.finest / 16 * largest)
        with threads_for(parameters):
            found = centre(head, tight, half)
        if found is None:
            return Cut(None, np.empty(0), joined(asked))
        head, covariance = found
        spread = np.sqrt(np.diag(covariance))
        error = float(np.sqrt(np.mean(spread[: width**2] ** 2)))
        enough = error <= (accuracy or 0.0) or np.median(open_width(head, tight, covariance)) < NOISY.finest * largest
        if left <= 0 or enough:
            break
        size = min(left, max(2, parameters // NOISY.round))
        left -= size
        length = min(norm, max(length, float(np.sqrt(NOISY.placeable / max(error, 1e-200)))))
        new = ask_edges(oracle, head, size, step, length, copies, rng)
        asked += new
        tight = joined([tightest(head, tight, half, covariance, NOISY.rounding_kept * parameters), *new])
    everything = joined(asked)
    agrees = np.abs(everything.answers - predicted(head, everything)) <= step / 2 + NOISY.finest * largest
    for fewer in lengths if agrees.all() and queries >= confirming else ():
        aimed = _pairs_on_edges(head, NOISY.confirming, step, length, max(2, fewer), rng)
        beside = 2 * NOISY.beside * open_width(head, aimed, covariance) + 4 * NOISY.finest * largest
        aimed = turned_to_edges(head, aimed, step, beside * rng.choice([-1.0, 1.0], size=len(aimed)))
        told = ask_pairs(oracle, aimed.keys, aimed.plus, aimed.minus, aimed.last)
        allowed = step / 2 + NOISY.beside * open_width(head, told, covariance) + NOISY.finest * largest
        agrees = np.append(agrees, np.abs(told.answers - predicted(head, told)) <= allowed)
        everything = joined([everything, told])
    return Cut(head if agrees.all() else None, spread, everything)


def open_width(head: Head, probes: Probes, covariance: Floats) -> Floats:
    """How far the answers to ``probes`` may still move."""
    _, J = jacobian(head, probes)
    width: Floats = np.sqrt(np.maximum(np.einsum("mp,mp->m", J @ covariance, J), 0.0))
    return width


def tightest(head: Head, probes: Probes, half: Floats, covariance: Floats, count: int) -> Probes:
    """The ``count`` answers whose cells lie closest around what is still open."""
    gap = (half - np.abs(probes.answers - predicted(head, probes))) / np.maximum(open_width(head, probes, covariance), 1e-300)
    return probes[np.sort(np.argsort(gap, kind="stable")[:count])]


def ask_edges(
    oracle: Oracle, head: Head, count: int, step: float, norm: float, copies: int, rng: np.random.Generator
) -> list[Probes]:
    """One-token questions and pairs at random directions, turned until the predicted answer lies on an edge."""
    singles = max(1, round(1.3 * count / (head.width + 1)))  # v has one parameter in width + 1; copies that balance hide it
    tokens = frames(rng, singles, head.width, norm)
    none = np.zeros(singles)
    tokens = turned_to_edges(head, Probes(np.zeros_like(tokens), none, none, tokens, none), step).last
    pairs = count - singles
    aimed = _pairs_on_edges(head, pairs, step, norm, copies, rng)
    return [ask_tokens(oracle, tokens), ask_pairs(oracle, aimed.keys, aimed.plus, aimed.minus, aimed.last)]


def _pairs_on_edges(head: Head, count: int, step: float, norm: float, copies: int, rng: np.random.Generator) -> Probes:
    keys, last = tilted_keys(rng, count, head.v, norm), frames(rng, count, head.width, norm)
    length, plus = recentred(head, keys, last, copies)
    return turned_to_edges(head, Probes(keys, plus, copies - plus, last * length[:, None], np.zeros(count)), step)


def centre(head: Head, probes: Probes, half: Floats) -> tuple[Head, Floats] | None:
    """The analytic centre of all heads whose answers lie within ``half`` of those given, and the inverse of its Hessian.

    None if no such head was found near ``head``.
    """
    inside = moved_inside(head, probes, half)
    if inside is None:
        return None
    head = inside
    for _ in range(NOISY.max_centring):
        answers, J = jacobian(head, probes)
        residual = probes.answers - answers
        up, down = 1 / (half - residual), 1 / (half + residual)
        matrix = _weighted_square(J, up**2 + down**2)
        step = _solved(matrix, J.T @ (up - down))
        decrement = float(step @ matrix @ step)
        trial, _ = _searched(head, step, probes, half, 0.0, 0.0, 0.0)
        if trial is None:
            break
        head = trial
        if decrement < NOISY.centred:
            break
    return head, _solved(matrix, np.eye(len(matrix)))


def moved_inside(head: Head, probes: Probes, half: Floats) -> Head | None:
    """A head whose answers lie strictly within all cells: all are widened by one slack, which is then pressed below zero."""
    excess = float(np.max(np.abs(probes.answers - predicted(head, probes)) - half))
    already = head if excess < 0 else None  # kept where float64 is too coarse for a way further in
    # little more than what is violated: the region may be a billion times smaller than a cell, and the way there is paid in steps
    slack = max(2 * excess, 0.0) + 8 * NOISY.finest * float(np.abs(probes.answers).max())
    pressure, inside, least = 0.0, 0, 2.0**-60 * float(np.abs(probes.answers).max())
    for _ in range(NOISY.max_centring):
        answers, J = jacobian(head, probes)
        residual = probes.answers - answers
        # strictly inside, but for the rounding of these sums
        up, down = (1 / np.maximum(half + slack + side, least) for side in (-residual, residual))
        pressure = pressure or 2 * float((up + down).sum())
        # the slack acts on both sides of a cell, the parameters on one against the other
        both, cross = up**2 + down**2, J.T @ (up**2 - down**2)
        matrix = np.block([[_weighted_square(J, both), cross[:, None]], [cross[None, :], np.array([[both.sum()]])]])
        slope = np.concatenate([-J.T @ (up - down), [pressure - (up + down).sum()]])
        step = -_solved(matrix, slope)
        trial, share = _searched(head, step[:-1], probes, half, slack, float(step[-1]), pressure)
        if trial is None:
            return head if inside else already
        head, slack = trial, slack + share * float(step[-1])
        inside += bool((np.abs(probes.answers - predicted(head, probes)) < half).all())
        if inside == NOISY.steps_inside:
            return head
        if float(-step @ slope) < 1.0:
            pressure *= 10
    return already


def _weighted_square(J: Floats, weight: Floats) -> Floats:
    """``J^T diag(weight) J`` as one matrix times itself, which takes half the work of a product of two."""
    scaled = J * np.sqrt(weight)[:, None]
    return scaled.T @ scaled


def _solved(matrix: Floats, right: Floats) -> Floats:
    """Solve a positive definite system whose rows differ in scale by many orders; what is not determined at all stays near 0."""
    size = np.diag(matrix)
    scale = 1 / np.sqrt(np.maximum(size, 1e-40 * size.max()))
    scaled = matrix * scale[:, None] * scale + 1e-14 * np.eye(len(matrix))
    found: Floats = (np.linalg.solve(scaled, (right.T * scale).T).T * scale).T
    return found


def _searched(
    head: Head, step: Floats, probes: Probes, half: Floats, slack: float, slack_step: float, pressure: float
) -> tuple[Head | None, float]:
    """The longest of a few shares of a step that stays inside all widened cells and lowers the barrier."""

    def merit(at: Head, width: Floats, used: float) -> float:
        residual = probes.answers - predicted(at, probes)
        if not (np.abs(residual) < width).all():
            return np.inf
        return pressure * used - float(np.log(width - residual).sum() + np.log(width + residual).sum())

    start = merit(head, half + slack, slack)
    share = 1.0
    for _ in range(NOISY.max_shorter):
        trial = head.moved(share * step)
        if merit(trial, half + slack + share * slack_step, slack + share * slack_step) < start:
            return trial, share
        share *= 0.6
    return None, 0.0


def turned_to_edges(head: Head, probes: Probes, step: float, beside: Floats | float = 0.0) -> Probes:
    """The same questions with the last token turned, at constant length, until the predicted answer lies between two cells.

    Or so far ``beside`` that place.
    """
    current = probes
    answers = predicted(head, probes)
    edge = (np.floor(answers / step) + 0.5) * step + beside
    by_token = token_slopes(head, probes)
    length = np.linalg.norm(probes.last, axis=1, keepdims=True)
    across = by_token - probes.last * (np.einsum("md,md->m", by_token, probes.last)[:, None] / length**2)
    across *= length / np.maximum(np.linalg.norm(across, axis=1, keepdims=True), 1e-200)  # in one dimension there is none
    angle = np.zeros(len(probes))
    for _ in range(NOISY.max_turns):
        toward = -np.sin(angle)[:, None] * probes.last + np.cos(angle)[:, None] * across
        slope = np.einsum("md,md->m", token_slopes(head, current), toward)
        move = (edge - predicted(head, current)) / np.where(np.abs(slope) > 1e-12, slope, 1e-12)
        angle = np.clip(angle + np.clip(move, -0.2, 0.2), -NOISY.largest_turn, NOISY.largest_turn)
        last = np.cos(angle)[:, None] * probes.last + np.sin(angle)[:, None] * across
        current = replace(probes, last=last * (NOISY.shrink * length / np.linalg.norm(last, axis=1, keepdims=True)))
    return current


def token_slopes(head: Head, probes: Probes) -> Floats:
    """Derivatives ``(count, width)`` of the predicted answers by the last token."""
    _, by_image, _ = slopes(head, probes)
    up, down, rest = weights(head, probes)
    mean = (up - down) * (probes.keys @ head.v) + rest * (probes.last @ head.v)
    by_own = (rest * (probes.last @ head.v - mean))[:, None]
    found: Floats = by_image @ head.W + by_own * (probes.last @ head.W.T + head.c) + rest[:, None] * head.v
    return found
