"""Measuring heads that stand alone: all scores of one head while the others are saturated, or known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from unsoftmax.errors import NotIdentifiableError
from unsoftmax.learners.scalar_heads.design import standpoints
from unsoftmax.learners.scalar_heads.pairs import Probe, Task, log_odds
from unsoftmax.learners.scalar_heads.settings import SCALAR
from unsoftmax.models import Floats


def orthonormal(first: Floats) -> Floats:
    """Orthonormal rows whose first is parallel to ``first``."""
    q, _ = np.linalg.qr(np.concatenate([first[:, None], np.eye(len(first))], axis=1))
    return np.asarray(q[:, : len(first)].T)


Background = Callable[[Floats, Floats, Floats | float], Floats]  # what other heads add, from steps, tokens, ratios of copies


def no_others(u: Floats, x: Floats, ratio: Floats | float) -> Floats:
    """The background where there is no other head."""
    return np.zeros(len(u))


def sizes_of(values: Floats, u: Floats) -> Floats:
    """What products ``u @ values.T`` are rounded as: they are sums of terms, which may cancel."""
    return np.asarray(np.abs(u @ values.T) + np.sqrt(u**2 @ (values**2).T))


@dataclass
class Heads:
    """Heads as far as measured: ``scores (heads, width, width + 1)`` holds ``[W | c]``, ``values (heads, width)`` holds V."""

    scores: Floats
    values: Floats

    def sigmoids(self, u: Floats, x: Floats, ratio: Floats | float = 1.0) -> Floats:
        """Activations ``(batch, heads)`` of pairs."""
        tokens = np.column_stack([x, np.ones(len(x))])
        scores = np.einsum("nd,hde,ne->nh", u, self.scores, tokens, optimize=True)
        return np.asarray(expit(scores + np.reshape(np.log(ratio), (-1, 1))))

    def others(self, members: list[int], u: Floats, x: Floats, ratio: Floats | float = 1.0) -> Floats:
        """What all heads but ``members`` add to the response; ``ratio`` is that of the copies."""
        share = self.sigmoids(u, x, ratio) * (u @ self.values.T)
        share[:, members] = 0.0
        return np.asarray(share.sum(axis=1))


@dataclass
class Station:
    """Where a head is measured: a step and a token where its score ``normal·x + offset`` is zero and the others' are large."""

    head: int
    step: Floats
    token: Floats
    normal: Floats
    offset: float
    share: float  # size of the moves around it, relative to step and token
    noise: float  # error of a score read here, in units of rounding, relative to the part of it that is read
    background: Background = no_others
    alone: bool = True  # no other head is almost like this one


def better_station(heads: Heads, head: int, *, rng: np.random.Generator, reach: float) -> Station:
    """The best place to measure ``head`` again when all heads are known roughly: its value large among the others, short steps."""
    width = heads.values.shape[1]
    own = heads.values[head] / np.linalg.norm(heads.values[head])
    biased = bool(heads.scores[:, :, width].any())
    best: Station | None = None
    for weight in np.linspace(0.0, 1.0, 24):
        side = rng.normal(size=width)
        step = weight * own + (1.0 - weight) * side / np.linalg.norm(side)
        rows = np.einsum("d,hde->he", step, heads.scores)
        normals, offsets = rows[:, :width], rows[:, width]
        sizes = np.linalg.norm(normals, axis=1)
        if not sizes[head]:
            continue
        live = np.flatnonzero(reach * sizes + np.abs(offsets) > SCALAR.faint * (reach * sizes[head] + abs(offsets[head])))
        here = int(np.flatnonzero(live == head)[0])
        tokens = standpoints(normals[live], offsets[live], here, rng=rng, reach=reach)
        place = settle(head, step, tokens, normals[live], offsets[live], here, SCALAR.quiet, heads.values[live], biased=biased)
        if best is None or place.noise < best.noise:
            place.background = lambda u, x, ratio: heads.others([head], u, x, ratio)
            best = place
    assert best is not None  # some step shows the head: its W is not zero
    return best


