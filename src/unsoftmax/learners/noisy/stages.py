"""Steps of a noisy recovery: values, pilot, recentred questions, and the judgement of a fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import chdtri, fdtri

from unsoftmax.errors import NotInFamilyError, Sign, TooNoisyError
from unsoftmax.learners.noisy.design import frames, recentred, softened, tilted_keys
from unsoftmax.learners.noisy.fit import Errors, Head, cost, entry_variance, fit, linear_start, predicted, standard_errors
from unsoftmax.learners.noisy.judgement import PureNoise
from unsoftmax.learners.noisy.low_rank import balanced_scores
from unsoftmax.learners.noisy.probes import Probes, ask_pairs, ask_tokens
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Floor


def fit_values(singles: Probes) -> tuple[Head, float]:
    """v and b from one-token answers by least squares, and the noise that they show."""
    rows = np.pad(singles.last, ((0, 0), (0, 1)), constant_values=1.0)
    found = np.asarray(np.linalg.lstsq(rows, singles.answers, rcond=None)[0], dtype=np.float64)
    residual = singles.answers - rows @ found
    noise = float(np.sqrt(residual @ residual / max(1, len(rows) - rows.shape[1])))
    # answers that agree to the last bit still carry their own rounding
    noise = max(noise, 2.0**-53 * float(np.abs(singles.answers).max()))
    return Head.start(found[:-1], float(found[-1])), noise


def find_norm(oracle: Oracle, copies: int, rng: np.random.Generator) -> float:
    """A token length at which values stand out of the noise and scores are moderate, by doubling and halving from 1."""
    norm, width = 1.0, oracle.width
    for _ in range(NOISY.search_steps):
        head, noise = fit_values(ask_tokens(oracle, frames(rng, width + 4, width, norm)))
        if np.linalg.norm(head.v) * norm > 10 * noise * np.sqrt(width):
            break
        norm *= 4
    else:
        raise TooNoisyError(
            f"One-token answers show nothing but noise ({noise:.3g}) up to tokens of length {norm:.3g}. If v = 0 nothing can be "
            "learned.",
            evidence={"noise": noise, "length": norm},
        )
    went = 0
    half = np.full(NOISY.search_pairs, copies / 2)
    for _ in range(NOISY.search_steps):
        keys = tilted_keys(rng, NOISY.search_pairs, head.v, norm)
        answers = ask_pairs(oracle, keys, half, half, frames(rng, NOISY.search_pairs, width, norm)).answers - head.b
        key = keys @ head.v
        share = np.clip(np.abs(answers) / key, 0.0, NOISY.saturated)
        score = float(np.sqrt(np.mean(np.arctanh(share) ** 2)))
        direction = -1 if score > NOISY.moderate_scores[1] else 1 if score < NOISY.moderate_scores[0] else 0
        if direction == 0 or direction == -went:  # found, or stepped across
            break
        if direction < 0 and float(key.mean()) < NOISY.least_signal * noise:
            break  # shorter still, and noise would pass for scores
        went = direction
        norm *= 2.0**direction
    return norm


def ask_pilot(
    oracle: Oracle, head: Head, count: int, most: int, noise: float, norm: float, copies: int, rng: np.random.Generator
) -> tuple[list[Probes], float]:
    """``count`` balanced copies at random directions, a few of which look for a length at which answers do not saturate.

    First the keys are shortened, before zero tokens, as long as a query bias saturates them, then the last tokens. Then there are
    as many questions of the right length as parameters, which may take up to ``most`` in all. Hands back that length as well, the
    geometric mean of keys and last tokens.
    """
    few = max(4, count // 32)
    steps = min(NOISY.max_shortenings, most // (2 * few))
    asked: list[Probes] = []

    def lengthen(size: int, key_norm: float, last_norm: float) -> float:
        """Ask; by which factor scores may grow, or 1/4 where they saturate."""
        keys, half = tilted_keys(rng, size, head.v, key_norm), np.full(size, copies / 2)
        last = last_norm * frames(rng, size, head.width, 1.0)
        asked.append(ask_pairs(oracle, keys, half, half, last))
        key, answers = keys @ head.v, asked[-1].answers - head.b
        saturated = np.abs(answers) > NOISY.saturated * key
        if last_norm:  # all weight may also go to the last token itself
            saturated |= np.abs(answers - last @ head.v) < (1 - NOISY.saturated) * key
        # under strong noise single answers lie anywhere: there the head is judged by the fit, not by the eye
        if saturated.mean() > 0.25 and noise <= NOISY.loud * float(key.mean()):
            return 0.25
        scores = np.arctanh(np.clip(answers / key, -NOISY.saturated, NOISY.saturated))
        return float(np.clip(1 / max(float(np.sqrt(np.mean(scores**2))), 0.1), 1.0, 2.0))

    key_norm = last_norm = norm
    least = 1
    if lengthen(min(few, most), norm, norm) < 1 and steps > 1:
        factor = 0.0
        while factor < 1 and len(asked) < steps:
            factor = lengthen(few, key_norm, 0.0)
            key_norm = min(norm, key_norm * factor)
        last_norm = norm / 4 if key_norm == norm else key_norm  # a longer one would outweigh the keys by a score of its own
        factor = 0.0
        while factor < 1 and len(asked) < steps:
            factor = lengthen(few, key_norm, last_norm)
            last_norm = min(key_norm, last_norm * factor)
            if last_norm < NOISY.faintest * key_norm:  # no token is too long for these keys: the bias is, after all
                key_norm = last_norm = key_norm / 4
        least = (head.width + 1) ** 2
    used = len(asked) * few
    lengthen(max(1, min(most - used, max(least, count - used))), key_norm, last_norm)
    return asked, float(np.sqrt(key_norm * last_norm))


def reach(head: Head, probes: Probes, noise: float, shortest: float, norm: float) -> float:
    """The longest tokens whose scores are known well enough to place questions around them."""
    errors = standard_errors(head, probes)
    doubt = max(1.0, noise / max(errors.noise, np.finfo(float).tiny))  # as many answers as parameters leave no residuals
    by_weights, by_bias = (doubt * float(np.sqrt(np.mean(error**2))) for error in (errors.W, errors.c))
    known = min(np.sqrt(NOISY.placeable / max(by_weights, 1e-200)), NOISY.placeable / max(by_bias, 1e-200))
    return float(np.clip(known, shortest, norm))


def is_loud(head: Head, probes: Probes, noise: float) -> bool:
    """Whether the noise hides the score behind a single answer."""
    return bool(noise > NOISY.loud * np.median(np.abs(probes.keys[~probes.single] @ head.v)))


def started(head: Head, probes: Probes, noise: float) -> Head:
    """W and c to begin the fit with: from scores read one by one, or under strong noise from the answers themselves."""
    if not is_loud(head, probes, noise):
        return linear_start(head, probes)
    pairs = probes[~probes.single]
    key = pairs.keys @ head.v
    rows = (pairs.keys[:, :, None] * np.pad(pairs.last, ((0, 0), (0, 1)), constant_values=1.0)[:, None, :]).reshape(len(pairs), -1)
    rows *= key[:, None]  # the answer to balanced copies is key * score, to first order
    matrix = rows.T @ rows
    size = np.trace(matrix) / len(matrix)
    image = np.linalg.solve(matrix + 1e-6 * size * np.eye(len(matrix)), rows.T @ (pairs.answers - head.b))
    image = image.reshape(head.width, head.width + 1)
    return replace(head, W=image[:, :-1], c=image[:, -1] if head.with_c else head.c)


def likely_ridge(head: Head, errors: Errors, noise: float, norm: float, ridge: float) -> float:
    """What keeps a fit under strong noise from running off where answers saturate: W is about as large as it looks.

    One step of expectation maximisation for the variance of W's entries, from a fit with the ridge before.
    """
    return noise**2 / max(entry_variance(head, errors, ridge), (NOISY.least_score / norm**2) ** 2)


def shrunk(head: Head, errors: Errors) -> Head:
    """The head to place questions by: noise makes W look larger than it is, and questions around scores that are not there tell
    less than balanced ones."""
    size, noise = float(np.mean(head.W**2)), float(np.mean(errors.W**2))
    share = max(0.0, 1.0 - noise / size) if size > 0 else 0.0
    return head if share > 0.9 else replace(head, W=share * head.W, c=share * head.c, left=None, right=None)


def ask_recentred(oracle: Oracle, head: Head, count: int, norm: float, copies: int, rng: np.random.Generator) -> Probes:
    """Random directions, with the lengths and copies that ``head`` says tell most."""
    keys = tilted_keys(rng, count, head.v, norm)
    last = softened(head, keys, frames(rng, count, head.width, norm))
    length, plus = recentred(head, keys, last, copies)
    return ask_pairs(oracle, keys, plus, copies - plus, last * length[:, None])


def biased(head: Head, probes: Probes, noise: float) -> bool:
    """Whether balanced copies beside a zero token show a score, which only a query bias gives them."""
    key = probes.keys @ head.v
    answers = np.clip(probes.answers - head.b, -NOISY.saturated * key, NOISY.saturated * key)
    copies = int(probes.plus[0] + probes.minus[0])
    scores = balanced_scores(answers, key, np.zeros(len(key)), np.zeros(len(key)), copies)
    # low-precision targets err a few times more here than on one token: a bias worth fitting is far larger
    return bool(np.sum((scores * key / noise) ** 2) > 64 * chdtri(len(key), NOISY.false_bias))


def simplest(head: Head, probes: Probes, ridge: float = 0.0) -> tuple[Head, Errors]:
    """Drop the query bias and the constant where the answers fit as well without (F test), and fit again."""
    weight = np.ones(len(probes))
    rounding = np.finfo(float).eps * float(np.abs(probes.answers).max())
    freedom = max(1, len(probes) - head.free)
    noise = max(cost(head, probes, weight) / freedom, rounding**2)
    for c, b in ((True, True), (True, False), (False, True)):
        trial = head.without(c=c, b=b)
        dropped = head.free - trial.free
        if not dropped:
            continue
        trial = fit(trial, probes, ridge=ridge)
        if cost(trial, probes, weight) - noise * freedom < dropped * noise * fdtri(dropped, freedom, 1 - NOISY.false_bias):
            return trial, standard_errors(trial, probes)
    return head, standard_errors(head, probes)


def of_lowest_rank(head: Head, probes: Probes, rank: int) -> tuple[Head, int]:
    """Lower the rank as long as the answers fit as well (F test): columns alone may show noise as one more direction."""
    weight = np.ones(len(probes))
    while rank > 1:
        trial = fit(head.of_rank(rank - 1), probes)
        freedom, dropped = max(1, len(probes) - head.free), head.free - trial.free
        least = cost(head, probes, weight)
        if cost(trial, probes, weight) - least >= dropped * least / freedom * fdtri(dropped, freedom, 1 - NOISY.false_bias):
            break
        head, rank = trial, rank - 1
    return head, rank


def refitted(head: Head, probes: Probes, noise: float, floor: Floor) -> Head:
    """The fit from ``head``; where it got lost, the better of it and a fresh start from all unsaturated answers."""
    head = fit(head, probes)
    found, expected = lack_of_fit(head, probes, noise, floor)
    if found <= expected:
        return head
    other = fit(linear_start(replace(head, W=np.zeros_like(head.W), left=None, right=None), probes), probes)
    return min((head, other), key=lambda guess: lack_of_fit(guess, probes, noise, floor)[0])


def check_fit(head: Head, probes: Probes, noise: PureNoise, floor: Floor) -> None:
    """Refuse a fit whose residuals are larger than the noise that one-token answers show by themselves."""
    found, expected = lack_of_fit(head, probes, noise.size, floor, noise.freedom)
    if found > expected:
        raise NotInFamilyError(
            f"No single head explains the answers: they miss the best fit by {found:.3g} (rms), but one-token answers show a noise "
            f"of only {noise.size:.3g}. The target may have several heads, positions or a network behind it (run `unsoftmax "
            "diagnose`), or scores so steep that the fit got lost (allow more queries, or shorter tokens with `max_norm`).",
            evidence={"residual": found, "noise": noise.size, "allowed": expected},
            model=head.model(),
            signs=(Sign.OPEN,),
        )


def lack_of_fit(head: Head, probes: Probes, noise: float, floor: Floor, known: int | None = None) -> tuple[float, float]:
    """Root mean square residual of the pairs, and the largest that noise alone explains, if it has ``known`` degrees of freedom."""
    single = probes.single
    residual = (probes.answers - predicted(head, probes))[~single]
    freedom = max(1, len(residual) - (head.free - head.width - head.with_b))
    found = float(np.sqrt(residual @ residual / freedom))
    largest = float(np.abs(probes.answers).max())
    # few one-token answers may all happen to be rounded the same way: what the floor says is noise as well
    noise = max(noise, floor.rounding(largest))
    # low-precision arithmetic errs more on 65 tokens than on one; random noise and rounding do not
    allowance = 1.0 if floor.noisy or floor.decimals else 24.0
    known = int(single.sum()) - head.width - 1 if known is None else known
    ratio = float(np.sqrt(fdtri(freedom, max(1, known), 1 - NOISY.false_refusal)))
    return found, max(noise * allowance * ratio, 2.0**-46 * largest)
