"""No more neurons than the answers need.

Two neurons in the place of one give a fit more ways to go. One of them may have helped it out of a place where it was stuck, and
be left over with nothing to add: its output weight is rounding, or the two are one once more. A network with one neuron less, whose
misfit per answer left over is no larger, explains as much by fewer numbers: it is the one that is meant. Where there are two, and
answers tell, one in their place leaves many times as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.linalg import qr, solve_triangular

from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.pairs import Pair, fitted_pairs, merged
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Floats

Fit = tuple[Curves, float, tuple[Pair, ...]]


def fewest(curves: Curves, misfit: float, pairs: tuple[Pair, ...], answers: Answers) -> Fit:
    """The fitted network without the neurons that its answers do not need, its misfit and its pairs; no question is asked."""
    while True:
        lighter = next((fit for fit in _lighter(curves, pairs, answers) if _as_good(fit, curves, misfit, answers)), None)
        if lighter is None:
            return curves, misfit, pairs
        curves, misfit, pairs = lighter


def missed_without(curves: Curves, answers: Answers) -> Floats:
    """Misfit that the network would have without each of its neurons, all others moved in its place, ``(neurons,)``.

    To first order: of what a neuron adds, as much as no step of the other parameters does.
    """
    own = answers.clear(curves)
    matrix = curves.derivatives(own.points, own.weights(curves, own.points), True)
    scales = np.sqrt(np.einsum("ij,ij->j", matrix, matrix))
    scales[scales == 0] = 1.0
    rows = np.concatenate([matrix / scales, BENDS.fitting_ridge * np.eye(len(scales))])
    inverse = solve_triangular(qr(rows, mode="r", overwrite_a=True, check_finite=False)[0][: len(scales)], np.eye(len(scales)))
    left = np.zeros(curves.neurons)
    for j in range(curves.neurons):
        columns = _columns(curves, j)
        step = np.zeros(len(columns))
        step[-curves.out.shape[1] :] = curves.out[j]
        # the block of the inverse that is its own says how little the other parameters leave of a step
        basis = np.linalg.svd(inverse[columns], full_matrices=False)
        left[j] = np.linalg.norm((basis[0].T @ (step * scales[columns])) / basis[1])
    return np.asarray(left / np.sqrt(len(matrix)))


def _columns(curves: Curves, j: int) -> list[int]:
    """Places of a neuron's row, bias and output weights among the parameters."""
    (neurons, outputs), width = curves.out.shape, curves.normal.shape[1]
    out = neurons * (width + 1) + j * outputs
    return [*range(j * width, (j + 1) * width), neurons * width + j, *range(out, out + outputs)]


def _lighter(curves: Curves, pairs: tuple[Pair, ...], answers: Answers) -> Iterator[Fit]:
    """Networks with one neuron less, fitted, the most promising first."""
    missed = missed_without(curves, answers)
    for j in np.argsort(missed):
        if not missed[j] <= BENDS.unexplained:
            return
        yield _fitted(*without(curves, pairs, int(j)), answers)
        for pair in pairs:
            if j in pair and np.dot(*curves.normal[list(pair)]) > 0:
                yield _fitted(*merged(curves, pairs, pair), answers)


def _fitted(curves: Curves, pairs: tuple[Pair, ...], answers: Answers) -> Fit:
    return *fitted_pairs(answers, curves, pairs, True), pairs


def without(curves: Curves, pairs: tuple[Pair, ...], gone: int) -> tuple[Curves, tuple[Pair, ...]]:
    """The network without a neuron, and its pairs in which it was not."""
    kept = np.delete(np.arange(curves.neurons), gone)
    others = (Pair(*(int(np.searchsorted(kept, j)) for j in pair)) for pair in pairs if gone not in pair)
    return replace(curves, out=curves.out[kept], normal=curves.normal[kept], shift=curves.shift[kept]), tuple(others)


def _as_good(fit: Fit, curves: Curves, misfit: float, answers: Answers) -> bool:
    """Whether a lighter network explains as much: all that rounding leaves, and by its misfit per number that no parameter uses up.

    Where none is left over beside the larger network, that rounding leaves it is all that can be asked.
    """
    lighter, left, _ = fit
    allowed = BENDS.as_good * misfit * _spread_over(curves, answers)
    return left <= max(1.0, misfit) and (not np.isfinite(allowed) or left * _spread_over(lighter, answers) <= allowed)


def _spread_over(curves: Curves, answers: Answers) -> float:
    """By what a misfit is multiplied to be one per number left over; infinite where none is."""
    (neurons, outputs), width = curves.out.shape, curves.normal.shape[1]
    numbers, parameters = answers.answers.size, neurons * (width + 1 + outputs) + outputs * (width + 1)
    return float(np.sqrt(numbers / (numbers - parameters))) if numbers > parameters else np.inf
