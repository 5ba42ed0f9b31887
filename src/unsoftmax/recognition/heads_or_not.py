"""Cheap looks at whether a target is a layer of heads: one, several, or none at all."""

from __future__ import annotations

import numpy as np

from unsoftmax.desk import Desk
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase
from unsoftmax.precision.settings import READING
from unsoftmax.recognition.settings import TESTS
from unsoftmax.results import Fact

SEVERAL, ORDER, LENGTH = "one head's line", "order of earlier tokens", "answers to a long token"
CHOICE = "each head chooses among long tokens"


def plainly_several(desk: Desk) -> Fact:
    """Whether two tokens are answered off the line through their own answers, on which one head keeps them.

    One query, of the two tokens that the first look asked one by one; wide layers, where trying one head first would cost
    hundreds, are asked for up to four lengths of them. Single numbers always lie on a line: nothing is asked then.
    """
    look = desk.first_look()
    unasked = Fact(SEVERAL, 0.0, 1.0, None, "Whether there are several heads was not asked.")
    if look.outputs == 1 or desk.wishes.heads is not None or desk.precision.absolute:
        return unasked
    b = look.zero_answer.reshape(-1)
    first, second = look.pair_answers - b
    apart = float(np.linalg.norm(first - second))
    if apart == 0.0:
        return unasked
    phase(desk, "one head?")
    line = (first - second) / apart
    worst = 0.0
    for size in (1.0, 0.25, 4.0, 16.0) if desk.width > TESTS.wide else (1.0,):
        if desk.max_norm is not None and size > 1.0:  # the first look chose tokens that fit
            break
        told = desk.last(size * look.pair[None])[0].reshape(-1)
        off = (told - b) / size - second
        rounding = desk.precision.relative * max(float(np.abs(told).max()) / size, float(np.abs(look.pair_answers).max()))
        off_line = float(np.linalg.norm(off - (off @ line) * line)) / max(TESTS.plainly * apart, TESTS.roughly * rounding)
        worst = max(worst, off_line)
        if off_line > 1.0:
            return Fact(SEVERAL, off_line, 1.0, False, "Two tokens are answered off the line on which one head keeps them.")
    return Fact(SEVERAL, worst, 1.0, True, "Two tokens are answered on the line through their own answers.")


def several_in_half(desk: Desk) -> Fact:
    """The same where answers are of half precision, at four lengths of the two tokens; 4 queries."""
    look = desk.first_look()
    b = look.zero_answer.reshape(-1)
    first, second = look.pair_answers - b
    apart = float(np.linalg.norm(first - second))
    if look.outputs == 1 or desk.wishes.heads is not None or apart == 0.0 or desk.longest < 2:
        return Fact(SEVERAL, 0.0, 1.0, None, "Whether there are several heads was not asked.")
    phase(desk, "one head?")
    line, worst = (first - second) / apart, 0.0
    for size in (0.5, 1.0) if desk.max_norm is not None else (0.5, 1.0, 2.0, 4.0):
        off = desk.last(size * look.pair[None])[0].reshape(-1) - b - size * second
        largest = float(np.linalg.norm(b)) + size * max(float(np.linalg.norm(first)), float(np.linalg.norm(second)))
        allowed = READING.safety * READING.largest_noise * desk.precision.unit * largest
        worst = max(worst, float(np.linalg.norm(off - (off @ line) * line)) / max(allowed, np.finfo(float).tiny))
    words = "off the line on which one head keeps them" if worst > 1 else "on the line through their own answers, as far as told"
    return Fact(SEVERAL, worst, 1.0, worst <= 1.0, f"Two tokens are answered {words}.")


def blind_to_order(desk: Desk) -> Fact:
    """Heads do not see the order of earlier tokens; a target that does is none of them, whatever else it is. 2 queries."""
    floor = desk.precision
    tokens = desk.rng.normal(size=(3, desk.width)) / np.sqrt(desk.width)
    if desk.max_norm is not None:
        tokens *= min(1.0, 0.9 * desk.max_norm / float(np.linalg.norm(tokens, axis=1).max()))
    first, second, last = tokens
    answers = desk.last(np.array([[first, second, last], [second, first, last]])).reshape(2, -1)
    change, size = float(np.abs(answers[0] - answers[1]).max()), float(np.abs(answers).max())
    allowed = TESTS.order_relative * floor.relative * size + TESTS.order_absolute * floor.absolute
    words = f"Exchanging two earlier tokens changes the answer by {change:.2g}"
    if change > allowed:
        words += ": the target sees positions, which no attention layer of this family does"
    return Fact(ORDER, change / max(allowed, 1e-300), 1.0, change <= allowed, f"{words}.")


def chooses(desk: Desk) -> Fact:
    """Whether each head looks at one of several long tokens on a line, the outermost, so that those within change nothing.

    Scores that grow with their tokens do that; where they are capped, or tokens brought to one length, tokens of one side tie, and
    copies count; a distance between tokens is least to those within; and a window of the last tokens holds the outermost only where
    they come last. Heads whose scores are zero everywhere weigh all alike, and show by a change in proportion to the last token, as
    the others add up to nothing. 2 queries, 4 where something changes.
    """
    outermost, within = (3.0, -3.0), ((1.0, -1.0), (0.5, -0.5))
    copies = (min(TESTS.long_sequence, desk.longest) - 3) // 4
    if not desk.precision.exact or desk.max_norm is not None or copies < 2:
        return Fact(CHOICE, 0.0, 1.0, None, "Whether heads choose among long tokens was not asked.")
    key, last = (token / np.linalg.norm(token) for token in desk.first_look().pair)
    phase(desk, "choice")

    def change(end: float) -> tuple[Floats, float]:
        lines = outermost, (*outermost, *(within[0] * copies), *(within[1] * copies))
        tokens = [TESTS.far * np.vstack([np.outer(line, key), end * last]) for line in lines]
        few, many = (desk.last(each[None]).reshape(-1) for each in tokens)
        return many - few, TESTS.chosen * max(float(np.abs(few).max()), float(np.abs(many).max()), 1e-300)

    moved, allowed = change(1.0)
    off = float(np.abs(moved).max()) / allowed
    if off > 1.0:
        further, most = change(TESTS.further_end)
        off = float(np.abs(further - TESTS.further_end * moved).max()) / (TESTS.further_end * allowed + most)
    words = "Each head looks at one of several long tokens." if off <= 1 else "Of long tokens, others than the outermost count."
    return Fact(CHOICE, off, 1.0, off <= 1, words)


def clipped(desk: Desk) -> Fact:
    """Whether a token of the first look, made longer, is answered in proportion: a target that clips tokens does not. 1 query."""
    look = desk.first_look()
    b = look.zero_answer.reshape(-1)
    phase(desk, "one head?")
    told = desk.last(TESTS.long * look.pair[:1, None]).reshape(-1) - b
    wanted = TESTS.long * (look.pair_answers[0] - b)
    size = max(float(np.abs(wanted).max()), TESTS.long * float(np.abs(b).max()) * 2.0**-20, 1e-300)
    off = float(np.abs(told - wanted).max()) / size
    return Fact(
        LENGTH,
        off,
        TESTS.clip,
        off <= TESTS.clip,
        "Long tokens are answered in proportion." if off <= TESTS.clip else "Long tokens are cut.",
    )
