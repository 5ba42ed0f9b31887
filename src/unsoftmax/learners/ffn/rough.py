"""ReLU networks from answers of short precision: several lines read on their own, what they agree on, and one fit to all answers.

In float32 a line is read wrongly here and there: two bends close together pass for one, a step beside a bend crosses it. Another
line meets the same hyperplanes elsewhere. So hyperplanes are gathered from one line after another until a least-squares fit of
those that explain the answers leaves nothing of them but the noise that was measured beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from unsoftmax.errors import TooNoisyError, tried
from unsoftmax.learners.ffn.forms import Found, to_network
from unsoftmax.learners.ffn.gradients import CrowdedCellError
from unsoftmax.learners.ffn.hinges import Hinges, merge_parallel, moved_by, shifted
from unsoftmax.learners.ffn.kinks import nearness
from unsoftmax.learners.ffn.normal_equations import NormalEquations, factored, gram_and_pull, pulled_each
from unsoftmax.learners.ffn.places import Places
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A network fitted to all answers: its normal equations, and the root mean square and sum of squares of what it misses, in
    expected errors."""

    hinges: Hinges
    system: NormalEquations
    misfit: float
    squares: float

    def certainty(self) -> Floats:
        """Strength ``|normal|`` of each bend in its standard errors, ``(neurons,)``."""
        neurons, width = self.hinges.normal.shape
        lengths = np.maximum(np.linalg.norm(self.hinges.normal, axis=1), 1e-300)
        right = np.zeros((len(self.system.scales), neurons))
        for j in range(neurons):
            right[j * (width + 1) : j * (width + 1) + width, j] = self.hinges.normal[j] / lengths[j]
        errors = self.misfit * np.sqrt(np.maximum(np.einsum("ij,ij->j", right, self.system.solve(right)), 0.0))
        return np.asarray(lengths / np.maximum(errors, 1e-300))


def find_roughly(questions: Questions, places: Places, rng: np.random.Generator) -> Found:
    """Learn the network from answers with a relative error; every neuron that is handed over stands far beyond its error."""
    width = questions.width
    scale = float(np.sqrt(width)) if places.max_norm is None else min(float(np.sqrt(width)), 0.25 * places.max_norm)
    stretches = _stretches(questions, places, scale, rng)
    size = float(np.sqrt(np.mean(np.sum(stretches[1] ** 2, axis=2))))
    lines: list[Hinges] = []
    fitted: Fitted | None = None
    for _ in range(RELU.lines):
        line = places.line(width, scale, 0.0, rng)
        line = replace(line, reach=min(line.reach, RELU.rough_reach * scale), partial=True)
        questions.offset = questions.slope = 0.0  # the line finds sizes that suit its own judgements
        read = tried(partial(line.run, questions, None, rng=rng), CrowdedCellError)
        if isinstance(read, CrowdedCellError):  # this one cannot be read; the next may
            continue
        lines.append(read)
        questions.offset, questions.slope = size, size / scale
        planes, seen = _agreed(lines)
        if len(lines) >= RELU.strangers and (seen > 1).sum() < RELU.same * min(read.neurons for read in lines):
            raise TooNoisyError(
                f"{len(lines)} lines and {len(questions.points)} questions: hardly any of the {len(planes)} bends that they met "
                "lie on a hyperplane that two of them met. A ReLU network with one hidden layer bends on the same ones everywhere; "
                "a smooth or deeper one does not. Answers this coarse do not tell which it is: ask for them in float64.",
                model=None if fitted is None else to_network(fitted.hinges),
            )
        fitted = _fitted(questions, places, planes, seen, scale, rng)
        noise = _noise(questions, stretches)
        if np.any(seen > 1):  # else no hyperplane was left out
            fitted = _with_faint(questions, fitted, planes, noise)
        for _ in range(RELU.checked):
            if fitted.misfit > RELU.excess * noise:
                break
            fitted = _without_needless(questions, fitted)
            found = _checked(questions, places, fitted, noise, scale, line.reach, rng)
            if found is not None:
                return found
            fitted = polished(questions, fitted.hinges)  # what the check asked tells of places that were not asked before
    neurons = 0 if fitted is None else fitted.hinges.neurons
    raise TooNoisyError(
        f"After {len(lines)} lines and {len(questions.points)} questions no ReLU network with one hidden layer explains the "
        f"answers to their precision with every neuron beyond doubt (about {neurons} were seen). Ask for answers in float64.",
        model=None if fitted is None else to_network(fitted.hinges),
    )


