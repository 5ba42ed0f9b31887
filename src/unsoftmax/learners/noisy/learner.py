"""One head from noisy or rounded answers to tokens of bounded length: best questions, one fit of all answers, error bars."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import BudgetExceededError, TooNoisyError
from unsoftmax.learners.noisy.course import learn
from unsoftmax.learners.noisy.judgement import budget_for
from unsoftmax.learners.noisy.plan import queries_for, shares
from unsoftmax.learners.noisy.run import Run
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Floor, Learned


@dataclass(frozen=True, slots=True)
class NoisyHeadLearner:
    """Recover one head (W, v, c, b) from answers with noise, rounding or low precision, and tokens no longer than ``max_norm``.

    Price: ``queries``; by default ``6 (width^2 + width)``, or three times ``width + rank (2 width - rank)`` for low rank. A seventh
    are one-token answers, up to a third a pilot with balanced copies of ``±key``, the rest the same with lengths and copies placed
    by the pilot; one maximum-likelihood fit uses them all. Answers rounded to decimals are cut at their edges instead.

    Args:
        max_norm: no token is longer than this; None finds a length at which scores are moderate (a few dozen queries more).
        queries: sequences to ask in all; with ``accuracy``, at most.
        most: where that leaves W unknown, up to this many; by default no more than ``queries``.
        already: sequences that the caller has asked before; where ``queries`` is not given, so many fewer are asked.
        beside: sequences that the caller asks beside these; a refusal adds them to the budget that it names.
        accuracy: wanted rms error of W; asks as many queries as that takes, or refuses with their number.
        rank: rank of W; None finds out whether it is low.
        floor: what is known about the answers' precision.
        copies: tokens per question beside the last one.
    """

    max_norm: float | None = None
    queries: int | None = None
    most: int | None = None
    already: int = 0
    beside: int = 0
    accuracy: float | None = None
    rank: int | None = None
    floor: Floor = Floor(kind="noisy")  # noqa: RUF009 - frozen
    copies: int = 64

    def __post_init__(self) -> None:
        if self.max_norm is not None and not (np.isfinite(self.max_norm) and self.max_norm > 0):
            raise ValueError(f"max_norm is {self.max_norm}; it must be finite and positive.")
        if self.accuracy is not None and not self.accuracy > 0:
            raise ValueError(f"accuracy is {self.accuracy}; it must be positive.")
        if self.copies < 4 or self.copies % 2:
            raise ValueError(f"copies is {self.copies}; it must be even and at least 4.")

    def price(self, width: int) -> list[tuple[str, int, int]]:
        """Phases, queries and tokens for a given ``max_norm``, without saturated columns asked again; full rank if None."""
        long = self.copies + 1
        if self.low(width):
            total = self.queries or NOISY.generous_low_rank * self.dimension(width)
            values = width + 8
            bias, columns = NOISY.bias_probes, min(width, (self.rank or 0) + 2) * width
            rest = total - values - bias - columns
            return [
                ("values", values, values),
                ("columns", bias + columns, (bias + columns) * long),
                ("scores", rest, rest * long),
            ]
        total = self.total(width)
        base = self.base(width)
        values, pilot, scores = shares(base, width)
        phases = [("values", values, values), ("pilot", pilot, pilot * long), ("scores", scores, scores * long)]
        if base < total:
            phases.append(("edges", total - base, (total - base) * long))
        return phases

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Ask values, pilot and scores; fit; judge the fit."""
        return learn(Run(self, oracle, rng))

    def low(self, width: int) -> bool:
        """Whether a rank below the width was told."""
        return self.rank is not None and self.rank < width

    def cuts(self, width: int) -> bool:
        """Whether rounded answers are cut at their edges."""
        return self.floor.decimals and self.floor.step is not None and not self.floor.fresh and width <= NOISY.cut_up_to

    def base(self, width: int) -> int:
        """Queries before rounded answers are cut at their edges; without cutting, all of them."""
        total = self.total(width)
        return min(total, int(NOISY.plan_pilot * (width**2 + width)) + 4) if self.cuts(width) else total

    def dimension(self, width: int) -> int:
        """Free numbers in W and v."""
        rank = width if self.rank is None else self.rank
        return width + rank * (2 * width - rank)

    def total(self, width: int) -> int:
        """Queries to ask unless W stays unknown."""
        parameters = width**2 + width
        least = NOISY.fewest_per_parameter * parameters + 4
        total = self.queries or max(NOISY.generous * parameters - self.already, NOISY.least_generous * parameters, NOISY.few)
        if total < least:
            self._refuse_noise(width, least)
            raise BudgetExceededError(
                f"{total} queries are too few to fit {parameters} parameters to coarse answers; {least} are the least. "
                "Raise `budget`, or give `rank` if W has low rank.",
                evidence={"wanted": least, "budget": total},
            )
        return total

    def _refuse_noise(self, width: int, least: int) -> None:
        """Where the noise measured so far would take far more than the fewest queries, it is the reason to name."""
        if not self.floor.random or self.max_norm is None or not self.floor.absolute:
            return
        wanted = NOISY.resolution * NOISY.usual_score / self.max_norm**2
        needed = queries_for(wanted, noise=self.floor.absolute, max_norm=self.max_norm, width=width)
        if needed > least:
            budget = budget_for(needed, self.beside)
            raise TooNoisyError(
                f"Noise of about {self.floor.absolute:.3g} hides W: a budget of about {budget} queries would do for scores and "
                f"values of usual size, and this one leaves {self.queries}. Raise `budget` or allow longer tokens (`max_norm`).",
                evidence={"noise": self.floor.absolute, "queries": budget},
            )
