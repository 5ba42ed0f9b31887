"""The weighted least-squares fit of bends to answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.ffn.hinges import Hinges, fixed_pattern, moved_by, shifted, tie_rows
from unsoftmax.learners.ffn.normal_equations import NormalEquations, factored, gram_of, hold_scale, pulled
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats


def fit(
    hinges: Hinges,
    points: Floats,
    references: Floats,
    answers: Floats,
    noise: Floats,
    *,
    rounds: int = 6,
    chosen: NDArray[np.bool_] | None = None,
) -> tuple[Hinges, NormalEquations]:
    """Fit all parameters to all answers, weighted by 1/noise, starting from a model with the right bends.

    Given the activation pattern the model is linear in its parameters (bilinear with several outputs), so that one factorisation
    and a few refinements of the residual reach the least-squares solution to working precision. The system is handed back as well.
    With ``chosen`` bends the linear part is held to minus their sum.
    """
    weights = 1.0 / noise
    centre = np.asarray(np.average(points, axis=0, weights=weights))
    gram = gram_of(hinges, centre, points, references, weights)
    hold_scale(gram, hinges)
    tie = np.zeros((0, len(gram)))
    if chosen is not None:  # as heavy as the answers that tell of the linear part, and somewhat more
        tie = tie_rows(hinges, chosen)
        tie *= np.sqrt(RELU.tied * np.median(np.diag(gram)[hinges.neurons * (len(tie) + 1) :]))
        gram += tie.T @ tie
    system = factored(gram, centre)
    best, best_misfit = hinges, np.inf
    current = hinges
    for _ in range(rounds):
        residual = (answers - fixed_pattern(current, points, references)) * weights[:, None]
        misfit = float(np.linalg.norm(residual))
        if misfit < best_misfit:
            best, improved = current, misfit < 0.99 * best_misfit
            best_misfit = misfit
            if not improved:
                break
        elif misfit > 2 * best_misfit:
            break
        step = pulled(hinges, system.centre, points, references, weights, residual)
        if chosen is not None:
            gap = current.linear[0] + current.out[chosen, 0] @ current.normal[chosen]
            step -= tie[0].max() * gap @ tie
        changed = moved_by(shifted(current, system.centre), system.solve(step))
        current = shifted(changed, -system.centre)
    return best, system


def balanced(hinges: Hinges, system: NormalEquations, chosen: Floats) -> Hinges:
    """Make the linear part equal minus the chosen bends' sum exactly, moving all parameters where the answers resist least."""
    neurons, outputs = hinges.out.shape
    width = hinges.normal.shape[1]
    right = np.zeros((len(system.scales), outputs * width))
    for o in range(outputs):
        for i in range(width):
            column = o * width + i
            right[neurons * (width + 1) + o * (width + 1) + i, column] = 1.0
            right[np.flatnonzero(chosen) * (width + 1) + i, column] = hinges.out[chosen, o]
    response = system.solve(right)
    current = hinges
    for _ in range(3):  # the sum is bilinear in out and normal, so that one step leaves a trace
        gap = (current.linear + current.out[chosen].T @ current.normal[chosen]).ravel()
        step = -response @ np.linalg.lstsq(right.T @ response, gap, rcond=None)[0]
        current = shifted(moved_by(shifted(current, system.centre), step), -system.centre)
    return current
