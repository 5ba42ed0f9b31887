"""What the walk leaves: hyperplanes at one step; then the values, by switching heads on and off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import NotIdentifiableError
from unsoftmax.learners.scalar_heads.design import patterns, standpoints
from unsoftmax.learners.scalar_heads.measure import Heads, Station, orthonormal, settle, sizes_of
from unsoftmax.learners.scalar_heads.pairs import Pairs, Probe, Task, log_odds
from unsoftmax.learners.scalar_heads.settings import SCALAR
from unsoftmax.learners.scalar_heads.walk import Crossing, Line
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True)
class Cluster:
    """Units that share a hyperplane; ``single`` if it is one head standing alone."""

    units: list[int]
    single: bool


@dataclass
class Sketch:
    """Units at one step u: a unit is what jumps as one, a head or the heads of a cluster that turn on the same way.

    Attributes:
        step: u.
        reach: length of tokens at which W x and c are of one size, or any if there is no c.
        normals, offsets: scores ``normals @ x + offsets`` of the units.
        clusters: which units share a hyperplane.
        extra: activations of heads that no token switches (W = 0): 1/2 without a bias, else 0 or 1.
        biased: whether there are biases c.
    """

    step: Floats
    reach: float
    normals: Floats
    offsets: Floats
    clusters: list[Cluster]
    extra: Floats
    biased: bool


def read_normal(line: Line, crossing: Crossing, *, biased: bool) -> Task:
    """The normal ``W^T u`` and offset ``c·u`` of one head at zoom 1, from one step along each axis at its crossing."""
    width = len(line.start)
    token = line.token(crossing.t)
    sizes = np.full(width, line.reach / (crossing.zoom * abs(crossing.slope)))  # as far as moves the score by 1 along the line
    scores = np.full(width, np.nan)
    for _ in range(10):
        open_axes = np.flatnonzero(~(np.abs(scores) < 8.0))
        if not len(open_axes):
            break
        step = crossing.zoom * line.step * line.direction
        moved = [token + sizes[i] * np.eye(width)[i] for i in open_axes]
        levels = np.array((yield [Probe(step, x) for x in moved])) / crossing.zoom
        read = np.sign(crossing.slope) * log_odds(levels - crossing.low, crossing.high - levels)
        scores[open_axes] = read
        sizes[open_axes[~(np.abs(read) < 8.0)]] /= 8.0
    normal = np.nan_to_num(scores) / (sizes * crossing.zoom)
    if not biased:  # the hyperplane passes through the origin
        normal = normal - token * (normal @ token) / (token @ token)
    return normal, -float(normal @ token) if biased else 0.0


def read_values(pairs: Pairs, sketch: Sketch, *, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Every unit's V ``(units, width)``, heads that nothing switches last, and a draw of its error.

    ``(units - 1) * (width + 1)`` questions.
    """
    width, heads = len(sketch.step), len(sketch.normals) + len(sketch.extra)
    tokens, rows = patterns(sketch.normals, sketch.offsets, sketch.extra, rng=rng, reach=sketch.reach)
    if len(rows) < heads:
        raise NotIdentifiableError(
            f"The {heads} heads found cannot be switched independently: only {len(rows)} of their patterns differ. "
            "Two of them may share their scores."
        )
    if not len(tokens):
        return pairs.total[None], np.zeros((1, width))
    zooms = 32.0 * SCALAR.saturated / np.abs(tokens @ sketch.normals.T + sketch.offsets).min(axis=1)
    if not sketch.biased:  # only the product of the lengths of step and token matters: what tokens add to answers is rounded too
        stretches = np.sqrt(zooms * np.linalg.norm(sketch.step) / (SCALAR.longer * np.linalg.norm(tokens, axis=1)))
        tokens, zooms = tokens * stretches[:, None], zooms / stretches
    across = orthonormal(sketch.step)[1:]
    moves = np.linalg.norm(sketch.step) * np.concatenate([across, across.sum(axis=0, keepdims=True) / np.sqrt(width)])
    sums, draws = np.zeros((2, len(tokens), width))
    drawn = np.random.default_rng(0).normal(size=(len(tokens), width + 1))  # fixed: no part of the questions
    todo = np.arange(len(tokens))
    for size in 2.0 ** -np.array(
        [2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 15.0, 19.0, 23.0]
    ):  # of the step; smaller where a pattern changes on the way
        steps = sketch.step + np.concatenate([np.zeros((1, width)), size * moves])
        u = (zooms[todo, None, None] * steps).reshape(-1, width)
        responses, actual = pairs.respond(u, np.repeat(tokens[todo], len(steps), axis=0))
        failed = []
        for i, a, r in zip(todo, actual.reshape(len(todo), -1, width), responses.reshape(len(todo), -1), strict=True):
            sums[i], draws[i] = np.linalg.lstsq(a, np.column_stack([r, drawn[i]]), rcond=None)[0].T
            terms = np.abs(r).max() + np.abs(a).max() * pairs.size + np.abs(tokens[i] * pairs.total).sum() + abs(pairs.constant)
            if np.abs(a @ sums[i] - r).max() > SCALAR.settled * SCALAR.rounding * terms:
                failed.append(i)
        todo = np.array(failed, dtype=np.intp)
        if not len(todo):
            values = np.linalg.solve(rows, np.concatenate([pairs.total[None], sums]))
            parts = zooms * (rows[1:] @ sizes_of(values, sketch.step[None])[0]) + sizes_of(values, tokens).sum(axis=1)
            off = (SCALAR.rounding * parts + SCALAR.rounding * abs(pairs.constant))[:, None] * draws
            return values, np.linalg.solve(rows, np.concatenate([np.zeros((1, width)), off]))
    raise NotIdentifiableError("Two heads lie so close together that no step keeps one on while the other is off.")


