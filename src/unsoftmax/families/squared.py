"""Networks of squared ReLU neurons, ``relu(x)^2``."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from unsoftmax.bills import Bill
from unsoftmax.desk import Desk
from unsoftmax.errors import NotInFamilyError, RefusalError, tried
from unsoftmax.families.base import Learner, Size, Test
from unsoftmax.families.smooth import SmoothNetwork, network_bill, neurons_of
from unsoftmax.families.smooth_laws import BendsSmoothly, Copies, Deaf, LooksCurved, QuadraticFromAfar
from unsoftmax.models import FFN, Model
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.oracles.local import CallableOracle
from unsoftmax.results import Fact


class PiecewiseQuadratic:
    """Third differences vanish, at two places before they do not at two: bends are rare, and smooth neurons leave something."""

    name = "piecewise quadratic"
    step: ClassVar[float] = 2.0**-12  # smooth neurons and gates leave its cube, 1e-11 of the answers
    nothing: ClassVar[float] = 2.0**-47  # third difference, relative to the answers, that rounding explains

    def price(self, width: int) -> int:
        """Four points at each of two places, or three."""
        return 12

    def examine(self, desk: Desk) -> Fact:
        """Ask tokens of unit variance."""
        phase(desk, "pieces?")
        size = float(np.abs(desk.first_look().pair_answers).max())
        left: list[float] = []
        while sum(bent <= self.nothing for bent in left) < 2 and sum(bent > self.nothing for bent in left) < 2:
            point, direction = desk.rng.normal(size=(2, desk.width))
            answers = LastPosition(desk)((point + self.step * np.arange(4)[:, None] * direction)[:, None]).reshape(4, -1)
            size = max(size, float(np.abs(answers).max()), 1e-300)
            left.append(float(np.abs(answers[3] - 3 * answers[2] + 3 * answers[1] - answers[0]).max()) / size)
        number = sorted(left)[1]
        words = "Near by the target is piecewise quadratic." if number <= self.nothing else "Curvatures change everywhere."
        return Fact(self.name, number, self.nothing, number <= self.nothing, words)


class OneSquare:
    """One bend of a line, at which the pieces differ by a perfect square: gates of ReLU differ by more."""

    name = "activation"

    def price(self, width: int) -> int:
        """A few for each halving of the line, four or five times."""
        return 64

    def examine(self, desk: Desk) -> Fact:
        """Ask on one line."""
        from unsoftmax.learners.squared import first_bend

        phase(desk, "activation?")
        place = tried(lambda: first_bend(desk, desk.first_look().grid, desk.rng), NotInFamilyError)
        if isinstance(place, NotInFamilyError):
            return Fact(self.name, np.inf, 0.0, None, "No bend of a squared ReLU neuron was singled out on a line.")
        return Fact(self.name, 0.0, 0.0, True, "A neuron bends as relu2 does: the curvature jumps, and the slope does not.")


class SquaredNetwork(SmoothNetwork):
    """One hidden layer of squared ReLU neurons, of the last token alone."""

    name: ClassVar[str] = "squared-ffn"
    unknown: ClassVar[str] = "the order and the scale of the neurons"
    law: ClassVar[tuple[Test, ...]] = (
        LooksCurved(),
        BendsSmoothly(),
        QuadraticFromAfar(),
        PiecewiseQuadratic(),
        Copies(),
        Deaf(),
    )
    confirmed_by: ClassVar[tuple[Test, ...]] = (OneSquare(),)
    demo: ClassVar[dict[str, int]] = {"width": 8, "hidden": 16, "outputs": 1, "skip": 0, "seed": 0}
    decisive: ClassVar[bool] = True  # no other family is piecewise quadratic

    def demo_oracle(self, settings: dict[str, int]) -> Oracle:
        """A random network of that many neurons; ``skip=1`` adds a linear path."""
        rng = np.random.default_rng([2026, settings["seed"]])
        d, m, p = settings["width"], settings["hidden"], max(1, settings["outputs"])
        weights = [rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=(p, m)) / np.sqrt(m)]
        skip = rng.normal(size=(p, d)) if settings["skip"] else None
        model = FFN(weights, [rng.normal(size=m), rng.normal(size=p)], skip, activation="relu2")
        return CallableOracle(model.respond, width=d)

    def made(self, model: Model) -> bool:
        """Of squared ReLU neurons."""
        return type(model).__name__.lower() in self.models and model.settings.get("activation") == "relu2"

    def settled(self, desk: Desk) -> RefusalError | None:
        """Nothing: gates come next."""
        return None

    def named_more(self, desk: Desk) -> tuple[Fact, ...]:
        """Nothing more than what confirmed it."""
        return ()

    def learner(self, desk: Desk) -> Learner:
        """Pieces on a line, steps off it, one fit."""
        from unsoftmax.learners.squared import SquaredNetworkLearner

        desk.known(desk.first_look().grid)
        return SquaredNetworkLearner(floor=desk.precision, max_norm=desk.max_norm)

    def bill(self, size: Size) -> Bill:
        """For exact answers."""
        from unsoftmax.learners.squared import SquaredNetworkLearner

        law = PiecewiseQuadratic().price(size.width)
        prices = SquaredNetworkLearner().price(size.width, neurons_of(size), size.outputs)
        bill = network_bill(size, [("pieces?", (4, law), (4, law)), *prices])
        return replace(bill, assumptions=tuple(words.replace("smooth", "squared ReLU") for words in bill.assumptions))


SQUARED_NETWORK = SquaredNetwork()
