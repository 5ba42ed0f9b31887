"""A piecewise linear function as bends plus a linear part, and its weighted least-squares fit to answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Hinges:
    """``f(x) = constant + linear @ x + sum_j out[j] * relu(normal[j]·x + shift[j])`` with ``|out[j]| = 1``.

    Attributes:
        out: ``(neurons, outputs)``.
        normal: ``(neurons, width)``.
        shift: ``(neurons,)``.
        linear: ``(outputs, width)``.
        constant: ``(outputs,)``.
    """

    out: Floats
    normal: Floats
    shift: Floats
    linear: Floats
    constant: Floats

    @classmethod
    def zero(cls, width: int, outputs: int) -> Hinges:
        """The function that is 0 everywhere."""
        return cls(np.zeros((0, outputs)), np.zeros((0, width)), np.zeros(0), np.zeros((outputs, width)), np.zeros(outputs))

    @property
    def neurons(self) -> int:
        """Number of bends."""
        return len(self.shift)

    def before(self, points: Floats) -> Floats:
        """Pre-activations ``(n, neurons)``."""
        return points @ self.normal.T + self.shift

    def __call__(self, points: Floats) -> Floats:
        """Values ``(n, outputs)``."""
        return np.asarray(np.maximum(self.before(points), 0.0) @ self.out + points @ self.linear.T + self.constant)

    def gradients(self, points: Floats) -> Floats:
        """Derivatives ``(n, outputs, width)``."""
        active = (self.before(points) > 0).astype(np.float64)
        return np.asarray(np.einsum("nj,jo,jw->now", active, self.out, self.normal, optimize=True) + self.linear)

    def plus(self, other: Hinges) -> Hinges:
        """The sum of two functions; bends on one and the same hyperplane become one."""
        return Hinges(
            np.concatenate([self.out, other.out]),
            np.concatenate([self.normal, other.normal]),
            np.concatenate([self.shift, other.shift]),
            self.linear + other.linear,
            self.constant + other.constant,
        )

    def keep(self, chosen: NDArray[np.intp]) -> Hinges:
        """Only some of the bends, by index."""
        return Hinges(self.out[chosen], self.normal[chosen], self.shift[chosen], self.linear, self.constant)

    def sizes(self) -> tuple[float, float]:
        """Offset and slope of the numbers that a target of this kind adds up at ``x``: ``offset + slope * |x|``."""
        norms = np.linalg.norm(self.normal, axis=1)
        width = max(1, self.normal.shape[1])
        offset = float(np.abs(self.shift).sum() + np.abs(self.constant).max(initial=0.0))
        return offset, float(2 * norms.sum() / np.sqrt(width) + np.linalg.norm(self.linear))


def merge_parallel(hinges: Hinges, close: float) -> Hinges:
    """Join bends whose hyperplanes agree within ``close`` (relative) and drop those that cancel."""
    kept: list[int] = []
    out, normal, shift = hinges.out.copy(), hinges.normal.copy(), hinges.shift.copy()
    linear, constant = hinges.linear.copy(), hinges.constant.copy()
    rows = np.concatenate([normal, shift[:, None]], axis=1)
    lengths = np.linalg.norm(normal, axis=1)
    units = rows / np.maximum(lengths, 1e-300)[:, None]
    for j in range(hinges.neurons):
        twin = None
        for i in kept:
            for sign in (1.0, -1.0):
                if np.linalg.norm(units[j] - sign * units[i]) <= close * np.linalg.norm(units[i]):
                    twin = (i, sign)
        if twin is None:
            kept.append(j)
            continue
        i, sign = twin
        if sign < 0:  # relu(z) = relu(-z) + z
            linear += np.outer(out[j], normal[j])
            constant += out[j] * shift[j]
        total = out[i] * lengths[i] + out[j] * lengths[j]
        strength = float(np.linalg.norm(total))
        if strength <= close * (lengths[i] + lengths[j]):
            strength = 0.0
        normal[i], shift[i] = units[i, :-1] * strength, units[i, -1] * strength
        out[i] = total / strength if strength else out[i]
        lengths[i] = strength
    alive = [i for i in kept if lengths[i] > 0]
    return Hinges(out[alive], normal[alive], shift[alive], linear, constant)


def _design(hinges: Hinges, points: Floats, active: Floats, weights: Floats) -> Floats:
    """Derivatives of the weighted answers in the parameters: ``(n * outputs, parameters)``.

    Parameters: for each bend ``normal`` and ``shift``; for each output ``linear`` and ``constant``; with several outputs ``out``
    too.
    """
    count, outputs, neurons = len(points), hinges.out.shape[1], hinges.neurons
    extended = np.concatenate([points, np.ones((count, 1))], axis=1) * weights[:, None]
    side = extended.shape[1]
    blocks = neurons * side
    total = blocks + outputs * side + (neurons * outputs if outputs > 1 else 0)
    rows = np.zeros((outputs, count, total))
    for o in range(outputs):
        np.multiply(
            (active * hinges.out[:, o])[:, :, None], extended[:, None, :], out=rows[o, :, :blocks].reshape(count, neurons, side)
        )
        rows[o, :, blocks + o * side : blocks + (o + 1) * side] = extended
        if outputs > 1:
            rows[o, :, blocks + outputs * side + o :: outputs] = active * hinges.before(points) * weights[:, None]
    return rows.reshape(outputs * count, total)


def shifted(hinges: Hinges, by: Floats) -> Hinges:
    """The same function of ``x - by``."""
    return Hinges(hinges.out, hinges.normal, hinges.shift + hinges.normal @ by, hinges.linear, hinges.constant + hinges.linear @ by)


def moved_by(hinges: Hinges, step: Floats) -> Hinges:
    """The function with its parameters changed by ``step``, bends scaled back to ``|out| = 1``."""
    neurons, outputs = hinges.out.shape
    side = hinges.normal.shape[1] + 1
    blocks = neurons * side
    rows = step[:blocks].reshape(neurons, side)
    affine = step[blocks : blocks + outputs * side].reshape(outputs, side)
    out = hinges.out
    lengths = np.ones(neurons)
    if outputs > 1:
        out = out + step[blocks + outputs * side :].reshape(neurons, outputs)
        lengths = np.linalg.norm(out, axis=1)
        out = out / lengths[:, None]
    return Hinges(
        out,
        (hinges.normal + rows[:, :-1]) * lengths[:, None],
        (hinges.shift + rows[:, -1]) * lengths,
        hinges.linear + affine[:, :-1],
        hinges.constant + affine[:, -1],
    )


@dataclass(frozen=True, slots=True, eq=False)
class NormalEquations:
    """Column scales and Cholesky factor of the weighted normal equations at a model, around a centre."""

    scales: Floats
    factor: tuple[Floats, bool]
    centre: Floats

    def solve(self, right: Floats) -> Floats:
        """Solve for the step, undoing the column scales."""
        scaled = right / (self.scales if right.ndim == 1 else self.scales[:, None])
        solution = cho_solve(self.factor, scaled, check_finite=False)
        return np.asarray(solution / (self.scales if right.ndim == 1 else self.scales[:, None]))


def gram_of(hinges: Hinges, centre: Floats, points: Floats, references: Floats, weights: Floats) -> Floats:
    """``J^T J`` of the weighted answers, formed in blocks of rows."""
    gram: Floats | None = None
    for _, rows in _rows(hinges, centre, points, references, weights):
        square = rows.T @ rows
        gram = square if gram is None else np.add(gram, square, out=gram)
    assert gram is not None
    return gram


def gram_and_pull(hinges: Hinges, centre: Floats, points: Floats, weights: Floats, residual: Floats) -> tuple[Floats, Floats]:
    """``J^T J`` and ``J^T r`` at once, every point in its own linear piece; the length of ``out`` is held."""
    gram: Floats | None = None
    total: Floats | None = None
    for part, rows in _rows(hinges, centre, points, points, weights):
        square, product = rows.T @ rows, rows.T @ residual[part].T.ravel()
        gram, total = (square, product) if gram is None or total is None else (gram + square, total + product)
    assert gram is not None
    assert total is not None
    hold_scale(gram, hinges)
    return gram, total


def pulled(hinges: Hinges, centre: Floats, points: Floats, references: Floats, weights: Floats, residual: Floats) -> Floats:
    """``J^T r`` for the weighted residuals ``(n, outputs)``, formed in blocks of rows."""
    total: Floats | None = None
    for part, rows in _rows(hinges, centre, points, references, weights):
        product = rows.T @ residual[part].T.ravel()
        total = product if total is None else total + product
    assert total is not None
    return total


def pulled_each(hinges: Hinges, centre: Floats, points: Floats, weights: Floats, features: Floats, directions: Floats) -> Floats:
    """``J^T r`` ``(parameters, n)`` for each of ``n`` residuals ``features[:, k] directions[k]``, every point in its own piece."""
    total: Floats | None = None
    for part, rows in _rows(hinges, centre, points, points, weights):
        residuals = np.einsum("nk,ko->onk", features[part], directions).reshape(-1, features.shape[1])
        product = rows.T @ residuals
        total = product if total is None else total + product
    assert total is not None
    return total


def _rows(hinges: Hinges, centre: Floats, points: Floats, references: Floats, weights: Floats) -> Iterator[tuple[slice, Floats]]:
    """The rows of J, a block of points at a time."""
    local = shifted(hinges, centre)
    block = max(1, RELU.rows // hinges.out.shape[1])
    for start in range(0, len(points), block):
        part = slice(start, start + block)
        active = (hinges.before(references[part]) > 0).astype(np.float64)
        yield part, _design(local, points[part] - centre, active, weights[part])


def hold_scale(gram: Floats, hinges: Hinges) -> None:
    """The length of ``out`` against that of ``normal`` is free: add equations that hold ``|out| = 1`` (several outputs only)."""
    neurons, outputs = hinges.out.shape
    if outputs == 1:
        return
    start = (neurons + outputs) * (hinges.normal.shape[1] + 1)
    typical = float(np.median(np.diag(gram)[start : start + neurons * outputs])) or 1.0
    for j in range(neurons):
        own = slice(start + j * outputs, start + (j + 1) * outputs)
        gram[own, own] += typical * np.outer(hinges.out[j], hinges.out[j])


def factored(gram: Floats, centre: Floats) -> NormalEquations:
    """Scale the columns and factor, in place; a faint ridge keeps undetermined directions where they are."""
    scales = np.sqrt(np.where(np.diag(gram) > 0, np.diag(gram), 1.0))
    gram /= scales[:, None]
    gram /= scales
    spare = gram.copy() if len(gram) < 4000 else gram  # the factorisation overwrites what it is given
    for ridge in (1e-15, 1e-13, 1e-11, 1e-9):
        trial = spare.copy() if spare is not gram else gram
        trial[np.diag_indices_from(trial)] += ridge * len(gram)
        try:
            return NormalEquations(scales, cho_factor(trial, lower=True, check_finite=False, overwrite_a=spare is not gram), centre)
        except LinAlgError:
            continue
    raise LinAlgError("the normal equations are not positive definite")


def tie_rows(hinges: Hinges, chosen: NDArray[np.bool_]) -> Floats:
    """Derivatives ``(width, parameters)`` of the linear part plus the sum of the ``chosen`` bends; scalar answers."""
    neurons, width = hinges.normal.shape
    side, here = width + 1, np.arange(width)
    rows = np.zeros((width, (neurons + 1) * side))
    rows[here, neurons * side + here] = 1.0
    for j in np.flatnonzero(chosen):
        rows[here, j * side + here] = hinges.out[j, 0]
    return rows


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


def fixed_pattern(hinges: Hinges, points: Floats, references: Floats) -> Floats:
    """Values with the activation pattern read at ``references``, ``(n, outputs)``."""
    active = hinges.before(references) > 0
    return np.where(active, hinges.before(points), 0.0) @ hinges.out + points @ hinges.linear.T + hinges.constant


def beyond_doubt(hinges: Hinges, points: Floats, margin: float) -> NDArray[np.bool_]:
    """Where the activation pattern ``(n,)`` is beyond doubt, if the bends are right within ``margin`` of the points' usual length.

    Nearer to the origin they are no better known: there a network without biases has the pattern of its rounding errors.
    """
    lengths = np.linalg.norm(points, axis=1)
    lengths = np.maximum(lengths, np.median(lengths))
    sizes = np.linalg.norm(hinges.normal, axis=1) * lengths[:, None] + np.abs(hinges.shift)
    return np.asarray(np.all(np.abs(hinges.before(points)) >= margin * sizes, axis=1))


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


def design_at(hinges: Hinges, centre: Floats, points: Floats, references: Floats, weights: Floats) -> Floats:
    """Derivatives of the weighted answers in the parameters around ``centre``, ``(outputs * n, parameters)``."""
    active = (hinges.before(references) > 0).astype(np.float64)
    return _design(shifted(hinges, centre), points - centre, active, weights)
