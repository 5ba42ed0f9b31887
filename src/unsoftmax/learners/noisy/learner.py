"""One head from noisy or rounded answers to tokens of bounded length: the best questions, all answers fitted at once, error "
"bars."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import BudgetExceededError, NotIdentifiableError, TooNoisyError
from unsoftmax.learners.noisy.design import frames, tilted_keys
from unsoftmax.learners.noisy.fit import Errors, Head, fit, linear_start, standard_errors, unpacked
from unsoftmax.learners.noisy.low_rank import Columns, ask_columns, fit_low_rank, more_columns
from unsoftmax.learners.noisy.plan import FEWEST_PER_PARAMETER, Forecast, ideal_error, queries_for
from unsoftmax.learners.noisy.probes import Probes, ask_pairs, ask_tokens, joined
from unsoftmax.learners.noisy.rounding import REACH, cut
from unsoftmax.learners.noisy.stages import (
    ask_pilot,
    ask_recentred,
    biased,
    check_fit,
    find_norm,
    fit_values,
    refitted,
    simplest,
)
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Bounds, Floor, Learned

AMBIGUITY = "The parameters are unique in this form and known to within the stated error bars."
GENEROUS = 6  # queries per parameter unless told otherwise
GENEROUS_LOW_RANK = 3
PILOT = 2.5  # queries per parameter that are enough to place the others
PILOT_SCORE = 0.3  # error of a score that the pilot may leave
# below this width a full fit costs less than finding out that the rank is low
SEARCH_RANK_FROM = 16
# cutting solves dense systems in all parameters many times a round
CUT_UP_TO = 24
# what counts as known: a tenth of W, or scores to 0.05
RESOLUTION = 0.1
SCORE_RESOLUTION = 0.05
SATURATION = 1000.0  # times the error that balanced questions leave: beyond, hardly any answer depends on W


@dataclass(frozen=True, slots=True)
class NoisyHeadLearner:
    """Recover one head (W, v, c, b) from answers with noise, rounding or low precision, and tokens no longer than ``max_norm``.

    Price: ``queries``; by default ``6 (width^2 + width)``, or three times ``width + rank (2 width - rank)`` for low rank. A seventh
    are one-token answers, up to a third a pilot with balanced copies of ``±key``, the rest the same with lengths and copies placed
    by the pilot; one maximum-likelihood fit uses them all. Answers rounded to decimals are cut at their edges instead.

    Args:
        max_norm: no token is longer than this; None finds a length at which scores are moderate (a few dozen queries more).
        queries: sequences to ask in all; with ``accuracy``, at most.
        accuracy: wanted rms error of W; asks as many queries as that takes, or refuses with their number.
        rank: rank of W; None finds out whether it is low.
        floor: what is known about the answers' precision.
        copies: tokens per question beside the last one.
    """

    max_norm: float | None = None
    queries: int | None = None
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
        """Phases, queries and tokens for a given ``max_norm``, without re-asks of saturated columns; for ``rank=None``, full "
        "rank."""
        long = self.copies + 1
        if self._low(width):
            total = self.queries or GENEROUS_LOW_RANK * self._dimension(width)
            values = width + 8
            bias, columns = BIAS_PROBES, min(width, (self.rank or 0) + 2) * width
            rest = total - values - bias - columns
            return [
                ("values", values, values),
                ("columns", bias + columns, (bias + columns) * long),
                ("scores", rest, rest * long),
            ]
        total = self._total(width)
        base = total if not self._cuts(width) else min(total, int(PILOT * (width**2 + width)) + 4)
        values, pilot, scores = _shares(base, width)
        phases = [("values", values, values), ("pilot", pilot, pilot * long), ("scores", scores, scores * long)]
        if base < total:
            phases.append(("edges", total - base, (total - base) * long))
        return phases

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Ask values, pilot and scores; fit; judge the fit."""
        return _Run(self, oracle, rng).learn()

    def _low(self, width: int) -> bool:
        return self.rank is not None and self.rank < width

    def _cuts(self, width: int) -> bool:
        return self.floor.kind == "rounded" and self.floor.step is not None and not self.floor.fresh and width <= CUT_UP_TO

    def _dimension(self, width: int) -> int:
        rank = width if self.rank is None else self.rank
        return width + rank * (2 * width - rank)

    def _total(self, width: int) -> int:
        parameters = width**2 + width
        least = FEWEST_PER_PARAMETER * parameters + 4
        total = self.queries or GENEROUS * parameters
        if total < least:
            raise BudgetExceededError(
                f"{total} queries are too few to fit {parameters} parameters to coarse answers; {least} are the least. "
                "Raise `budget`, or give `rank` if W has low rank.",
                evidence={"wanted": least, "budget": total},
            )
        return total


def _shares(total: int, width: int) -> tuple[int, int, int]:
    """One-token questions, pilot, recentred ones."""
    values = max(total // 7, width + 2)
    pilot = min(total // 3, int(PILOT * (width**2 + width)))
    return values, pilot, total - values - pilot


BIAS_PROBES = 8


class _Run:
    """One run: what it asked so far and the head that fits it."""

    def __init__(self, settings: NoisyHeadLearner, oracle: Oracle, rng: np.random.Generator) -> None:
        self.settings = settings
        self.oracle = oracle
        self.rng = rng
        self.width = oracle.width
        self.copies = settings.copies
        self.asked: list[Probes] = []

    @property
    def spent(self) -> int:
        return sum(len(part) for part in self.asked)

    def learn(self) -> Learned:
        settings = self.settings
        if settings.max_norm is None:
            phase(self.oracle, "length")
            self.norm = find_norm(self.oracle, self.copies, self.rng)
        else:
            self.norm = settings.max_norm
        searching = settings.rank is None and self.width >= SEARCH_RANK_FROM
        low = settings._low(self.width)
        values = self.width + 8 if low or searching else _shares(self.base(), self.width)[0]
        phase(self.oracle, "values")
        self.ask_values(values)
        if low or searching:
            phase(self.oracle, "columns")
            found = self.find_columns()
            if found is not None:
                return self.learn_low_rank(*found)
        return self.learn_full()

    def base(self) -> int:
        """Queries before rounded answers are cut at their edges; without cutting, all of them."""
        total = self.settings._total(self.width)
        return min(total, int(PILOT * (self.width**2 + self.width)) + 4) if self.settings._cuts(self.width) else total

    def ask_values(self, count: int) -> None:
        """One-token answers: v and b, and the noise."""
        self.asked.append(ask_tokens(self.oracle, frames(self.rng, count, self.width, self.norm)))
        self.head, self.noise = fit_values(joined(self.asked))
        size, error = float(np.linalg.norm(self.head.v)), self.noise / self.norm * self.width / np.sqrt(self.spent)
        if size == 0.0:
            raise NotIdentifiableError(
                "All one-token answers are equal: v = 0, so no answer depends on W and nothing can be learned about it.",
                model=self.head.model(),
            )
        if size < 4 * error:
            true_size = max(np.sqrt(max(size**2 - error**2, 0.0)), error / 4)  # the noise itself looks like values
            accuracy = 3 * SCORE_RESOLUTION / self.norm**2
            needed = queries_for(accuracy, noise=self.noise, max_norm=self.norm, width=self.width, value_norm=float(true_size))
            raise TooNoisyError(
                f"The values drown in the noise: |v| = {size:.3g} with an error of {error:.3g} after {self.spent} one-token "
                "answers. "
                f"About {needed} queries would do; raise `budget` or allow longer tokens (`max_norm`).",
                evidence={"noise": self.noise, "queries": needed},
                model=self.head.model(),
            )

    def find_columns(self) -> tuple[Columns, int] | None:
        """Columns of W until their rank stops growing; None if it does not, or if a query bias blurs it."""
        settings = self.settings
        keys = tilted_keys(self.rng, BIAS_PROBES, self.head.v, self.norm)
        half = np.full(BIAS_PROBES, self.copies / 2)
        self.asked.append(ask_pairs(self.oracle, keys, half, half, np.zeros_like(keys)))
        if biased(self.head, self.asked[-1], self.noise):
            return None
        tokens = frames(self.rng, self.width, self.width, 1.0)
        most = self.width if settings.rank is not None else max(4, self.width // 4)
        columns: Columns | None = None
        start = 0
        while start < most:
            step = min(self.width, settings.rank + 2) if settings.rank is not None else 2
            new = ask_columns(self.oracle, self.head, tokens[start : start + step], self.noise, self.norm, self.copies)
            self.asked += new.probes
            columns = new if columns is None else more_columns(columns, new)
            start += step
            rank = columns.rank
            if settings.rank is not None:
                return columns, settings.rank
            if rank <= max(1, start - 2):
                return columns, rank
        return None

    def learn_low_rank(self, columns: Columns, rank: int) -> Learned:
        """Rows and tangent questions at the rank found, one more if that does not fit."""
        rank = max(1, rank)
        dimension = self.width + rank * (2 * self.width - rank)
        total = self.settings.queries or max(GENEROUS_LOW_RANK * dimension, self.spent + dimension)
        if total - self.spent < rank * self.width:
            raise BudgetExceededError(
                f"W looks like rank {rank}, which takes about {GENEROUS_LOW_RANK * dimension} queries; {total} were allowed. "
                "Raise `budget`.",
                evidence={"wanted": GENEROUS_LOW_RANK * dimension, "budget": total, "rank": rank},
                model=self.head.model(),
            )
        phase(self.oracle, "scores")
        head, probes = fit_low_rank(
            self.oracle,
            self.head.without(c=True, b=False),
            joined([part for part in self.asked if part.single.all()]),
            columns,
            rank,
            queries=total - self.spent,
            noise=self.noise,
            norm=self.norm,
            copies=self.copies,
            rng=self.rng,
        )
        head, errors = simplest(head, probes)
        check_fit(head, probes, self.noise, self.settings.floor)
        self.refuse_unresolved(head, errors, len(probes))
        return packed(head, errors, (f"W has rank {rank} of {self.width}, as far as the noise lets see.",), rank)

    def learn_full(self) -> Learned:
        """Pilot, then recentred questions or edges."""
        settings = self.settings
        total, base = settings._total(self.width), self.base()
        values, pilot, _ = _shares(base, self.width)
        singles = sum(int(part.single.sum()) for part in self.asked)
        if singles < values:
            phase(self.oracle, "values")
            self.asked.append(ask_tokens(self.oracle, frames(self.rng, values - singles, self.width, self.norm)))
            self.head, self.noise = fit_values(joined([part for part in self.asked if part.single.all()]))
        phase(self.oracle, "pilot")
        already = self.spent - max(values, singles)
        # strong noise takes a longer pilot, up to a third: one that does not know the scores cannot place questions around them
        size = float(np.linalg.norm(self.head.v))
        rough = queries_for(PILOT_SCORE / self.norm**2, noise=self.noise, max_norm=self.norm, width=self.width, value_norm=size)
        if rough > PILOT * (self.width**2 + self.width) + 4:
            pilot = max(pilot, min(base // 3, rough))
        parts = ask_pilot(self.oracle, self.head, max(1, pilot - already), self.norm, self.copies, self.rng)
        steep = len(parts) > 2
        self.asked += parts
        probes = joined(self.asked)
        head = fit(linear_start(self.head, probes), probes)
        phase(self.oracle, "scores")
        if settings.accuracy is not None and not settings._cuts(self.width):
            head, total = self.planned(head, settings.accuracy)
            base = total
        elif not settings._cuts(self.width):
            self.refuse_hopeless(head, total)
        if steep:  # the pilot had to stay with short tokens and knows the scores of long ones only roughly
            self.asked.append(ask_recentred(self.oracle, head, (base - self.spent) // 3, self.norm, self.copies, self.rng))
            head = self.refitted(head)
        self.asked.append(ask_recentred(self.oracle, head, base - self.spent, self.norm, self.copies, self.rng))
        probes = joined(self.asked)
        head, errors = simplest(self.refitted(head), probes)
        if settings._cuts(self.width):
            learned = self.cut(head, total)
            if learned is not None:
                return learned
            self.asked.append(ask_recentred(self.oracle, head, max(1, total - self.spent), self.norm, self.copies, self.rng))
            probes = joined(self.asked)
            head, errors = simplest(self.refitted(head), probes)
        check_fit(head, probes, self.noise, settings.floor)
        self.refuse_unresolved(head, errors, len(probes))
        return packed(head, errors)

    def refitted(self, head: Head) -> Head:
        """The fit to all answers so far."""
        return refitted(head, joined(self.asked), self.noise, self.settings.floor)

    def planned(self, head: Head, accuracy: float) -> tuple[Head, int]:
        """Half a query per parameter more, and the number of queries that ``accuracy`` takes."""
        parameters = self.width**2 + self.width
        self.asked.append(ask_recentred(self.oracle, head, parameters // 2 + 1, self.norm, self.copies, self.rng))
        probes = joined(self.asked)
        head, errors = simplest(self.refitted(head), probes)
        forecast = Forecast(head, probes, errors.noise, self.norm, self.copies, self.rng)
        needed = forecast.queries(accuracy)
        limit = self.settings.queries
        if limit is not None and needed > limit:
            raise TooNoisyError(
                f"Noise of {errors.noise:.3g} lets {limit} queries find W to {forecast.error(limit):.3g} (rms), not "
                f"{accuracy:.3g}. "
                f"{needed} queries would do; raise `budget` or allow longer tokens (`max_norm`).",
                evidence={"noise": errors.noise, "queries": needed, "reachable": forecast.error(limit)},
                model=head.model(),
            )
        return head, max(needed, self.spent + 1)

    def refuse_hopeless(self, head: Head, total: int) -> None:
        """Stop after the pilot if even the whole budget would leave W unknown."""
        probes = joined(self.asked)
        errors = standard_errors(head, probes)
        rms = float(np.sqrt(np.mean(errors.W**2)))
        # recentred questions tell several times more than pilot ones, hence the factor 3; a close call is judged at the end
        if rms * np.sqrt(len(probes) / total) > 3 * self.wanted(head, errors):
            forecast = Forecast(head, probes, errors.noise, self.norm, self.copies, self.rng)
            if forecast.error(total) > 1.5 * self.wanted(head, errors):
                self.refuse(head, errors, forecast.queries(self.wanted(head, errors)), forecast.error(total), total)

    def wanted(self, head: Head, errors: Errors) -> float:
        """The error at which W counts as known."""
        size = max(0.0, float(np.mean(head.W**2) - np.mean(errors.W**2)))  # the noise itself looks like W
        return max(RESOLUTION * float(np.sqrt(size)), SCORE_RESOLUTION / self.norm**2)

    def refuse_unresolved(self, head: Head, errors: Errors, asked: int) -> None:
        """Refuse where the error bars are as wide as W itself, or wider than the accuracy asked for."""
        rms = float(np.sqrt(np.mean(errors.W**2)))
        size = float(np.linalg.norm(head.v))
        ideal = ideal_error(asked, noise=errors.noise, max_norm=self.norm, width=self.width, value_norm=size)
        if rms > SATURATION * ideal + 2.0**-40 * float(np.abs(head.W).max()):
            raise TooNoisyError(
                f"The answers saturate: they leave W uncertain by {rms:.3g}, where moderate scores would leave {ideal:.3g}. The "
                "scores are "
                f"far too steep for tokens of length {self.norm:.3g}; give a smaller `max_norm`, or more queries to find the "
                "right length.",
                evidence={"standard_error_W": rms, "ideal": ideal, "queries": 4 * asked},
                model=head.model(),
            )
        wanted = self.wanted(head, errors) if self.settings.accuracy is None else 1.3 * self.settings.accuracy
        if rms > wanted:
            self.refuse(head, errors, int(np.ceil(asked * (rms / wanted) ** 2)), rms, asked)

    def refuse(self, head: Head, errors: Errors, needed: int, rms: float, asked: int) -> None:
        raise TooNoisyError(
            f"Noise of {errors.noise:.3g} leaves W uncertain by {rms:.3g} (rms) after {asked} queries, against entries of "
            f"{float(np.sqrt(np.mean(head.W**2))):.3g}. About {needed} queries would do; raise `budget` or allow longer tokens "
            "(`max_norm`).",
            evidence={"noise": errors.noise, "queries": needed, "standard_error_W": rms},
            model=head.model(),
        )

    def cut(self, head: Head, total: int) -> Learned | None:
        """Aim the remaining questions at the edges between rounded answers; None if the answers are not purely rounded."""
        step = self.settings.floor.step
        assert step is not None
        phase(self.oracle, "edges")
        found = cut(
            self.oracle,
            head,
            joined(self.asked),
            step,
            queries=total - self.spent,
            accuracy=self.settings.accuracy,
            norm=self.norm,
            copies=self.copies,
            rng=self.rng,
        )
        self.asked = [found.probes]
        if found.head is None:
            return None
        errors = unpacked(found.head, np.diag(found.spread**2), step / np.sqrt(12), REACH)
        rms = float(np.sqrt(np.mean(errors.W**2)))
        self.refuse_unresolved(found.head, errors, len(found.probes))
        note = f"Answers are rounded to {step:.3g}; questions aimed at the edges between two answers give W to {rms:.3g}."
        return packed(found.head, errors, (note,))


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
        evidence={"noise": errors.noise, "standard_error_W": rms, "rank": head.width if rank is None else rank},
    )
