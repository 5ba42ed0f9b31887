"""Bends told from coarse answers (float32): roughly from lines, and then by a fit to many answers."""

from __future__ import annotations

from unsoftmax.errors import TooNoisyError
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.smooth.bends import Bend, across, best_bends, curves_of, sharpness
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.offsets import Corners
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.oracles.base import phase


def rough_curves(corners: Corners, questions: Questions, order: list[int]) -> list[Curves]:
    """Networks of every activation that a look across the strongest neurons leaves open, each to be fitted.

    Offsets are known to a thousandth of a bend or so, which does not tell GELU with the error function from the one with tanh;
    a fit to many answers does.

    Raises:
        TooNoisyError: no activation comes near.
    """
    phase(questions.oracle, "activation")
    best: list[Bend] = []
    for j in order[: BENDS.strangers + 1]:
        along, heights, bent = across(corners, questions, j)
        found = best_bends(along, heights)
        if bent and (not best or found[0].misfit < best[0].misfit):
            best = found
        if best and best[0].misfit <= BENDS.rough_agree:
            break
    if not best or best[0].misfit > BENDS.rough_agree:
        raise TooNoisyError(
            "Answers of this precision show no bend of a known activation across a neuron: the target is a ReLU network, has "
            "another activation, or answers too coarsely. Ask for answers in float64.",
            evidence={"misfit": best[0].misfit if best else None},
        )
    sharp, turned = sharpness(corners, questions, best[0].phi, best[0].sharp)
    alike = [bend for bend in best if bend.misfit <= best[0].misfit + BENDS.rough_apart and bend.phi.even == best[0].phi.even]
    return [curves_of(corners, bend.phi, sharp, turned) for bend in alike]
