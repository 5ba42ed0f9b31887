"""The search for the smallest layer that explains the examples: head counts, extra parts, restarts, all of them bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf, log

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.from_examples.data import Examples, Extras, Frame
from unsoftmax.learners.from_examples.fit import Effort, Fit, fit_from, fit_together, random_theta
from unsoftmax.learners.from_examples.layer import Problem, features_of, patterns_of
from unsoftmax.learners.from_examples.settings import EXAMPLES
from unsoftmax.models import Floats

# Head counts with that many equations per unknown are left out of a round: they were solved within the rounds before, if ever.
PATIENCE = (inf, inf, inf, inf, 8.0, 4.0)
PLAIN, BIASES, FULL = Extras(), Extras(query_bias=True, constant=True), Extras(True, True, True)


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A layer that was fitted: its shape, its problem, where the fit ended."""

    heads: int
    extras: Extras
    problem: Problem
    fit: Fit

    @property
    def unknowns(self) -> int:
        """Free parameters."""
        return self.problem.unknowns(self.heads)

    @property
    def surplus(self) -> float:
        """Equations per unknown."""
        return self.problem.equations / self.unknowns

    @property
    def criterion(self) -> float:
        """Bayesian information criterion: lower is better; a head must earn its parameters."""
        equations = self.problem.equations
        return equations * log(max(self.fit.error, 1e-16) ** 2) + self.unknowns * log(equations)

    @property
    def foresight(self) -> float:
        """Error to expect on new answers (generalised cross-validation): rises once further heads fit noise only."""
        return self.fit.error / max(1.0 - 1.0 / self.surplus, 1e-3)


