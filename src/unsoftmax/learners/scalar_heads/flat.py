"""Heads that no token switches: W = 0, with or without a bias c."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from unsoftmax.errors import NotIdentifiableError
from unsoftmax.learners.scalar_heads.clusters import Sample, check_members, fit_members, match, members_error, split_at
from unsoftmax.learners.scalar_heads.loewner import Split
from unsoftmax.learners.scalar_heads.measure import Heads, no_others, orthonormal
from unsoftmax.learners.scalar_heads.pairs import Pairs, Probe, Task, log_odds, run_together
from unsoftmax.learners.scalar_heads.settings import SCALAR
from unsoftmax.learners.scalar_heads.sketch import Sketch
from unsoftmax.learners.scalar_heads.walk import Scales
from unsoftmax.models import Floats


def flat_heads(pairs: Pairs, scales: Scales, direction: Floats, *, rng: np.random.Generator) -> tuple[Heads, float]:
    """All heads of a target whose answers depend on x only through its one-token part, and their expected error: by copies."""
    width = len(direction)
    if not scales.biased:  # scores vanish: one head, the mean of the tokens
        return Heads(np.zeros((1, width, width + 1)), pairs.total[None]), 0.0
    heads, error = run_together([_split_biases(scales.step * direction, pairs.total, rng)], pairs.respond_to)[0]
    return heads, error


def _split_biases(step: Floats, total: Floats, rng: np.random.Generator) -> Task:
    """Values V and biases c of heads with W = 0, from splits at one step and at one move across it per direction."""
    token = np.zeros(len(step))
    for fraction in (1 / 16, 1 / 64, 1 / 4, 1 / 256, 1 / 1024):
        base = yield from split_at(fraction * step, token)
        if base is not None and _complete(base, float(total @ step) * fraction):
            break
    else:
        raise NotIdentifiableError("The heads have W = 0 and biases c that copies cannot tell apart.")
    here = fraction * step
    basis = orthonormal(here)
    length = float(np.linalg.norm(here))
    values, biases = np.outer(base.values, here) / length**2, np.outer(base.scores, here) / length**2
    for direction in basis[1:]:
        move = length / 64.0  # short: values and scores of two heads must not trade places
        for _ in range(8):
            found = yield from split_at(here + move * direction, token)
            if found is not None and len(found.values) == len(base.values):
                break
            move /= 4.0
        else:
            raise NotIdentifiableError("The number of heads with W = 0 changes from step to step.")
        order = match(base, found)
        values += np.outer(found.values[order] - base.values, direction) / move
        biases += np.outer(found.scores[order] - base.scores, direction) / move
    scores = np.zeros((*values.shape, len(step) + 1))
    scores[:, :, -1] = biases
    sides = rng.normal(size=(4 * values.size + 20, len(step)))
    steps = here + 0.7 * length * sides / np.linalg.norm(sides, axis=1, keepdims=True)
    return (yield from _fitted(scores, values, steps, np.zeros_like(steps), biased=True))


def _fitted(scores: Floats, values: Floats, steps: Floats, tokens: Floats, *, biased: bool) -> Task:
    """Fit all heads together to questions with several numbers of copies; returns them and their expected error."""
    kinds = [SCALAR.kinds[i % len(SCALAR.kinds)] for i in range(len(steps))]
    responses = yield [Probe(u, x, copies) for u, x, copies in zip(steps, tokens, kinds, strict=True)]
    sample = Sample((tokens + steps) - tokens, tokens, np.array([a / b for a, b in kinds]), np.array(responses))
    scores, values = fit_members(scores, values, sample, no_others, biased=biased)
    check_members(scores, values, sample, no_others, biased=biased)
    return Heads(scores, values), members_error(scores, values, sample, SCALAR.rounding, biased=biased)


def _complete(found: Split, total: float) -> bool:
    """Whether no head was saturated, hence overlooked: the values add up and nothing is left as background."""
    close = 1e-6 * float(np.abs(found.values).max(initial=0.0))
    return len(found.values) > 0 and max(abs(found.background), abs(found.values.sum() - total)) <= close


def narrow_heads(pairs: Pairs, scales: Scales, *, rng: np.random.Generator) -> tuple[Heads, float]:
    """Heads of width 1 without biases, and their expected error: scores ``u w x`` vanish together, so copies tell them apart."""
    heads, error = run_together([_split_narrow(scales, float(pairs.total[0]), rng)], pairs.respond_to)[0]
    return heads, error


def _split_narrow(scales: Scales, total: float, rng: np.random.Generator) -> Task:
    for fraction in 2.0 ** -np.arange(3.0, 16.0):
        u, x = np.array([scales.step]), np.array([scales.reach * fraction])
        base = yield from split_at(u, x)
        if base is not None and _complete(base, total * scales.step):
            break
    else:
        raise NotIdentifiableError("The heads share all their hyperplanes and copies cannot tell them apart.")
    scores = np.zeros((len(base.values), 1, 2))
    scores[:, 0, 0] = base.scores / (u[0] * x[0])
    tokens = rng.uniform(-3.0, 3.0, size=(60, 1)) * x
    return (yield from _fitted(scores, base.values[:, None] / u, np.tile(u, (60, 1)), tokens, biased=False))


def lone_bias(pairs: Pairs, sketch: Sketch, values: Floats, *, rng: np.random.Generator) -> Floats:
    """The bias c of the one head with W = 0, while far tokens hold all others saturated: about ``width + 8`` questions."""
    width = len(sketch.step)
    tokens = sketch.reach * rng.normal(size=(400, width))
    scores = np.abs(tokens @ sketch.normals.T + sketch.offsets).min(axis=1)
    token = tokens[int(np.argmax(scores))]
    value = values[-1]
    zoom = 1.0
    basis = orthonormal(sketch.step)
    length = float(np.linalg.norm(sketch.step))

    def read(moves: Floats, zoom: float) -> tuple[Floats, Floats]:
        far = token * 64.0 * SCALAR.saturated / (scores.max() * zoom)
        steps = zoom * (sketch.step + moves)
        responses, actual = pairs.respond(steps, np.tile(far, (len(steps), 1)))
        on = (sketch.normals @ far + sketch.offsets > 0.0).astype(np.float64)
        low = actual @ (on @ values[: len(on)])
        return log_odds(responses - low, low + actual @ value - responses), actual

    for _ in range(40):
        score = read(np.zeros((1, width)), zoom)[0][0]
        if abs(score) < 4.0:
            break
        zoom /= 4.0
    moves = np.concatenate([np.zeros((1, width)), length / 8.0 * basis[1:]])
    read_scores, steps = read(moves, zoom)
    if not np.isfinite(read_scores).all():
        raise NotIdentifiableError("A head with W = 0 answers unlike any sigmoid of its bias c.")
    return np.asarray(np.linalg.solve(steps, read_scores))


def refine_bias(pairs: Pairs, heads: Heads, head: int) -> Heads:
    """Read the bias c of a head with W = 0 again, now that all others are known: ``width`` questions."""
    width = heads.values.shape[1]
    bias, value = heads.scores[head, :, width], heads.values[head]
    basis = orthonormal(value)  # steps that show the head: its value along all of them
    steps = (np.eye(width) * 0.5 + np.ones((width, 1)) * np.eye(width)[0]) @ basis
    steps *= 1.0 / np.linalg.norm(bias)
    tokens = np.zeros_like(steps)
    responses, actual = pairs.respond(steps, tokens)
    low = heads.others([head], actual, tokens)
    scores = log_odds(responses - low, low + actual @ value - responses)
    if not np.isfinite(scores).all() or np.abs(scores - actual @ bias).max() > 1e-2:
        raise NotIdentifiableError("A head with W = 0 contradicts its own bias c.")
    renewed = heads.scores.copy()
    renewed[head, :, width] = np.linalg.solve(actual, scores)
    return Heads(renewed, heads.values)


def activation(bias: Floats | None, u: Floats, ratio: Floats | float) -> Floats:
    """Activation of a head with W = 0."""
    return np.asarray(expit((0.0 if bias is None else u @ bias) + np.log(ratio) + np.zeros(len(u))))