def _stretches(questions: Questions, places: Places, scale: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Points ``(places, along, width)`` on short straight stretches, and their answers ``(places, along, outputs)``."""
    phase(questions.oracle, "scale")
    middles = places.at(np.full(RELU.stretches, scale), questions.width, rng)
    steps = places.at(np.full(RELU.stretches, RELU.stretch * scale), questions.width, rng)
    points = middles[:, None] + np.sort(rng.uniform(-1, 1, size=(RELU.stretches, RELU.along)), axis=1)[:, :, None] * steps[:, None]
    return points, questions.ask(points.reshape(-1, questions.width)).reshape(RELU.stretches, RELU.along, -1)


def _noise(questions: Questions, stretches: tuple[Floats, Floats]) -> float:
    """Noise of the answers in expected errors: what straight lines leave of them; the median over places, for some hold a bend."""
    points, answers = stretches
    along = np.linalg.norm(points - points[:, :1], axis=2)
    left = []
    for t, y, x in zip(along, answers, points, strict=True):
        line = np.stack([np.ones(RELU.along), t], axis=1)
        off = y - line @ np.linalg.lstsq(line, y, rcond=None)[0]
        left.append(np.sqrt((off**2).sum() / ((RELU.along - 2) * y.shape[1])) / float(np.mean(questions.noise(x))))
    return float(max(np.median(left), 2.0**-6))  # answers on a coarse grid may lie on a line by chance


def _agreed(lines: list[Hinges]) -> tuple[Floats, Floats]:
    """Unit hyperplanes ``(n, width + 1)`` that lines met, readings of one and the same averaged, and on how many lines ``(n,)``."""
    planes: list[Floats] = []
    seen: list[int] = []
    for read in lines:
        lengths = np.linalg.norm(read.normal, axis=1)
        rows = np.concatenate([read.normal, read.shift[:, None]], axis=1)[lengths > 0]
        known = len(planes)
        for row in rows / lengths[lengths > 0, None]:
            size = float(np.linalg.norm(row))
            for i in range(known):
                sign = np.sign(row @ planes[i])
                if np.linalg.norm(sign * row - planes[i]) <= RELU.one_plane * size:
                    planes[i] = (seen[i] * planes[i] + sign * row) / (seen[i] + 1)
                    seen[i] += 1
                    break
            else:
                planes.append(row)
                seen.append(1)
    width = lines[0].normal.shape[1]
    return np.array(planes).reshape(-1, width + 1), np.array(seen, dtype=np.float64)


def _fitted(questions: Questions, places: Places, planes: Floats, seen: Floats, scale: float, rng: np.random.Generator) -> Fitted:
    """A network on these hyperplanes, fitted to all answers, random points among them that know every parameter."""
    width, outputs = questions.width, questions.answers.shape[1]
    kept = _needed(questions, planes, seen)
    hinges = _strengths(questions, planes[kept])
    parameters = (hinges.neurons * (width + 1 + outputs) + (width + 1) * outputs) / outputs
    phase(questions.oracle, "random points")
    missing = int(RELU.per_parameter * parameters) - questions.marked
    if missing > 0:
        length = places.length(hinges, scale) if hinges.neurons else scale
        points = places.random(hinges, length, missing, rng) if hinges.neurons else places.at(np.full(missing, scale), width, rng)
        questions.ask(points)
        questions.marked += missing
    return polished(questions, _strengths(questions, planes[kept]))


def _needed(questions: Questions, planes: Floats, seen: Floats) -> list[int]:
    """Hyperplanes that several lines met, and those of one line alone without which the answers are explained less well."""
    kept = [int(i) for i in np.flatnonzero(seen > 1)] if np.any(seen > 1) else list(range(len(planes)))
    weights = 1 / questions.noise(questions.points)[:, None]
    extended = np.concatenate([questions.points, np.ones((len(questions.points), 1))], axis=1)
    features = np.concatenate([np.maximum(extended @ planes.T, 0.0), extended], axis=1) * weights
    features /= np.maximum(np.linalg.norm(features, axis=0), 1e-300)
    affine = list(range(len(planes), features.shape[1]))
    while len(kept) < len(planes):
        basis = np.linalg.qr(features[:, kept + affine])[0]
        left = questions.answers * weights
        left = left - basis @ (basis.T @ left)
        beside = features[:, : len(planes)] - basis @ (basis.T @ features[:, : len(planes)])
        sizes = np.einsum("ij,ij->j", beside, beside)
        gains = np.where(sizes > 1e-12, np.sum((beside.T @ left) ** 2, axis=1) / np.maximum(sizes, 1e-300), 0.0)
        gains[kept] = 0.0
        best, total = int(np.argmax(gains)), float(np.sum(left**2))
        if gains[best] < (1 - RELU.better**2) * total:
            break
        kept.append(best)
    return kept


def _with_faint(questions: Questions, fitted: Fitted, planes: Floats, noise: float) -> Fitted:
    """Add, best first, the hyperplanes left out so far that explain what is still missed: faint neurons are read too roughly to be
    told from wrong readings by their strength, but a fit that begins near one finds it.
    """
    tried: set[int] = set()
    vain = 0
    while fitted.misfit > RELU.excess * noise and vain < RELU.vain:
        gains, outs = _gains(questions, fitted, planes)
        gains[list(tried)] = 0.0
        if gains.max(initial=0.0) < RELU.least_gain * fitted.misfit**2 * questions.answers.size:
            break
        best = int(np.argmax(gains))
        tried.add(best)
        out, hinges = outs[best], fitted.hinges
        length = float(np.linalg.norm(out))
        new = Hinges(
            out[None] / length, planes[best : best + 1, :-1] * length, planes[best : best + 1, -1] * length,
            np.zeros_like(hinges.linear), np.zeros_like(hinges.constant),
        )  # fmt: skip
        trial = polished(questions, hinges.plus(new))
        if trial.misfit < RELU.better * fitted.misfit:
            fitted, vain = trial, 0
        vain += 1
    return fitted


def _gains(questions: Questions, fitted: Fitted, planes: Floats) -> tuple[Floats, Floats]:
    """By how much a neuron on each hyperplane would lower the sum of squares, ``(n,)``, and its output weights ``(n, outputs)``."""
    points, hinges, system = questions.points, fitted.hinges, fitted.system
    weights = 1 / questions.noise(points)
    residual = (questions.answers - hinges(points)) * weights[:, None]
    extended = np.concatenate([points, np.ones((len(points), 1))], axis=1)
    gains, outs = np.zeros(len(planes)), np.zeros((len(planes), residual.shape[1]))
    features = np.maximum(extended @ planes.T, 0.0) * weights[:, None]
    pulls = features.T @ residual
    sizes = np.linalg.norm(pulls, axis=1)
    heard = np.flatnonzero(sizes > 0)
    if not len(heard):
        return gains, outs
    directions = pulls[heard] / sizes[heard, None]
    along = pulled_each(hinges, system.centre, points, weights, features[:, heard], directions)
    squares = np.einsum("ij,ij->j", features[:, heard], features[:, heard])
    left = squares - np.einsum("ij,ij->j", along, system.solve(along))
    told = left > 1e-12 * squares  # else the neurons that are there already do what it would
    gains[heard[told]] = sizes[heard[told]] ** 2 / left[told]
    outs[heard[told]] = pulls[heard[told]] / left[told, None]
    return gains, outs


def _strengths(questions: Questions, planes: Floats) -> Hinges:
    """The network on given hyperplanes whose outputs and affine part explain all answers best: linear least squares."""
    points, answers, width = questions.points, questions.answers, questions.width
    extended = np.concatenate([points, np.ones((len(points), 1))], axis=1)
    weights = 1 / (1 + np.linalg.norm(points, axis=1) / np.sqrt(width))
    features = np.concatenate([np.maximum(extended @ planes.T, 0.0), extended], axis=1) * weights[:, None]
    scales = np.maximum(np.linalg.norm(features, axis=0), 1e-300)
    solution = np.linalg.lstsq(features / scales, answers * weights[:, None], rcond=1e-10)[0] / scales[:, None]
    out, affine = solution[: len(planes)], solution[len(planes) :]
    lengths = np.linalg.norm(out, axis=1)
    rows = planes * lengths[:, None]
    return Hinges(out / np.maximum(lengths, 1e-300)[:, None], rows[:, :-1], rows[:, -1], affine[:-1].T, affine[-1])


def polished(questions: Questions, hinges: Hinges) -> Fitted:
    """Damped Gauss-Newton on every parameter and all answers, each in the linear piece where the model has it by now."""
    points, answers = questions.points, questions.answers
    weights = 1 / questions.noise(points)
    centre = np.asarray(np.average(points, axis=0, weights=weights))
    residual = (answers - hinges(points)) * weights[:, None]
    lowest, damping = float(np.sum(residual**2)), 1e-3
    for _ in range(RELU.damped):
        gram, pull = gram_and_pull(hinges, centre, points, weights, residual)
        before = lowest
        for _ in range(8):
            damped = gram.copy()
            damped[np.diag_indices_from(damped)] += damping * np.diag(gram)
            trial = shifted(moved_by(shifted(hinges, centre), factored(damped, centre).solve(pull)), -centre)
            gaps = (answers - trial(points)) * weights[:, None]
            total = float(np.sum(gaps**2))
            if total < lowest:
                hinges, residual, lowest, damping = trial, gaps, total, damping / 8
                break
            damping *= 8
        if lowest > (1 - RELU.settled) * before:
            break
    system = factored(gram_and_pull(hinges, centre, points, weights, residual)[0], centre)
    freedom = max(1, residual.size - len(system.scales))
    return Fitted(hinges, system, float(np.sqrt(lowest / freedom)), lowest)


def _without_needless(questions: Questions, fitted: Fitted) -> Fitted:
    """Leave out, weakest first, the neurons without which the answers are explained as well; readings of one are joined."""
    merged = merge_parallel(fitted.hinges, nearness(questions.floor.relative))
    if merged.neurons < fitted.hinges.neurons:
        trial = polished(questions, merged)
        fitted = trial if trial.misfit <= RELU.excess * fitted.misfit else fitted
    width, outputs = questions.width, questions.answers.shape[1]
    while fitted.hinges.neurons:
        certainty = fitted.certainty()
        weakest = int(np.argmin(certainty))
        if certainty[weakest] > RELU.sure:
            break
        trial = polished(questions, fitted.hinges.keep(np.delete(np.arange(fitted.hinges.neurons), weakest)))
        if trial.squares - fitted.squares > RELU.needless * (width + outputs) * fitted.misfit**2:
            break
        fitted = trial
    return fitted


def _checked(
    questions: Questions, places: Places, fitted: Fitted, noise: float, scale: float, reach: float, rng: np.random.Generator
) -> Found | None:
    """What was found, if every neuron is sure and fresh points are answered as foretold; else None."""
    hinges = fitted.hinges
    if np.any(fitted.certainty() < RELU.sure):
        return None
    length = places.length(hinges, scale) if hinges.neurons else scale
    phase(questions.oracle, "check")
    points = places.at(np.repeat([0.5 * length, length, 4 * length], RELU.rough_checks // 3), questions.width, rng)
    answers = questions.ask(points)
    off = np.abs(answers - hinges(points)).max(axis=1)
    if np.any(off > RELU.beyond * RELU.excess * noise * questions.noise(points)):
        return None
    near = np.linalg.norm(points, axis=1) <= 2 * length
    close = np.linalg.norm(questions.points, axis=1) <= 2 * length
    spread = float(np.linalg.norm(np.std(questions.answers[close], axis=0))) or 1.0
    questions.settle(np.full(len(questions.points), True), questions.points)  # where lines thought them to lie is no use any more
    return Found(hinges, fitted.system if hinges.neurons else None, length, spread, float(off[near].max()) / spread, reach)
