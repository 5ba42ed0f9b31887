"""Values and scores of one more step, of many steps at once: a nonlinear fit each, all solved with the same few products."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from unsoftmax.learners.stack.settings import STACK, Settings
from unsoftmax.linalg import alike, on_host
from unsoftmax.models import Floats

Change = tuple[Floats, Floats]  # of the values' coefficients (m, heads, rank) and of the scores (m, readers, heads)
Rows = NDArray[np.int_] | list[int]
Inverse = tuple[Floats, Floats]  # of normal matrices (m or 1, unknowns, unknowns) with scaled columns, and their lengths


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """Answers ``moved (directions, n, width)``; what is known of the key, ``start (n, heads, width)`` and scores ``z (n, heads)``.

    ``step`` is the length of the key's part along the direction in question.
    """

    moved: Floats
    start: Floats
    z: Floats
    step: float


def fit_steps(
    told: Told, clean: NDArray[np.bool_], ranges: list[Floats], settings: Settings, like: Any = None
) -> tuple[Floats, Floats, NDArray[np.float64]]:
    """Gauss-Newton for ``moved[i, b] = sum_h sigmoid(z + step shift)(start[b, h] + step ranges[h] beta)`` at clean outputs.

    Returns the values ``(m, heads, width)`` that ``beta`` stands for, the shifts ``(m, n, heads)`` of the scores, and the relative
    misfits ``(m,)``. Each step is a least-squares problem solved by conjugate gradients; the normal matrix at ``beta = shift = 0``,
    which is the same for all directions and decomposed once, makes them converge in a few products. Directions where they do not,
    because scores have moved far from there, and those whose steps lead nowhere, get their own damped matrices.
    """
    fit = _Steps.of(told, clean, ranges, like)
    xp = array_namespace(fit.answers)
    place = fit.nothing()
    size = xp.linalg.vector_norm(xp.reshape(fit.answers, (len(fit.answers), -1)), axis=1) + 1e-300
    now, stalled = fit.at(place), xp.zeros_like(size)
    shared = fit.only([0]).inverted(now.only([0]))
    for _ in range(STACK.input_steps):
        active = (now.cost > settings.floor * size) & (stalled < 4)
        if not bool(xp.any(active)):
            break
        change, arrived = fit.solved(now, shared)
        slow = np.flatnonzero(on_host(active & (~arrived | (stalled > 0))))[: int(STACK.own // fit.unknowns**2)]
        if len(slow):
            _improve(fit.only(slow), now.only(slow), place, change, slow)
        part = fit.part(change)
        for _ in range(STACK.halvings_of_steps):
            moved = _moved(place, change, part)
            trial = fit.at(moved)
            if bool(xp.all((trial.cost < now.cost) | (now.cost < settings.explained * size))):
                break
            part = xp.where(trial.cost < now.cost, part, part / 4)
        better = trial.cost < now.cost
        rounded = trial.cost < settings.explained * size
        slower = ~better | (trial.cost > xp.where(rounded, 0.3, 0.95) * now.cost)  # at rounding, or nowhere
        stalled = xp.where(slower, stalled + xp.where(rounded | ~better, 2.0, 1.0), xp.zeros_like(stalled))
        one = better[:, None, None]
        place = (xp.where(one, moved[0], place[0]), xp.where(one, moved[1], place[1]))
        now = fit.at(place)
    return on_host(fit.values(place[0])), on_host(place[1]), on_host(now.cost / size)


def _improve(few: _Steps, now: _Now, place: Change, change: Change, rows: NDArray[np.int_]) -> None:
    """Put the changes that normal matrices of their own give into ``rows`` of ``change``, where they leave less of the answers.

    They are damped: a weight of nearly one hardly tells its score, which would else take up the whole step.
    """
    start, old = ((both[0][rows], both[1][rows]) for both in (place, change))
    new = few.damped(now)
    new_cost, old_cost = (few.at(_moved(start, one, few.part(one))).cost for one in (new, old))
    xp, taken = array_namespace(new_cost), (new_cost < old_cost)[:, None, None]
    for whole, first, second in zip(change, new, old, strict=True):
        whole[rows] = xp.where(taken, first, second)


def _moved(place: Change, change: Change, part: Floats) -> Change:
    """So large a ``part (m,)`` of the way."""
    return place[0] + part[:, None, None] * change[0], place[1] + part[:, None, None] * change[1]


@dataclass(frozen=True, slots=True, eq=False)
class _Now:
    """Where fits stand: weights ``(m, n, heads)``, added values ``(m, heads, width)``, what is left ``(m, n, width)``, its norm."""

    weights: Floats
    added: Floats
    gap: Floats
    cost: Floats

    def only(self, rows: Rows) -> _Now:
        """Of these directions."""
        return _Now(self.weights[rows], self.added[rows], self.gap[rows], self.cost[rows])


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """The answers, and all that the fits of all directions share.

    Attributes:
        answers: ``(m, n, width)``, zero where they are not clean.
        clean: ``(n, width)``: one or zero.
        start: ``(n, heads, width)``.
        z: ``(n, heads)``.
        step: length of the step.
        ranges: ``(heads, rank, width)``, rows of zeros where a rank is smaller.
    """

    answers: Floats
    clean: Floats
    start: Floats
    z: Floats
    step: float
    ranges: Floats

    @classmethod
    def of(cls, told: Told, clean: NDArray[np.bool_], ranges: list[Floats], like: Any) -> _Steps:
        heads, most = len(ranges), max(block.shape[1] for block in ranges)
        wide = np.zeros((heads, most, clean.shape[1]))
        for h, block in enumerate(ranges):
            wide[h, : block.shape[1]] = block.T
        answers, mask, start, z, there = (
            alike(x, like) for x in (told.moved * clean, clean.astype(np.float64), told.start, told.z, wide)
        )
        return cls(answers, mask, start, z, told.step, there)

    @property
    def unknowns(self) -> int:
        """Of one direction: coefficients of values, and scores."""
        return int(self.ranges.shape[0] * (self.ranges.shape[1] + len(self.z)))

    def only(self, rows: Rows) -> _Steps:
        """Of these directions."""
        return replace(self, answers=self.answers[rows])

    def nothing(self) -> Change:
        """No change at all, for every direction."""
        xp, m = array_namespace(self.answers), len(self.answers)
        shapes = (m, *self.ranges.shape[:2]), (m, *self.z.shape)
        first, second = (xp.zeros(shape, dtype=self.z.dtype, device=device(self.z)) for shape in shapes)
        return first, second

    def values(self, beta: Floats) -> Floats:
        """``(m, heads, width)``: what the coefficients ``(m, heads, rank)`` stand for."""
        xp = array_namespace(beta)
        return xp.permute_dims(xp.permute_dims(beta, (1, 0, 2)) @ self.ranges, (1, 0, 2))  # type: ignore[no-any-return]

    def part(self, change: Change) -> Floats:
        """How much of a change ``(m,)`` may be made at once."""
        xp = array_namespace(change[1])
        longest = xp.max(xp.reshape(xp.abs(self.step * change[1]), (len(change[1]), -1)), axis=1)
        return xp.minimum(xp.ones_like(longest), STACK.longest / (longest + 1e-300))  # type: ignore[no-any-return]

    def at(self, place: Change) -> _Now:
        """What these coefficients and shifts make of the answers, and leave."""
        xp, (beta, shift) = array_namespace(place[0]), place
        weights = 1 / (1 + xp.exp(-(self.z + self.step * shift)))
        added = self.step * self.values(beta)
        gap = (self.answers - self._through(weights, added)) * self.clean
        return _Now(weights, added, gap, xp.linalg.vector_norm(xp.reshape(gap, (len(gap), -1)), axis=1))

    def _through(self, weights: Floats, added: Floats) -> Floats:
        """``sum_h weights[m, n, h] (start[n, h] + added[m, h])``."""
        xp = array_namespace(weights)
        known = xp.permute_dims(xp.permute_dims(weights, (1, 0, 2)) @ self.start, (1, 0, 2))
        return known + weights @ added  # type: ignore[no-any-return]

    def forward(self, now: _Now, change: Change) -> Floats:
        """What a change does to the answers, ``(m, n, width)``."""
        slopes = self.step * now.weights * (1 - now.weights) * change[1]
        return (self._through(slopes, now.added) + now.weights @ (self.step * self.values(change[0]))) * self.clean

    def backward(self, now: _Now, gap: Floats) -> Change:
        """The transpose of ``forward``."""
        xp = array_namespace(gap)
        gap = gap * self.clean
        pulled = xp.permute_dims(now.weights, (0, 2, 1)) @ gap
        beta = xp.permute_dims(xp.permute_dims(pulled, (1, 0, 2)) @ xp.permute_dims(self.ranges, (0, 2, 1)), (1, 0, 2))
        known = xp.permute_dims(xp.permute_dims(gap, (1, 0, 2)) @ xp.permute_dims(self.start, (0, 2, 1)), (1, 0, 2))
        along = known + gap @ xp.permute_dims(now.added, (0, 2, 1))
        return self.step * beta, self.step * now.weights * (1 - now.weights) * along

    def solved(self, now: _Now, inverse: Inverse) -> tuple[Change, NDArray[np.bool_]]:
        """The change that explains what is left best, by conjugate gradients on the normal equations; and where they arrived."""
        xp, m = array_namespace(now.gap), len(now.gap)

        def dot(a: Floats, b: Floats) -> Floats:
            return xp.sum(xp.reshape(a * b, (m, -1)), axis=1)  # type: ignore[no-any-return]

        left, right = now.gap, self._flat(self.backward(now, now.gap))
        change, conditioned = xp.zeros_like(right), _conditioned(right, inverse)
        way, size = conditioned, dot(right, conditioned)
        enough = STACK.inner * size
        for _ in range(STACK.inner_steps):
            if not bool(xp.any(size > enough)):
                break
            seen = self.forward(now, self._parts(way))
            length = (xp.where(size > 0, size, xp.zeros_like(size)) / (dot(seen, seen) + 1e-300))[:, None]
            change, left = change + length * way, left - length[..., None] * seen
            right = self._flat(self.backward(now, left))
            conditioned = _conditioned(right, inverse)
            then = dot(right, conditioned)
            way, size = conditioned + (then / (size + 1e-300))[:, None] * way, then
        return self._parts(change), size <= enough

    def damped(self, now: _Now) -> Change:
        """The change of most likely size, if what is left were noise, scores moved by one and values by as much as answers do."""
        xp, (heads, rank, width) = array_namespace(now.gap), self.ranges.shape
        told, seen = len(self.z) * width, xp.sum(xp.reshape(self.answers**2, (len(now.cost), -1)), axis=1)
        noise = self.step**2 * now.cost**2 / float(xp.sum(self.clean))
        values, scores = noise * told / (width * seen + 1e-300), noise
        ridge = xp.concat(
            [xp.repeat(values[:, None], heads * rank, axis=1), xp.repeat(scores[:, None], self.z.shape[0] * heads, axis=1)], axis=1
        )
        return self._parts(_conditioned(self._flat(self.backward(now, now.gap)), self.inverted(now, ridge)))

    def _flat(self, change: Change) -> Floats:
        xp, m = array_namespace(change[0]), len(change[0])
        return xp.concat([xp.reshape(part, (m, -1)) for part in change], axis=1)  # type: ignore[no-any-return]

    def _parts(self, flat: Floats) -> Change:
        xp, m, cut = array_namespace(flat), len(flat), self.ranges.shape[0] * self.ranges.shape[1]
        return xp.reshape(flat[:, :cut], (m, *self.ranges.shape[:2])), xp.reshape(flat[:, cut:], (m, *self.z.shape))

    def inverted(self, now: _Now, ridge: Floats | None = None) -> Inverse:
        """The inverses of the normal matrices, ``ridge (m, unknowns)`` added, columns scaled to length one, and their lengths."""
        xp = array_namespace(self.z)
        (n, heads), (rank, width) = self.z.shape, self.ranges.shape[1:]
        weights, values = now.weights, self.start + now.added[:, None]  # (m, n, heads), (m, n, heads, width)
        owned = self.step * xp.repeat(weights, rank, axis=2)  # (m, n, heads * rank)
        wide = xp.reshape(self.ranges, (heads * rank, width))
        plain = (wide @ wide.T) * (xp.permute_dims(owned, (0, 2, 1)) @ owned)
        hidden = np.argwhere(on_host(self.clean) == 0)  # few outputs are not clean: what they would have told is taken off
        if len(hidden):
            dirty = owned[:, hidden[:, 0], :] * wide[:, hidden[:, 1]].T
            plain = plain - xp.permute_dims(dirty, (0, 2, 1)) @ dirty
        pull = self.step * (weights * (1 - weights))[..., None] * values * self.clean[:, None]
        cross = (pull @ wide.T) * owned[:, :, None]  # (m, n, heads, heads * rank)
        inner = pull @ xp.permute_dims(pull, (0, 1, 3, 2))
        first = heads * rank
        whole = xp.zeros((len(weights), self.unknowns, self.unknowns), dtype=self.z.dtype, device=device(self.z))
        whole[:, :first, :first] = plain
        for b in range(n):
            here = slice(first + heads * b, first + heads * (b + 1))
            whole[:, here, here], whole[:, here, :first] = inner[:, b], cross[:, b]
            whole[:, :first, here] = xp.permute_dims(cross[:, b], (0, 2, 1))
        one = xp.eye(self.unknowns, dtype=self.z.dtype, device=device(self.z))
        if ridge is not None:
            whole = whole + ridge[:, :, None] * one
        scale = xp.sqrt(xp.maximum(xp.linalg.diagonal(whole), xp.zeros_like(whole[:, 0])))
        longest = xp.max(scale, axis=1, keepdims=True)
        scale = xp.where(scale > 1e-12 * longest, scale, longest)
        return xp.linalg.inv(whole / scale[:, None] / scale[:, :, None] + STACK.ridge * one), scale


def _conditioned(flat: Floats, inverse: Inverse) -> Floats:
    """``flat (m, unknowns)`` through the inverses, one for each row or one for all."""
    xp, (matrices, scale) = array_namespace(flat), inverse
    scaled = xp.reshape(flat / scale, (len(matrices), -1, flat.shape[1]))
    return xp.reshape(scaled @ matrices, flat.shape) / scale  # type: ignore[no-any-return]
