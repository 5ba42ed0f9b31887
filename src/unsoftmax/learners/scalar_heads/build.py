"""From jumps to heads: hyperplanes, values, and every head's scores, while the others are silent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unsoftmax.errors import NotIdentifiableError
from unsoftmax.learners.scalar_heads.clusters import Members, Sample, check_members, fit_members, measure_cluster, open_cluster
from unsoftmax.learners.scalar_heads.flat import activation
from unsoftmax.learners.scalar_heads.measure import Background, Heads, Readings, improve, measure
from unsoftmax.learners.scalar_heads.pairs import Pairs, run_together
from unsoftmax.learners.scalar_heads.settings import SCALAR
from unsoftmax.learners.scalar_heads.sketch import Cluster, Sketch, first_station, read_normal
from unsoftmax.learners.scalar_heads.walk import Crossing, Levels, Line, Scales
from unsoftmax.models import Floats


def sketch_heads(
    pairs: Pairs, line: Line, crossings: list[Crossing], levels: Levels, scales: Scales, *, merge: bool = False
) -> Sketch:
    """Hyperplanes of all heads.

    With ``merge`` jumps that are not one head's are read as if they were, and hyperplanes almost alike become one.
    """
    if merge and any(not crossing.single and crossing.zoom > SCALAR.zoom for crossing in crossings):
        raise NotIdentifiableError("Some jumps are not one head's even when magnified: they are merged only at a lower zoom.")
    singles = [crossing for crossing in crossings if crossing.single or merge]
    shared = [crossing for crossing in crossings if not (crossing.single or merge)]
    tasks = [read_normal(line, crossing, biased=scales.biased) for crossing in singles]
    tasks += [open_cluster(line, crossing, levels.size, biased=scales.biased) for crossing in shared]
    results = run_together(tasks, pairs.respond_to)
    normals, offsets = [r[0] for r in results[: len(singles)]], [r[1] for r in results[: len(singles)]]
    clusters = [Cluster([i], single=True) for i in range(len(singles))]
    jumps = [crossing.jump for crossing in singles]
    left = sum(crossing.jump for crossing in singles if crossing.slope < 0.0)
    members: Members
    for members in results[len(singles) :]:
        rate = members.normals @ line.along
        moving = np.linalg.norm(members.normals, axis=1) > 1e-7 * np.linalg.norm(members.normals, axis=1).max()
        units = []
        for side in (rate > 0.0, rate < 0.0):
            if not (chosen := np.flatnonzero(side & moving)).size:
                continue
            lead = chosen[int(np.argmax(np.abs(rate[chosen])))]
            units.append(len(normals))
            normals.append(members.normals[lead])
            offsets.append(float(members.offsets[lead]))
            jumps.append(float(members.values[chosen].sum()))
            left += jumps[-1] if rate[lead] < 0.0 else 0.0
        clusters.append(Cluster(units, single=False))
    step = line.step * line.direction
    rest, rest_left = float(pairs.total @ step) - sum(jumps), levels.height - left
    extra = _unswitched(rest, rest_left, levels, biased=scales.biased)
    rows, shifts = np.array(normals).reshape(-1, len(step)), np.array(offsets)
    if not len(rows) or not np.isfinite(rows).all() or not np.linalg.norm(rows, axis=1).all():
        raise NotIdentifiableError("Answers depend on the tokens, but no jump was found that one head explains.")
    if merge:
        rows, shifts = _merged(rows, shifts)
        clusters = [Cluster([i], single=True) for i in range(len(rows))]
    ratios = np.abs(shifts) / np.linalg.norm(rows, axis=1)
    reach = float(np.median(ratios[ratios > 1e-6 * ratios.max()])) if scales.biased and ratios.any() else line.reach
    return Sketch(step, reach, rows, shifts, clusters, extra, scales.biased)


def _merged(normals: Floats, offsets: Floats) -> tuple[Floats, Floats]:
    """One hyperplane, the mean, for all that agree to five hundredths."""
    rows = np.column_stack([normals, offsets])
    groups: list[list[int]] = []
    for i, row in enumerate(rows):
        near = [group for group in groups if np.linalg.norm(row - rows[group[0]]) < 0.05 * np.linalg.norm(row)]
        (near[0] if near else groups).append(i if near else [i])  # type: ignore[arg-type]  # a group takes a number, the groups a group
    means = np.array([rows[group].mean(axis=0) for group in groups])
    return means[:, :-1], means[:, -1]


def _unswitched(rest: float, rest_left: float, levels: Levels, *, biased: bool) -> Floats:
    """Activation of the one head with W = 0, if what the others leave over behaves like one; no head if nothing is left over."""
    lift, close = levels.lift, SCALAR.levels * levels.size
    if max(abs(rest), abs(rest_left), abs(lift)) <= close:
        return np.zeros(0)
    for on, raised in ((0.5, 2.0 / 3.0), (1.0, 1.0), (0.0, 0.0)):
        if abs(rest_left - on * rest) <= close and abs(lift - (raised - on) * rest) <= close and (biased or on == 0.5):
            return np.array([on])
    raise NotIdentifiableError(
        "The jumps found do not add up to the sum of all V: two heads may jump at the same place in opposite directions.",
        evidence={"left_over": rest / levels.size},
    )


@dataclass
class Measured:
    """All heads, and the questions that each was read from: readings of single heads, samples of clusters."""

    heads: Heads
    readings: dict[int, Readings]
    samples: list[tuple[list[int], Sample]]
    off: Floats  # a draw of the error of V


def measure_heads(
    pairs: Pairs, sketch: Sketch, values: Floats, off: Floats, bias: Floats | None, *, rng: np.random.Generator
) -> Measured:
    """Measure every cluster at its own station: single heads row by row, others by a joint fit; a head without W comes last.

    Beside a head much stronger than they are, nothing short silences faint heads: they are measured first, and subtracted. Heads
    that are hard to see while all others are silenced wait for those that are not: what is known may speak.
    """
    lone = values[len(sketch.normals) :]
    sizes = sketch.reach * np.linalg.norm(sketch.normals, axis=1) + np.abs(sketch.offsets)
    strengths = [float(sizes[cluster.units].max()) for cluster in sketch.clusters]
    faint = [[j for j, other in enumerate(strengths) if other < SCALAR.faint * own] for own in strengths]
    turn = np.zeros(len(faint), dtype=int)
    if not any(faint):
        alone = [first_station(sketch, values, cluster, [], [], rng=rng)[0] for cluster in sketch.clusters]
        turn = np.argsort(np.argsort([place.noise for place in alone])) * SCALAR.stages // len(alone)
    results: dict[int, Any] = {}
    found: dict[int, Heads] = {}
    while len(found) < len(sketch.clusters):
        able = [i for i, others in enumerate(faint) if i not in found and found.keys() >= set(others)]
        ready = [i for i in able if turn[i] == min(turn[able])]
        tasks = []
        for i in ready:
            cluster = sketch.clusters[i]
            known = faint[i] if any(faint) else list(found)
            units = [unit for j in known for unit in sketch.clusters[j].units]
            place, on = first_station(sketch, values, cluster, *((units, []) if any(faint) else ([], units)), rng=rng)
            place.background = _levels(on @ values[: len(on)], lone.sum(axis=0), bias, [found[j] for j in known])
            if cluster.single:
                tasks.append(measure(place, values[cluster.units[0]], biased=sketch.biased))
            else:
                tasks.append(measure_cluster(place, biased=sketch.biased, rng=rng))
        for i, result in zip(ready, run_together(tasks, pairs.respond_to), strict=True):
            single, results[i] = sketch.clusters[i].single, result
            found[i] = Heads(result[0][None], values[sketch.clusters[i].units]) if single else Heads(*result[:2])
    readings: dict[int, Readings] = {}
    samples: list[tuple[list[int], Sample]] = []
    shares: list[Floats] = []
    count = 0
    for i, cluster in enumerate(sketch.clusters):
        if cluster.single:
            readings[count] = results[i][1]
        else:
            samples.append((list(range(count, count + len(found[i].values))), results[i][2]))
        count += len(found[i].values)
        shares.append(
            off[cluster.units] if cluster.single else np.zeros_like(found[i].values)
        )  # values of several come from their fit
    last = np.zeros((len(lone), len(sketch.step), len(sketch.step) + 1))
    last[:, :, -1] = 0.0 if bias is None else bias
    blocks = [found[i] for i in range(len(found))]
    scores = np.concatenate([*(heads.scores for heads in blocks), last])
    return Measured(
        Heads(scores, np.concatenate([*(heads.values for heads in blocks), lone])),
        readings,
        samples,
        np.concatenate([*shares, off[len(sketch.normals) :]]),
    )


def _levels(level: Floats, lone: Floats, bias: Floats | None, known: list[Heads]) -> Background:
    """What saturated heads add, of ``level`` together, and one without W, of value ``lone``, and known ones."""

    def background(u: Floats, x: Floats, ratio: Floats | float) -> Floats:
        told = u @ level + (u @ lone) * activation(bias, u, ratio)
        return np.asarray(told + sum(heads.others([], u, x, ratio) for heads in known))

    return background


def refine(measured: Measured, *, biased: bool) -> Measured:
    """Read everything again with what the other heads really add, now that they are known; no questions."""
    heads = measured.heads
    for _ in range(3):
        heads = improve(heads, measured.readings, biased=biased)
        for members, sample in measured.samples:
            scores, values = heads.scores.copy(), heads.values.copy()
            fitted = fit_members(heads.scores[members], heads.values[members], sample, _all_but(heads, members), biased=biased)
            scores[members], values[members] = fitted
            heads = Heads(scores, values)
    for members, sample in measured.samples:
        check_members(heads.scores[members], heads.values[members], sample, _all_but(heads, members), biased=biased)
    return replace(measured, heads=heads)


def _all_but(heads: Heads, members: list[int]) -> Background:
    return lambda u, x, ratio: heads.others(members, u, x, ratio)
