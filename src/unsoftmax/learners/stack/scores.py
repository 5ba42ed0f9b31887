"""Scores of known values: several keys at once, one linear solve for the weights, and their log-odds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.stack.least import least_squares, pieces
from unsoftmax.learners.stack.limit import Batch, Limit
from unsoftmax.learners.stack.settings import STACK
from unsoftmax.linalg import alike, on_host
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """What every head makes of a subspace: ``table (heads, n, width)`` for orthonormal rows ``basis (n, width)``.

    ``known (width,)`` tells the outputs at which the table is right.
    """

    basis: Floats
    table: Floats
    known: NDArray[np.bool_]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.table)


@dataclass(frozen=True, slots=True, eq=False)
class Weighed:
    """Weights of ``keys`` and the scores that they show: ``z, error (n, heads, keys)``; NaN where a weight came out negative."""

    batch: Batch
    weights: Floats
    z: Floats
    error: Floats
    misfit: float


def weigh(batch: Batch, values: Values, like: Any = None) -> Weighed:
    """Solve answers for the weight of every key in every head, and turn the weights into scores."""
    n, J, width = batch.keys.shape
    heads, size = values.heads, len(values.basis)
    use = batch.clean & values.known
    moved = np.where(use, batch.moved, 0.0)
    weights, left = np.zeros((n, heads * J)), np.zeros((n, width))
    steps, table = batch.steps @ values.basis.T, alike(values.table.transpose(1, 0, 2).reshape(size, -1), like)
    xp = array_namespace(table)
    for some in pieces(n, width * heads * J):
        count = len(moved[some])
        made = xp.reshape(alike(steps[some].reshape(-1, size), like) @ table, (count, J, heads, width))
        seen, told = alike(use[some].astype(np.float64), like)[:, :, None], alike(moved[some], like)[:, :, None]
        design = xp.reshape(xp.permute_dims(made, (0, 3, 2, 1)), (count, width, heads * J)) * seen
        found = least_squares(design, told)[0]
        weights[some], left[some] = on_host(found)[:, :, 0], on_host(told - design @ found)[:, :, 0]
    weights = weights.reshape(n, heads, J)
    rest = 1 - weights.sum(2, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.log(weights / rest) + np.log(batch.copies / batch.counts)
        error = 1 / np.abs(weights) + 1 / np.abs(rest)
    z = np.where((weights > 0) & (rest > 0), z, np.nan)
    return Weighed(batch, weights, z, error, float(np.linalg.norm(left) / max(float(np.linalg.norm(moved)), 1e-300)))


def largest_score(heads: int) -> float:
    """The score from which on a weight has lost too many digits: errors grow with the number of heads, and with ``exp(score)``."""
    return 4.0 + 4.0 * max(0.0, 1.0 - heads / 16)


def weights_of(batch: Batch, z: Floats) -> Floats:
    """Weights ``(n, heads, keys)`` of keys with scores ``z`` above that of the last token."""
    most = np.maximum(z.max(2, keepdims=True), 0.0)
    shares = batch.counts * np.exp(z - most)
    return np.asarray(shares / (shares.sum(2, keepdims=True) + batch.copies * np.exp(-most)))


def group_size(outputs: int, heads: int, fill: float, rank: int) -> int:
    """Keys per question: unknown weights fill at most this share of the outputs, and no head sees more keys than its rank shows."""
    return max(1, min(int(fill * outputs / heads), int(0.75 * rank)))


def tangent(readers: Floats, directions: Floats, angle: float | Floats, radius: float) -> Floats:
    """Keys on the sphere at ``angle`` from the readers towards unit ``directions`` orthogonal to them."""
    turned: Floats = np.cos(angle) * readers + np.sin(angle) * radius * directions
    return turned


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """``columns (readers, heads, n)``: ``W_h x + c_h`` per reader, in the rows of a basis; the largest misfit, the answers."""

    columns: Floats
    misfit: float
    weighed: tuple[Weighed, ...]


def read_columns(
    limit: Limit,
    values: Values,
    readers: Floats,
    directions: Floats,
    angle: float,
    size: int,
    frames: list[Floats] | None = None,
    start: Floats | None = None,
    axes: NDArray[np.int_] | None = None,
) -> Columns:
    """Read ``W_h x + c_h`` from keys at ``angle`` towards ``directions (readers, keys, width)``.

    Heads whose scores are too large at a reader are read again there from shorter steps. With ``frames``, one ``(n, rank)`` per
    head, what is found beyond ``start (readers, heads, n)`` lies in the span of each head's own frame: few keys are enough. With
    ``axes (keys,)``, numbers of rows of the basis, each key tells of what lies along its own one alone.
    """
    n, count = directions.shape[:2]
    radius = float(np.linalg.norm(readers[0]))
    columns = np.full((n, values.heads, len(values.basis)), np.nan)
    todo, misfit, told = np.arange(n), 0.0, []
    for _ in range(STACK.shortenings):
        keys = tangent(readers[todo, None], directions[todo], angle, radius)
        groups = keys.reshape(len(todo) * (count // size), size, -1)
        copies = max(1, round(np.sqrt(size)))
        one = weigh(limit.ask(groups, np.repeat(readers[todo], count // size, axis=0), copies=copies), values, limit.like)
        told.append(one)
        misfit = max(misfit, one.misfit)
        z, error = (_by_reader(x, len(todo), values.heads) for x in (one.z, one.error))
        steps = (keys - readers[todo, None]) @ values.basis.T
        fine = np.isfinite(z).all(2) & (np.abs(np.nan_to_num(z)).max(2) < largest_score(values.heads))
        for h in range(values.heads):
            some = np.flatnonzero(fine[:, h] & np.isnan(columns[todo, h, 0]))
            if len(some):
                known = np.zeros((len(some), len(values.basis))) if start is None else start[todo[some], h]
                if axes is None:
                    frame = None if frames is None else frames[h]
                    more = _solved(steps[some], z[some, h], error[some, h], known, frame, limit.like)
                else:
                    more = _each(steps[some], z[some, h], error[some, h], known, axes)
                columns[todo[some], h] = known + more
        todo = np.flatnonzero(np.isnan(columns[:, :, 0]).any(1))
        if len(todo) == 0:
            return Columns(columns, misfit, tuple(told))
        angle /= STACK.shrink
    raise NotInFamilyError(
        f"At {len(todo)} of {n} last tokens the answers are no mixture of the {values.heads} heads found: a weight stays negative "
        "however near the keys are. A head was missed, or the target is no stack of pre-norm attention blocks.",
        evidence={"readers": len(todo)},
    )


def _solved(steps: Floats, z: Floats, error: Floats, known: Floats, frame: Floats | None, like: Any) -> Floats:
    """What scores ``z (n, keys)`` of ``steps (n, keys, basis)`` say beyond ``known (n, basis)``, inside ``frame`` if given."""
    inside = steps if frame is None else steps @ frame
    design, right = inside / error[:, :, None], (z - (steps @ known[:, :, None])[:, :, 0]) / error
    if design.shape[1] < design.shape[2]:  # fewer keys than unknowns: the least that explains them
        solved = np.stack([np.linalg.lstsq(one, two, rcond=None)[0] for one, two in zip(design, right, strict=True)])
    else:
        solved = np.empty((len(design), design.shape[2]))
        for some in pieces(len(design), design.shape[1] * design.shape[2]):
            solved[some] = on_host(least_squares(alike(design[some], like), alike(right[some, :, None], like))[0])[:, :, 0]
    return solved if frame is None else np.asarray(solved @ frame.T)


def _each(steps: Floats, z: Floats, error: Floats, known: Floats, axes: NDArray[np.int_]) -> Floats:
    """The same where each key tells of one row of the basis alone: no system to solve."""
    along, left = steps[:, np.arange(len(axes)), axes], z - (steps @ known[:, :, None])[:, :, 0]
    told, weight = np.zeros((2, known.shape[1], len(known)))
    np.add.at(told, axes, (along * left / error**2).T)
    np.add.at(weight, axes, (along**2 / error**2).T)
    return np.asarray((told / np.where(weight > 0, weight, 1.0)).T)


def _by_reader(array: Floats, readers: int, heads: int) -> Floats:
    """``(readers * groups, heads, keys)`` as ``(readers, heads, groups * keys)``."""
    return np.asarray(array.reshape(readers, -1, heads, array.shape[2]).transpose(0, 2, 1, 3).reshape(readers, heads, -1))


def around(values: Values, readers: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Unit directions ``(readers, count, width)`` in the subspace, orthogonal to each reader, which must lie in it.

    The first are orthonormal and as many as there are, then come their opposites: those give the part along the reader.
    """
    n = len(values.basis)
    found = np.zeros((len(readers), count, readers.shape[1]))
    for i, reader in enumerate(readers):
        inside = values.basis @ reader
        drawn = rng.normal(size=(n, min(n - 1, count)))
        turned = np.linalg.qr(np.concatenate([inside[:, None], drawn], axis=1))[0][:, 1:].T
        some = np.concatenate([turned, -turned])[:count] if count >= n else turned[:count]
        found[i] = some @ values.basis
    return found
