"""All heads of the limit layer, W, c and V, from a first set of values: columns, outputs, inputs, rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import NotIdentifiableError
from unsoftmax.learners.stack.gathered import Gathered
from unsoftmax.learners.stack.heads import Base
from unsoftmax.learners.stack.inputs import read_inputs
from unsoftmax.learners.stack.known import Known, cliff, ranks_of
from unsoftmax.learners.stack.least import least_squares
from unsoftmax.learners.stack.limit import Batch, Limit
from unsoftmax.learners.stack.scores import Columns, Values, around, group_size, read_columns, tangent, weigh, weights_of
from unsoftmax.learners.stack.settings import STACK, Settings
from unsoftmax.learners.stack.sphere import Sphere, support
from unsoftmax.linalg import alike, on_host, singular
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import phase


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """The limit layer, ranks of W and V of each head, the largest misfit of each step, and what a fit to all answers leaves."""

    model: Attention
    score_ranks: tuple[int, ...]
    value_ranks: tuple[int, ...]
    misfits: dict[str, float]
    left: float = 1.0  # of them, relative, where there was one


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """All that is known before the last step: values everywhere, scores of some last tokens.

    Attributes:
        sphere: of normalised tokens.
        T: coordinates; the scores of all last tokens inside them are known.
        values: of every head.
        readers: ``(n, width)``: last tokens inside ``T``.
        columns: ``(n, heads, basis)``: their ``W_h x + c_h``.
        angle: from last tokens to keys.
        size: keys per question.
        misfits: the largest of each step.
    """

    sphere: Sphere
    T: NDArray[np.int_]
    values: Values
    readers: Floats
    columns: Floats
    angle: float
    size: int
    misfits: dict[str, float]

    def model(self) -> Attention:
        """The limit layer, right for last tokens inside ``T``."""
        return _layer(self.values, self.readers, self.columns)


def drafted(limit: Limit, base: Base, known: Known, settings: Settings, rng: np.random.Generator) -> Draft:
    """Read what the first values do not tell, up to the rows; see ``docs/stacks.md`` for the order of steps."""
    sphere, width = base.frame.sphere, base.frame.sphere.width
    heads = base.heads
    angle = base.apart
    at = np.isin(np.arange(width), base.frame.outputs)
    table = np.zeros((heads, len(known.basis), width))
    table[:, :, base.frame.outputs] = known.values
    values = Values(known.basis, table, at)
    phase(limit.oracle, "columns")
    one = known.T if sphere.norm == "layer" else np.append(known.T, rng.choice(known.T))  # as many as W and c have columns there
    readers = sphere.readers(one, known.T, rng, np.zeros((0, width)))
    n = len(known.basis)
    if len(known.tokens):
        values, ranges, columns, misfit = _gathered(limit, values, known, readers, angle, settings, rng)
        readers, columns = np.concatenate([readers, known.tokens]), np.concatenate([columns, known.columns])
        readers, columns = _calmed(sphere, values, known.T, readers, columns, rng)
    else:
        values, ranges, columns, misfit = _alone(limit, values, known, readers, angle, settings, rng)
    size = group_size(width - support(width), heads, settings.fill, min(known.ranks))
    misfits = {"columns": misfit}
    directions = sphere.complement(known.basis)
    if len(directions):
        phase(limit.oracle, "inputs")
        if not known.exceeded:
            ranges = [np.eye(width)] * heads
        total = sum(block.shape[1] for block in ranges)
        needed = settings.partners(total, width - support(width) - heads, heads)
        if limit.sight is not None:
            needed = max(needed, len(readers))  # more readers in a sequence cost nothing, and tell their scores
        clean = limit.clean(readers).astype(int)
        if not known.exceeded and not clean.any(0).all():
            raise NotIdentifiableError(
                f"At width {width} no sparse token leaves some outputs free: {heads} heads are too many for it.",
                evidence={"heads": heads},
            )
        least = 0 if known.exceeded else heads + 1
        while clean[np.arange(needed) % len(readers)].sum(0).min() < least:  # every output is to be seen
            needed += 1
        chosen = np.arange(needed) % len(readers)
        tangents = _calm(values, readers[chosen], columns[chosen], rng)
        found = read_inputs(limit, values, ranges, readers[chosen], columns[chosen], directions, angle, tangents, settings)
        misfits["inputs"] = found.misfit
        values = Values(
            np.concatenate([known.basis, directions]), np.concatenate([values.table, found.table], axis=1), values.known
        )
        columns = np.concatenate([columns, np.zeros((len(readers), heads, len(directions)))], axis=2)
        columns[chosen, :, n:] = found.along
        rest = np.setdiff1d(np.arange(len(readers)), chosen)
        if len(rest):
            more = _completed(limit, values, readers[rest], columns[rest], directions, angle, size)
            columns[rest, :, n:] = more.columns[:, :, n:]
            misfits["columns"] = max(misfits["columns"], more.misfit)
    return Draft(sphere, known.T, values, readers, columns, angle, size, misfits)


def _alone(
    limit: Limit, values: Values, known: Known, readers: Floats, angle: float, settings: Settings, rng: np.random.Generator
) -> tuple[Values, list[Floats], Floats, float]:
    """Values at all outputs, their ranges, columns of ``readers`` and the misfit, from questions for one reader each."""
    heads, n, width = values.heads, len(known.basis), readers.shape[1]
    needed = settings.answers(sum(known.ranks) if known.exceeded else heads * n, heads)
    size = group_size(int((limit.clean(readers) & values.known).sum(1).min()), heads, settings.fill, min(known.ranks))
    first = min(len(readers), -(-needed // -(-n // size)))
    early = _columns(limit, values, readers[:first], angle, size, rng)
    told = [(one.batch, one.weights) for one in early.weighed]
    missing = needed - sum(len(batch.keys) for batch, _ in told)
    if missing > 0:
        told.append(_random(limit, values, readers[:first], early.columns, angle, missing, rng))
    values, ranges = _outputs(values, known, told, limit.like)
    size = group_size(width - support(width), heads, settings.fill, min(known.ranks))
    late = _columns(limit, values, readers[first:], angle, size, rng)
    return values, ranges, np.concatenate([early.columns, late.columns]), max(early.misfit, late.misfit)


def _gathered(
    limit: Limit, values: Values, known: Known, readers: Floats, angle: float, settings: Settings, rng: np.random.Generator
) -> tuple[Values, list[Floats], Floats, float]:
    """The same where every position is answered: each reader sees all others, and the tokens whose scores are known."""
    heads, n, width = values.heads, len(known.basis), readers.shape[1]
    needed = settings.answers(sum(known.ranks) if known.exceeded else heads * n, heads)
    early, late = (
        group_size(outputs - support(width), heads, settings.fill, min(known.ranks)) for outputs in (int(values.known.sum()), width)
    )
    pool = np.concatenate([readers, known.tokens])
    together = Gathered(limit, pool, np.where(np.arange(len(pool)) < len(readers), len(pool) - 1, 0), rng)
    told: list[tuple[Batch, Floats]] = []
    while (missing := needed - sum(len(batch.keys) for batch, _ in told)) > 0 and together.needed.any():
        asked = len(together.batches)
        together.ask(early + 1, -(-missing // (early + 1)))
        for batch in together.batches[asked:]:
            here = np.flatnonzero(~batch.readers[:, ~values.known].any(1))  # the others do not show the outputs in question
            told.append((batch.only(here), weigh(batch.only(here), values, limit.like).weights))
    alone = np.full((len(readers), heads, n), np.nan)  # of readers that hardly see others: from nearer keys
    if missing > 0:  # all have met: their scores are known, and random keys tell the rest
        columns = together.columns(values)[0][: len(readers)]
        lost = np.flatnonzero(np.isnan(columns).any((1, 2)))
        alone[lost] = columns[lost] = _columns(limit, values, readers[lost], angle, early, rng).columns
        told.append(_random(limit, values, readers, columns, angle, missing, rng))
    values, ranges = _outputs(values, known, told, limit.like)
    together.ask(late + 1)
    columns, misfit = together.columns(values)
    columns = np.where(np.isnan(alone), columns[: len(readers)], alone)
    lost = np.flatnonzero(np.isnan(columns).any((1, 2)))
    more = _columns(limit, values, readers[lost], angle, late, rng)
    columns[lost] = more.columns
    return values, ranges, columns, max(misfit, more.misfit)


def _calmed(
    sphere: Sphere, values: Values, T: NDArray[np.int_], readers: Floats, columns: Floats, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Readers, and their columns, with others in ``T`` in place of those that hardly see any but themselves.

    Scores are affine in the last token, so that those of all tokens in ``T`` are known by now.
    """
    affine = np.concatenate([readers @ values.basis.T, np.ones((len(readers), 1))], axis=1)
    solved = np.linalg.lstsq(affine, columns.reshape(len(readers), -1), rcond=None)[0]
    few = min(support(sphere.width), len(T) - 1)
    drawn = np.stack([sphere.sparse(rng.choice(T, size=few, replace=False), rng) for _ in range(STACK.calm_draws)])
    there = np.concatenate([drawn @ values.basis.T, np.ones((len(drawn), 1))], axis=1)
    found = (there @ solved).reshape(len(drawn), values.heads, -1)

    def alone(places: Floats, columns: Floats) -> Floats:
        """The largest score for itself, over the mean of those for the readers."""
        return np.asarray((np.einsum("nhk,nk->nh", columns, places) - (columns @ affine[:, :-1].mean(0))).max(1))

    own, order = alone(affine[:, :-1], columns), alone(there[:, :-1], found)
    readers, columns, affine = readers.copy(), columns.copy(), affine.copy()
    for i in np.flatnonzero((own > STACK.blind) & ~readers[:, np.setdiff1d(np.arange(sphere.width), T)].any(1)):
        least = 0.5 * np.linalg.svd(affine, compute_uv=False)[-1]
        for j in np.argsort(order):
            tried = affine.copy()
            tried[i] = there[j]
            if order[j] < own[i] and np.linalg.svd(tried, compute_uv=False)[-1] > least:
                readers[i], columns[i], affine, order[j] = drawn[j], found[j], tried, np.inf
                break
    return readers, columns


