"""Values and scores of one more step, of many steps at once: a nonlinear fit each, all solved with the same few products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from unsoftmax.learners.stack.settings import STACK, Settings
from unsoftmax.linalg import alike, on_host
from unsoftmax.models import Floats

Change = tuple[Floats, Floats]  # of the values' coefficients (m, heads, rank) and of the scores (m, readers, heads)


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
    which is the same for all directions and decomposed once, makes them converge in a few products.
    """
    fit = _Steps.of(told, clean, ranges, like)
    xp = array_namespace(fit.answers)
    beta, shift = fit.nothing()
    size = xp.linalg.vector_norm(xp.reshape(fit.answers, (len(fit.answers), -1)), axis=1) + 1e-300
    now, stalled = fit.at(beta, shift), xp.zeros_like(size)
    for _ in range(STACK.input_steps):
        if not bool(xp.any((now.cost > settings.floor * size) & (stalled < 4))):
            break
        change, moved = fit.solved(now)
        longest = xp.max(xp.reshape(xp.abs(fit.step * moved), (len(size), -1)), axis=1)
        part = xp.minimum(xp.ones_like(size), STACK.longest / (longest + 1e-300))
        for _ in range(STACK.halvings_of_steps):
            trial = fit.at(beta + part[:, None, None] * change, shift + part[:, None, None] * moved)
            if bool(xp.all((trial.cost < now.cost) | (now.cost < settings.explained * size))):
                break
            part = xp.where(trial.cost < now.cost, part, part / 4)
        better = trial.cost < now.cost
        rounded = trial.cost < settings.explained * size
        slow = ~better | (trial.cost > xp.where(rounded, 0.3, 0.95) * now.cost)  # at rounding, or nowhere
        stalled = xp.where(slow, stalled + xp.where(rounded | ~better, 2.0, 1.0), xp.zeros_like(stalled))
        one = better[:, None, None]
        beta, shift = (
            xp.where(one, beta + part[:, None, None] * change, beta),
            xp.where(one, shift + part[:, None, None] * moved, shift),
        )
        now = fit.at(beta, shift)
    return on_host(fit.values(beta)), on_host(shift), on_host(now.cost / size)


@dataclass(frozen=True, slots=True, eq=False)
class _Now:
    """Where fits stand: weights ``(m, n, heads)``, added values ``(m, heads, width)``, what is left ``(m, n, width)``, its norm."""

    weights: Floats
    added: Floats
    gap: Floats
    cost: Floats


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
        inverse: of the normal matrix at the start, columns scaled; and the scale of the columns.
    """

    answers: Floats
    clean: Floats
    start: Floats
    z: Floats
    step: float
    ranges: Floats
    inverse: tuple[Floats, Floats]

    @classmethod
    def of(cls, told: Told, clean: NDArray[np.bool_], ranges: list[Floats], like: Any) -> _Steps:
        heads, most = len(ranges), max(block.shape[1] for block in ranges)
        wide = np.zeros((heads, most, clean.shape[1]))
        for h, block in enumerate(ranges):
            wide[h, : block.shape[1]] = block.T
        answers, mask, start, z, there = (
            alike(x, like) for x in (told.moved * clean, clean.astype(np.float64), told.start, told.z, wide)
        )
        found = cls(answers, mask, start, z, told.step, there, (z, z))
        return cls(answers, mask, start, z, told.step, there, found._inverted())

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

    def at(self, beta: Floats, shift: Floats) -> _Now:
        """What these coefficients and shifts make of the answers, and leave."""
        xp = array_namespace(beta)
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

    def solved(self, now: _Now) -> Change:
        """The change that explains what is left best: conjugate gradients on the normal equations."""
        xp, m = array_namespace(now.gap), len(now.gap)

        def dot(a: Floats, b: Floats) -> Floats:
            return xp.sum(xp.reshape(a * b, (m, -1)), axis=1)  # type: ignore[no-any-return]

        left, right = now.gap, self._flat(self.backward(now, now.gap))
        change, conditioned = xp.zeros_like(right), self._conditioned(right)
        way, size = conditioned, dot(right, conditioned)
        enough = STACK.inner * size
        for _ in range(STACK.inner_steps):
            if not bool(xp.any(size > enough)):
                break
            seen = self.forward(now, self._parts(way))
            length = (xp.where(size > 0, size, xp.zeros_like(size)) / (dot(seen, seen) + 1e-300))[:, None]
            change, left = change + length * way, left - length[..., None] * seen
            right = self._flat(self.backward(now, left))
            conditioned = self._conditioned(right)
            then = dot(right, conditioned)
            way, size = conditioned + (then / (size + 1e-300))[:, None] * way, then
        return self._parts(change)

    def _flat(self, change: Change) -> Floats:
        xp, m = array_namespace(change[0]), len(change[0])
        return xp.concat([xp.reshape(part, (m, -1)) for part in change], axis=1)  # type: ignore[no-any-return]

    def _parts(self, flat: Floats) -> Change:
        xp, m, cut = array_namespace(flat), len(flat), self.ranges.shape[0] * self.ranges.shape[1]
        return xp.reshape(flat[:, :cut], (m, *self.ranges.shape[:2])), xp.reshape(flat[:, cut:], (m, *self.z.shape))

    def _conditioned(self, flat: Floats) -> Floats:
        inverse, scale = self.inverse
        return (flat / scale) @ inverse / scale

    def _inverted(self) -> tuple[Floats, Floats]:
        """The inverse of the normal matrix at the start, columns scaled to length one, and their lengths."""
        xp = array_namespace(self.z)
        n, heads = self.z.shape
        rank, width = self.ranges.shape[1:]
        weights = 1 / (1 + xp.exp(-self.z))
        owned = self.step * xp.repeat(weights, rank, axis=1)  # (n, heads * rank)
        wide = xp.reshape(self.ranges, (heads * rank, width))
        plain = (wide @ wide.T) * (owned.T @ owned)
        hidden = np.argwhere(on_host(self.clean) == 0)  # few outputs are not clean: what they would have told is taken off
        if len(hidden):
            dirty = owned[hidden[:, 0], :] * wide[:, hidden[:, 1]].T
            plain = plain - dirty.T @ dirty
        pull = self.step * (weights * (1 - weights))[:, :, None] * self.start * self.clean[:, None]  # (n, heads, width)
        cross = xp.reshape(xp.reshape(pull, (n * heads, width)) @ wide.T, (n, heads, -1)) * owned[:, None]
        inner = pull @ xp.permute_dims(pull, (0, 2, 1))
        size = heads * rank + n * heads
        whole = xp.zeros((size, size), dtype=self.z.dtype, device=device(self.z))
        whole[: heads * rank, : heads * rank] = plain
        for b in range(n):
            here = slice(heads * (rank + b), heads * (rank + b + 1))
            whole[here, here], whole[here, : heads * rank], whole[: heads * rank, here] = inner[b], cross[b], cross[b].T
        scale = xp.sqrt(xp.maximum(xp.linalg.diagonal(whole), xp.zeros_like(whole[0])))
        scale = xp.where(scale > 1e-12 * xp.max(scale), scale, xp.max(scale))
        one = xp.eye(size, dtype=self.z.dtype, device=device(self.z))
        return xp.linalg.inv(whole / scale / scale[:, None] + STACK.ridge * one), scale
