"""When a fit may be called a recovery: held-out answers, agreement of starts, nothing left in the errors, an isolated solution."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from unsoftmax.learners.from_examples.data import Extras
from unsoftmax.learners.from_examples.fit import random_theta
from unsoftmax.learners.from_examples.layer import features_of, patterns_of
from unsoftmax.learners.from_examples.search import Candidate, Search, polish, predict, simplify
from unsoftmax.learners.from_examples.settings import EXAMPLES
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """How a search ended: the accepted candidate, or the best one and the reason why it was not accepted.

    Attributes:
        candidate: None where there are too few examples for any.
        accepted: whether held-out answers bear it out.
        exact: it fits to rounding.
        reason: why not.
        moved: how far from it a search came back that was pushed off.
        noise: what is left of the answers, as a share of their size.
        evidence: numbers for the report, which nothing else reads.
    """

    candidate: Candidate | None
    accepted: bool
    exact: bool = False
    reason: str = ""
    moved: float = 0.0
    noise: float = 0.0
    evidence: dict[str, Any] = field(default_factory=dict)


def decide(search: Search, heads: int | None) -> Verdict:
    """Run the rounds of a search until a candidate is accepted or the bounds are reached."""
    refused: Verdict | None = None
    judged: dict[tuple[int, Extras], float] = {}
    for turn, starts in enumerate(EXAMPLES.rounds):
        rising = 0
        lowest = np.inf
        for count, variants in search.shapes(heads, turn):
            for extras in variants:
                for together in search.batches(count, extras, starts):
                    candidate = search.start(count, extras, together)
                    if candidate.fit.error <= search.hit:
                        verdict = examine(search, candidate)
                        if verdict.accepted:
                            return verdict
                        refused = verdict
                        break  # an overfit: more starts of this shape give more of them
                    if search.spent():
                        return refused or Verdict(search.leader(), accepted=False, reason="work")
            reached = min(search.best[count, extras].foresight for extras in variants)
            search.tell(f"{count} head{'s' * (count > 1)}: error {min(search.best[count, e].fit.error for e in variants):.1e}")
            rising = rising + 1 if reached >= lowest else 0
            lowest = min(lowest, reached)
            if rising > max(turn - 1, 0):  # further heads would fit noise only
                break
        leader = search.leader()
        if leader is not None and leader.fit.error < judged.get((leader.heads, leader.extras), np.inf):
            verdict = examine_noisy(search, leader, fixed=heads is not None)
            if verdict.accepted:
                return verdict
            refused = verdict
            if verdict.reason not in ("lonely", "work"):  # to test the same errors again and again is to wait for luck
                judged[leader.heads, leader.extras] = (1.0 - 1e-3) * search.best[leader.heads, leader.extras].fit.error
    return refused or Verdict(None, accepted=False, reason="examples")


def examine(search: Search, candidate: Candidate) -> Verdict:
    """Accept a fit at the floor of the answers if the held-out answers agree to that floor."""
    candidate = polish(search, simplify(search, candidate))
    exact = search.exact and candidate.fit.error <= EXAMPLES.exact
    largest, rms = held_out_error(search, candidate)
    # A fit with few equations to spare predicts worse than it fits, by the square of this factor and the luck of few answers.
    allowed = EXAMPLES.held_out_exact if exact else 4.0 * search.hit / max(1.0 - 1.0 / candidate.surplus, 0.1)
    evidence = {"held_out": rms, "held_out_largest": largest, "training": candidate.fit.error}
    if (largest if exact else rms) > allowed:
        return Verdict(candidate, accepted=False, exact=exact, reason="overfit", evidence=evidence)
    moved = returns(search, candidate) if exact else 0.0
    evidence |= {"returns_to": moved}
    if moved > 1e-6:
        return Verdict(candidate, accepted=False, exact=exact, reason="flat", moved=moved, evidence=evidence)
    return Verdict(candidate, accepted=True, exact=exact, evidence=evidence)


def examine_noisy(search: Search, candidate: Candidate, *, fixed: bool = False) -> Verdict:
    """Accept a fit with errors left over only if they look like noise in every way that can be tested.

    With ``fixed`` the number of heads is the caller's: a better fit with more heads is then a reason to refuse.
    """
    if candidate.surplus < EXAMPLES.surplus_for_noise:
        return Verdict(candidate, accepted=False, reason="examples", evidence={"training": candidate.fit.error})
    candidate = polish(search, simplify(search, candidate))
    noise = candidate.fit.error / np.sqrt(max(1.0 - 1.0 / candidate.surplus, 0.1))
    evidence, reason = _noise_tests(search, candidate, noise)
    if not reason and noise > EXAMPLES.little_noise and not fixed:
        # A missing head also leaves errors: they count as noise only where the examples would show one more head.
        reason = "" if search.enough(candidate.heads + 1, candidate.extras, EXAMPLES.surplus_for_noise) else "count"
    if reason:
        return Verdict(candidate, accepted=False, reason=reason, noise=noise, evidence=evidence)
    for number in range(1, EXAMPLES.confirming_starts + 1):
        if search.spent():
            return Verdict(candidate, accepted=False, reason="work", evidence=evidence)
        other = search.start(candidate.heads, candidate.extras)
        if other.fit.error < 1.02 * candidate.fit.error:
            other = polish(search, other)
            if other.fit.error < (1.0 - 1e-3) * candidate.fit.error:
                return examine_noisy(search, other, fixed=fixed)  # ends: each time the error falls
            apart = np.linalg.norm(predict(candidate.problem, other) - predict(candidate.problem, candidate))
            if apart < EXAMPLES.same_fit * np.linalg.norm(candidate.fit.point.error):
                evidence |= {"confirmed_after_starts": number}
                break
    else:
        return Verdict(candidate, accepted=False, reason="lonely", evidence=evidence)
    rival = _rival(search, candidate, noise)
    if rival is None:
        return Verdict(candidate, accepted=True, evidence=evidence)
    if fixed:
        return Verdict(candidate, accepted=False, reason="misfit", evidence=evidence)
    return examine(search, rival) if rival.fit.error <= search.hit else examine_noisy(search, rival)


def _noise_tests(search: Search, candidate: Candidate, noise: float) -> tuple[dict[str, Any], str]:
    """Evidence on the errors that are left, and the test that fails, if any."""
    rows, outputs = numbers_of(candidate)
    largest, held = held_out_error(search, candidate)
    numbers = int((~search.learn & search.examples.counts).sum()) * outputs
    expected = noise * np.sqrt(1.0 + 1.0 / candidate.surplus) * (1.2 + 3.0 / np.sqrt(2.0 * numbers))
    excess, unequal = misfit(search, candidate), dispersion(candidate)
    # 1 for Gaussian errors of equal size, with this sampling deviation over so many answers; leverage adds a little.
    suspect = noise > EXAMPLES.little_noise and unequal > 1.1 + 3.5 * np.sqrt((2.0 + 12.0 / outputs) / rows)
    evidence: dict[str, Any] = {
        "training": candidate.fit.error, "noise": float(noise), "held_out": held, "held_out_largest": largest,
        "misfit": excess, "dispersion": unequal,
    }  # fmt: skip
    if excess > EXAMPLES.misfit or suspect:
        return evidence, "misfit"
    if noise > EXAMPLES.most_noise:
        return evidence, "noise"
    return evidence, "overfit" if held > expected else ""


def _rival(search: Search, candidate: Candidate, noise: float) -> Candidate | None:
    """A layer with one more head that explains the examples better; large errors are taken for noise only after a long look."""
    heads = candidate.heads + 1
    if not search.enough(heads, candidate.extras):
        return None
    for together in search.batches(heads, candidate.extras, 3 if noise < EXAMPLES.little_noise else 8 if noise < 0.1 else 24):
        rival = search.start(heads, candidate.extras, together)
        if rival.fit.error <= search.hit or rival.criterion < candidate.criterion:
            return rival
        if search.spent():
            break
    return None


def held_out_error(search: Search, candidate: Candidate) -> tuple[float, float]:
    """Largest and root-mean-square error on the held-out answers, relative to the answers' rms."""
    held = ~search.learn & search.examples.counts
    problem = search.frame.problem(search.examples, held, candidate.extras)
    error = problem.answers - predict(problem, candidate)
    return float(np.abs(error).max()), float(np.sqrt(np.sum(error**2) / problem.equations))