def read_values_again(
    pairs: Pairs, heads: Heads, *, rng: np.random.Generator, reach: float, biased: bool, within: float = 1e-6
) -> Heads:
    """All V once more, now that every pattern can be foretold at any step: along the axes, without small differences.

    ``(heads - 1) * width`` questions; heads stay as they are where no set of patterns tells them apart, or where what is read is
    not ``within`` that of what was known, relative: then a pattern was not as foretold.
    """
    count, width = heads.values.shape
    steps, tokens, spans = [], [], []
    for axis in np.eye(width):
        rows = np.einsum("d,hde->he", axis, heads.scores)
        sizes = np.linalg.norm(rows[:, :width], axis=1)
        live = sizes > 1e-9 * sizes.max()
        still = 1.0 / (1.0 + np.exp(-np.clip(rows[~live, width] * 1e6, -700.0, 700.0)))  # what no token switches
        chosen, patterns_ = patterns(rows[live, :width], rows[live, width], still, rng=rng, reach=reach)
        if len(patterns_) < count:
            return heads
        for token in chosen:
            zoom = 2.0 * SCALAR.saturated / float(np.abs(rows[live, :width] @ token + rows[live, width]).min())
            stretch = 1.0 if biased else float(np.sqrt(zoom / (16.0 * np.linalg.norm(token))))
            steps.append(zoom / stretch * axis)
            tokens.append(token * stretch)
        spans.append(len(chosen))
    if count == 1:
        return Heads(heads.scores, pairs.total[None])
    responses, u = pairs.respond(np.array(steps), np.array(tokens))
    on = heads.sigmoids(u, np.array(tokens))
    values = np.zeros_like(heads.values)
    for i, span in enumerate(np.split(np.arange(len(u)), np.cumsum(spans)[:-1])):
        rows = np.concatenate([np.ones((1, count)), on[span]])
        values[:, i] = np.linalg.solve(rows, np.append(pairs.total[i], responses[span] / u[span, i]))
    close = np.linalg.norm(values - heads.values, axis=1) <= within * np.linalg.norm(heads.values, axis=1)
    return Heads(heads.scores, values) if close.all() else heads


def first_station(
    sketch: Sketch, values: Floats, cluster: Cluster, faint: list[int], known: list[int], *, rng: np.random.Generator
) -> tuple[Station, Floats]:
    """The best place to measure a cluster: units of which only hyperplanes and values are known must be saturated there.

    Returns the station and the activations of all other units there. Those that are ``known``, or ``faint`` and known, count as
    off: the former must be quiet, the latter may do as they like.
    """
    others = [i for i in range(len(sketch.normals)) if i not in (*cluster.units, *faint)]
    rows = [cluster.units[0], *others]
    # quiet is enough: known heads count as if their scores were larger
    louder = np.where(np.isin(rows, known), SCALAR.saturated / SCALAR.quiet, 1.0)
    normals, offsets = louder[:, None] * sketch.normals[rows], louder * sketch.offsets[rows]
    tokens = standpoints(normals, offsets, 0, rng=rng, reach=sketch.reach)
    place = settle(cluster.units[0], sketch.step, tokens, normals, offsets, 0, SCALAR.saturated, values[rows], biased=sketch.biased)
    on = (sketch.normals @ place.token + sketch.offsets > 0.0).astype(np.float64)
    on[[*cluster.units, *faint, *known]] = 0.0
    return place, on
