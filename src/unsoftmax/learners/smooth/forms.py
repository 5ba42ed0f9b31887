"""A learned smooth network in the form that is handed out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.orientation import active_sides
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import FFN

AMBIGUITY = (
    "equal up to the order of the neurons; where the activation differs from its mirror image by a straight line (GELU, SiLU, "
    "softplus), a neuron may be turned round at the price of a linear skip; swish with another factor and quick-GELU are SiLU "
    "with other weights"
)


def without_skip(curves: Curves, refit: Callable[[Curves], Curves], error: float = BENDS.skip) -> Curves:
    """The network without a linear part, fitted again, if it can be written so within ``error`` of the neurons' strength."""
    if not curves.phi.even:
        strengths = np.linalg.norm(curves.out, axis=1) @ np.linalg.norm(curves.normal, axis=1)
        none = np.linalg.norm(curves.linear) <= error * strengths
        return refit(replace(curves, linear=np.zeros_like(curves.linear))) if none else curves
    lengths = np.linalg.norm(curves.out, axis=1)
    hinges = Hinges(
        curves.out / lengths[:, None],
        curves.normal * lengths[:, None],
        curves.shift * lengths,
        curves.linear,
        curves.constant,
    )
    choice = active_sides(hinges, error=error)
    if choice is None:
        return curves
    return refit(replace(curves.turned(np.asarray(choice, dtype=bool)), linear=np.zeros_like(curves.linear)))


def to_network(curves: Curves) -> FFN:
    """The function as a network, strongest neurons first."""
    order = np.argsort(-np.linalg.norm(curves.out, axis=1) * np.linalg.norm(curves.normal, axis=1), kind="stable")
    return FFN(
        [curves.normal[order], curves.out[order].T],
        [curves.shift[order], curves.constant],
        curves.linear if curves.linear.any() else None,
        activation=curves.phi.name,
    )
