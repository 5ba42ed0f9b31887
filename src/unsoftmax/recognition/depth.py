"""Diagnosis: whether the kinks of a network run straight on, as those of one hidden layer do (about 45 queries)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import Sign
from unsoftmax.models import Floats
from unsoftmax.recognition.case import Case, DecidedError, Verdict, asked_once, outside
from unsoftmax.recognition.settings import TESTS


@dataclass(frozen=True, slots=True, eq=False)
class Kink:
    """A lone kink.

    Attributes:
        at: where it lies, ``(width,)``.
        along: a vector across it ``(width,)``.
        jump: change of the slope, per unit of ``along``, ``(outputs,)``.
        beside: a token well on either side of it ``(2, width)``.
        answers: to these ``(2, outputs)``.
    """

    at: Floats
    along: Floats
    jump: Floats
    beside: Floats
    answers: Floats


def several_layers(case: Case, scale: float, *, kinks: int = 1) -> bool | None:
    """Whether kinks change on their way, which those of one hidden layer never do; None where that is not told.

    Beside a kink the gradient changes by a fixed vector, and what is at right angles to it is the way that the kink runs. With one
    hidden layer it runs straight on for ever and is equally strong everywhere; behind further layers it turns, or changes its
    strength, wherever it crosses another. ``kinks`` are followed, two ways each; one more where that leaves doubt.
    """
    if case.coarse or case.width < 2:
        return None
    case.begin("depth")
    ways: list[int] = []
    for look in range(kinks + 1):
        followed_on = case.tried(lambda: _followed(case, scale))
        if isinstance(followed_on, Verdict):
            if Sign.UNDECIDED not in followed_on.signs:
                raise DecidedError(followed_on)
            break  # out of questions, or tokens would be too long
        if followed_on is None:
            return None
        ways += followed_on
        if sum(ways) >= TESTS.depth_enough or (look + 1 >= kinks and ways and not sum(ways)):
            break
    if not ways:
        return None
    lost, followed = sum(ways), 2 * len(ways)
    case.record(
        "straight kinks",
        lost,
        1.0,
        lost < TESTS.depth_enough,
        f"{followed - lost} of {followed} times a kink was the same far away.",
    )
    return True if lost >= TESTS.depth_enough else None if lost else False


def _followed(case: Case, scale: float) -> list[int] | None:
    """The ways of one kink; None where there is none, but a smooth bend."""
    kink, even = _lone_kink(case, scale) if case.left() >= TESTS.search + TESTS.follow else (None, False)
    return None if even else _ways(case, kink, scale)


def _ways(case: Case, kink: Kink | None, scale: float) -> list[int]:
    """A kink followed two ways: how often of two it was lost on each that could be told."""
    if kink is None:
        return []
    lost = [_follow(case, kink, scale) for _ in range(2) if case.left() >= TESTS.follow]
    return [number for number in lost if number is not None]


def _lone_kink(case: Case, scale: float) -> tuple[Kink | None, bool]:
    """Halve a line towards its strongest bend until one kink is left: 3 queries, 2 for each half, 2 beside it and 3 right there.

    Also whether both halves kept bending alike, as a smooth line does.
    """
    for longer in (1, 2, 4, 8):
        low, high = case.cap(longer * scale, 5.0) * case.draw(2)
        y_low, y_high, y = case.ask(np.stack([low, high, (low + high) / 2])[:, None])
        if float(np.abs(y_low + y_high - 2 * y).max()) > TESTS.depth_loud * case.noise(y_low, y_high, y):
            break
    else:
        return None, False
    alone = even = 0
    for _ in range(TESTS.halvings):
        middle = (low + high) / 2
        left, right = case.ask(np.stack([(low + middle) / 2, (middle + high) / 2])[:, None])
        level = case.noise(y_low, y_high, y, left, right)
        bends = float(np.abs(y_low + y - 2 * left).max()), float(np.abs(y + y_high - 2 * right).max())
        alone = alone + 1 if min(bends) <= TESTS.straight * level else 0
        even = even + 1 if min(bends) > TESTS.even * max(bends) else 0
        if even == TESTS.evenly:
            return None, True
        if bends[0] >= bends[1]:
            high, y_high, y = middle, y, left
        else:
            low, y_low, y = middle, y, right
        if alone == 3 or max(bends) <= TESTS.depth_loud * level:
            break
    if alone < 2:
        return None, False
    along = high - low
    beside = np.stack([low - TESTS.beside * along, high + TESTS.beside * along])
    answers = case.ask(beside[:, None])
    slope, jump = (answers[1] - y_high) / TESTS.beside, (answers[1] - y_high - y_low + answers[0]) / TESTS.beside
    place = float((y_low - y_high + slope) @ jump) / max(float(jump @ jump), 1e-300)
    kink = Kink(low + place * along, along, jump, beside, answers)
    there = 0 < place < 1 and bool(_met(case, kink, np.zeros((1, case.width)), 0.0).all())
    if not there:
        _refuse_jump(case, np.stack([low, high]), np.stack([y_low, y_high]), answers, TESTS.beside)
    return (kink if there else None), False


def refuse_jumps(case: Case, scale: float, *, lines: int = 4) -> None:
    """Look for a jump of one-token answers on lines that show a bend: 10 to 12 queries each, as far as they last.

    Raises:
        DecidedError: the answers jump.
    """
    case.begin("jumps")
    for longer in (0, 1, 4, 16)[:lines]:
        if case.left() < 5 + TESTS.jump_halvings:
            return
        if longer:
            first, aside = case.cap(longer * scale, 5.0) * case.draw(2)
            ends = np.stack([first, aside / 4 - first])  # past the origin: a plane that parts the tokens is crossed
            answers = case.ask(np.stack([*ends, ends.mean(axis=0)])[:, None])
        elif case.bent is None:
            continue
        else:  # of four tokens a, b, c and a + b - c one is off: it bends one of two lines that meet in their middles
            tokens, told = case.bent
            middle = case.ask(tokens[None, :2].mean(axis=1)[None])
            one = int(np.abs(told[:2].sum(axis=0) - 2 * middle).max() < np.abs(told[2:].sum(axis=0) - 2 * middle).max())
            ends, answers = tokens[2 * one : 2 * one + 2], np.concatenate([told[2 * one : 2 * one + 2], middle])
        if float(np.abs(answers[0] + answers[1] - 2 * answers[2]).max()) > TESTS.depth_loud * case.noise(answers):
            along = TESTS.jump_beside * (ends[1] - ends[0])
            _refuse_jump(
                case, ends, answers[:2], case.ask(np.stack([ends[0] - along, ends[1] + along])[:, None]), TESTS.jump_beside
            )


@asked_once
def jumps_instead(case: Case, scale: float) -> None:
    """The same on the line that bent at first, where too few questions may be left to look at kinks, and no learner tells."""
    if case.alone and not case.coarse:
        refuse_jumps(case, scale, lines=1)


def _refuse_jump(case: Case, ends: Floats, answers: Floats, beside: Floats, share: float) -> None:
    """Halve a stretch between ``ends (2, width)`` while each answer lies on the line of one end or the other; 7 queries.

    Where a line of one kink crosses over, its two halves meet. ``beside``: answers that ``share`` of the stretch outside it.

    Raises:
        DecidedError: they do not meet: the answers jump.
    """
    first, last = (answers[0] - beside[0]) / share, (beside[1] - answers[1]) / share
    low, high, noise = 0.0, 1.0, TESTS.jump_floors * case.noise(answers, beside)
    for _ in range(min(TESTS.jump_halvings, case.left())):
        at = (low + high) / 2
        answer = case.ask((ends[0] + at * (ends[1] - ends[0]))[None, None])[0]
        off = [float(np.abs(answer - line).max()) for line in (answers[0] + at * first, answers[1] - (1 - at) * last)]
        if min(off) > noise:
            return
        low, high = (at, high) if off[0] <= off[1] else (low, at)
    at = (low + high) / 2
    gap = float(np.abs(answers[1] - (1 - at) * last - answers[0] - at * first).max())
    kink = float(np.abs(last - first).max()) * (high - low)
    if gap > TESTS.jump_clear * max(kink, noise):
        words = (
            "One-token answers jump: two straight stretches of a line end beside each other and do not meet. No network does that."
        )
        case.record("jump", gap, TESTS.jump_clear * max(kink, noise), False, words)
        raise DecidedError(outside("not piecewise linear", words))


def _follow(case: Case, kink: Kink, scale: float) -> int | None:
    """How often of two a kink is lost far away; None if a step aside met another one, so that its way is not known."""
    aside = TESTS.short * float(np.sqrt((kink.along**2).mean())) * case.draw()
    whole, half = case.ask(np.concatenate([kink.beside + aside, kink.beside + aside / 2])[:, None]).reshape(2, 2, -1) - kink.answers
    if float(np.abs(whole - 2 * half).max()) > 10 * case.noise(kink.answers):
        return None
    way = aside - float((whole[1] - whole[0]) @ kink.jump) / float(kink.jump @ kink.jump) * kink.along
    far = TESTS.depth_far * case.cap(scale, 5.0) * way / max(float(np.sqrt((way**2).mean())), 1e-300)
    return int((~_met(case, kink, np.stack([far, -far]), TESTS.same)).sum())


def _met(case: Case, kink: Kink, moves: Floats, error: float) -> np.ndarray:
    """Whether the kink is there, and as strong up to a relative ``error``, after each of ``moves (n, width)``; 3 queries each."""
    points = kink.at + moves[:, None] + TESTS.stretch * np.array([-1.0, 0.0, 1.0])[:, None] * kink.along
    left, middle, right = case.ask(points.reshape(-1, 1, case.width)).reshape(len(moves), 3, -1).transpose(1, 0, 2)
    wanted = TESTS.stretch * kink.jump
    off = np.abs(left + right - 2 * middle - wanted).max(axis=1)
    return np.asarray(off <= error * np.abs(wanted).max() + 40 * case.noise(left, middle, right))
