"""Ranges of all heads where every position answers, from values of directions that need no name.

A head that is on looks at one of many long tokens, at another one beside another last token. Which one takes a second question to
tell; but any values of a head span its range, and the values of all directions follow from the ranges.
"""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from unsoftmax.learners.vector_heads.all_positions import LONG, SideBySide
from unsoftmax.learners.vector_heads.answers import Answers, unit
from unsoftmax.learners.vector_heads.demixing import Mixture
from unsoftmax.learners.vector_heads.ranges import ranges_of
from unsoftmax.learners.vector_heads.settings import SEVERAL
from unsoftmax.learners.vector_heads.slices import enough, slices_for
from unsoftmax.linalg import on_host, singular
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase

OUTSIDE = 2.0**-30  # part of a value outside the range of its head, which is rounding or a direction that was not seen


def unnamed_values(slicer: SideBySide, mixture: Mixture, reach: float, rng: np.random.Generator) -> list[Floats] | None:
    """Values ``(n, outputs)`` of each head that span its range; None where ranges do not show so, or are not independent.

    About a query for every ten values, and one that checks: values of another direction must lie in the ranges and add up. A value
    that two heads share does not follow from the others, or makes their ranges dependent.
    """
    answers, heads = slicer.answers, mixture.heads
    goal = slices_for(slicer.outputs // heads)
    if goal >= answers.width or len(slicer.blind) < SEVERAL.together:
        return None
    phase(answers.oracle, "slices")
    base = mixture.u / answers.reach
    blocks = [answers.there(part[None] / answers.reach) for part in mixture.parts]
    xp = array_namespace(base)
    for _ in range(2 + goal // 3):
        steps = answers.there(unit(rng, SEVERAL.unnamed, len(mixture.around)) * (reach * SEVERAL.closer)) @ mixture.around
        found = distinct(slicer, base + steps)
        if min(map(len, found)) < 2:  # scores of rank one: each head looks at an extreme, with all others that it turns on
            return None
        blocks = [supported(answers, xp.concat([block, more])) for block, more in zip(blocks, found, strict=True)]
        bases = ranges_of(blocks, answers)
        ranks = [len(basis) - (len(basis) > len(block) - 2) for basis, block in zip(bases, blocks, strict=True)]
        if sum(ranks) > slicer.outputs:  # though a value in each may be of two heads together
            return None
        if enough(answers, bases, min(map(len, blocks)), widen=True) is not None:
            size = max(float(xp.max(abs(block))) for block in blocks)
            fits = (explained(slicer, direction, bases, size) for direction in base + steps[:3])
            return blocks if any(fits) else None
    return None


def supported(answers: Answers, block: Floats) -> Floats:
    """The values ``(n, outputs)`` that follow from the others, once these span the range; one that two heads share does not."""
    rank = len(ranges_of([block], answers)[0])
    if rank == len(block):
        return block
    alone = np.sum(singular(on_host(block))[0][:, :rank] ** 2, axis=1)  # one where a value is the only one of its direction
    kept = np.flatnonzero(alone < 1 - OUTSIDE)
    xp = array_namespace(block)
    rest: Floats = xp.take(block, xp.asarray(kept, device=device(block)), axis=0)
    return rest


def explained(slicer: SideBySide, direction: Floats, bases: list[Floats], size: float) -> bool:
    """Whether the values of a direction add up and lie in the ranges. One query."""
    xp = array_namespace(direction)
    told, defect = slicer.ask(direction[None], whole=True)
    outside = max(float(xp.max(abs(v - v @ basis.T @ basis))) for v, basis in zip(told[0], bases, strict=True))
    return bool(defect[0] < 64 * np.sqrt(len(bases)) * slicer.answers.floor.of(size) and outside < OUTSIDE * size)


def distinct(slicer: SideBySide, directions: Floats) -> list[Floats]:
    """Values ``(n, outputs)`` of each head for some of the directions: those that several positions agree on. One query."""
    answers, xp, heads = slicer.answers, array_namespace(directions), len(slicer.x) - 1
    told = answers.everywhere(xp.concat([directions * LONG, slicer.beside(np.arange(heads))])[None])[0, len(directions) :] / LONG
    told = told.reshape(heads, -1, slicer.outputs)
    marks = on_host(told @ answers.there(unit(slicer.rng, 1, slicer.outputs)[0]))
    firsts = [agreed(mark) for mark in marks]
    return [xp.take(local, xp.asarray(first, device=device(local)), axis=0) for local, first in zip(told, firsts, strict=True)]


def agreed(marks: Floats) -> NDArray[np.intp]:
    """One position for each mark that is found at more than one, but for those that are rounding beside the largest."""
    order, largest = np.argsort(marks), float(np.abs(marks).max())
    starts = np.flatnonzero(np.diff(marks[order], prepend=-np.inf) > 2.0**-40 * largest)
    often = np.diff(starts, append=len(marks)) > 1
    first: NDArray[np.intp] = order[starts[often]]
    return first[np.abs(marks[first]) > 2.0**-30 * largest]
