"""When is W known, how many queries would do, and is it really one head: judged by the noise, in the learner's own questions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtri

from unsoftmax.errors import NotInFamilyError, Sign, TooNoisyError
from unsoftmax.learners.noisy.fit import Errors, Head, entry_variance, predicted
from unsoftmax.learners.noisy.plan import ideal_error
from unsoftmax.learners.noisy.probes import Probes, chunk_size, of_norm, one_number
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.probes.loud import loud_sequences


@dataclass(frozen=True, slots=True)
class Resolution:
    """The error of W against the one at which it counts as known.

    Attributes:
        error: rms standard error per entry.
        wanted: the error that counts as known, as W is estimated.
        wanted_most: the same if W is as large as the noise allows.
    """

    error: float
    wanted: float
    wanted_most: float

    @property
    def reached(self) -> bool:
        """Whether W is known."""
        return self.error <= self.wanted

    def queries(self, asked: int) -> float:
        """How many queries would have reached it, by the root law."""
        return asked * (self.error / self.wanted) ** 2

    def least_queries(self, asked: int) -> float:
        """The same if W is as large as it may be."""
        return asked * (self.error / self.wanted_most) ** 2


def resolution(head: Head, errors: Errors, norm: float, accuracy: float | None = None, ridge: float = 0.0) -> Resolution:
    """How well W is known: against a tenth of its own size or a score of 0.05, or against the accuracy asked for."""
    noise = float(np.mean(errors.W**2))
    error = math.sqrt(noise)
    if accuracy is not None:
        return Resolution(error, 1.3 * accuracy, 1.3 * accuracy)
    size = entry_variance(head, errors, ridge)
    doubt = 2 * math.sqrt(2 * noise**2 + 4 * noise * max(size, 0.0)) / head.width
    least = NOISY.score_resolution / norm**2
    return Resolution(error, *(max(NOISY.resolution * math.sqrt(max(0.0, at)), least) for at in (size, size + doubt)))


def score_size(head: Head, errors: Errors, norm: float) -> float:
    """Standard deviation of the scores of the longest tokens, from a fit of the answers as if they were linear in the scores.

    Such a fit sees ``S / sqrt(1 + pi/2 S^2)`` in place of S, because large scores saturate.
    """
    noise = float(np.mean(errors.W**2))
    seen = (float(np.mean(head.W**2)) - noise) * norm**4
    if noise * norm**4 > 2.0 or seen <= 0:  # nothing but noise
        return NOISY.usual_score
    return float(min(NOISY.judgement_largest_score, np.sqrt(seen / max(1 - np.pi / 2 * seen, 1e-3))))


def drowning(noise: float, norm: float, size: float) -> float:
    """``(noise / (norm |v|))^2``: the noise against the largest answers there are."""
    return (noise / (norm * size)) ** 2


def least_queries(drowned: float) -> float:
    """Queries below which a check on fresh answers, a fiftieth of them, could not tell the head from nothing."""
    checks = NOISY.checkable * drowned
    return checks / NOISY.checked if checks > NOISY.fewest_checks else 0.0


def one_head_price(drowned: float) -> int:
    """Queries that it takes to see what is not one head; 0 where the fit and the held-out check show it anyway."""
    return (
        0
        if drowned < NOISY.no_noise
        else math.ceil(min(NOISY.most_queries, max(NOISY.fewest_times * len(NOISY.fresh_lengths), NOISY.one_head * drowned)))
    )


def budget_for(needed: float, beside: int) -> int:
    """What to name in a refusal: the learning with a margin, what is asked ``beside`` it, and the check's share of it all."""
    return math.ceil(min(float(NOISY.most_queries), NOISY.margin * needed * (1 + NOISY.checked) + beside))


def refuse_saturated(head: Head, errors: Errors, asked: int, norm: float, budget: int) -> None:
    """Refuse a fit to answers that hardly depend on W, with a budget that may do."""
    error = float(np.sqrt(np.mean(errors.W**2)))
    size = float(np.linalg.norm(head.v))
    ideal = ideal_error(asked, noise=errors.noise, max_norm=norm, width=head.width, value_norm=size)
    if error > NOISY.saturation * ideal and error > NOISY.saturated_share * float(np.sqrt(np.mean(head.W**2))):
        raise TooNoisyError(
            f"The answers saturate: they leave W uncertain by {error:.3g}, where moderate scores would leave {ideal:.3g}. The "
            f"scores are far too steep for tokens of length {norm:.3g}; give a smaller `max_norm`, or a budget of about {budget} "
            "queries to find the right length.",
            evidence={"standard_error_W": error, "ideal": ideal, "queries": budget},
            model=head.model(),
        )


@dataclass(frozen=True, slots=True)
class PureNoise:
    """The noise as answers show it that no model has to explain, and its degrees of freedom."""

    size: float
    freedom: int

    def with_more(self, squares: float, freedom: int) -> PureNoise:
        """Pooled with further squares."""
        total = self.freedom + freedom
        return PureNoise(math.sqrt((self.size**2 * self.freedom + squares) / max(1, total)), total)

    def judge(self, statistic: float, dimensions: int, what: str, head: Head, closer: int | None) -> None:
        """Refuse a sum of squares, in units of this noise, that chance does not explain; ``what`` says in words what it means.

        With a budget ``closer`` that would tell, also one that chance explains but rarely.
        """
        sure, maybe = (
            dimensions * float(fdtri(dimensions, max(1, self.freedom), 1 - at)) for at in (NOISY.false_alarm, NOISY.suspicious)
        )
        evidence = {"deviation": statistic, "dimensions": dimensions, "queries": closer}
        if statistic > sure:
            raise NotInFamilyError(
                f"No single head explains the answers: {what} {np.sqrt(statistic / sure):.2g} times further than noise explains. "
                "The target may have several heads, positions or a network behind it (run `unsoftmax diagnose`).",
                evidence=evidence,
                model=head.model(),
                signs=(Sign.OPEN,),
            )
        if closer is not None and statistic > maybe:
            raise TooNoisyError(
                f"{what[0].upper()}{what[1:]} further than noise usually lets it, so that it may not be one head. A budget of "
                f"about {closer} queries would tell; raise `budget` or allow longer tokens (`max_norm`).",
                evidence=evidence,
                model=head.model(),
            )


