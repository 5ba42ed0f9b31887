"""One run of ``NoisyHeadLearner``: what it asked so far, how many questions it may still ask, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unsoftmax.errors import TooNoisyError
from unsoftmax.learners.noisy.fit import Errors, Head, fit
from unsoftmax.learners.noisy.judgement import PureNoise, budget_for, drowning, least_queries, one_head_price
from unsoftmax.learners.noisy.plan import queries_for
from unsoftmax.learners.noisy.probes import Probes, joined
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.learners.noisy.stages import check_fit, reach, refitted
from unsoftmax.models import Attention
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Bounds, Learned
from unsoftmax.watching import watchers

if TYPE_CHECKING:
    from unsoftmax.learners.noisy.learner import NoisyHeadLearner

AMBIGUITY = "The parameters are unique in this form and known to within the stated error bars."


class Run:
    """What one run asked so far, and the head that fits it."""

    head: Head  # what fits the answers so far; at first its values alone
    noise: float  # of one-token answers
    norm: float  # length of the longest tokens that may be asked
    length: float  # of the longest ones whose scores are known well enough to place questions around them

    def __init__(self, settings: NoisyHeadLearner, oracle: Oracle, rng: np.random.Generator) -> None:
        self.settings = settings
        self.oracle = oracle
        self.rng = rng
        self.width = oracle.width
        self.copies = settings.copies
        self.floor = settings.floor
        self.asked: list[Probes] = []
        self.ridge = 0.0

    @property
    def spent(self) -> int:
        """Sequences asked so far."""
        return sum(len(part) for part in self.asked)

    def most(self, total: int) -> int:
        """The most queries that may be asked; one length search is not counted."""
        if self.settings.accuracy is not None:  # as many as that takes, up to ``queries``
            return NOISY.most_queries if self.settings.queries is None else max(total, self.settings.queries)
        return total if self.settings.most is None else max(total, self.settings.most)

    def refitted(self, head: Head) -> Head:
        """The fit to all answers so far."""
        probes = joined(self.asked)
        found = fit(head, probes, ridge=self.ridge) if self.ridge else refitted(head, probes, self.noise, self.floor)
        for watcher in watchers():
            watcher.sees(lambda: Attention.single(found.W, found.v, found.c, found.b))
        return found

    def lengthened(self, head: Head) -> Head:
        """The same head, after a look at how long tokens may be now."""
        if self.length < self.norm:
            self.length = reach(head, joined(self.asked), self.noise, self.length, self.norm)
        return head

    def check_fit(self, head: Head) -> None:
        """Refuse a head that misses the answers by more than the noise of one-token answers."""
        probes = joined(self.asked)
        check_fit(head, probes, PureNoise(self.noise, int(probes.single.sum()) - self.width - 1), self.floor)

    @property
    def drowned(self) -> float:
        """The squared ratio of the noise to the largest answers."""
        return drowning(self.noise, self.norm, float(np.linalg.norm(self.head.v)))

    def with_tests(self, needed: float) -> float:
        """Queries in all, if W takes so many: a check must be able to see it, and several heads would have to show."""
        return max(needed, least_queries(self.drowned)) + one_head_price(self.drowned)

    def formula(self, score: float) -> int:
        """Queries that leave this error in a score, by the formula."""
        size = float(np.linalg.norm(self.head.v))
        return queries_for(score / self.norm**2, noise=self.noise, max_norm=self.norm, width=self.width, value_norm=size)

    @property
    def rough(self) -> float:
        """Queries to name where W ran off and answers say nothing of it: several times as many, or what usual scores would take."""
        return max(NOISY.runaway * self.spent, self.with_tests(self.formula(NOISY.resolution * NOISY.usual_score)))

    @property
    def rough_budget(self) -> int:
        """The same as a budget."""
        return budget_for(self.rough, self.settings.beside)

    def refuse(self, head: Head, errors: Errors, needed: float) -> None:
        """End with the budget that would do."""
        budget = budget_for(needed, self.settings.beside)
        rms = float(np.sqrt(np.mean(errors.W**2)))
        raise TooNoisyError(
            f"Noise of {errors.noise:.3g} leaves W uncertain by {rms:.3g} (rms) after {self.spent} queries, against entries of "
            f"{float(np.sqrt(np.mean(head.W**2))):.3g}. A budget of about {budget} queries would do; raise `budget` or allow "
            "longer tokens (`max_norm`).",
            evidence={"noise": errors.noise, "queries": budget, "standard_error_W": rms},
            model=head.model(),
        )


def packed(head: Head, errors: Errors, notes: tuple[str, ...] = (), rank: int | None = None) -> Learned:
    """The model with 95% intervals."""
    bounds = Bounds(
        kind="estimated",
        W=errors.reach * errors.W[None],
        V=errors.reach * errors.v[None],
        c=errors.reach * errors.c[None] if head.with_c else None,
        b=np.asarray(errors.reach * errors.b) if head.with_b else None,
    )
    rms = float(np.sqrt(np.mean(errors.W**2)))
    note = f"The answers carry a noise of {errors.noise:.3g}; W is known to {rms:.3g} (rms standard error per entry)."
    return Learned(
        model=head.model(),
        ambiguity=AMBIGUITY,
        bounds=bounds,
        notes=(note, *notes),
        evidence={
            "noise": errors.noise,
            "standard_error_W": rms,
            "rank": head.width if rank is None else rank,
        },
        ranks=(head.width if rank is None else rank,),
        noise=(errors.noise, errors.freedom),
    )
