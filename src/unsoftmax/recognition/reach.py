"""How long tokens may be before a target cuts them, their values or its answers: exact answers are learned from very long ones."""

from __future__ import annotations

import numpy as np

from unsoftmax.desk import Desk
from unsoftmax.errors import RefusalError, Sign, TargetError, tried
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase
from unsoftmax.recognition.case import Case, Verdict, inconclusive
from unsoftmax.recognition.settings import TESTS
from unsoftmax.results import Fact


def long_tokens(case: Case) -> Verdict | None:
    """The verdict where long tokens are not answered in proportion to short ones, None where they are (6 queries).

    Which tokens are short enough, a learner finds out. Through noise it is asked whether that stays of one size (3 queries).
    """
    if case.max_norm is not None or case.left() < 6 or (case.coarse and not case.floor.noisy):
        return None
    case.begin("long tokens")
    if case.coarse:
        return _noise_of_long(case)
    tokens = case.draw(2)
    ends = case.attempt(np.concatenate([tokens, -tokens])[:, None])
    far = case.attempt(TESTS.cut_far * tokens[:, None])
    if ends is None or far is None:
        return None
    # the line through short ones is known to their rounding alone: all there is where the values of several heads cancel
    off = _off(ends, far, TESTS.cut_far) / max(case.tolerance(far), TESTS.cut_far * case.tolerance(ends))
    if case.record("long tokens", off, 1.0, off <= 1, f"Long tokens are {'' if off <= 1 else 'not '}answered in proportion."):
        return None
    return inconclusive(
        "token length",
        "Short tokens are answered as by a layer of heads, but long ones, their values or the answers are cut. `max_norm` keeps to "
        "short ones.",
        Sign.CUT,
    )


def _noise_of_long(case: Case) -> Verdict | None:
    """The verdict where a long token beside a short last one is answered with other noise: then noise is in the tokens.

    Long tokens drown the noise of answers, but not that of a short token which their scores multiply.
    """
    far = TESTS.drown
    long, short = case.draw(2)
    again = case.attempt(np.repeat(np.stack([far * long, short / far])[None], 3, axis=0))
    if again is None:
        return None
    off = float(np.ptp(again, axis=0).max()) / case.tolerance(again)
    if case.record(
        "noise of long tokens", off, 1.0, off <= 1, f"Noise is {'' if off <= 1 else 'not '}the same beside long tokens."
    ):
        return None
    return inconclusive(
        "token length",
        "Short tokens are answered as by a layer of heads and with noise of one size, but beside long ones it is far larger: "
        "tokens may be noisy or rounded by chance inside. `max_norm` keeps to short ones.",
    )


def _off(ends: Floats, far: Floats, times: float) -> float:
    """How far answers to tokens so many times longer miss the line through those to the tokens and their opposites."""
    up, down = np.split(ends, 2)
    return float(np.abs(far - (up + down) / 2 - times * (up - down) / 2).max())


def cut(desk: Desk) -> bool:
    """Whether long tokens are cut, but only far beyond natural ones: then no longer ones are sent from now on.

    2 queries where nothing is cut, 36 at most.
    """
    look = desk.first_look()
    tokens, answers, b = look.pair, look.pair_answers, look.zero_answer.reshape(1, -1)
    phase(desk, "long tokens")

    def kept(power: int) -> bool:
        told = tried(lambda: desk.last(2.0**power * tokens[:, None]).reshape(len(tokens), -1) - b, TargetError)
        if isinstance(told, RefusalError):
            return False
        wanted = 2.0**power * (answers - b)
        return bool((np.abs(told - wanted) <= TESTS.clip * np.abs(wanted).max() + 2.0**-20 * np.abs(b).max()).all())

    natural = float(
        np.log2(np.sqrt(desk.width) / np.linalg.norm(tokens, axis=1).max())
    )  # the first look may have sent far shorter ones
    low, high = (power + max(0, round(natural)) for power in TESTS.cut_powers)
    if kept(high):
        return False
    others = desk.rng.normal(size=(TESTS.cut_ways, desk.width))  # two directions may have small values
    tokens = np.concatenate([tokens, others])
    answers = np.concatenate([answers, desk.last(others[:, None]).reshape(len(others), -1)])
    if not kept(low):
        return False
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    desk.clip = 2.0 ** (low - TESTS.cut_room) * float(np.linalg.norm(tokens, axis=1).max())
    desk.notes.append(f"Long tokens are cut, so that none longer than {desk.clip:.3g} was sent; nothing is said about longer ones.")
    desk.facts.append(Fact("long tokens", float(low), float(high), None, "Tokens are answered in proportion up to a length."))
    return True