def settle(
    head: int,
    step: Floats,
    tokens: Floats,
    normals: Floats,
    offsets: Floats,
    here: int,
    silence: float,
    values: Floats,
    *,
    biased: bool,
) -> Station:
    """The best station among ``tokens``: a step that silences the others even after moves around it, and the size of those moves.

    A move by ``share`` of the step and of the token changes the head's own score by about ``share**2`` times its terms, which
    should be about 1, and another head's by ``share`` times that one's terms. Without biases only the product of the
    lengths of step and token matters; a much longer step keeps the answer's rounding away from the token's. The answer is rounded
    as its largest part, and a head that is off has no part in it: the best token is where scores need not be large and heads of
    large ``values`` are off.
    """
    own = _terms(normals[here][None], offsets[here : here + 1], tokens)[:, 0]
    rows = np.delete(np.column_stack([normals, offsets]), here, axis=0)
    mine = np.append(normals[here], offsets[here])
    alike = rows - np.outer(rows @ mine / (mine @ mine), mine)
    near = np.linalg.norm(alike, axis=1) < 0.02 * np.linalg.norm(rows, axis=1)
    rows[near] = alike[near]  # a head almost like this one moves with it: while this score stays, only the difference moves
    terms = _terms(rows[:, :-1], rows[:, -1], tokens)
    scores = tokens @ rows[:, :-1].T + rows[:, -1]
    aside = 3.0 * np.sqrt(1.5 / own)[:, None] * terms  # half of what a move takes from a score, at zoom 1
    heights = np.maximum(np.abs(scores), np.finfo(float).tiny)
    silences = silence * np.where(near, 2.0, 1.0)  # small differences of large scores: what is known of such a head errs by more
    zooms = np.maximum((((aside + np.sqrt(aside**2 + heights * silences)) / heights) ** 2).max(axis=1, initial=0.0), 4.0 / own)
    shares = np.clip(np.sqrt(1.5 / (zooms * own)), 2.0**-12, 0.25)
    lengths = np.linalg.norm(tokens, axis=1)
    stretches = np.ones(len(tokens))
    if not biased:
        stretches = np.sqrt(zooms * np.linalg.norm(step) / (SCALAR.longer * lengths))
    jumps = np.abs(values @ step)
    sums = np.linalg.norm(values, axis=1).sum() / np.sqrt(len(step)) * lengths * stretches**2 / zooms
    sums = (sums + (scores > 0.0) @ np.delete(jumps, here) + jumps[here]) / max(jumps[here], 1e-300)
    noises = (4.0 * sums + np.sqrt(len(step)) * zooms * own) / (shares**2 * zooms * own)
    best = int(np.argmin(noises))
    zoom = zooms[best] / stretches[best]
    return Station(
        head,
        zoom * step,
        tokens[best] * stretches[best],
        zoom * normals[here],
        zoom * float(offsets[here]),
        float(shares[best]),
        float(noises[best]),
        alone=not near.any(),
    )


def _terms(normals: Floats, offsets: Floats, tokens: Floats) -> Floats:
    """Typical size ``(tokens, rows)`` of the terms that scores are summed from."""
    lengths = np.linalg.norm(tokens, axis=1, keepdims=True)
    return np.asarray(np.linalg.norm(normals, axis=1) * lengths / np.sqrt(tokens.shape[1]) + np.abs(offsets))


@dataclass
class Readings:
    """Questions around a station: steps ``(width, width)``, tokens ``(width, columns, width)``, responses ``(width, columns)``.

    The first question of a row may have been asked ``leads (width,)`` times nearer to the first step than the row's own step is.
    """

    steps: Floats
    tokens: Floats
    responses: Floats
    leads: Floats

    def flat(self) -> tuple[Floats, Floats, Floats]:
        """Steps as the target saw them, tokens, responses, one row per question."""
        columns, width = self.tokens.shape[1:]
        tokens = self.tokens.reshape(-1, width)
        steps = np.repeat(self.steps, columns, axis=0)
        steps[::columns] = nearer(self.steps, self.leads)
        return (tokens + steps) - tokens, tokens, self.responses.reshape(-1)

    def solve(self, scores: Floats, *, biased: bool) -> Floats:
        """``[W | c]`` from the scores of all questions."""
        rows, columns, width = self.tokens.shape
        tokens = np.concatenate([self.tokens, np.ones((rows, columns, 1))], axis=2) if biased else self.tokens
        scores = scores.reshape(rows, columns).copy()
        own = tokens[:, 0] @ np.linalg.solve(tokens[0], scores[0])  # what the first step scores at these tokens
        scores[:, 0] = own + self.leads * (scores[:, 0] - own)
        found = np.linalg.solve(self.steps, np.stack([np.linalg.solve(x, z) for x, z in zip(tokens, scores, strict=True)]))
        return found if biased else np.concatenate([found, np.zeros((width, 1))], axis=1)

    def completed(self, scores: Floats) -> Readings:
        """As it would be with every first question at its row's own step, for a head of these ``[W | c]``; not asked yet."""
        width = self.steps.shape[1]
        rows, tokens = self.steps @ scores, self.tokens.copy()
        ahead = rows[0, :width] / np.linalg.norm(rows[0, :width])
        for i in np.flatnonzero(self.leads > 1.0):
            tokens[i, 0] -= ahead * (rows[i, :width] @ tokens[i, 0] + rows[i, width]) / (rows[i, :width] @ ahead)
        return replace(self, tokens=tokens, leads=np.ones_like(self.leads))

    def complete(self, scores: Floats) -> Task:
        """Ask what ``completed`` lacks: one question for each row whose first was nearer."""
        done, short = self.completed(scores), np.flatnonzero(self.leads > 1.0)
        done.responses = self.responses.copy()
        done.responses[short, 0] = yield [Probe(done.steps[i], done.tokens[i, 0]) for i in short]
        return done