@dataclass(slots=True, eq=False)
class Search:
    """State of one search.

    Attributes:
        examples, frame: the data and its coordinates.
        learn: answers that may be used, ``(examples, queries)``.
        hit: relative training error that counts as "nothing left but the digits of the answers".
        exact: whether the answers carry full float64 digits.
        tell: receives one line per stage.
    """

    examples: Examples
    frame: Frame
    learn: NDArray[np.bool_]
    rng: np.random.Generator
    hit: float
    exact: bool
    tell: Callable[[str], None]
    best: dict[tuple[int, Extras], Candidate] = field(default_factory=dict)
    starts: int = 0
    work: float = 0.0
    largest: int = 0
    problems: dict[Extras, Problem] = field(default_factory=dict)

    def problem(self, extras: Extras) -> Problem:
        """The least-squares problem for a layer with these extra parts."""
        if extras not in self.problems:
            self.problems[extras] = self.frame.problem(self.examples, self.learn, extras)
        return self.problems[extras]

    @property
    def effort(self) -> Effort:
        """How far one start goes: to rounding where the answers are exact, else until it gains nothing."""
        return Effort(goal=1e-13 if self.exact else 0.0)

    def descend(self, theta: Floats, extras: Extras, effort: Effort) -> Candidate:
        """Fit from ``theta`` and remember the best fit of its shape."""
        return self._remember(extras, [fit_from(self.problem(extras), theta, effort, self.rng)])

    def start(self, heads: int, extras: Extras, number: int = 1) -> Candidate:
        """The best fit from that many random starts, side by side."""
        problem = self.problem(extras)
        thetas = [random_theta(problem, heads, self.rng) for _ in range(number)]
        return self._remember(extras, fit_together(problem, thetas, self.effort, self.rng))

    def batches(self, heads: int, extras: Extras, starts: int) -> Iterator[int]:
        """Split a number of starts into groups that descend side by side: one by one where a single one keeps a core busy."""
        problem = self.problem(extras)
        entries = problem.answers.shape[0] * heads * problem.keys.shape[2]
        together = max(1, min(EXAMPLES.together, EXAMPLES.large // entries))
        for first in range(0, starts, together):
            yield min(together, starts - first)

    def _remember(self, extras: Extras, fits: list[Fit]) -> Candidate:
        problem, best = self.problem(extras), min(fits, key=lambda fit: fit.error)
        columns = best.point.theta.shape[1]
        entries = problem.answers.shape[0] * columns
        self.starts += len(fits)
        self.largest = max(self.largest, entries)
        # 5,000: what Python itself costs per inner step, in feature entries; an outer step costs as much as ten inner ones
        self.work += sum(fit.inner + 10 * fit.steps for fit in fits) * (entries + 5_000.0)
        candidate = Candidate(columns // problem.keys.shape[2], extras, problem, best)
        known = self.best.get((candidate.heads, extras))
        if known is None or best.error < known.fit.error:
            self.best[candidate.heads, extras] = candidate
        return candidate

    def enough(self, heads: int, extras: Extras, surplus: float = 1.15) -> bool:
        """Whether the examples hold more equations than a layer of this shape has unknowns, scores counted apart too."""
        problem, told = self.problem(extras), self.examples.distinct
        scores = heads * problem.queries.shape[2] * problem.keys.shape[2]
        return told * problem.equations >= surplus * problem.unknowns(heads) and told * self.pattern_numbers(heads) >= scores

    def pattern_numbers(self, heads: int) -> int:
        """Numbers that tell about scores: per answer, no more than its outputs nor than the weights behind it."""
        free = heads * (self.examples.looks[self.learn] - 1)
        return int(np.minimum(free, self.examples.answers.shape[2]).sum())

    def shapes(self, heads: int | None, turn: int) -> Iterator[tuple[int, tuple[Extras, ...]]]:
        """Head counts to try, smallest first, each with the extra parts worth trying in this round.

        The first round doubles the count while large errors are left: a fit with too many heads ends with idle ones, which
        ``simplify`` drops, and that costs less than all the counts that are too small.
        """
        count = 1 if heads is None else heads
        while count <= EXAMPLES.most_heads or heads is not None:
            if not self.enough(count, PLAIN):
                return
            rich = self.enough(count, FULL, surplus=4.0)
            first = (FULL,) if rich else (PLAIN,)
            rest = tuple(e for e in (PLAIN, BIASES, FULL) if e not in first and self.enough(count, e, surplus=1.5))
            if heads is not None or not self.enough(count, PLAIN, surplus=PATIENCE[turn]):
                yield count, first if turn <= 1 else first + rest
            if heads is not None:
                return
            large = turn == 0 and min(self.best[count, extras].fit.error for extras in first) > EXAMPLES.little_noise
            higher = min(2 * count, EXAMPLES.most_heads) if large else count + 1
            while higher > count + 1 and not self.enough(higher, PLAIN):
                higher -= 1
            count = max(higher, count + 1)

    def spent(self) -> bool:
        """Whether the bound on the work is reached: some seconds, or a dozen full starts of the largest layer tried."""
        return self.work > EXAMPLES.least_work + 12 * 400 * self.largest

    def leader(self) -> Candidate | None:
        """The candidate that explains most per parameter."""
        return min(self.best.values(), key=lambda c: c.criterion, default=None)


def polish(search: Search, candidate: Candidate, steps: int = 40) -> Candidate:
    """Go on from where a fit ended, with little damping and tight inner solves."""
    if search.exact and candidate.fit.error <= EXAMPLES.exact:
        # rounding leaves a few times 1e-16 of the answers: three tight steps at most, none if that is reached
        effort = Effort(steps=min(steps, 3), inner=300, goal=2e-15, damping=1e-6)
    else:
        effort = Effort(steps=steps, inner=100, goal=0.0, stall=1e-5, damping=1e-3)
    return search.descend(candidate.fit.point.theta, candidate.extras, effort)


def simplify(search: Search, candidate: Candidate) -> Candidate:
    """Drop extra parts and heads that the examples do not ask for."""
    effort = replace(search.effort, damping=1e-3, steps=30)
    parts = [part for part in ("residual", "query_bias", "constant") if getattr(candidate.extras, part)]
    idle = [part for part in parts if _share(candidate, part) < 1e-6]
    # Exact answers show at once which parts are absent; otherwise each must be tried, the criterion decides.
    for group in [idle] if search.exact and candidate.fit.error <= EXAMPLES.exact and idle else [[part] for part in parts]:
        theta = candidate.fit.point.theta[:-1] if "query_bias" in group else candidate.fit.point.theta
        leaner = search.descend(theta, candidate.extras._replace(**dict.fromkeys(group, False)), effort)
        if _no_worse(search, leaner, candidate):
            candidate = leaner
    while True:
        for spare in _spare_heads(candidate, at_rounding=search.exact and candidate.fit.error <= EXAMPLES.exact):
            theta = candidate.fit.point.theta.reshape(-1, candidate.heads, candidate.problem.keys.shape[2])
            fewer = np.delete(theta, spare, axis=1).reshape(len(theta), -1)
            leaner = search.descend(fewer, candidate.extras, replace(effort, steps=60))
            if _no_worse(search, leaner, candidate):
                candidate = leaner
                break
        else:
            return candidate


def predict(problem: Problem, candidate: Candidate) -> Floats:
    """Answers of the candidate to another problem of the same shape, in the frame's units."""
    features = features_of(problem, patterns_of(problem, candidate.fit.point.theta))
    return np.asarray(features @ candidate.fit.point.values)


def _share(candidate: Candidate, part: str) -> float:
    """Size of an extra part relative to the scores or values it stands among."""
    theta, values = candidate.fit.point.theta, candidate.fit.point.values
    if part == "query_bias":
        return float(np.linalg.norm(theta[-1]) / np.linalg.norm(theta))
    first = candidate.heads * candidate.problem.values.shape[2]
    rows = values[first : first + 1] if part == "constant" else values[first + int(candidate.extras.constant) :]
    return float(np.linalg.norm(rows) / max(float(np.linalg.norm(values)), np.finfo(float).tiny))


def _no_worse(search: Search, leaner: Candidate, candidate: Candidate) -> bool:
    if candidate.fit.error <= EXAMPLES.exact and search.exact:
        return leaner.fit.error <= EXAMPLES.exact
    return leaner.criterion <= candidate.criterion


def _spare_heads(candidate: Candidate, *, at_rounding: bool) -> list[list[int]]:
    """Sets of heads that may be dropped, the boldest first: nearly idle ones, copies of others, and the one least missed."""
    keys, heads = candidate.problem.keys.shape[2], candidate.heads
    theta = candidate.fit.point.theta.reshape(-1, heads, keys)
    sizes, costs = _worth(candidate)
    norms = np.linalg.norm(theta, axis=(0, 2))
    idle = [h for h in range(heads) if sizes[h] < 1e-3 * sizes.max()]
    copies = [
        i
        for i in range(heads)
        if any(np.linalg.norm(theta[:, i] - theta[:, j]) < 1e-3 * max(norms[i], norms[j]) for j in range(i) if j not in idle)
    ]
    spare = sorted({*idle, *copies})
    sets = [spare, [min(spare, key=lambda h: sizes[h])]] if len(spare) > 1 else [spare] if spare else []
    weakest = int(np.argmin(costs))
    left = np.hypot(candidate.fit.error, np.sqrt(costs[weakest]))
    # A fit to rounding shows its spare heads; a noisy one does not, and each head must earn its parameters.
    if not at_rounding and heads > 1 and [weakest] not in sets and (left < 0.1 or left < 10.0 * candidate.fit.error):
        sets.append([weakest])
    return sets if heads > 1 else []


def _worth(candidate: Candidate) -> tuple[Floats, Floats]:
    """Per head the size of its values, and by how much the squared relative error rises without it, the other values refitted."""
    point, tokens = candidate.fit.point, candidate.problem.values.shape[2]
    total = float(np.sum(candidate.problem.answers**2)) or 1.0
    sizes, costs = np.empty(candidate.heads), np.empty(candidate.heads)
    for h in range(candidate.heads):
        mine = slice(h * tokens, (h + 1) * tokens)
        own, values = point.inverse[mine], point.values[mine]
        sizes[h] = np.linalg.norm(values)
        # the inverse normal matrix is T T^T; dropping columns costs values^T (its block)^-1 values
        costs[h] = max(float(np.sum(values * (np.linalg.pinv(own @ own.T, hermitian=True) @ values))), 0.0) / total
    return sizes, costs
