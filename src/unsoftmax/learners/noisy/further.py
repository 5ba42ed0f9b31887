"""Further questions while W is not known; what stays unknown is refused, and what is not one head."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.noisy.design import frames
from unsoftmax.learners.noisy.fit import Errors, Head, fit, predicted, standard_errors
from unsoftmax.learners.noisy.judgement import (
    PureNoise,
    budget_for,
    check_one_head,
    check_residuals,
    check_values,
    one_head_price,
    refuse_saturated,
    resolution,
)
from unsoftmax.learners.noisy.low_rank import ask_tangent
from unsoftmax.learners.noisy.probes import Probes, ask_tokens, joined
from unsoftmax.learners.noisy.run import Run
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.learners.noisy.stages import ask_recentred, check_fit, fit_values, likely_ridge, shrunk, simplest
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase
from unsoftmax.results import Floor


def resolved(run: Run, head: Head, errors: Errors, total: int) -> tuple[Head, Errors]:
    """More questions while W is not known and the limit allows; refuses what stays unknown, and what is not one head."""
    settings, most = run.settings, run.most(total)
    for _ in range(NOISY.max_rounds):
        refuse_saturated(head, errors, run.spent, run.length, run.rough_budget)
        test = one_head_price(run.drowned)
        found = resolution(head, errors, run.norm, settings.accuracy, run.ridge)
        needed = run.with_tests(found.queries(run.spent))
        room = most - run.spent
        if found.reached and run.spent + test >= needed and room >= NOISY.room * test:
            break
        hopeless = NOISY.close_call * run.with_tests(found.least_queries(run.spent)) > most
        if hopeless or room <= test:
            run.check_fit(head)  # what is not one head leaves W uncertain too
            lost = found.error > float(np.sqrt(np.mean(head.W**2)))  # the root law holds beside a fit, not where it ran off
            run.refuse(head, errors, min(needed, run.rough) if lost else needed)
        goal = int(min(most - test, 1.1 * (needed - test), NOISY.growth * run.spent))
        head, errors = asked_more(run, head, errors, max(1, goal - run.spent))
    probes = joined(run.asked)
    if run.ridge:
        head = fit(head, probes)
        errors = standard_errors(head, probes)
    closer = budget_for(NOISY.closer * (run.spent + test), settings.beside)
    singles = probes[probes.single]
    noise = PureNoise(run.noise, len(singles) - run.width - 1)
    if test:
        phase(run.oracle, "one head?")
        noise = check_one_head(run.oracle, head, errors, noise, min(test, room), run.norm, run.rng, closer)
        check_residuals(head, probes[~probes.single], noise, closer)
    check_fit(head, probes, noise, run.floor)
    if settings.floor.noisy:
        check_values(head, singles, noise, closer if test else None)  # without noise the fit and a check say more
    if run.floor.half or run.floor.digits:
        return by_size(head, probes, run.floor)
    return head, errors


def by_size(head: Head, probes: Probes, floor: Floor) -> tuple[Head, Errors]:
    """The fit with every answer weighted by its own error, see ``variances``."""
    for _ in range(NOISY.reweighted):
        squares = (probes.answers - predicted(head, probes)) ** 2 * len(probes) / max(1, len(probes) - head.free)
        variance = variances(squares, floor.written(probes.answers), probes.single)
        weight = variance.mean() / variance
        head = fit(head, probes, weight)
    return head, standard_errors(head, probes, weight)


def variances(squares: Floats, written: Floats, kind: NDArray[np.bool_]) -> Floats:
    """Of errors with these ``squares (n,)``: that of writing answers down, and the most likely one that either kind adds to it."""
    variance: Floats = np.maximum(written**2, np.finfo(float).tiny)
    for some in (kind, ~kind):
        if some.any():
            trials = np.concatenate([[0.0], squares[some].max() * 4.0 ** -np.arange(24.0)])[:, None]
            total = variance[some] + trials
            variance[some] += trials[np.argmin((np.log(total) + squares[some] / total).sum(axis=1)), 0]
    return variance


def asked_more(run: Run, head: Head, errors: Errors, count: int) -> tuple[Head, Errors]:
    """A seventh of ``count`` one-token questions, the others placed by what is known of the head; all fitted."""
    phase(run.oracle, "more")
    singles = count // 7
    run.asked.append(ask_tokens(run.oracle, frames(run.rng, singles, run.width, run.norm)))
    if head.left is None:
        run.asked.append(ask_recentred(run.oracle, shrunk(head, errors), count - singles, run.length, run.copies, run.rng))
    else:
        run.asked.append(ask_tangent(run.oracle, head, count - singles, run.norm, run.copies, run.rng))
    probes = joined(run.asked)
    _, run.noise = fit_values(probes[probes.single])
    if run.ridge:
        run.ridge = likely_ridge(head, errors, run.noise, run.norm, run.ridge)
    head, errors = simplest(fit(head, probes) if head.left is not None else run.refitted(head), probes, run.ridge)
    return run.lengthened(head), errors
