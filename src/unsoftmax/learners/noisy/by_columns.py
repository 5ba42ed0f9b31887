"""Heads of low rank: columns of W until their rank stops growing, then rows and tangent questions."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import BudgetExceededError
from unsoftmax.learners.noisy.design import frames, tilted_keys
from unsoftmax.learners.noisy.further import resolved
from unsoftmax.learners.noisy.low_rank import Columns, ask_columns, fit_low_rank, more_columns
from unsoftmax.learners.noisy.probes import ask_pairs, joined
from unsoftmax.learners.noisy.run import Run, packed
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.learners.noisy.stages import biased, of_lowest_rank, simplest
from unsoftmax.oracles.base import phase
from unsoftmax.results import Learned


def find_columns(run: Run) -> tuple[Columns, int] | None:
    """Columns of W until their rank stops growing; None if it does not, or if a query bias blurs it."""
    settings = run.settings
    keys = tilted_keys(run.rng, NOISY.bias_probes, run.head.v, run.norm)
    half = np.full(NOISY.bias_probes, run.copies / 2)
    run.asked.append(ask_pairs(run.oracle, keys, half, half, np.zeros_like(keys)))
    if biased(run.head, run.asked[-1], run.noise):
        return None
    tokens = frames(run.rng, run.width, run.width, 1.0)
    most = run.width if settings.rank is not None else max(4, run.width // 4)
    columns: Columns | None = None
    start = 0
    while start < most:
        step = min(run.width, settings.rank + 2) if settings.rank is not None else 2
        known = None if columns is None else columns.length
        new = ask_columns(run.oracle, run.head, tokens[start : start + step], run.noise, run.norm, run.copies, known)
        run.asked += new.probes
        columns = new if columns is None else more_columns(columns, new)
        start += step
        rank = columns.rank
        if settings.rank is not None:
            return columns, settings.rank
        if rank <= max(1, start - 2):
            hidden = columns.threshold > max(NOISY.blurred * columns.largest, NOISY.score_resolution / run.norm**2)
            return None if hidden else (columns, rank)
    return None


def learn_low_rank(run: Run, columns: Columns, rank: int) -> Learned:
    """Rows and tangent questions at the rank found, one more if that does not fit."""
    rank = max(1, rank)
    dimension = run.width + rank * (2 * run.width - rank)
    total = run.settings.queries or max(NOISY.generous_low_rank * dimension - run.settings.already, run.spent + dimension)
    if total - run.spent < rank * run.width:
        raise BudgetExceededError(
            f"W looks like rank {rank}, which takes about {NOISY.generous_low_rank * dimension} queries; {total} were allowed. "
            "Raise `budget`.",
            evidence={"wanted": NOISY.generous_low_rank * dimension, "budget": total, "rank": rank},
            model=run.head.model(),
        )
    phase(run.oracle, "scores")
    head, probes = fit_low_rank(
        run.oracle,
        run.head.without(c=True, b=False),
        joined([part for part in run.asked if part.single.all()]),
        columns,
        rank,
        queries=total - run.spent,
        noise=run.noise,
        norm=run.norm,
        copies=run.copies,
        rng=run.rng,
    )
    run.asked = [probes]
    if run.settings.rank is None:
        head, rank = of_lowest_rank(head, probes, rank)
    head, errors = resolved(run, *simplest(head, probes), total)
    note = f"W has rank {rank} of {run.width}, as far as the noise lets see."
    return packed(head, errors, (note,), rank)
