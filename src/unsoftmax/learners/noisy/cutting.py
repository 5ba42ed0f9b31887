"""Rounded answers: when to aim at the edges between them, and what that leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unsoftmax.learners.noisy.fit import Head, unpacked
from unsoftmax.learners.noisy.judgement import refuse_saturated, resolution
from unsoftmax.learners.noisy.pilot import rescued
from unsoftmax.learners.noisy.probes import joined
from unsoftmax.learners.noisy.rounding import cut
from unsoftmax.learners.noisy.run import Run, packed
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.learners.noisy.stages import ask_recentred, simplest
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase
from unsoftmax.results import Learned


def cut_at_edges(run: Run, head: Head, total: int) -> Learned | None:
    """Aim the remaining questions at the edges between rounded answers; None if the answers are not purely rounded."""
    step = run.settings.floor.step
    assert step is not None
    for _ in range(NOISY.cuts):
        before = run.spent
        phase(run.oracle, "edges")
        found = cut(
            run.oracle,
            head,
            joined(run.asked),
            step,
            queries=total - before,
            accuracy=run.settings.accuracy,
            length=run.length,
            norm=run.norm,
            copies=run.copies,
            rng=run.rng,
        )
        run.asked = [found.probes]
        if found.head is not None:
            return judged(run, found.head, found.spread, step)
        if run.spent > before:  # answers aimed at edges are half a step off, not anything up to that
            run.floor = replace(run.floor, step=np.sqrt(3) * step)
            break
        if 2 * before > total:
            break
        # no head near the fit agrees with the first answers: it got lost, as scores of long tokens are steep
        head = run.lengthened(rescued(run, head, total))
        phase(run.oracle, "scores")
        more = max(1, 2 * before - run.spent)
        run.asked.append(ask_recentred(run.oracle, head, more, run.length, run.copies, run.rng))
        head, _ = simplest(run.refitted(head), joined(run.asked))
    return None


def judged(run: Run, head: Head, spread: Floats, step: float) -> Learned:
    """The head that cutting left, if it is known well enough."""
    errors = unpacked(head, np.diag(spread**2), step / np.sqrt(12), NOISY.reach, max(1, run.spent - head.free))
    refuse_saturated(head, errors, run.spent, run.length, run.rough_budget)
    known = resolution(head, errors, run.norm, run.settings.accuracy)
    if not known.reached:
        run.refuse(head, errors, known.queries(run.spent))
    rms = float(np.sqrt(np.mean(errors.W**2)))
    note = f"Answers are rounded to {step:.3g}; questions aimed at the edges between two answers give W to {rms:.3g}."
    return packed(head, errors, (note,))
