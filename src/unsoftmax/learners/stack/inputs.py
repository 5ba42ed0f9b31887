"""Values of further directions, once scores and the ranges of the values are known: few answers each, one start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.scores import Values, tangent
from unsoftmax.learners.stack.settings import STACK, Settings
from unsoftmax.learners.stack.steps import Told, fit_steps
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
    todo, usual, misfit = np.arange(len(directions)), np.zeros(0), 0.0
    for turn in STACK.input_turns:
        if limit.sight is None:
            told = _apart(limit, values, readers, columns, directions[todo], angle, turn, tangents)
        else:
            told = _together(limit, values, readers, columns, directions[todo], angle, turn, tangents, settings.crowd)
        found, shift, left = fit_steps(told, limit.clean(readers), ranges, settings, limit.like)
        usual = np.concatenate([usual, left[left <= settings.explained]])
        good = left <= min(settings.explained, STACK.unlike * float(np.median(usual)) if len(usual) else 0.0)
        misfit = max(misfit, float(left[good].max(initial=0.0)))
        along[:, :, todo[good]], table[:, todo[good]] = shift[good].transpose(1, 2, 0), found[good].swapaxes(0, 1)
        todo = todo[~good]
        if len(todo) == 0:
            return Inputs(table, along, misfit)
    raise NotInFamilyError(
        f"In {len(todo)} of {len(directions)} directions no values inside the ranges found explain the answers. "
        "Ranks were taken too small, or the target is no stack of pre-norm attention blocks.",
        evidence={"directions": len(todo)},
    )


def _apart(
    limit: Limit, values: Values, readers: Floats, columns: Floats, directions: Floats, angle: float, turn: float, tangents: Floats
) -> Told:
    """A question for every reader and direction, its key towards a tangent of that reader."""
    n, radius = len(readers), float(np.linalg.norm(readers[0]))
    keys = np.cos(turn) * tangents[None] + np.sin(turn) * directions[:, None]
    keys = tangent(readers[None], keys, angle, radius)
    told = limit.ask(keys.reshape(-1, 1, keys.shape[2]), np.tile(readers, (len(directions), 1)))
    inside = (tangent(readers, np.cos(turn) * tangents, angle, radius) - readers) @ values.basis.T
    start = np.einsum("hko,nk->nho", values.table, inside, optimize=True)
    step = float(np.sin(angle) * np.sin(turn) * radius)
    return Told(told.moved.reshape(len(directions), n, -1), start, np.einsum("nhk,nk->nh", columns, inside), step)


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
) -> Told:
    """A question for every direction and some readers, one key for all of them; what they make of each other is known."""
    n, width = readers.shape
    radius, turn = float(np.linalg.norm(readers[0])), turn * min(1.0, angle)
    calm = tangents[np.abs(np.einsum("nhk,tk->thn", columns, tangents @ values.basis.T, optimize=True)).max((1, 2)).argmin()]
    keys = radius * (np.cos(turn) * calm + np.sin(turn) * directions)
    moved, start, z = np.zeros((len(directions), n, width)), np.zeros((n, values.heads, width)), np.zeros((n, values.heads))
    for some in np.array_split(np.arange(n), -(-n // crowd)):
        mine = readers[some]
        sequences = np.concatenate([keys[:, None], np.broadcast_to(mine, (len(keys), *mine.shape))], axis=1)
        copies = max(2, len(some))  # a key that stands once is lost in a crowd
        for i, batch in zip(some, limit.together(sequences, copies), strict=True):
            moved[:, i] = batch.moved
        steps = (mine[None] - mine[:, None]) @ values.basis.T  # (reader, other, basis)
        shares = np.exp(np.einsum("nhk,nmk->nhm", columns[some], steps, optimize=True)) * limit.seen(len(some))[:, None]
        whole = 1 + shares.sum(2)
        mean = np.einsum("nhm,nmk->nhk", shares, steps, optimize=True) / whole[:, :, None]
        among = np.einsum("nhk,hko->nho", mean, values.table, optimize=True)
        inside = (radius * np.cos(turn) * calm - mine) @ values.basis.T
        start[some] = np.einsum("hko,nk->nho", values.table, inside, optimize=True) - among
        z[some] = np.einsum("nhk,nk->nh", columns[some], inside) - np.log(whole) + np.log(copies)
        moved[:, some] -= among.sum(1)
    return Told(moved, start, z, float(radius * np.sin(turn)))