def check_values(head: Head, singles: Probes, noise: PureNoise, closer: int | None) -> None:
    """Refuse a fit whose v is not the one that one-token answers give by themselves, and one-token answers that bend.

    Several heads pull v away from their sum, which is what one token shows; a network behind bends the answers. Asks nothing.
    """
    rows = np.pad(singles.last, ((0, 0), (0, 1)), constant_values=1.0)
    left = singles.answers - predicted(head, singles)
    shift = rows @ np.linalg.lstsq(rows, left, rcond=None)[0]
    value = singles.last @ head.v / max(float(np.abs(singles.last @ head.v).max()), np.finfo(float).tiny)
    bends = np.stack([np.abs(value), value**2, value**3], axis=1)
    bends -= rows @ np.linalg.lstsq(rows, bends, rcond=None)[0]
    bent = bends @ np.linalg.lstsq(bends, left, rcond=1e-6)[0]
    if len(rows) <= rows.shape[1] + bends.shape[1]:
        return
    for part, dimensions, what in (
        (shift, rows.shape[1], "one-token answers miss the head that fits all answers"),
        (bent, bends.shape[1], "one-token answers bend"),
    ):
        noise.judge(float(part @ part) / noise.size**2, dimensions, what, head, closer)


def check_residuals(head: Head, pairs: Probes, noise: PureNoise, closer: int) -> None:
    """Refuse a fit that leaves more of the answers to pairs than the noise, as repeated answers show it. Asks nothing."""
    left = pairs.answers - predicted(head, pairs)
    freedom = max(1, len(left) - (head.free - head.width - head.with_b))
    noise.judge(float(left @ left) / noise.size**2, freedom, "the answers miss it", head, closer)


def check_one_head(
    oracle: Oracle, head: Head, errors: Errors, noise: PureNoise, count: int, norm: float, rng: np.random.Generator, closer: int
) -> PureNoise:
    """Refuse what is not one head but hides in the noise: a few sequences of another kind, each asked many times; ``count`` in all.

    Their mean answers are known to a tenth of what they say. Several heads, a network behind or positions miss by more. Hands
    back the noise, which the repetitions show as well.
    """
    model, times = head.model(), max(2, count // len(NOISY.fresh_lengths))
    fresh = [_fresh(head.v, length, norm, rng) for length in NOISY.fresh_lengths]
    drawn = [_drawn(head, errors, rng) for _ in range(NOISY.draws)]
    left, doubts, squares = np.empty(len(fresh)), np.empty((NOISY.draws, len(fresh))), 0.0
    for row, sequence in enumerate(fresh):
        left[row], scatter = _mean_deviation(oracle, model, sequence, times, norm, rng)
        squares += scatter
        truth = model(sequence[None])
        doubts[:, row] = [(other(sequence[None]) - truth).item() for other in drawn]
    noise = noise.with_more(squares, len(fresh) * (times - 1))
    # errors of a fit that does not explain the answers look larger than the noise makes them
    inflated = min(1.0, noise.size / errors.noise)
    covariance = noise.size**2 / times * np.eye(len(fresh)) + inflated**2 * doubts.T @ doubts / NOISY.draws
    statistic = float(left @ np.linalg.solve(covariance, left))
    noise.judge(statistic, len(fresh), f"{len(fresh)} fresh sequences, each asked {times} times, miss it", head, closer)
    return noise


def _fresh(v: Floats, length: int, norm: float, rng: np.random.Generator) -> Floats:
    """One sequence ``(length, width)``: a loud one, or for negative lengths one of random tokens half as long."""
    if length > 0:
        return np.asarray(loud_sequences(v / np.linalg.norm(v), rng, count=1, length=length, norm=norm)[0])
    return of_norm(rng.normal(size=(-length, len(v))), norm / 2)


def _drawn(head: Head, errors: Errors, rng: np.random.Generator) -> Attention:
    """A head within the error bars."""
    W, v, c = (at + error * rng.normal(size=at.shape) for at, error in ((head.W, errors.W), (head.v, errors.v), (head.c, errors.c)))
    return Attention.single(W, v, c, head.b + errors.b * float(rng.normal()))


def _mean_deviation(
    oracle: Oracle, model: Attention, sequence: Floats, times: int, norm: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Mean of answers minus predictions over ``times`` questions that are all but ``sequence``, and their scatter around it."""
    found: list[Floats] = []
    size = chunk_size(*sequence.shape)
    for start in range(0, times, size):
        count = min(size, times - start)
        tokens = sequence + NOISY.jitter * norm / np.sqrt(model.width) * rng.normal(size=(count, *sequence.shape))
        lengths = np.linalg.norm(tokens, axis=-1, keepdims=True)
        tokens *= np.minimum(1.0, norm * NOISY.shrink / lengths)
        found.append(one_number(oracle(tokens)) - model(tokens))
    left = np.concatenate(found)
    return float(left.mean()), float(np.sum((left - left.mean()) ** 2))
