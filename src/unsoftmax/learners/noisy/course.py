"""The course of one run of ``NoisyHeadLearner``: what it asks in which order, and the fits in between."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from unsoftmax.errors import BudgetExceededError, NotIdentifiableError, TooNoisyError
from unsoftmax.learners.noisy.design import frames, tilted_keys
from unsoftmax.learners.noisy.fit import Errors, Head, fit, standard_errors, unpacked
from unsoftmax.learners.noisy.judgement import (
    CLOSER,
    RESOLUTION,
    SCORE_RESOLUTION,
    USUAL_SCORE,
    PureNoise,
    budget_for,
    check_one_head,
    check_values,
    drowning,
    least_queries,
    one_head_price,
    refuse_saturated,
    resolution,
    score_size,
)
from unsoftmax.learners.noisy.low_rank import Columns, ask_columns, ask_tangent, fit_low_rank, more_columns
from unsoftmax.learners.noisy.plan import (
    BIAS_PROBES,
    GENEROUS,
    GENEROUS_LOW_RANK,
    MOST_QUERIES,
    PILOT,
    Forecast,
    queries_for,
    shares,
)
from unsoftmax.learners.noisy.probes import Probes, ask_pairs, ask_tokens, joined
from unsoftmax.learners.noisy.rounding import REACH, cut
from unsoftmax.learners.noisy.stages import (
    ask_pilot,
    ask_recentred,
    biased,
    check_fit,
    find_norm,
    fit_values,
    is_loud,
    lack_of_fit,
    likely_ridge,
    refitted,
    shrunk,
    simplest,
    started,
)
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Bounds, Learned

if TYPE_CHECKING:
    from unsoftmax.learners.noisy.learner import NoisyHeadLearner

AMBIGUITY = "The parameters are unique in this form and known to within the stated error bars."
PILOT_SCORE = 0.3  # error of a score that the pilot may leave
WORST_PILOT_SCORE = 0.5  # the same under strong noise; beyond, a fit gets lost
# below this width a full fit costs less than finding out that the rank is low
SEARCH_RANK_FROM = 16
MAX_ROUNDS = 12  # of further questions while W is not known; each may ask three times what was asked before
GROWTH = 4
CLOSE_CALL = 0.7  # of the queries that the limit must hold for a further round
CLOSE_ENOUGH = 1.2  # times the accuracy asked for: a forecast is no better than that
ROOM = 0.7  # of the questions that tell one head from several there must be room for
CUTS = 3  # tries to cut rounded answers, each after twice as many as before
SHORT = 0.3  # of the longest tokens
UNSURE = 1.5  # more queries are named where not even the values are known
LOUD_COLUMNS = 0.1  # noise in units of the largest answers, from which on columns would be blurred anyhow
BLURRED = 0.2  # of the largest singular value: columns with more noise than that show no rank


class Course:
    """One run: what it asked so far and the head that fits it."""

    def __init__(self, settings: NoisyHeadLearner, oracle: Oracle, rng: np.random.Generator) -> None:
        self.settings = settings
        self.oracle = oracle
        self.rng = rng
        self.width = oracle.width
        self.copies = settings.copies
        self.asked: list[Probes] = []
        self.ridge = 0.0

    @property
    def spent(self) -> int:
        """Sequences asked so far."""
        return sum(len(part) for part in self.asked)

    def learn(self) -> Learned:
        """Ask, fit and judge; low rank if the columns show one."""
        settings = self.settings
        if settings.max_norm is None:
            phase(self.oracle, "length")
            self.norm = find_norm(self.oracle, self.copies, self.rng)
        else:
            self.norm = settings.max_norm
        searching = settings.rank is None and self.width >= SEARCH_RANK_FROM
        low = settings.low(self.width)
        values = self.width + 8 if low or searching else shares(self.settings.base(self.width), self.width)[0]
        phase(self.oracle, "values")
        self.ask_values(values)
        loud = self.noise > LOUD_COLUMNS * self.norm * float(np.linalg.norm(self.head.v))
        if low or (searching and not loud):
            phase(self.oracle, "columns")
            found = self.find_columns()
            if found is not None:
                return self.learn_low_rank(*found)
        return self.learn_full()

    def most(self, total: int) -> int:
        """The most queries that may be asked; one length search is not counted."""
        if self.settings.accuracy is not None:  # as many as that takes, up to ``queries``
            return MOST_QUERIES if self.settings.queries is None else max(total, self.settings.queries)
        return total if self.settings.most is None else max(total, self.settings.most)

    def ask_values(self, count: int) -> None:
        """One-token answers: v and b, and the noise; more of them while the noise hides v."""
        settings, width = self.settings, self.width
        low = settings.low(width) or (settings.rank is None and width >= SEARCH_RANK_FROM)
        total = settings.queries or (GENEROUS_LOW_RANK if low else GENEROUS) * settings.dimension(width)
        limit, first = self.most(total), True
        while True:
            self.asked.append(ask_tokens(self.oracle, frames(self.rng, count - self.spent, width, self.norm)))
            self.head, self.noise = fit_values(joined(self.asked))
            size, error = float(np.linalg.norm(self.head.v)), self.noise / self.norm * width / np.sqrt(self.spent)
            if size == 0.0:
                raise NotIdentifiableError(
                    "All one-token answers are equal: v = 0, so no answer depends on W and nothing can be learned about it.",
                    model=self.head.model(),
                )
            if size >= 4 * error and (first or 2 * self.spent <= limit):
                return
            if count >= limit:
                break
            count, first = min(limit, 2 * count), False
        true_size = np.sqrt(max(size**2 - error**2 / 2, error**2 / 2))  # the noise itself looks like values
        self.head = replace(self.head, v=self.head.v * true_size / size)
        needed = self.with_tests(self.formula(RESOLUTION * USUAL_SCORE))
        budget = budget_for(UNSURE * max(needed, self.most(total)), settings.beside)
        raise TooNoisyError(
            f"The values drown in the noise: |v| = {size:.3g} with an error of {error:.3g} after {self.spent} one-token answers. "
            f"A budget of about {budget} queries would do; raise `budget` or allow longer tokens (`max_norm`).",
            evidence={"noise": self.noise, "queries": budget},
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
                hidden = columns.threshold > max(BLURRED * columns.largest, SCORE_RESOLUTION / self.norm**2)
                return None if hidden else (columns, rank)
        return None

    def learn_low_rank(self, columns: Columns, rank: int) -> Learned:
        """Rows and tangent questions at the rank found, one more if that does not fit."""
        rank = max(1, rank)
        dimension = self.width + rank * (2 * self.width - rank)
        total = self.settings.queries or max(GENEROUS_LOW_RANK * dimension - self.settings.already, self.spent + dimension)
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
        self.asked = [probes]
        head, errors = self.resolved(*simplest(head, probes), total)
        note = f"W has rank {rank} of {self.width}, as far as the noise lets see."
        return packed(head, errors, (note,), rank)

    def learn_full(self) -> Learned:
        """Pilot, then recentred questions or edges."""
        settings, total = self.settings, self.settings.total(self.width)
        head, steep, base = self.pilot(total)
        phase(self.oracle, "scores")
        if settings.accuracy is not None and not settings.cuts(self.width):
            head, total = self.planned(head, settings.accuracy)
            base = total
        elif not settings.cuts(self.width):
            head = self.promising(head, self.most(total))
        if steep:  # the pilot had to stay with short tokens and knows the scores of long ones only roughly
            self.asked.append(ask_recentred(self.oracle, head, (base - self.spent) // 3, self.norm, self.copies, self.rng))
            head = self.refitted(head)
        self.asked.append(ask_recentred(self.oracle, head, max(1, base - self.spent), self.norm, self.copies, self.rng))
        probes = joined(self.asked)
        head, errors = simplest(self.refitted(head), probes, self.ridge)
        if settings.cuts(self.width):
            learned = self.cut(head, total)
            if learned is not None:
                return learned
            self.asked.append(ask_recentred(self.oracle, head, max(1, total - self.spent), self.norm, self.copies, self.rng))
            head, errors = simplest(self.refitted(head), joined(self.asked))
        rescued = self.rescued(head, total)
        if rescued is not head:
            head, errors = simplest(rescued, joined(self.asked))
        return packed(*self.resolved(head, errors, total))

    def pilot(self, total: int) -> tuple[Head, bool, int]:
        """A first idea of W: the head, whether its scores are steep, and the queries to ask before it is judged."""
        base = self.settings.base(self.width)
        values, pilot, _ = shares(base, self.width)
        singles = sum(int(part.single.sum()) for part in self.asked)
        if singles < values:
            phase(self.oracle, "values")
            self.asked.append(ask_tokens(self.oracle, frames(self.rng, values - singles, self.width, self.norm)))
            self.head, self.noise = fit_values(joined([part for part in self.asked if part.single.all()]))
        phase(self.oracle, "pilot")
        already = self.spent - max(values, singles)
        if self.settings.cuts(self.width):  # few answers come before the cutting: columns of W are no substitute for a pilot
            base, already = min(total, base + already), 0
        base = min(base, max(self.most(total) - one_head_price(self.drowned), base // 2))
        # strong noise takes a longer pilot: one that does not know the scores cannot place questions around them
        most, spread = self.most(total), PILOT * (self.width**2 + self.width) + 4
        rough, least = (self.formula(score) for score in (PILOT_SCORE, WORST_PILOT_SCORE))
        if rough > spread:
            pilot = max(pilot, min(base // 3, rough), min(most // 2, least))
            base = min(most, max(base, 2 * pilot + values))
        parts = ask_pilot(self.oracle, self.head, max(1, pilot - already), self.noise, self.norm, self.copies, self.rng)
        self.asked += parts
        probes = joined(self.asked)
        if least > max(spread, most // 2):
            self.refuse_blind(probes)
        head = started(self.head, probes, self.noise)
        if is_loud(self.head, probes, self.noise):  # a linear fit knows the size of W
            at_rest = replace(head, W=np.zeros_like(head.W), c=np.zeros_like(head.c))
            self.ridge = likely_ridge(head, standard_errors(at_rest, probes), self.noise, self.norm, 0.0)
        return fit(head, probes, ridge=self.ridge), len(parts) > 2, base

    def rescued(self, head: Head, total: int) -> Head:
        """Where the fit got lost among steep scores and queries are left: one from short tokens, whose scores are small."""
        probes, count = joined(self.asked), 2 * (self.width**2 + self.width)
        found, expected = lack_of_fit(head, probes, self.noise, self.settings.floor)
        if self.ridge or found <= expected or self.spent + count > self.most(total):
            return head
        phase(self.oracle, "short tokens")
        parts = ask_pilot(self.oracle, self.head, count, self.noise, SHORT * self.norm, self.copies, self.rng)
        self.asked += parts
        short = joined([probes[probes.single], *parts])
        return min(
            (fit(start, joined(self.asked)) for start in (head, fit(started(self.head, short, self.noise), short))),
            key=lambda guess: lack_of_fit(guess, joined(self.asked), self.noise, self.settings.floor)[0],
        )

    def resolved(self, head: Head, errors: Errors, total: int) -> tuple[Head, Errors]:
        """More questions while W is not known and the limit allows; refuses what stays unknown, and what is not one head."""
        settings, most = self.settings, self.most(total)
        for _ in range(MAX_ROUNDS):
            refuse_saturated(head, errors, self.spent, self.norm)
            test = one_head_price(self.drowned)
            found = resolution(head, errors, self.norm, settings.accuracy, self.ridge)
            needed = self.with_tests(found.queries(self.spent))
            room = most - self.spent
            if found.reached and self.spent + test >= needed and room >= ROOM * test:
                break
            hopeless = CLOSE_CALL * self.with_tests(found.least_queries(self.spent)) > most
            if hopeless or room <= test:
                self.check_fit(head)  # what is not one head leaves W uncertain too
                self.refuse(head, errors, needed)
            goal = int(min(most - test, 1.1 * (needed - test), GROWTH * self.spent))
            head, errors = self.asked_more(head, errors, max(1, goal - self.spent))
        probes = joined(self.asked)
        if self.ridge:
            head = fit(head, probes)
            errors = standard_errors(head, probes)
        closer = budget_for(CLOSER * (self.spent + test), settings.beside)
        singles = probes[probes.single]
        noise = PureNoise(self.noise, len(singles) - self.width - 1)
        if test:
            phase(self.oracle, "one head?")
            noise = check_one_head(self.oracle, head, errors, noise, min(test, room), self.norm, self.rng, closer)
        check_fit(head, probes, noise, settings.floor)
        if settings.floor.kind == "noisy":
            check_values(head, singles, noise, closer if test else None)  # without noise the fit and a check say more
        return head, errors

    def check_fit(self, head: Head) -> None:
        """Refuse a head that misses the answers by more than the noise of one-token answers."""
        probes = joined(self.asked)
        check_fit(head, probes, PureNoise(self.noise, int(probes.single.sum()) - self.width - 1), self.settings.floor)

    def asked_more(self, head: Head, errors: Errors, count: int) -> tuple[Head, Errors]:
        """A seventh of ``count`` one-token questions, the others placed by what is known of the head; all fitted."""
        phase(self.oracle, "more")
        singles = count // 7
        self.asked.append(ask_tokens(self.oracle, frames(self.rng, singles, self.width, self.norm)))
        if head.left is None:
            self.asked.append(ask_recentred(self.oracle, shrunk(head, errors), count - singles, self.norm, self.copies, self.rng))
        else:
            self.asked.append(ask_tangent(self.oracle, head, count - singles, self.norm, self.copies, self.rng))
        probes = joined(self.asked)
        _, self.noise = fit_values(probes[probes.single])
        if self.ridge:
            self.ridge = likely_ridge(head, errors, self.noise, self.norm, self.ridge)
        return simplest(fit(head, probes) if head.left is not None else self.refitted(head), probes, self.ridge)

    def refitted(self, head: Head) -> Head:
        """The fit to all answers so far."""
        if self.ridge:
            return fit(head, joined(self.asked), ridge=self.ridge)
        return refitted(head, joined(self.asked), self.noise, self.settings.floor)

    def planned(self, head: Head, accuracy: float) -> tuple[Head, int]:
        """Half a query per parameter more, and the number of queries that ``accuracy`` takes."""
        parameters = self.width**2 + self.width
        self.asked.append(ask_recentred(self.oracle, head, parameters // 2 + 1, self.norm, self.copies, self.rng))
        probes = joined(self.asked)
        head, errors = simplest(self.refitted(head), probes)
        forecast = Forecast(head, probes, errors.noise, self.norm, self.copies, self.rng)
        needed, test = forecast.queries(accuracy), one_head_price(self.drowned)
        limit = None if self.settings.queries is None else self.settings.queries - test
        if limit is not None and needed > limit and forecast.error(limit) <= CLOSE_ENOUGH * accuracy:
            needed = max(limit, self.spent + 1)
        if limit is not None and needed > limit:
            budget = budget_for(needed + test, self.settings.beside)
            raise TooNoisyError(
                f"Noise of {errors.noise:.3g} lets {limit} queries find W to {forecast.error(limit):.3g} (rms), not "
                f"{accuracy:.3g}. A budget of {budget} queries would do; raise `budget` or allow longer tokens (`max_norm`).",
                evidence={"noise": errors.noise, "queries": budget, "reachable": forecast.error(limit)},
                model=head.model(),
            )
        return head, max(needed, self.spent + 1)

    def promising(self, head: Head, most: int) -> Head:
        """The head to place the next questions by; stops after the pilot if the most queries would leave W unknown beyond doubt."""
        probes = joined(self.asked)
        errors = standard_errors(head, probes)
        found = resolution(head, errors, self.norm, ridge=self.ridge)
        guess = shrunk(head, errors)
        # recentred questions tell several times more than pilot ones, hence the factor 3; a close call is judged at the end
        if found.error * np.sqrt(len(probes) / most) > 3 * found.wanted_most:
            forecast = Forecast(guess, probes, errors.noise, self.norm, self.copies, self.rng)
            misses, expected = lack_of_fit(head, probes, self.noise, self.settings.floor)
            if misses <= expected and forecast.error(most) > 1.5 * found.wanted_most:  # a fit that got lost says nothing
                self.refuse(head, errors, self.with_tests(forecast.queries(found.wanted)))
        return guess

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

    def refuse_blind(self, probes: Probes) -> None:
        """Noise so strong that half the limit does not find the scores even roughly; their size tells how many queries would."""
        head = started(self.head, probes, self.noise)
        errors = standard_errors(replace(head, W=np.zeros_like(head.W), c=np.zeros_like(head.c)), probes)
        score = RESOLUTION * score_size(head, errors, self.norm)
        needed = self.with_tests(self.formula(max(score, SCORE_RESOLUTION)))
        self.refuse(head, errors, max(needed, self.most(self.settings.total(self.width))))

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

    def cut(self, head: Head, total: int) -> Learned | None:
        """Aim the remaining questions at the edges between rounded answers; None if the answers are not purely rounded."""
        step = self.settings.floor.step
        assert step is not None
        for _ in range(CUTS):
            before = self.spent
            phase(self.oracle, "edges")
            found = cut(
                self.oracle,
                head,
                joined(self.asked),
                step,
                queries=total - before,
                accuracy=self.settings.accuracy,
                norm=self.norm,
                copies=self.copies,
                rng=self.rng,
            )
            self.asked = [found.probes]
            if found.head is not None:
                return self.packed_cut(found.head, found.spread, step)
            if self.spent > before or 2 * before > total:
                break
            # no head near the fit agrees with the first answers: it got lost, as scores of long tokens are steep
            head = self.rescued(head, total)
            phase(self.oracle, "scores")
            more = max(1, 2 * before - self.spent)
            self.asked.append(ask_recentred(self.oracle, head, more, self.norm, self.copies, self.rng))
            head, _ = simplest(self.refitted(head), joined(self.asked))
        return None

    def packed_cut(self, head: Head, spread: Floats, step: float) -> Learned:
        """The head that cutting left, if it is known well enough."""
        errors = unpacked(head, np.diag(spread**2), step / np.sqrt(12), REACH, max(1, self.spent - head.free))
        refuse_saturated(head, errors, self.spent, self.norm)
        known = resolution(head, errors, self.norm, self.settings.accuracy)
        if not known.reached:
            self.refuse(head, errors, known.queries(self.spent))
        rms = float(np.sqrt(np.mean(errors.W**2)))
        note = f"Answers are rounded to {step:.3g}; questions aimed at the edges between two answers give W to {rms:.3g}."
        return packed(head, errors, (note,))


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
            "noise_freedom": errors.freedom,
            "standard_error_W": rms,
            "rank": head.width if rank is None else rank,
        },
    )
