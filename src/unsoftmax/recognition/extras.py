"""Diagnosis: what else is told about a target inside, and whether it stayed the same while it was asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.recognition.case import Case
from unsoftmax.recognition.settings import TESTS


@dataclass(frozen=True, slots=True)
class Extras:
    """Whether zero tokens get an answer (b), scores a term of the earlier token (c), and positions see later tokens.

    None where that was not asked.
    """

    constant: bool | None = None
    bias: bool | None = None
    causal: bool | None = None


def extras(case: Case, scale: float) -> Extras:
    """Constant, bias and causality: 2 queries, 4 where every position is answered."""
    p = case.cap(scale, 1.5) * case.draw()
    zero = np.zeros(case.width)
    answers = case.attempt(np.stack([[zero, zero, zero], [p, -p, zero]]))
    if answers is None:  # a target that divides by the length of a token
        return Extras()
    size = case.tolerance(answers, case.sentinels[0][1])
    own, moved = float(np.abs(answers[0]).max()) / size, float(np.abs(answers[1] - answers[0]).max()) / size
    constant, bias = own > 1, moved > 1
    case.record("constant b", own, 1.0, True, f"Zero tokens get {'an' if constant else 'no'} answer of their own.")
    case.record("bias c", moved, 1.0, True, f"Scores {'carry a' if bias else 'show no'} term of the earlier token alone.")
    return Extras(constant, bias, _causal(case, scale) if case.everywhere else None)


def _causal(case: Case, scale: float) -> bool:
    X = case.cap(scale, 1.5) * case.draw(2, 3)
    X[1, :2] = X[0, :2]
    case.asked += 2
    everywhere = case.oracle(X) * case.unit
    gap = float(np.abs(everywhere[0, :2] - everywhere[1, :2]).max()) / case.tolerance(everywhere)
    return case.record("causal", gap, 1.0, gap <= 1, f"Earlier positions {'ignore' if gap <= 1 else 'see'} later tokens.")


def unchanged(case: Case) -> bool | None:
    """Ask two early questions again: whether the answers are the same, as far as the floor allows.

    None where they differ by no more than a recovery takes for their precision.
    """
    case.begin("sentinels")
    worst = share = 0.0
    case.reserve = 0
    for sequence, before in case.sentinels[:2]:
        if case.left() < 1:
            break
        after = case.ask(sequence[:1])
        change, size = float(np.abs(after - before[:1]).max()), float(np.abs(before).max())
        worst, share = max(worst, change / case.tolerance(before)), max(share, change / max(size, 1e-300))
    words = f"{'Early questions get the same' if worst <= 1 else 'An early question gets another'} answer at the end."
    return case.record("unchanged", worst, 1.0, worst <= 1, words) or (None if share <= TESTS.jittery else False)
