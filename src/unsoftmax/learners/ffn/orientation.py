"""Which side of each bend is the active one: a form without a linear part, where there is one."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats


def flipped(hinges: Hinges, chosen: Floats) -> Hinges:
    """The same function with ``relu(z) = relu(-z) + z`` applied to the chosen bends."""
    sign = np.where(chosen, -1.0, 1.0)
    turned = hinges.out[chosen]
    return Hinges(
        hinges.out,
        hinges.normal * sign[:, None],
        hinges.shift * sign,
        hinges.linear + turned.T @ hinges.normal[chosen],
        hinges.constant + hinges.shift[chosen] @ turned,
    )


def active_sides(hinges: Hinges, *, error: float) -> Floats | None:
    """The bends to flip so that the linear part vanishes within ``error`` (relative), or None if no choice is found.

    The linear part of a network without skip is minus the sum of the ``out`` times ``normal`` of the bends written the other way
    round: a 0/1 combination. With ``neurons <= outputs * width`` one linear solve finds it; beyond, a reduced lattice does while
    the numbers are precise enough. It costs no question.
    """
    terms = np.einsum("jo,jw->jow", hinges.out, hinges.normal).reshape(hinges.neurons, hinges.linear.size)
    goal = -hinges.linear.ravel()
    size = float(np.linalg.norm(terms, axis=1).sum() + np.linalg.norm(goal))
    if size == 0 or np.linalg.norm(goal) <= error * size:
        return np.zeros(hinges.neurons, dtype=bool)
    if hinges.neurons <= terms.shape[1]:
        solution = np.linalg.lstsq(terms.T, goal, rcond=1e-9)[0]
        choice = np.asarray(solution > 0.5)
        if np.abs(solution - choice).max() > RELU.binary:
            return None
    else:
        from unsoftmax.learners.ffn.lattice import subset_sum

        found = subset_sum(terms, goal, error=error * size)
        if found is None:
            return None
        choice = found
    if np.linalg.norm(choice @ terms - goal) > error * size:
        return None
    return choice
