"""Values of further directions, once scores and the ranges of the values are known: few answers each, one start."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.scores import Values, tangent
from unsoftmax.learners.stack.settings import STACK, Settings
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Values ``table (heads, directions, width)`` and scores ``along (readers, heads, directions)`` of unit steps."""

    table: Floats
    along: Floats
    misfit: float


def read_inputs(
    limit: Limit,
    values: Values,
    ranges: list[Floats],
    readers: Floats,
    columns: Floats,
    directions: Floats,
    angle: float,
    tangents: Floats,
    settings: Settings,
) -> Inputs:
    """Values and scores of ``directions (n, width)``, orthogonal to the subspace of ``values``.

    Args:
        limit: the target.
        values: what is known.
        ranges: per head ``(width, rank)``: all that its values can be.
        readers: last tokens in the subspace.
        columns: ``(readers, heads, n)``: their ``W_h x + c_h`` inside the subspace.
        directions: unit vectors.
        angle: from readers to keys.
        tangents: per reader a unit direction in the subspace, orthogonal to it.
        settings: when a fit has arrived.
    """
    n = len(readers)
    table = np.zeros((values.heads, len(directions), readers.shape[1]))
    along = np.zeros((n, values.heads, len(directions)))
    todo, misfit, inside = np.arange(len(directions)), 0.0, _Ranges.of(ranges)
    for turn in STACK.input_turns:
        if limit.sight is None:
            told = _apart(limit, values, readers, columns, directions[todo], angle, turn, tangents)
        else:
            told = _together(limit, values, readers, columns, directions[todo], angle, turn, tangents, settings.crowd)
        bad = []
        for i, answers in zip(todo, told.moved, strict=True):
            found, shift, left = _fit(answers, limit.clean(readers), told.start, told.z, inside, told.step, settings)
            if left > settings.explained:
                bad.append(i)
                continue
            misfit = max(misfit, left)
            along[:, :, i], table[:, i] = shift, found
        todo = np.array(bad, dtype=int)
        if len(todo) == 0:
            return Inputs(table, along, misfit)
    raise NotInFamilyError(
        f"In {len(todo)} of {len(directions)} directions no values inside the ranges found explain the answers. "
        "Ranks were taken too small, or the target is no stack of pre-norm attention blocks.",
        evidence={"directions": len(todo)},
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """Answers ``moved (directions, n, width)``; what is known of the key, ``start (n, heads, width)`` and scores ``z (n, heads)``.

    ``step`` is the length of the key's part along the direction in question.
    """

    moved: Floats
    start: Floats
    z: Floats
    step: float


def _apart(
    limit: Limit, values: Values, readers: Floats, columns: Floats, directions: Floats, angle: float, turn: float, tangents: Floats
) -> _Told:
    """A question for every reader and direction, its key towards a tangent of that reader."""
    n, radius = len(readers), float(np.linalg.norm(readers[0]))
    keys = np.cos(turn) * tangents[None] + np.sin(turn) * directions[:, None]
    keys = tangent(readers[None], keys, angle, radius)
    told = limit.ask(keys.reshape(-1, 1, keys.shape[2]), np.tile(readers, (len(directions), 1)))
    inside = (tangent(readers, np.cos(turn) * tangents, angle, radius) - readers) @ values.basis.T
    start = np.einsum("hko,nk->nho", values.table, inside, optimize=True)
    step = float(np.sin(angle) * np.sin(turn) * radius)
    return _Told(told.moved.reshape(len(directions), n, -1), start, np.einsum("nhk,nk->nh", columns, inside), step)


def _together(
    limit: Limit,
    values: Values,
    readers: Floats,
    columns: Floats,
    directions: Floats,
    angle: float,
    turn: float,
    tangents: Floats,
    crowd: int,
) -> _Told:
    """A question for every direction and some readers, one key for all of them; what they make of each other is known."""
    n, width = readers.shape
    radius, turn = float(np.linalg.norm(readers[0])), turn * min(1.0, angle)
    calm = tangents[np.abs(np.einsum("nhk,tk->thn", columns, tangents @ values.basis.T, optimize=True)).max((1, 2)).argmin()]
    keys = radius * (np.cos(turn) * calm + np.sin(turn) * directions)
    moved, start, z = np.zeros((len(directions), n, width)), np.zeros((n, values.heads, width)), np.zeros((n, values.heads))
    for some in np.array_split(np.arange(n), -(-n // crowd)):
        mine = readers[some]
        sequences = np.concatenate([keys[:, None], np.broadcast_to(mine, (len(keys), *mine.shape))], axis=1)
        for i, batch in zip(some, limit.together(sequences)[-len(some) :], strict=True):
            moved[:, i] = batch.moved
        steps = (mine[None] - mine[:, None]) @ values.basis.T  # (reader, other, basis)
        shares = np.exp(np.einsum("nhk,nmk->nhm", columns[some], steps, optimize=True)) * limit.seen(len(some))[:, None]
        whole = 1 + shares.sum(2)
        mean = np.einsum("nhm,nmk->nhk", shares, steps, optimize=True) / whole[:, :, None]
        among = np.einsum("nhk,hko->nho", mean, values.table, optimize=True)
        inside = (radius * np.cos(turn) * calm - mine) @ values.basis.T
        start[some] = np.einsum("hko,nk->nho", values.table, inside, optimize=True) - among
        z[some] = np.einsum("nhk,nk->nh", columns[some], inside) - np.log(whole)
        moved[:, some] -= among.sum(1)
    return _Told(moved, start, z, float(radius * np.sin(turn)))


@dataclass(frozen=True, slots=True, eq=False)
class _Ranges:
    """All that the values of every head can be, side by side.

    Attributes:
        wide: ``(width, sum of ranks)``.
        ends: where each head's columns begin, and the end.
        owner: the head of each column.
        squares: ``wide.T @ wide``.
    """

    wide: Floats
    ends: list[int]
    owner: NDArray[np.int_]
    squares: Floats

    @classmethod
    def of(cls, ranges: list[Floats]) -> _Ranges:
        wide, ranks = np.concatenate(ranges, axis=1), [block.shape[1] for block in ranges]
        ends = [int(end) for end in np.cumsum([0, *ranks])]
        return cls(wide, ends, np.repeat(np.arange(len(ranges)), ranks), wide.T @ wide)

    def values(self, beta: Floats) -> Floats:
        """``(heads, width)``: what the coefficients ``beta (sum of ranks,)`` stand for."""
        return np.stack([self.wide[:, a:b] @ beta[a:b] for a, b in itertools.pairwise(self.ends)])

    def normal(self, weights: Floats, clean: NDArray[np.bool_]) -> Floats:
        """The normal matrix of ``weights[b, owner] * wide`` at the clean outputs of every reader ``b``.

        Of all outputs it is a product of two small matrices, entry by entry; few outputs are not clean.
        """
        of_heads = (weights.T @ weights)[self.owner]
        readers, outputs = np.nonzero(~clean)
        dirty = weights[readers][:, self.owner] * self.wide[outputs]
        whole: Floats = self.squares * of_heads[:, self.owner]
        whole -= dirty.T @ dirty
        return whole


def _fit(
    answers: Floats, clean: NDArray[np.bool_], start: Floats, z: Floats, ranges: _Ranges, step: float, settings: Settings
) -> tuple[Floats, Floats, float]:
    """Gauss-Newton for ``answers[b] = sum_h sigmoid(z + step shift)(start[b, h] + step ranges[h] beta[h])`` at clean outputs.

    Returns the values ``(heads, width)`` that ``beta`` stands for, the shifts of the scores, and the relative misfit.
    """
    n, heads = z.shape
    beta, shift = np.zeros(ranges.ends[-1]), np.zeros((n, heads))
    size = max(float(np.linalg.norm(answers * clean)), 1e-300)
    damping, stalled = 1e-4, 0

    def left(beta: Floats, shift: Floats) -> tuple[Floats, Floats, Floats, float]:
        weights = expit(z + step * shift)
        values = start + step * ranges.values(beta)
        gap = (answers - np.einsum("nh,nho->no", weights, values)) * clean
        return weights, values, gap, float(np.linalg.norm(gap))

    weights, values, gap, cost = left(beta, shift)
    for _ in range(STACK.input_steps):
        if cost <= settings.floor * size or stalled >= 4:
            break
        owned = step * weights[:, ranges.owner]  # (n, sum of ranks)
        two = step * (weights * (1 - weights))[:, :, None] * values * clean[:, None]  # (n, heads, outputs)
        inner = two @ two.swapaxes(1, 2)
        cross = (two.reshape(n * heads, -1) @ ranges.wide).reshape(n, heads, -1) * owned[:, None]
        right = two @ gap[:, :, None]
        plain, pull = ranges.normal(step * weights, clean), np.sum(owned * (gap @ ranges.wide), axis=0)
        for _ in range(10):
            held = inner + damping * np.einsum("nhh,hg->nhg", inner, np.eye(heads))
            try:
                solved = np.linalg.solve(held, np.concatenate([cross, right], axis=2))
            except np.linalg.LinAlgError:  # a score far out, to which no answer reacts any more
                damping = max(10 * damping, 1e-12)
                inner = inner + 1e-12 * np.abs(inner).max() * np.eye(heads)
                continue
            reacting = cross.reshape(n * heads, -1).T
            normal = plain - reacting @ solved[:, :, :-1].reshape(n * heads, -1)
            target = pull - reacting @ solved[:, :, -1].ravel()
            normal[np.diag_indices_from(normal)] *= 1 + damping
            change = np.linalg.solve(normal, target)
            moved = solved[:, :, -1] - solved[:, :, :-1] @ change
            short = min(1.0, STACK.longest / max(float(np.abs(step * moved).max()), 1e-300))
            change, moved = short * change, short * moved
            trial = left(beta + change, shift + moved)
            if trial[3] < cost:
                slow = 0.3 if trial[3] < settings.explained * size else 0.95  # at rounding, or nowhere
                stalled = stalled + (2 if slow < 0.5 else 1) if trial[3] > slow * cost else 0
                beta, shift, damping = beta + change, shift + moved, max(damping / 10, 1e-15)
                weights, values, gap, cost = trial
                break
            damping = max(10 * damping, 1e-12)
            if cost < settings.explained * size:
                stalled += 2
                break
        else:
            break
    return ranges.values(beta), shift, cost / size
