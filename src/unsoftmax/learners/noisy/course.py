"""The course of one run of ``NoisyHeadLearner``: what it asks in which order."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.noisy.by_columns import find_columns, learn_low_rank
from unsoftmax.learners.noisy.cutting import cut_at_edges
from unsoftmax.learners.noisy.further import resolved
from unsoftmax.learners.noisy.pilot import first_idea, planned, promising, rescued
from unsoftmax.learners.noisy.plan import shares
from unsoftmax.learners.noisy.probes import joined
from unsoftmax.learners.noisy.run import Run, packed
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.learners.noisy.stages import ask_recentred, find_norm, simplest
from unsoftmax.learners.noisy.values import ask_values
from unsoftmax.oracles.base import phase
from unsoftmax.results import Learned


def learn(run: Run) -> Learned:
    """Ask, fit and judge; low rank if the columns show one."""
    settings = run.settings
    if settings.max_norm is None:
        phase(run.oracle, "length")
        run.norm = find_norm(run.oracle, run.copies, run.rng)
    else:
        run.norm = settings.max_norm
    run.length = run.norm
    searching = settings.rank is None and run.width >= NOISY.search_rank_from
    low = settings.low(run.width)
    values = run.width + 8 if low or searching else shares(run.settings.base(run.width), run.width)[0]
    phase(run.oracle, "values")
    ask_values(run, values)
    loud = run.noise > NOISY.loud_columns * run.norm * float(np.linalg.norm(run.head.v))
    if low or (searching and not loud):
        phase(run.oracle, "columns")
        found = find_columns(run)
        if found is not None:
            return learn_low_rank(run, *found)
    return learn_full(run)


def learn_full(run: Run) -> Learned:
    """Pilot, then recentred questions or edges."""
    settings, total = run.settings, run.settings.total(run.width)
    head, base = first_idea(run, total)
    edges = (run.width + 1) ** 2 if settings.cuts(run.width) else 0  # one for each parameter, whatever came before
    total = max(total, min(run.most(total), base + edges))
    phase(run.oracle, "scores")
    if settings.accuracy is not None and not settings.cuts(run.width):
        head, total = planned(run, head, settings.accuracy)
        base = total
    elif not settings.cuts(run.width):
        head = promising(run, head, run.most(total))
    for _ in range(NOISY.climb):
        if run.length == run.norm or run.spent >= base:
            break
        run.asked.append(ask_recentred(run.oracle, head, max(1, (base - run.spent) // 3), run.length, run.copies, run.rng))
        head = run.lengthened(run.refitted(head))
    run.asked.append(ask_recentred(run.oracle, head, max(1, base - run.spent), run.length, run.copies, run.rng))
    probes = joined(run.asked)
    head, errors = simplest(run.refitted(head), probes, run.ridge)
    if settings.cuts(run.width):
        learned = cut_at_edges(run, head, total)
        if learned is not None:
            return learned
        head = run.lengthened(run.refitted(head))  # with what was asked for cutting
        run.asked.append(ask_recentred(run.oracle, head, max(1, total - run.spent), run.length, run.copies, run.rng))
        head, errors = simplest(run.refitted(head), joined(run.asked))
    better = rescued(run, head, total)
    if better is not head:
        head, errors = simplest(better, joined(run.asked))
    return packed(*resolved(run, head, errors, total))
