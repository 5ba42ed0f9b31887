"""A first idea of W from a pilot, how many questions it says are needed, and help where it got lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unsoftmax.errors import TooNoisyError
from unsoftmax.learners.noisy.design import frames
from unsoftmax.learners.noisy.fit import Head, fit, standard_errors
from unsoftmax.learners.noisy.judgement import budget_for, one_head_price, resolution, score_size
from unsoftmax.learners.noisy.plan import Forecast, shares
from unsoftmax.learners.noisy.probes import Probes, ask_tokens, joined
from unsoftmax.learners.noisy.run import Run
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.learners.noisy.stages import (
    ask_pilot,
    ask_recentred,
    fit_values,
    is_loud,
    lack_of_fit,
    likely_ridge,
    reach,
    shrunk,
    simplest,
    started,
)
from unsoftmax.oracles.base import phase


def first_idea(run: Run, total: int) -> tuple[Head, int]:
    """A first idea of W, and the queries to ask before it is judged."""
    base = run.settings.base(run.width)
    values, pilot, _ = shares(base, run.width)
    singles = sum(int(part.single.sum()) for part in run.asked)
    if singles < values:
        phase(run.oracle, "values")
        run.asked.append(ask_tokens(run.oracle, frames(run.rng, values - singles, run.width, run.norm)))
        run.head, run.noise = fit_values(joined([part for part in run.asked if part.single.all()]))
    phase(run.oracle, "pilot")
    already = run.spent - max(values, singles)
    if run.settings.cuts(run.width):  # few answers come before the cutting: columns of W are no substitute for a pilot
        base, already = min(total, base + already), 0
    base = min(base, max(run.most(total) - one_head_price(run.drowned), base // 2))
    # strong noise takes a longer pilot: one that does not know the scores cannot place questions around them
    most, spread = run.most(total), NOISY.plan_pilot * (run.width**2 + run.width) + 4
    rough, least = (run.formula(score) for score in (NOISY.placeable, NOISY.worst_pilot_score))
    if rough > spread:
        pilot = max(pilot, min(base // 3, rough), min(most // 2, least))
        base = min(most, max(base, 2 * pilot + values))
    pilot, left = max(1, pilot - already), most - run.spent
    parts, shortest = ask_pilot(run.oracle, run.head, pilot, left, run.noise, run.norm, run.copies, run.rng)
    run.asked += parts
    base = min(most, base + max(0, sum(len(part) for part in parts) - pilot))  # tokens that are far too long take more
    probes = joined(run.asked)
    if least > max(spread, most // 2):
        refuse_blind(run, probes)
    calm = probes if shortest == run.norm else probes[probes.lengths <= 1.01 * shortest]
    head = started(run.head, calm, run.noise)
    if is_loud(run.head, probes, run.noise):  # a linear fit knows the size of W
        at_rest = replace(head, W=np.zeros_like(head.W), c=np.zeros_like(head.c))
        run.ridge = likely_ridge(head, standard_errors(at_rest, probes), run.noise, run.norm, 0.0)
    head = fit(head, calm, ridge=run.ridge)
    if shortest < run.norm:  # answers that saturate lead astray a fit that knows nothing yet
        head = fit(head, probes, ridge=run.ridge)
        run.length = reach(head, probes, run.noise, shortest, run.norm)
    return head, base


def refuse_blind(run: Run, probes: Probes) -> None:
    """Noise so strong that half the limit does not find the scores even roughly; their size tells how many queries would."""
    head = started(run.head, probes, run.noise)
    errors = standard_errors(replace(head, W=np.zeros_like(head.W), c=np.zeros_like(head.c)), probes)
    score = NOISY.resolution * score_size(head, errors, run.norm)
    needed = run.with_tests(run.formula(max(score, NOISY.score_resolution)))
    run.refuse(head, errors, max(needed, run.most(run.settings.total(run.width))))


def planned(run: Run, head: Head, accuracy: float) -> tuple[Head, int]:
    """Half a query per parameter more, and the number of queries that ``accuracy`` takes."""
    parameters = run.width**2 + run.width
    run.asked.append(ask_recentred(run.oracle, head, parameters // 2 + 1, run.length, run.copies, run.rng))
    probes = joined(run.asked)
    head, errors = simplest(run.refitted(head), probes)
    forecast = Forecast(head, probes, errors.noise, run.length, run.copies, run.rng)
    needed, test = forecast.queries(accuracy), one_head_price(run.drowned)
    limit = None if run.settings.queries is None else run.settings.queries - test
    if limit is not None and needed > limit and forecast.error(limit) <= NOISY.close_enough * accuracy:
        needed = max(limit, run.spent + 1)
    if limit is not None and needed > limit:
        budget = budget_for(needed + test, run.settings.beside)
        raise TooNoisyError(
            f"Noise of {errors.noise:.3g} lets {limit} queries find W to {forecast.error(limit):.3g} (rms), not "
            f"{accuracy:.3g}. A budget of {budget} queries would do; raise `budget` or allow longer tokens (`max_norm`).",
            evidence={"noise": errors.noise, "queries": budget, "reachable": forecast.error(limit)},
            model=head.model(),
        )
    if 2 * run.width * needed > NOISY.largest:
        reachable = forecast.error(NOISY.largest // (2 * run.width))
        raise TooNoisyError(
            f"Noise of {errors.noise:.3g} lets W be known to {accuracy:.3g} (rms) after about {needed:.2g} queries, more than fit "
            f"into memory. Ask for less (`accuracy={reachable:.1g}` or coarser), allow longer tokens (`max_norm`), or set a "
            "`budget`.",
            evidence={"noise": errors.noise, "queries": needed, "reachable": reachable},
            model=head.model(),
        )
    return head, max(needed, run.spent + 1)


def promising(run: Run, head: Head, most: int) -> Head:
    """The head to place the next questions by; stops after the pilot if the most queries would leave W unknown beyond doubt."""
    probes = joined(run.asked)
    errors = standard_errors(head, probes)
    found = resolution(head, errors, run.norm, ridge=run.ridge)
    guess = shrunk(head, errors)
    # recentred questions tell several times more than pilot ones, hence the factor 3; a close call is judged at the end
    if found.error * np.sqrt(len(probes) / most) > 3 * found.wanted_most:
        forecast = Forecast(guess, probes, errors.noise, run.length, run.copies, run.rng)
        misses, expected = lack_of_fit(head, probes, run.noise, run.floor)
        lost = misses > expected or run.length < run.norm  # or may be: a fit that got lost says nothing
        if not lost and forecast.error(most) > 1.5 * found.wanted_most:
            run.refuse(head, errors, run.with_tests(forecast.queries(found.wanted)))
    return guess


def rescued(run: Run, head: Head, total: int) -> Head:
    """Where the fit got lost among steep scores and queries are left: one from short tokens, whose scores are small."""
    probes, count = joined(run.asked), 2 * (run.width**2 + run.width)
    found, expected = lack_of_fit(head, probes, run.noise, run.floor)
    if run.ridge or found <= expected or run.spent + count > run.most(total):
        return head
    phase(run.oracle, "short tokens")
    left = run.most(total) - run.spent
    parts, _ = ask_pilot(run.oracle, run.head, count, left, run.noise, NOISY.short * run.length, run.copies, run.rng)
    run.asked += parts
    short = joined([probes[probes.single], *parts])
    return min(
        (fit(start, joined(run.asked)) for start in (head, fit(started(run.head, short, run.noise), short))),
        key=lambda guess: lack_of_fit(guess, joined(run.asked), run.noise, run.floor)[0],
    )
