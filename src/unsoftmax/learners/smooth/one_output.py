"""A network of vector answers seen through one number: a random combination of its outputs.

Neurons that share a direction are one corner from afar. Its jump is the sum of theirs, but no single offset explains a vector of
answers on its far side, unless their output weights are parallel. One combination of the outputs has such an offset.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Wrapper


class OneOutput(Wrapper):
    """Answers one combination of the outputs; ``questions`` keep all of them."""

    def __init__(self, questions: Questions, mix: Floats) -> None:
        super().__init__(questions.oracle)
        self.questions, self.mix = questions, mix

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask sequences of one token."""
        return np.asarray(self.questions.ask(sequences[:, -1]) @ self.mix)


def combined(hinges: Hinges, mix: Floats) -> Hinges:
    """The same combination of a network's corners."""
    return replace(hinges, out=hinges.out @ mix[:, None], linear=mix[None] @ hinges.linear, constant=mix[None] @ hinges.constant)


def widened(curves: Curves, answers: Answers) -> Curves:
    """The neurons of a network of one output, with output weights for all outputs of the answers: linear least squares."""
    own = answers.clear(curves)
    weights = own.weights(curves, own.points)[:, None]
    columns = np.c_[curves.phi.value(curves.before(own.points)), own.points, np.ones(len(own.points))] * weights
    scales = np.linalg.norm(columns, axis=0)
    solution = np.linalg.lstsq(columns / scales, own.answers * weights, rcond=1e-14)[0] / scales[:, None]
    neurons = curves.neurons
    return replace(curves, out=solution[:neurons], linear=solution[neurons:-1].T, constant=solution[-1])
