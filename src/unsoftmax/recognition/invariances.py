"""Diagnosis: what no model of the family can notice: order, repeats, doubled tokens (about 30 queries)."""

from __future__ import annotations

import numpy as np

from unsoftmax.recognition.case import Case, Shape, Verdict, inconclusive, outside
from unsoftmax.recognition.settings import TESTS


def invariances(case: Case, shape: Shape, scale: float) -> bool | Verdict:
    """Permute, repeat and double tokens at scales around ``scale`` and in one long sequence.

    Returns:
        True, False where only the first token matters, or the verdict on targets that fail in this way.
    """
    case.begin("invariances")
    order, constant, doubled = 0.0, 0.0, 0.0
    room = 1 if case.coarse else 20  # exact answers leave it: what is outside misses by a million, networks round larger numbers
    most = min(case.most, case.longest)
    length = min(TESTS.length, most)
    few = min(length, most // 2)  # of so many tokens each can be sent twice
    another = [place for place in (1, 3, 0, 2) if place < length - 1]
    for factor in (0.25, 1.0, 4.0):
        size = case.cap(factor * scale, 1.5)
        X = size * case.draw(length)
        turned, shuffled = X.copy(), X.copy()
        turned[:-1] = X[-2::-1]
        shuffled[:-1] = X[another]
        sequences = np.stack([X, turned, shuffled, np.repeat(X[:1], length, axis=0)])
        answers = case.attempt(sequences) if factor > 1 else case.ask(sequences)
        if answers is None:  # overflow
            case.reach = min(case.reach, size)
            continue
        single = case.ask(X[:1, None])
        once = answers[0] if few == length else case.ask(X[None, -few:])[0]
        twice = case.ask(np.concatenate([X[-few:], X[-few:]])[None])
        level = room * case.tolerance(answers, single)
        order = max(order, float(np.abs(answers[1:3] - answers[0]).max()) / level)
        constant = max(constant, float(np.abs(answers[3] - single[0]).max()) / level)
        doubled = max(doubled, float(np.abs(twice - once).max()) / level)
    if case.longest >= 16:
        length = min(case.longest, 256) // 2 * 2
        X = case.cap(scale / 2, 1.5) * case.draw(length)
        turned = X.copy()
        turned[:-1] = X[-2::-1]
        halved = np.concatenate(
            [X[1::2], X[1::2]]
        )  # half of the tokens, each twice: top-k weights with any k below the length differ
        long = case.attempt(np.stack([X, turned, halved]))
        if long is None:
            case.longest = min(case.longest, 64)
        else:
            half = case.ask(X[None, 1::2])
            order = max(order, float(np.abs(long[1] - long[0]).max()) / (room * case.tolerance(long, single)))
            doubled = max(doubled, float(np.abs(long[2] - half[0]).max()) / (room * case.tolerance(long, half, single)))
    ordered = case.record(
        "order",
        order,
        1.0,
        order <= 1,
        "The order of the earlier tokens does not matter." if order <= 1 else "The order of the earlier tokens matters.",
    )
    steady = case.record(
        "constant sequence",
        constant,
        1.0,
        constant <= 1,
        "Repeating one token " + ("changes nothing." if constant <= 1 else "changes the answer."),
    )
    case.foretold.update((few, 2 * few))
    faint = TESTS.faint_coarse if case.coarse else 1.0 if shape is Shape.AFFINE else TESTS.faint_bent
    if 1 < max(order, constant, doubled) <= faint:
        return inconclusive("power", "Sequences that attention answers alike differ by no more than what a recovery lets pass.")
    if not ordered:
        if steady and _only_first(case, scale):
            return False
        return _why_order(case, shape, scale, steady)
    if not steady:
        return _why_constant(case, scale)
    if not case.record(
        "doubled tokens",
        doubled,
        1.0,
        doubled <= 1,
        "Sending every token twice " + ("changes nothing." if doubled <= 1 else "changes the answer."),
    ):
        return outside(
            "weights depend on the number of tokens",
            "Sending every token twice changes the answer: top-k or sparse weights, a temperature that follows the length, "
            "or a bias towards itself.",
        )
    return True


def _only_first(case: Case, scale: float) -> bool:
    """Whether all tokens but the first can be left out (6 queries)."""
    worst = 0.0
    for factor, length in ((0.25, 2), (1.0, 4), (4.0, min(case.longest, 30))):
        X = case.cap(factor * scale, 1.5) * case.draw(1, length)
        whole, first = case.ask(X), case.ask(X[:, :1])
        worst = max(worst, float(np.abs(whole - first).max()) / case.tolerance(whole, first))
    return case.record(
        "first token only",
        worst,
        1.0,
        worst <= 1,
        "Tokens after the first " + ("do not change the answer." if worst <= 1 else "change the answer."),
    )


def _why_order(case: Case, shape: Shape, scale: float, steady: bool) -> Verdict:
    """Positions added to tokens, positions in the scores (a window, ALiBi, RoPE), or a recurrence: about 10 queries."""
    tokens = scale * case.draw(5, TESTS.length)
    A, B, C = tokens[:3] / 4
    joint = case.ask(np.stack([A, B, C, A + B - C]))
    bend = float(np.abs(joint[0] + joint[1] - joint[2] - joint[3]).max())
    if bend <= case.tolerance(joint):
        case.record(
            "jointly affine",
            bend / case.tolerance(joint),
            1.0,
            True,
            "The answer is affine in the whole sequence, and order matters.",
        )
        return outside(
            "recurrent", "Order matters and the answer is affine in all tokens: a linear recurrence or fixed position weights."
        )
    far = case.cap(scale, 1.5) * case.draw(min(case.longest, 200))
    other = far.copy()
    other[: max(1, len(far) // 3)] = case.cap(scale, 1.5) * case.draw(max(1, len(far) // 3))
    remote = case.ask(np.stack([far, other]))
    memory = float(np.abs(remote[0] - remote[1]).max()) / case.tolerance(remote)
    forgets = len(far) >= 32 and memory <= 1
    case.record("memory", memory, 1.0, not forgets, "Far tokens are forgotten." if forgets else "Far tokens still matter.")
    if steady:
        if forgets:
            return outside(
                "window", "Tokens beyond a window have no effect: sliding-window or local attention, or strong recency weights."
            )
        small = 2.0**-10 * tokens[3]
        turned = small.copy()
        turned[:-1] = small[-2::-1]
        y = case.ask(np.stack([small, turned, np.tile(small[-1:], (TESTS.length, 1))]))
        shift, span = float(np.abs(y[0] - y[1]).max()), float(np.abs(y[0] - y[2]).max())
        fixed = shift > 0.02 * span + case.tolerance(y)
        case.record(
            "tiny tokens",
            shift / max(span, 1e-300),
            0.02,
            not fixed,
            "Order matters " + ("even" if fixed else "less and less") + " for tiny tokens.",
        )
        if fixed:
            return outside(
                "positions",
                "Scores carry a term that depends on the position alone: ALiBi, a relative position bias or recency weights.",
            )
        return outside(
            "RoPE",
            "Scores depend on position and content together: rotary positions (RoPE) or other position-dependent score matrices.",
        )
    if shape is not Shape.AFFINE and forgets:
        return outside("recurrent", "Order matters, repeats matter and the far past is forgotten: a recurrent network.")
    if shape is Shape.AFFINE or not forgets:
        return outside(
            "positions",
            "Order matters and a repeated token is no longer itself: positions are added to the tokens, or a recurrence.",
        )
    return outside("recurrent", "Order and repeats matter: a recurrent network.")


def _why_constant(case: Case, scale: float) -> Verdict:
    """An unnormalised sum grows with the number of copies; a sink fades: about 8 queries."""
    x = case.cap(scale, 4.0) * case.draw(1)
    values = [
        case.ask(np.repeat(f * x, n, axis=0)[None])[0] for f, n in ((1, 1), (1, 2), (1, 4), (1, 7), (2, 1), (3, 1), (2.0**-40, 1))
    ]
    one, two, four, seven, double, triple, zero = values
    level = case.tolerance(np.stack(values))
    slope = two - one
    grows = bool(np.abs(four - one - 3 * slope).max() <= 3 * level and np.abs(seven - one - 6 * slope).max() <= 6 * level)
    case.record(
        "growth with copies",
        float(np.abs(seven - one - 6 * slope).max()) / level,
        6.0,
        not grows,
        "Copies of one token " + ("add up." if grows else "saturate."),
    )
    if grows:
        linear = bool(np.abs((triple - zero) - 3 * (double - zero) + 3 * (one - zero)).max() <= 20 * level)
        cubic = bool(np.abs((double - zero) - 8 * (one - zero)).max() <= 20 * level)
        if cubic:
            return outside(
                "linear attention",
                "Copies add up and the answer is of third degree in the scale: linear attention without normalisation.",
            )
        if linear and np.abs((double - zero) - 2 * (one - zero)).max() <= 5 * level:
            return outside("sum", "Copies add up and the answer is linear: a plain sum of the tokens.")
        return outside("sigmoid attention", "Copies add up: weights are not normalised (sigmoid attention or a sum over tokens).")
    return outside(
        "attention sink",
        "Copies of one token change the answer and level off: an attention sink, or a zero or prefix token that takes part.",
    )
