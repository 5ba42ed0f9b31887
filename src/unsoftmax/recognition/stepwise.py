"""Scores that move in steps: float16 or float32 inside a target that answers in float64."""

from __future__ import annotations

import numpy as np

from unsoftmax.linalg import INSIDE
from unsoftmax.models import Floats
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.precision.inside import rounds_inside
from unsoftmax.precision.settings import READING
from unsoftmax.recognition.case import Case, DecidedError, inconclusive
from unsoftmax.recognition.floor import one_token_noise
from unsoftmax.recognition.settings import TESTS
from unsoftmax.results import Fact

STEPS = 2.0 ** -np.array([np.inf, 6.0, 7.0, 16.0, 26.0])  # of the earlier token, in lengths of it
PRICE = TESTS.pairs * len(TESTS.stepwise_sizes) * len(STEPS)


def scores_in_steps(oracle: Oracle, rng: np.random.Generator, max_norm: float | None) -> Fact:
    """Whether an earlier token moved by a billionth changes the answer otherwise than one moved by a hundredth; 30 queries.

    The slope of a smooth answer is the same at every small step. Where scores are rounded, tiny steps leave them where they are,
    and only the token's value moves: the slope lacks the part of the scores, or shows a jump.
    """
    phase(oracle, "steps")
    X = pairs_in_steps(oracle.width, rng, max_norm)
    return judged(LastPosition(oracle)(X.reshape(-1, 2, oracle.width)).reshape(*X.shape[:2], -1))