def nearer(steps: Floats, leads: Floats) -> Floats:
    """Steps ``leads`` times nearer to the first of them."""
    return np.asarray(steps[0] + (steps - steps[0]) / leads[:, None])


def measure(place: Station, value: Floats, *, biased: bool, estimate: Floats | None = None) -> Task:
    """Questions that determine one head's ``[W | c]``: ``width * (width + biased)``.

    Where it is unknown, the first question of each row is asked before all others, nearer to the station, and serves where that is
    near enough; else once more. Returns ``(scores, readings)``.
    """
    width = len(place.step)
    across = orthonormal(place.step)[1:]
    across[(across @ value) * (place.step @ value) < 0.0] *= -1.0  # moves that add to what the head shows, and never take it away
    axes = _token_axes(place, biased=biased)
    steps = place.step + np.concatenate([np.zeros((1, width)), place.share * np.linalg.norm(place.step) * across])
    ahead = place.normal / np.linalg.norm(place.normal)
    # one token on the hyperplane, one ahead of it, the others aside
    aside = np.concatenate([np.zeros((2, width)), place.share * np.linalg.norm(place.token) * axes])
    aims = np.zeros(len(aside))
    aims[1] = 1.5
    readings = Readings(steps, np.empty((width, len(aside), width)), np.zeros((width, len(aside))), np.ones(width))
    scores = np.full((width, len(aside)), np.nan)
    shifts, shrink = np.zeros_like(scores), np.ones_like(scores)
    drift = None
    if estimate is None:
        leads, first, responses, estimate, drift = yield from _first_estimate(place, value, steps, across, biased=biased)
        near = (leads <= SCALAR.lead) & (np.abs(first) < SCALAR.readable) & place.alone  # beside a head like it, every digit counts
        readings.leads[near], readings.responses[near, 0], readings.tokens[near, 0] = leads[near], responses[near], place.token
        scores[near, 0] = first[near]
    rows = steps @ estimate
    for _ in range(12):
        todo = np.argwhere(~(np.abs(scores) < SCALAR.readable))
        if not len(todo):
            return readings.solve(scores, biased=biased), readings
        for i, j in todo:
            token = place.token + shrink[i, j] * aside[j]
            gap = aims[j] - rows[i, :width] @ token - rows[i, width] - shifts[i, j]
            readings.tokens[i, j] = token + ahead * gap / (rows[i, :width] @ ahead)
        chosen = (todo[:, 0], todo[:, 1])
        tokens = readings.tokens[chosen]
        readings.responses[chosen] = yield [Probe(step, token) for step, token in zip(steps[todo[:, 0]], tokens, strict=True)]
        actual = (tokens + steps[todo[:, 0]]) - tokens
        low = place.background(actual, tokens, 1.0)
        scores[chosen] = log_odds(readings.responses[chosen] - low, low + actual @ value - readings.responses[chosen])
        lost = [i for i in range(1, width) if not abs(scores[i, 0]) < SCALAR.legible]
        if lost and drift is not None and abs(scores[0, 0]) < SCALAR.legible:  # the estimate took the station's own score for zero
            estimate, drift = estimate - scores[0, 0] * drift, None
            rows, scores[1:], readings.leads[1:] = steps @ estimate, np.nan, 1.0
            continue
        for i in lost:  # not even the station's own token shows the head at this step: it leads too far
            steps[i] = place.step + 0.25 * (steps[i] - place.step)
            rows[i] = steps[i] @ estimate
            scores[i], shifts[i], shrink[i], readings.leads[i] = np.nan, 0.0, 1.0, 1.0
        for i, j in todo:  # too far from zero: correct by what was read, or, beyond reading, move less far aside
            if i in lost:
                continue
            if abs(scores[i, j]) < SCALAR.legible:
                shifts[i, j] += scores[i, j] - aims[j]
            else:
                shrink[i, j] *= 0.25
                if readings.leads[i] > 1.0:  # does the row's own step show the head?
                    scores[i, 0], readings.leads[i] = np.nan, 1.0
    raise NotIdentifiableError(
        f"The scores of head {place.head} could not be brought near zero: the heads do not separate here.",
        evidence={"head": place.head},
    )