def _columns(limit: Limit, values: Values, readers: Floats, angle: float, size: int, rng: np.random.Generator) -> Columns:
    n = len(values.basis)
    if len(readers) == 0:
        return Columns(np.zeros((0, values.heads, n)), 0.0, ())
    return read_columns(limit, values, readers, around(values, readers, -(-n // size) * size, rng), angle, size)


def _random(
    limit: Limit, values: Values, readers: Floats, columns: Floats, angle: float, count: int, rng: np.random.Generator
) -> tuple[Batch, Floats]:
    """Further questions with two random keys in the subspace, and the weights that the scores known by now give them."""
    chosen = np.arange(count) % len(readers)
    keys = tangent(readers[chosen, None], around(values, readers[chosen], 2, rng), angle, float(np.linalg.norm(readers[0])))
    batch = limit.ask(keys, readers[chosen])
    return batch, weights_of(batch, np.einsum("nhk,njk->nhj", columns[chosen], batch.steps @ values.basis.T, optimize=True))


def _outputs(values: Values, known: Known, told: list[tuple[Batch, Floats]], like: Any = None) -> tuple[Values, list[Floats]]:
    """The values at the outputs that the first steps could not see, linear in answers whose weights are known by now."""
    missing = ~values.known
    factors, ranges = [], []
    for block, rank in zip(values.table[:, :, values.known], known.ranks, strict=True):
        if not known.exceeded:  # the range may be all there is
            factors.append(np.eye(len(block)))
            ranges.append(block.T)
            continue
        left, spectrum, right = singular(block)
        factors.append(left[:, :rank] * spectrum[:rank])
        ranges.append(right[:rank].T)
    design, moved = [], []
    for batch, weights in told:
        mixed = np.einsum("nhj,njk->nhk", weights, batch.steps @ values.basis.T, optimize=True)
        design.append(np.concatenate([mixed[:, h] @ factors[h] for h in range(values.heads)], axis=1))
        moved.append(batch.moved[:, missing])
    solved = on_host(least_squares(alike(np.concatenate(design), like), alike(np.concatenate(moved), like))[0])
    table, start, wide = values.table.copy(), 0, []
    for h, (factor, block) in enumerate(zip(factors, ranges, strict=True)):
        rank = factor.shape[1]
        whole = np.zeros((len(missing), rank))
        whole[values.known], whole[missing] = block, solved[start : start + rank].T
        start += rank
        table[h] = factor @ whole.T
        wide.append(np.linalg.qr(whole)[0])
    return Values(values.basis, table, np.ones_like(values.known)), wide


def _calm(values: Values, readers: Floats, columns: Floats, rng: np.random.Generator) -> Floats:
    """Per reader the one of several random directions along which its largest score is smallest."""
    chosen = np.zeros_like(readers)
    for i, (reader, column) in enumerate(zip(readers, columns, strict=True)):
        some = around(values, reader[None], min(8, len(values.basis) - 1), rng)[0]
        chosen[i] = some[np.abs(some @ values.basis.T @ column.T).max(1).argmin()]
    return chosen


def _completed(
    limit: Limit, values: Values, readers: Floats, columns: Floats, directions: Floats, angle: float, size: int
) -> Columns:
    """Scores along directions orthogonal to the first ones, at readers whose scores inside those are known."""
    count, fresh = -(-len(directions) // size) * size, len(directions)
    some = np.concatenate([directions, -directions])[np.arange(count) % (2 * fresh)]
    towards, axes = np.repeat(some[None], len(readers), axis=0), len(values.basis) - fresh + np.arange(count) % fresh
    return read_columns(limit, values, readers, towards, angle, size, start=columns, axes=axes)


def finished(limit: Limit, draft: Draft, settings: Settings, rng: np.random.Generator) -> Heads:
    """The columns of all other readers: in the span of the first ones, once those exceed the rank; then ``[W, c]`` of all."""
    sphere, values, readers, columns = draft.sphere, draft.values, draft.readers, draft.columns
    angle, size, misfits = draft.angle, draft.size, dict(draft.misfits)
    width, whole, heads = sphere.width, sphere.dimension + 1, values.heads
    first = np.setdiff1d(np.arange(width), draft.T)
    first = rng.permutation(first)[: whole - len(readers)]  # tokens of a crowd stand for some
    first = np.concatenate([first, rng.choice(draft.T, size=max(0, whole - len(readers) - len(first)))])
    others = sphere.readers(first, np.arange(width), rng, readers)
    while True:
        spectra = [singular(columns[:, h].T) for h in range(heads)]
        ranks = tuple(cliff(spectrum, settings.cliff) for _, spectrum, _ in spectra)
        done = len(columns) - len(readers)
        if done == len(others) or len(columns) >= max(ranks) + 2:
            break
        some = others[done : done + max(2, len(columns) // 4)]
        more = _columns(limit, values, some, angle, size, rng)
        columns = np.concatenate([columns, more.columns])
        misfits["columns"] = max(misfits["columns"], more.misfit)
    rest = others[len(columns) - len(readers) :]
    if len(rest):
        count = settings.rows(max(ranks), heads, limit.sight)
        frames = [left[:, :rank] for (left, _, _), rank in zip(spectra, ranks, strict=True)]
        found = np.full((len(rest), heads, columns.shape[2]), np.nan)
        if limit.sight is not None:
            pool = np.concatenate([rest, readers])
            together = Gathered(limit, pool, np.where(np.arange(len(pool)) < len(rest), min(count, len(pool) - 1), 0), rng)
            together.ask(size + 1)
            found, misfits["together"] = together.columns(values, frames)
            found = found[: len(rest)]
        left = np.flatnonzero(np.isnan(found[:, :, 0]).any(1))
        if len(left):
            count = min(-(-settings.rows(max(ranks), heads) // size) * size, len(values.basis) - 1) // size * size
            towards = around(values, rest[left], count, rng)
            more = read_columns(limit, values, rest[left], towards, angle, size, frames)
            found[left], misfits["rows"] = more.columns, more.misfit
        columns = np.concatenate([columns, found])
    model = _layer(values, np.concatenate([readers, others]), columns)
    assert model.V is not None
    return Heads(model, ranks, ranks_of(model.V, settings.cliff), misfits)


def _layer(values: Values, readers: Floats, columns: Floats) -> Attention:
    """W, c and V from the columns of ``readers``."""
    x = readers @ values.basis.T
    affine = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    solved = np.linalg.lstsq(affine, columns.reshape(len(x), -1), rcond=None)[0].reshape(len(values.basis) + 1, values.heads, -1)
    W = np.einsum("jhi,ik,jl->hkl", solved[:-1], values.basis, values.basis, optimize=True)
    V = np.einsum("hno,nk->hko", values.table, values.basis, optimize=True)
    return Attention(W, V, solved[-1] @ values.basis)
