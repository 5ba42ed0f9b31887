"""A cheap look at whether bent one-token answers are those of a ReLU network with one hidden layer: about 60 queries.

What a whole diagnosis would prove beforehand the learner of such targets proves by itself; this look only keeps others from it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unsoftmax.desk import Desk
from unsoftmax.models import Floats
from unsoftmax.recognition.case import Case, Verdict
from unsoftmax.recognition.depth import several_layers
from unsoftmax.recognition.floor import one_token_noise
from unsoftmax.recognition.settings import TESTS
from unsoftmax.results import Fact, Floor

KINKS, ALIKE = "one hidden layer", "a weighted mean of tokens"


class QuickLook(NamedTuple):
    """Facts about a target whose one-token answers bend; ``noise`` of those, where they are exact, relative to their size,
    ``precision`` of all answers, ``listens`` to earlier tokens, ``deep``: a kink ends or changes on its way."""

    facts: tuple[Fact, ...]
    noise: float | None = None
    precision: Floor | None = None
    listens: bool = False
    deep: bool = False

    @property
    def holds(self) -> bool:
        """Whether every one of them holds."""
        return self.precision is not None and all(fact.passed for fact in self.facts)


def quick_look(desk: Desk) -> QuickLook:
    """Exact answers, a kink that runs straight on, tokens whose order and copies do not matter; ends at the first that fails."""
    look = desk.first_look()
    if not look.steady or not look.grid.exact:
        return QuickLook((Fact("exact answers", 0.0, 1.0, None, "Answers are coarse, or do not repeat."),))
    case = Case(desk, desk.rng, desk.max_norm)
    case.everywhere, case.longest = look.layout == "all positions", desk.longest
    noise = one_token_noise(case)
    exact = Fact(
        "exact answers", noise, TESTS.exact, noise <= TESTS.exact, f"One-token answers carry a noise of {noise:.1g} of their size."
    )
    if not exact.passed:
        return QuickLook((exact,))
    case.floor = Floor(relative=max(TESTS.float64, noise))
    found = case.tried(lambda: _kinks_and_mean(case, desk.longest))
    if isinstance(found, Verdict):  # out of questions, or tokens would be too long
        return QuickLook((exact, Fact(KINKS, 0.0, 0.5, None, found.reason)), noise)
    kinks, mean, listens = found
    if mean is None:
        return QuickLook((exact, kinks), noise, deep=kinks.number > kinks.threshold)
    return QuickLook((exact, kinks, mean), noise, case.floor, listens)


def _kinks_and_mean(case: Case, longest: int) -> tuple[Fact, Fact | None, bool]:
    deep = several_layers(case, case.cap(1.0, 5.0), kinks=1)
    kinks = Fact(KINKS, float(bool(deep)), 0.5, deep is False, "A kink of the answers runs straight on, equally strong.")
    return (kinks, *_mean(case, longest)) if kinks.passed else (kinks, None, False)


def _mean(case: Case, longest: int) -> tuple[Fact, bool]:
    """Whether order and copies of tokens change nothing, at up to three sizes, and whether earlier tokens do; up to 15 queries."""
    case.begin("invariances")
    if longest < 3:
        return Fact(ALIKE, 0.0, 1.0, True, "The target takes no sequences of three tokens."), False
    worst, heard = 0.0, 0.0
    for size in TESTS.quick_relu_sizes:
        x, p, q = case.cap(size, 1.5) * case.draw(3)
        answers = _asked(case, [[p, q, x], [q, p, x], [x, x, x], [p, p, x]])
        alone = case.ask(x[None, None])
        level = 20 * case.tolerance(answers, alone)
        worst = max(worst, float(np.abs(answers[1] - answers[0]).max()) / level, float(np.abs(answers[2] - alone[0]).max()) / level)
        heard = max(heard, float(np.abs(answers[[0, 3]] - alone[0]).max()) / level)
        if heard > 1:
            break
    words = "Order and copies of tokens change nothing." if worst <= 1 else "Order or copies of tokens change the answer."
    return Fact(ALIKE, worst, 1.0, worst <= 1, words), heard > 1


def _asked(case: Case, sequences: list[list[Floats]]) -> Floats:
    return case.ask(np.array(sequences))