def improve(heads: Heads, readings: dict[int, Readings], *, biased: bool) -> Heads:
    """Read all scores again with what the other heads really add, now that they are known; no questions."""
    scores = heads.scores.copy()
    for h, taken in readings.items():
        u, x, responses = taken.flat()
        low = heads.others([h], u, x)
        read = log_odds(responses - low, low + u @ heads.values[h] - responses)
        if np.isfinite(read).all():
            scores[h] = taken.solve(read, biased=biased)
    return Heads(scores, heads.values)


def contradiction(heads: Heads, head: int, taken: Readings) -> float:
    """How far the scores read of a head are from those it has now; infinite where a response lies beyond its levels."""
    u, x, responses = taken.flat()
    low = heads.others([head], u, x)
    read = log_odds(responses - low, low + u @ heads.values[head] - responses)
    own = np.einsum("nd,de,ne->n", u, heads.scores[head], np.column_stack([x, np.ones(len(x))]), optimize=True)
    return float(np.nan_to_num(np.abs(read - own), nan=np.inf).max())


def expected_error(
    heads: Heads, head: int, taken: Readings, off: Floats, rounding: float, *, biased: bool, rng: np.random.Generator
) -> Floats:
    """Error of ``[W | c]`` to expect from answers with relative ``rounding`` and V that are ``off``, by one simulated draw."""
    u, x, _ = taken.flat()
    on = heads.sigmoids(u, x)
    own = np.maximum(np.abs(u @ heads.values[head]) * (on * (1.0 - on))[:, head], 2.0**-500)  # saturated: known to no digit
    answers = (on * sizes_of(heads.values, u)).sum(axis=1) + sizes_of(heads.values, x).sum(axis=1)  # what is off adds nothing
    columns = np.column_stack([x, np.ones(len(x))]) @ heads.scores[head].T
    terms = 2.0 * np.sqrt(((u**2 + x**2) * columns**2).sum(axis=1))  # of a score, as those of an answer
    blur = rounding * (answers / own + terms) * rng.normal(size=len(u)) + (on * (u @ off.T)).sum(axis=1) / own
    return taken.solve(blur, biased=biased)


def _token_axes(place: Station, *, biased: bool) -> Floats:
    """Unit directions across the head's normal; without a bias across the token too, whose length shows nothing new."""
    first = place.normal[:, None] if biased else np.stack([place.normal, place.token], axis=1)
    q, _ = np.linalg.qr(np.concatenate([first, np.eye(len(place.token))], axis=1))
    return np.asarray(q[:, first.shape[1] : len(place.token)].T)


def _first_estimate(place: Station, value: Floats, steps: Floats, across: Floats, *, biased: bool) -> Task:
    """``[W | c]`` as far as it shows in the station's own row and column: shorter steps give ``W x + c`` at the token.

    Returns how many times nearer than ``steps`` each step was, for all but the first, with the scores and the responses there; the
    estimate; and how it changes with the score at the station itself, which is taken for zero.
    """
    width, length = len(place.step), np.linalg.norm(place.step)
    terms = np.linalg.norm(place.normal) * np.linalg.norm(place.token) + abs(place.offset)
    leads = np.full(width, max(1.0, place.share * terms / (SCALAR.first_score * np.sqrt(width))))
    scores, responses = np.full(width, np.nan), np.zeros(width)
    for _ in range(12):
        todo = 1 + np.flatnonzero(~(np.abs(scores[1:]) < SCALAR.readable))
        if not len(todo):
            break
        taken = nearer(steps, leads)[todo]
        tokens = np.repeat(place.token[None], len(todo), axis=0)
        responses[todo] = yield [Probe(step, place.token) for step in taken]
        low = place.background(taken, tokens, 1.0)
        scores[todo] = log_odds(responses[todo] - low, low + taken @ value - responses[todo])
        leads[todo[~(np.abs(scores[todo]) < SCALAR.readable)]] *= 8.0
    own, token = np.append(place.normal, place.offset), np.append(place.token, float(biased))
    seen = token / (token @ token)
    sizes = place.share * length / leads[1:]
    column, change = np.nan_to_num(scores[1:] / sizes) @ across, (1.0 / sizes) @ across
    estimate = np.outer(place.step / length**2, own) + np.outer(column, seen)
    return leads, scores, responses, estimate, np.outer(change, seen)
