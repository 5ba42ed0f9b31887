"""A learned network in the form that is handed out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.ffn.fit import balanced
from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.normal_equations import NormalEquations
from unsoftmax.learners.ffn.orientation import active_sides, flipped
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import FFN


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A network that passed its check.

    Attributes:
        hinges: the function.
        system: the normal equations of its fit (None for an affine function).
        length: distance from the origin within which half of the bends on a line lie.
        spread: standard deviation of the answers at that distance.
        error: largest error at the checks, relative to the spread.
        reach: bends were searched up to this distance.
    """

    hinges: Hinges
    system: NormalEquations | None
    length: float
    spread: float
    error: float
    reach: float


def to_network(hinges: Hinges) -> FFN:
    """The function as a network with a linear skip where its linear part is not zero; strongest neurons first."""
    skip = hinges.linear if np.any(hinges.linear) else None
    if hinges.neurons == 0:
        return FFN([hinges.linear], [hinges.constant])
    order = np.argsort(-np.linalg.norm(hinges.normal, axis=1), kind="stable")
    return FFN([hinges.normal[order], hinges.out[order].T], [hinges.shift[order], hinges.constant], skip)


def canonical_network(found: Found) -> tuple[FFN, tuple[str, ...]]:
    """The network without a linear skip if it can be written so, and sentences about the choice."""
    hinges = found.hinges
    if found.system is None:
        return to_network(hinges), ("The target is affine on one token: no neuron bends within reach.",)
    choice = active_sides(hinges, error=max(RELU.skip, 1e2 * found.error))
    far = f"Bends were searched up to {found.reach:.1e} from the origin; a neuron that bends only farther out is not seen."
    if choice is None:
        note = (
            "The linear skip stands for neurons whose active side the answers do not tell apart, for neurons that share a "
            "hyperplane, or for a true skip; the function does not depend on which."
        )
        return to_network(hinges), (far, note)
    turned = flipped(balanced(hinges, found.system, choice), choice)
    return to_network(replace(turned, linear=np.zeros_like(turned.linear))), (far,)
