"""Which side of each bend is the active one: a form without a linear part, where there is one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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


def subset_of(numbers: Floats, goal: float, error: float) -> NDArray[np.bool_] | None:
    """The one choice of ``numbers`` that adds up to ``goal`` within ``error``; None where there is none, or several may be.

    Sums of the two halves are sorted against each other, so that 24 numbers take 2 * 2^12 sums. Other choices come this near by
    chance where ``2^count`` sums crowd on the range of all: such counts are not tried.
    """
    count, size = len(numbers), float(np.abs(numbers).sum())
    if size == 0 or 2.0**count * error > RELU.chance * size:
        return None
    half = count // 2
    sums = []
    for part in (numbers[:half], numbers[half:]):
        total = np.zeros(1)
        for number in part:
            total = np.concatenate([total, total + number])
        sums.append(total)
    order = np.argsort(sums[0])
    ordered = sums[0][order]
    first, last = (np.searchsorted(ordered, goal - sums[1] + sign * error) for sign in (-1.0, 1.0))
    if (last - first).sum() != 1:
        return None
    second = int(np.argmax(last - first))
    bits = np.concatenate([order[first[second]] >> np.arange(half), second >> np.arange(count - half)])
    return np.asarray(bits % 2 == 1)


def tied_sides(hinges: Hinges) -> NDArray[np.bool_] | None:
    """The bends whose sum the linear part of a scalar function is minus of, to rounding; None where it was measured.

    Where the gradient of one cell was not measured but follows from the others', a fit must know that it does.
    """
    terms, goal = hinges.out * hinges.normal, -hinges.linear[0]
    error = RELU.exactly * float(np.linalg.norm(terms, axis=1).sum())
    length = float(np.linalg.norm(goal))
    if length <= error:
        return np.zeros(hinges.neurons, dtype=bool)
    chosen = subset_of(terms @ goal / length, length, error)
    if chosen is None or np.linalg.norm(chosen @ terms - goal) > error:
        return None
    return chosen


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
