"""Standard errors of a fitted layer: from the full normal matrix of scores and values, or from draws where that is too large."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from unsoftmax.learners.from_examples.data import Frame
from unsoftmax.learners.from_examples.fit import damped_steps
from unsoftmax.learners.from_examples.layer import Linearised
from unsoftmax.learners.from_examples.search import Candidate
from unsoftmax.learners.from_examples.settings import EXAMPLES
from unsoftmax.models import Floats
from unsoftmax.results import Bounds


def error_bars(candidate: Candidate, frame: Frame, rng: np.random.Generator, *, scalar: bool) -> Bounds | None:
    """95% half-widths of W, V, c and b in the user's coordinates; None where the parameters are not determined.

    The errors of the answers are taken as independent and of equal size, estimated with the degrees of freedom counted.
    """
    problem, heads = candidate.problem, candidate.heads
    spare = problem.equations - candidate.unknowns
    variance = candidate.fit.point.size**2 / max(spare, 1)
    if candidate.unknowns > EXAMPLES.largest:
        return _bars_from_draws(candidate, frame, float(np.sqrt(variance)), rng, scalar=scalar)
    try:
        covariance = variance * scipy.linalg.inv(normal_matrix(candidate), check_finite=False)
    except scipy.linalg.LinAlgError:
        return None
    queries, keys, tokens = problem.queries.shape[2], problem.keys.shape[2], problem.values.shape[2]
    outputs, scores = problem.answers.shape[1], queries * heads * keys
    score_part = covariance[:scores, :scores].reshape(queries, heads, keys, queries, heads, keys)
    value_part = covariance[scores:, scores:].reshape(-1, outputs, covariance.shape[0] // outputs - scores // outputs, outputs)
    directions = frame.query_map.shape[1]
    W = np.empty((heads, len(frame.key_map), len(frame.query_map)))
    c = np.empty((heads, len(frame.key_map)))
    V = np.empty((heads, len(frame.value_map), outputs))
    for h in range(heads):
        block = score_part[:, h, :, :, h]
        by_query = np.einsum("bi,ijkl,bk->bjl", frame.query_map, block[:directions, :, :directions], frame.query_map, optimize=True)
        W[h] = _deviation(np.einsum("aj,bjl,al->ab", frame.key_map, by_query, frame.key_map, optimize=True))
        c[h] = _deviation(np.einsum("aj,jl,al->a", frame.key_map, block[-1, :, -1], frame.key_map, optimize=True))
        mine = slice(h * tokens, (h + 1) * tokens)
        own = np.einsum("codo->cdo", value_part[mine][:, :, mine])
        V[h] = _deviation(np.einsum("ac,cdo,ad->ao", frame.value_map, own, frame.value_map, optimize=True)) * frame.scale
    b = _deviation(np.diag(value_part[heads * tokens, :, heads * tokens])) * frame.scale if candidate.extras.constant else None
    if scalar:
        V, b = V[:, :, 0], None if b is None else b[0]
    return Bounds(kind="estimated", W=W, V=V, c=c if candidate.extras.query_bias else None, b=b)


def _bars_from_draws(candidate: Candidate, frame: Frame, noise: float, rng: np.random.Generator, *, scalar: bool) -> Bounds:
    """Error bars from the spread of the fits to random errors of the answers: each draw is one linear least-squares problem."""
    problem, point = candidate.problem, candidate.fit.point
    linear = Linearised(problem, [point], np.float32)  # the bars themselves are known to a fifth only
    total: list[Floats] = []
    for draw in range(EXAMPLES.draws):
        errors = rng.normal(size=(1, *problem.answers.shape)).astype(np.float32)
        if linear.kept is not None:
            errors *= linear.kept
        gradient = linear.adjoint(linear.project(errors))
        theta, _ = damped_steps(linear, gradient, np.zeros(1), np.array([EXAMPLES.draw_accuracy]), EXAMPLES.draw_steps)
        left = (errors - linear.with_fixed_values(theta))[0]
        basis = linear.basis[0]
        moved, _ = frame.to_model(theta[:, 0], point.inverse @ (basis.T @ left), candidate.extras, scalar=scalar)
        blocks = [np.asarray(block) ** 2 for block in (moved.W, moved.V, moved.c, moved.b) if block is not None]
        total = blocks if draw == 0 else [a + b for a, b in zip(total, blocks, strict=True)]
    bars = iter(EXAMPLES.confident_from_draws * noise * np.sqrt(block / EXAMPLES.draws) for block in total)
    W, V = next(bars), next(bars)
    c = next(bars) if candidate.extras.query_bias else None
    return Bounds(kind="estimated", W=W, V=V, c=c, b=next(bars) if candidate.extras.constant else None)


def normal_matrix(candidate: Candidate) -> Floats:
    """``J^T J`` over all parameters, scores first: rows of J are products, so it needs no J.

    The derivative of an answer in ``Theta_h`` is an outer product of the query with ``B = Cov_a(keys, tokens V_h)``.
    """
    problem, point, heads = candidate.problem, candidate.fit.point, candidate.heads
    examples, stacked, length = point.patterns.shape
    rows, outputs = problem.answers.shape
    keys, tokens = problem.keys.shape[2], problem.values.shape[2]
    patterns = point.patterns.reshape(examples, stacked // heads, heads, length)
    spoken = np.einsum("elt,hto->ehlo", problem.values, point.values[: heads * tokens].reshape(heads, tokens, outputs))
    mean_key = np.einsum("eqhl,elj->eqhj", patterns, problem.keys, optimize=True)
    mean_spoken = np.einsum("eqhl,ehlo->eqho", patterns, spoken, optimize=True)
    bend = np.einsum("eqhl,elj,ehlo->eqhjo", patterns, problem.keys, spoken, optimize=True)
    bend -= mean_key[..., None] * mean_spoken[:, :, :, None]
    bend = bend.reshape(rows, heads * keys, outputs)
    if problem.kept is not None:
        bend *= problem.kept[:, :, None]
    queries = problem.queries.reshape(rows, -1)
    asked, scores, columns = queries.shape[1], queries.shape[1] * heads * keys, point.features.shape[1]
    total = np.zeros((scores + columns * outputs,) * 2)
    corner = np.zeros((asked * asked, (heads * keys) ** 2))
    side = np.zeros((asked * columns, heads * keys * outputs))
    for start in range(0, rows, 256):  # in slices, so that no array outgrows the result
        part = slice(start, start + 256)
        pairs = bend[part] @ bend[part].transpose(0, 2, 1)
        corner += _products(queries[part], queries[part]).T @ pairs.reshape(len(pairs), -1)
        side += _products(queries[part], point.features[part]).T @ bend[part].reshape(len(pairs), -1)
    total[:scores, :scores] = corner.reshape(asked, asked, heads * keys, heads * keys).transpose(0, 2, 1, 3).reshape(scores, scores)
    mixed = side.reshape(asked, columns, heads * keys, outputs).transpose(0, 2, 1, 3).reshape(scores, -1)
    total[:scores, scores:], total[scores:, :scores] = mixed, mixed.T
    total[scores:, scores:] = np.kron(point.features.T @ point.features, np.eye(outputs))
    return total


def _products(left: Floats, right: Floats) -> Floats:
    """All products of an entry of ``left`` with one of ``right``, row by row."""
    return np.asarray((left[:, :, None] * right[:, None, :]).reshape(len(left), -1))


def _deviation(variance: Floats) -> Floats:
    return np.asarray(EXAMPLES.confident * np.sqrt(np.maximum(variance, 0.0)))