def returns(search: Search, candidate: Candidate) -> float:
    """Push the solution off by a hundredth, fit again, and tell by how much the parameters came back different.

    A flat direction, where other parameters give the same answers, shows as a shift; so does poor conditioning.
    """
    theta = candidate.fit.point.theta
    for push in (1e-2, 1e-3):
        step = random_theta(candidate.problem, candidate.heads, search.rng)
        step *= push * np.linalg.norm(theta) / np.linalg.norm(step)
        effort = replace(search.effort, damping=1e-3, steps=40)
        again = polish(search, search.descend(theta + step, candidate.extras, effort), steps=10)
        if again.fit.error <= EXAMPLES.exact:
            return max(_shift(theta, again.fit.point.theta), _shift(candidate.fit.point.values, again.fit.point.values))
    return np.inf  # it does not come back at all: conditioned too badly to trust its digits


def misfit(search: Search, candidate: Candidate) -> float:
    """Excess, in standard deviations, of what other functions of the tokens explain of the errors that are left.

    Errors that are noise correlate with nothing; those of a poor fit are a function of the tokens. Tried are features of
    random heads at several sharpnesses, the asking token, the mean token, and squares and sizes of the fitted answers.
    """
    problem, point = candidate.problem, candidate.fit.point
    theta = random_theta(problem, 2, search.rng) * (2.0 * np.linalg.norm(point.theta) / np.sqrt(candidate.heads))
    sharpness = np.concatenate([theta / 4.0, theta, 4.0 * theta], axis=1)
    rows = len(point.error)
    fitted = problem.answers - point.error
    mean = np.repeat(problem.values.mean(axis=1), problem.queries.shape[1], axis=0)
    others = [problem.queries.reshape(rows, -1), mean, fitted**2, np.abs(fitted), np.ones((rows, 1))]
    linear = np.concatenate(others, axis=1)
    extra = features_of(replace(problem, linear=linear), patterns_of(problem, sharpness))
    basis = point.basis()
    room = (rows - basis.shape[1]) // 2
    extra = extra[:, search.rng.permutation(extra.shape[1])[: max(room, 1)]]
    extra /= np.linalg.norm(extra, axis=0) + np.finfo(float).tiny
    extra -= basis @ (basis.T @ extra)
    left, sizes, _ = np.linalg.svd(extra, full_matrices=False)
    left = left[:, sizes > 1e-6 * sizes[0]]
    freedom = left.shape[1] * problem.answers.shape[1]
    variance = point.size**2 / max(problem.equations - candidate.unknowns, 1)
    gain = float(np.sum((left.T @ point.error) ** 2)) / variance
    return float((gain - freedom) / np.sqrt(2.0 * freedom))


def dispersion(candidate: Candidate) -> float:
    """How unequal the errors of different answers are, in multiples of what independent Gaussian errors show.

    The error of a poor fit is large where the fit is poor and small elsewhere.
    """
    kept = candidate.problem.kept
    error = candidate.fit.point.error if kept is None else candidate.fit.point.error[kept[:, 0] > 0]
    sizes = np.mean(error**2, axis=1)
    return float(np.var(sizes) / (2.0 * np.mean(sizes) ** 2 / error.shape[1]))


def numbers_of(candidate: Candidate) -> tuple[int, int]:
    """Answers that the fit used, and numbers in each."""
    outputs = candidate.problem.answers.shape[1]
    return candidate.problem.equations // outputs, outputs


def _shift(before: Floats, after: Floats) -> float:
    return float(np.linalg.norm(after - before) / max(np.linalg.norm(before), np.finfo(float).tiny))
