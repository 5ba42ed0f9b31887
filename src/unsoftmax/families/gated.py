"""Networks of gates (SwiGLU, GeGLU), and Transformers that end in one."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from unsoftmax.bills import Bill
from unsoftmax.desk import Desk
from unsoftmax.families.base import Learner, Size, Test
from unsoftmax.families.smooth import SmoothNetwork, SmoothTransformer, network_bill, neurons_of
from unsoftmax.families.smooth_laws import BendsSmoothly, Copies, Deaf, Hears, LooksCurved, QuadraticFromAfar
from unsoftmax.models import Attention, GatedFFN, Transformer
from unsoftmax.models.activations import NAMES
from unsoftmax.oracles.base import Oracle
from unsoftmax.oracles.local import CallableOracle


class GatedNetwork(SmoothNetwork):
    """One hidden layer of gates (SwiGLU, GeGLU), of the last token alone."""

    name: ClassVar[str] = "gated-ffn"
    degree: ClassVar[int] = 2
    gates: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("gatedffn",)
    unknown: ClassVar[str] = "the order of the gates, and a factor that what a gate lets through shares with its output weights"
    law: ClassVar[tuple[Test, ...]] = (LooksCurved(), BendsSmoothly(), QuadraticFromAfar(), Copies(), Deaf())
    demo: ClassVar[dict[str, int]] = {"width": 8, "hidden": 16, "outputs": 1, "bias": 0, "activation": 3, "seed": 0}

    def demo_oracle(self, settings: dict[str, int]) -> Oracle:
        """A random network of that many gates; ``activation`` by its place in ``unsoftmax.models.activations.NAMES``."""
        model = _random_gates(settings, np.random.default_rng([2026, settings["seed"]]))
        return CallableOracle(model.respond, width=model.width)

    def learner(self, desk: Desk) -> Learner:
        """Bends on a half circle from afar, biases from beyond the bends, one fit."""
        from unsoftmax.learners.gated import GatedNetworkLearner

        desk.known(desk.first_look().grid)
        return GatedNetworkLearner(floor=desk.precision, max_norm=desk.max_norm)

    def bill(self, size: Size) -> Bill:
        """For exact answers."""
        from unsoftmax.learners.gated import GatedNetworkLearner

        return network_bill(size, GatedNetworkLearner().price(size.width, neurons_of(size), size.outputs))


class GatedTransformer(SmoothTransformer):
    """One softmax head, with or without residual, then one hidden layer of gates (SwiGLU, GeGLU)."""

    many_heads: ClassVar[bool] = False
    name: ClassVar[str] = "gated-transformer"
    degree: ClassVar[int] = 2
    gates: ClassVar[bool] = True
    unknown: ClassVar[str] = (
        "the order of the gates, and a factor that what a gate lets through shares with its output weights; without residual, the "
        "values apart from the network"
    )
    law: ClassVar[tuple[Test, ...]] = (LooksCurved(), BendsSmoothly(), QuadraticFromAfar(), Copies(), Hears())
    demo: ClassVar[dict[str, int]] = {**GatedNetwork.demo, "residual": 0}

    def demo_oracle(self, settings: dict[str, int]) -> Oracle:
        """A random head in front of a random gated network."""
        rng = np.random.default_rng([2026, settings["seed"]])
        d = settings["width"]
        W, V = rng.normal(size=(2, 1, d, d)) / np.sqrt(d)
        model = Transformer(Attention(W, V), _random_gates(settings, rng), residual=bool(settings["residual"]))
        return CallableOracle(model.respond, width=d)

    def learner(self, desk: Desk) -> Learner:
        """The network first, then the scores through it."""
        from unsoftmax.learners.gated import GatedTransformerLearner

        desk.known(desk.first_look().grid)
        return GatedTransformerLearner(floor=desk.precision, max_norm=desk.max_norm)

    def bill(self, size: Size) -> Bill:
        """For exact answers."""
        from unsoftmax.learners.gated import GatedTransformerLearner

        return network_bill(size, GatedTransformerLearner().price(size.width, neurons_of(size), size.outputs, size.rank))


def _random_gates(settings: dict[str, int], rng: np.random.Generator) -> GatedFFN:
    d, m, p = settings["width"], settings["hidden"], max(1, settings["outputs"])
    gate, up = rng.normal(size=(2, m, d)) / np.sqrt(d)
    shift, lift = rng.normal(size=(2, m)) if settings["bias"] else (None, None)
    down, constant = rng.normal(size=(p, m)) / np.sqrt(m), rng.normal(size=p)
    return GatedFFN(gate, up, down, shift, lift, constant, activation=NAMES[settings["activation"]])


GATED_NETWORK, GATED_TRANSFORMER = GatedNetwork(), GatedTransformer()
