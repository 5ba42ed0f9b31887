"""Which way round neurons are to be written, so that no quadratic form is left beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.ffn.lattice import subset_sum
from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.squared.settings import SQUARES
from unsoftmax.learners.squared.squares import Squares
from unsoftmax.learners.squared.steps import Cells
from unsoftmax.models.activations import activation_named


def sided(cells: Cells, answers: Answers) -> Squares:
    """The neurons with their active sides, so that no quadratic form is left beside them, and what is linear solved for."""
    width, outputs = len(cells.start), cells.jumps.shape[1]
    rows = np.c_[np.ones(len(cells.places)), cells.slopes]
    upper = np.triu_indices(width)
    terms = np.einsum("kp,ki,kj->kpij", cells.jumps, rows, rows)[:, :, *upper].reshape(len(rows), -1)
    goal = -cells.form[:, *upper].ravel()
    size = float(np.linalg.norm(terms, axis=1).sum() + np.linalg.norm(goal))
    lengths = np.linalg.norm(terms, axis=1)
    solution, _, _, values = np.linalg.lstsq((terms / lengths[:, None]).T, goal, rcond=None)
    solution /= lengths
    turned = np.asarray(solution > 0.5)
    plain = len(rows) <= terms.shape[1] and bool(np.abs(solution - turned).max() <= SQUARES.binary)
    if len(rows) > terms.shape[1] or values.min() <= SQUARES.explained * values.max():  # forms that are not independent
        chosen = subset_sum(terms, goal, error=SQUARES.precise * size)
        turned, plain = (turned, False) if chosen is None else (chosen, True)
    if not plain or np.linalg.norm(turned @ terms - goal) > SQUARES.explained * size:
        raise NotInFamilyError(
            f"The target is piecewise quadratic with {len(rows)} bends on a line, but no choice of their sides leaves squared "
            "ReLU neurons alone: a quadratic path beside them, leaky squares, two neurons of one hyperplane that look opposite "
            "ways, or a neuron that does not bend on the line.",
            evidence={"neurons": len(rows)},
        )
    sign = np.where(turned, -1.0, 1.0)
    normal = sign[:, None] * (rows @ cells.axes)
    shift = -normal @ cells.start - sign * cells.places
    empty = np.zeros((outputs, width))
    squares = Squares(activation_named("relu2"), sign[:, None] * cells.jumps, normal, shift, empty, empty[:, 0]).of_unit_rows()
    weights = answers.weights(squares, answers.points)[:, None]
    columns = np.c_[squares.phi.value(squares.before(answers.points)), answers.points, np.ones(len(answers.points))] * weights
    scales = np.linalg.norm(columns, axis=0)
    solved = np.linalg.lstsq(columns / np.maximum(scales, 1e-300), answers.answers * weights, rcond=1e-14)[0]
    solved /= np.maximum(scales, 1e-300)[:, None]
    neurons = squares.neurons
    return replace(squares, out=solved[:neurons], linear=solved[neurons:-1].T, constant=solved[-1])
