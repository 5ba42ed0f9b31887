"""Values first: one-token answers show v, b and the noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unsoftmax.errors import NotIdentifiableError, TooNoisyError
from unsoftmax.learners.noisy.design import frames
from unsoftmax.learners.noisy.judgement import budget_for
from unsoftmax.learners.noisy.probes import ask_tokens, joined
from unsoftmax.learners.noisy.run import Run
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.learners.noisy.stages import fit_values


def ask_values(run: Run, count: int) -> None:
    """One-token answers: v and b, and the noise; more of them while the noise hides v."""
    settings, width = run.settings, run.width
    low = settings.low(width) or (settings.rank is None and width >= NOISY.search_rank_from)
    total = settings.queries or (NOISY.generous_low_rank if low else NOISY.generous) * settings.dimension(width)
    limit, first = run.most(total), True
    while True:
        run.asked.append(ask_tokens(run.oracle, frames(run.rng, count - run.spent, width, run.norm)))
        run.head, run.noise = fit_values(joined(run.asked))
        size, error = float(np.linalg.norm(run.head.v)), run.noise / run.norm * width / np.sqrt(run.spent)
        if size == 0.0:
            raise NotIdentifiableError(
                "All one-token answers are equal: v = 0, so no answer depends on W and nothing can be learned about it.",
                model=run.head.model(),
            )
        if size >= 4 * error and (first or 2 * run.spent <= limit):
            return
        if count >= limit:
            break
        count, first = min(limit, 2 * count), False
    true_size = np.sqrt(max(size**2 - error**2 / 2, error**2 / 2))  # the noise itself looks like values
    run.head = replace(run.head, v=run.head.v * true_size / size)
    needed = run.with_tests(run.formula(NOISY.resolution * NOISY.usual_score))
    budget = budget_for(NOISY.unsure * max(needed, run.most(total)), settings.beside)
    raise TooNoisyError(
        f"The values drown in the noise: |v| = {size:.3g} with an error of {error:.3g} after {run.spent} one-token answers. "
        f"A budget of about {budget} queries would do; raise `budget` or allow longer tokens (`max_norm`).",
        evidence={"noise": run.noise, "queries": budget},
        model=run.head.model(),
    )