def steps_told(case: Case) -> Fact | None:
    """The same in a diagnosis, where float64 answers are computed more coarsely: heads have no jumps, so that one tells.

    None where nothing speaks for steps, or where one-token answers, which know no scores, are as coarse. Where few questions are
    left, tokens of fewer sizes are asked; without any the verdict is open.
    """
    if not case.finer:
        return None
    sizes = min(len(TESTS.stepwise_sizes), (case.left() - 8) // (PRICE // len(TESTS.stepwise_sizes)))
    if sizes < 1:
        raise _unasked()
    if one_token_noise(case) > TESTS.exact:
        return None
    case.begin("steps")
    X = pairs_in_steps(case.width, case.rng, case.max_norm, sizes)
    fact = judged(case.ask(X.reshape(-1, 2, case.width)).reshape(*X.shape[:2], -1), few=1)
    case.evidence.append(fact)
    return fact


def rounding_told(case: Case, *, steps: bool) -> str:
    """What is rounded inside, where float64 answers to one token are coarse too; empty where nothing is.

    ``steps``: scores were seen not to move in steps, so that a verdict does not hang on this.
    """
    if not case.finer or not case.sentinels:
        return ""
    if case.left() < 4 * READING.moved + 1:
        if steps:
            return ""
        raise _unasked()
    case.begin("steps")
    return rounds_inside(case.ask, case.sentinels[0][0][0, 0])


def coarse_without_reason(case: Case, *, bias: bool) -> str:
    """Why float64 answers of errors that nothing explains leave a verdict open; empty where they have none, or a reason.

    Scores of order one, as they are asked here, are as exact as float64 is, unless a large bias takes part.
    """
    if not case.finer or case.floor.batch or (bias and case.floor.relative <= TESTS.biased):
        return ""
    return (
        f"Answers of float64 carry errors of about {case.floor.relative:.1g} of their size, which no number format explains: "
        "something in the target may be rounded to fine steps. `recover` tells whether a head explains them to that."
    )


def _unasked() -> DecidedError:
    words = (
        "Answers are computed in coarser numbers than they are written in, and too few questions are left to tell what is rounded."
    )
    return DecidedError(inconclusive("budget", words))


def pairs_in_steps(width: int, rng: np.random.Generator, max_norm: float | None, sizes: int | None = None) -> Floats:
    """Pairs of tokens ``(pairs, steps, 2, width)``, the earlier one moved a little further each time; of the largest ``sizes``."""
    wanted = TESTS.stepwise_sizes[-sizes:] if sizes else TESTS.stepwise_sizes
    tokens = np.concatenate([size * rng.normal(size=(TESTS.pairs, 2, width)) for size in wanted])
    moves = rng.normal(size=(len(tokens), width))
    moves *= (np.linalg.norm(tokens[:, 0], axis=1) / np.linalg.norm(moves, axis=1))[:, None]
    X = np.repeat(tokens[:, None], len(STEPS), axis=1)
    X[:, :, 0] += STEPS[:, None] * moves[:, None]
    if max_norm is not None:
        X *= min(1.0, INSIDE * max_norm / float(np.linalg.norm(X, axis=-1).max()))
    return X


def judged(answers: Floats, few: int = TESTS.few) -> Fact:
    """What the answers ``(pairs, steps, outputs)`` to such pairs tell; ``few`` of them with a jump mean steps."""
    slopes = (answers[:, 1:] - answers[:, :1]) / STEPS[1:, None]
    smooth = 2 * slopes[:, 1] - slopes[:, 0]  # what a smooth answer's slope tends to
    rounding = 2.0**-48 * np.abs(answers).max(axis=(1, 2)) / STEPS[-1]
    bent = np.abs(slopes[:, 1] - slopes[:, 0]).max(axis=1)  # far more than what is left of a bend after that
    coarsely, finely = _apart(slopes[:, 2], smooth, rounding + bent), _apart(slopes[:, 3], slopes[:, 2], rounding)
    jumps = int(max(coarsely.sum(), finely.sum()))
    half = int(coarsely.sum()) >= few
    kind = "half precision, to fp8 (as keys in a cache are), or to whole steps" if half else "float32"
    words = (
        f"Scores move in steps: in {jumps} of {len(answers)} pairs a tiny move of a token changes the answer otherwise than a "
        f"small one. The target rounds them, or keys and queries, to {kind}, and answers in float64; compute them in float64, or "
        "let answers be of the precision of the scores."
        if jumps >= few
        else "Scores do not move in steps."
    )
    return Fact("scores in steps", float(jumps), float(few), jumps < few, words)


def _apart(slopes: Floats, others: Floats, rounding: Floats) -> Floats:
    """Which slopes ``(n, outputs)`` differ by more than a share of them and rounding."""
    gaps, sizes = np.abs(slopes - others).max(axis=1), np.maximum(np.abs(slopes), np.abs(others)).max(axis=1)
    return np.asarray(gaps > TESTS.apart * sizes + rounding)


def keys_stand_still(oracle: Oracle, rng: np.random.Generator, max_norm: float | None) -> Fact:
    """Whether a small move of an earlier token leaves its weight as it is, to the last bit, though a large one does not.

    11 queries. One-token answers must be straight, so that they and the answer to a pair tell the weight. Keys of so few bits that
    small moves never reach the next number show no steps otherwise.
    """
    phase(oracle, "steps")
    tokens, last = rng.normal(size=(2, TESTS.still_pairs, oracle.width)), rng.normal(size=oracle.width)
    first, move = tokens
    pairs = np.stack([first, first + TESTS.small * move, first + move])
    shrink = 1.0
    if max_norm is not None:
        longest = max(float(np.linalg.norm(pairs, axis=-1).max()), float(np.linalg.norm(last)))
        shrink = min(1.0, INSIDE * max_norm / longest)
    together = np.stack([pairs, np.broadcast_to(last, pairs.shape)], axis=2)
    ask = LastPosition(oracle)
    alone = np.concatenate([last[None], first, first + move])
    end, *one = np.split(ask(shrink * alone[:, None]).reshape(len(alone), -1), [1, 1 + len(first)])
    two = ask(shrink * together.reshape(-1, 2, oracle.width)).reshape(*pairs.shape[:2], -1)
    chord = np.stack([one[0], one[0] + TESTS.small * (one[1] - one[0]), one[1]]) - end
    length = np.maximum((chord**2).sum(axis=2), np.finfo(float).tiny)
    weight = ((two - end) * chord).sum(axis=2) / length
    rounding = 2.0**-46 * np.abs(np.concatenate([end, *one])).max() / np.sqrt(length.min(axis=0))
    free = np.minimum(weight[0], 1 - weight[0]) > TESTS.free  # one that is next to 0 or 1 stands still whatever the keys do
    free &= (one[0] != one[1]).any(axis=1) & (rounding < TESTS.small)  # answers that are cut tell no weight
    still = (np.abs(weight[1] - weight[0]) <= rounding) & (np.abs(weight[2] - weight[0]) > TESTS.moved_far) & free
    count = int(still.sum())
    words = (
        f"Keys stand still: in {count} of {len(still)} pairs a small move of the earlier token leaves its weight as it is, to the "
        "last bit. The target keeps keys in few bits (an fp8 or int8 cache) and answers in float64; keep them in longer numbers."
        if count
        else "Keys follow small moves of their tokens."
    )
    return Fact("keys stand still", float(count), 1.0, not count, words)


def answered_alike(oracle: Oracle, rng: np.random.Generator, max_norm: float | None) -> Fact:
    """Whether one batch of pairs, asked twice, is answered alike: what is rounded by chance jumps as well; 20 queries."""
    X = rng.normal(size=(TESTS.pairs_again, 2, oracle.width))
    if max_norm is not None:
        X *= min(1.0, INSIDE * max_norm / float(np.linalg.norm(X, axis=-1).max()))
    once, again = (LastPosition(oracle)(X).reshape(len(X), -1) for _ in range(2))
    other = int((once != again).any(axis=1).sum())
    words = f"Asked twice, {other} of {len(X)} questions get another answer."
    return Fact("asked twice", float(other), 1.0, not other, words)
