"""The search for the smallest layer that explains the examples: head counts, extra parts, restarts, all of them bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import log

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.from_examples.data import Examples, Extras, Frame
from unsoftmax.learners.from_examples.fit import Effort, Fit, fit_from, random_theta
from unsoftmax.learners.from_examples.layer import Problem, features_of, patterns_of
from unsoftmax.models import Floats

ROUNDS = (1, 3, 8, 16, 40)  # starts per head count and round: easy layers end in the first, sparse data needs the last
MOST_HEADS = 32
LEAST_WORK = 1.0e9  # inner steps times feature entries that a search may always spend: half a minute of one core
EXACT = 1e-10  # relative training error below which nothing but rounding is left
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
        problem = self.problem(extras)
        fit = fit_from(problem, theta, effort, self.rng)
        heads = theta.shape[1] // problem.keys.shape[2]
        self.starts += 1
        entries = problem.answers.shape[0] * theta.shape[1]
        self.largest = max(self.largest, entries)
        self.work += fit.inner * (entries + 5_000.0)  # 5,000: what Python itself costs per inner step, in feature entries
        candidate = Candidate(heads, extras, problem, fit)
        known = self.best.get((heads, extras))
        if known is None or fit.error < known.fit.error:
            self.best[heads, extras] = candidate
        return candidate

    def start(self, heads: int, extras: Extras) -> Candidate:
        """Fit from one random start."""
        return self.descend(random_theta(self.problem(extras), heads, self.rng), extras, self.effort)

    def enough(self, heads: int, extras: Extras, surplus: float = 1.15) -> bool:
        """Whether the examples hold more equations than a layer of this shape has unknowns, scores counted apart too."""
        problem = self.problem(extras)
        return problem.equations >= surplus * problem.unknowns(heads) and self.pattern_numbers(heads) >= heads * (
            problem.queries.shape[2] * problem.keys.shape[2]
        )

    def pattern_numbers(self, heads: int) -> int:
        """Numbers that tell about scores: per answer, no more than its outputs nor than the weights behind it."""
        free = heads * (self.examples.looks[self.learn] - 1)
        return int(np.minimum(free, self.examples.answers.shape[2]).sum())

    def shapes(self, heads: int | None, turn: int) -> Iterator[tuple[int, tuple[Extras, ...]]]:
        """Head counts to try, smallest first, each with the extra parts worth trying in this round."""
        counts = range(1, MOST_HEADS + 1) if heads is None else (heads,)
        for count in counts:
            if not self.enough(count, PLAIN):
                return
            rich = self.enough(count, FULL, surplus=4.0)
            first = (FULL,) if rich else (PLAIN,)
            rest = tuple(e for e in (PLAIN, BIASES, FULL) if e not in first and self.enough(count, e, surplus=1.5))
            yield count, first if turn == 0 else first + rest

    def spent(self) -> bool:
        """Whether the bound on the work is reached: half a minute, or a dozen full starts of the largest layer tried."""
        return self.work > LEAST_WORK + 12 * 250 * self.largest

    def leader(self) -> Candidate | None:
        """The candidate that explains most per parameter."""
        return min(self.best.values(), key=lambda c: c.criterion, default=None)


def polish(search: Search, candidate: Candidate, steps: int = 40) -> Candidate:
    """Go on from where a fit ended, with little damping and tight inner solves."""
    if search.exact and candidate.fit.error <= EXACT:
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
    for group in [idle] if search.exact and candidate.fit.error <= EXACT and idle else [[part] for part in parts]:
        theta = candidate.fit.point.theta[:-1] if "query_bias" in group else candidate.fit.point.theta
        leaner = search.descend(theta, candidate.extras._replace(**dict.fromkeys(group, False)), effort)
        if _no_worse(search, leaner, candidate):
            candidate = leaner
    while candidate.heads > 1:
        fewer = _fewer_heads(candidate)
        if fewer is None:
            break
        leaner = search.descend(fewer, candidate.extras, replace(effort, steps=60))
        if not _no_worse(search, leaner, candidate):
            break
        candidate = leaner
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
    if candidate.fit.error <= EXACT and search.exact:
        return leaner.fit.error <= EXACT
    return leaner.criterion <= candidate.criterion


def _fewer_heads(candidate: Candidate) -> Floats | None:
    """Theta without a head that is nearly idle or nearly equal to another one; None where there is no such head."""
    keys, tokens = candidate.problem.keys.shape[2], candidate.problem.values.shape[2]
    theta = candidate.fit.point.theta.reshape(-1, candidate.heads, keys)
    values = candidate.fit.point.values[: candidate.heads * tokens].reshape(candidate.heads, -1)
    sizes, norms = np.linalg.norm(values, axis=1), np.linalg.norm(theta, axis=(0, 2))
    drop = int(np.argmin(sizes)) if sizes.min() < 1e-3 * sizes.max() else None
    if drop is None:
        for i in range(candidate.heads):
            for j in range(i):
                if np.linalg.norm(theta[:, i] - theta[:, j]) < 1e-3 * max(norms[i], norms[j]):
                    drop = i
    return None if drop is None else np.delete(theta, drop, axis=1).reshape(len(theta), -1)
