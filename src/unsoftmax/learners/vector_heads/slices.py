"""Slices: the values of all heads for one direction after the other, until their ranges are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from unsoftmax.errors import NotInFamilyError, Sign
from unsoftmax.learners.vector_heads.addressing import Steering
from unsoftmax.learners.vector_heads.answers import Answers
from unsoftmax.learners.vector_heads.demixing import Mixture, Totals
from unsoftmax.learners.vector_heads.ranges import Split, ill, independent, ranges_of
from unsoftmax.learners.vector_heads.settings import SEVERAL
from unsoftmax.linalg import on_host
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase

PROJECTOR_LOSS = 1e-7  # values through projectors lose the conditioning of the ranges; beyond this they are asked directly
WIDENED_LOSS = 1e-9  # the same where more slices are all that can be asked of the ranges


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Directions ``U (slices, width)`` of about unit length and each head's value there, ``Y (heads, slices, outputs)``.

    ``split`` are the ranges of the heads, taken apart, where the slices tell them.
    """

    U: Floats
    Y: Floats
    split: Split | None = None


class Slicer(Protocol):
    """Asks for slices: every head's value of a direction."""

    def ask(self, directions: Floats, *, whole: bool) -> tuple[Floats, Floats]:
        """Directions ``(n, width)`` of unit length to values ``(n, heads, outputs)`` and the defect of their sum ``(n,)``.

        Unless all heads are asked (``whole``), one may follow from the sum of all, and the defect is zero.
        """

    def confirm(self, directions: Floats, values: Floats) -> Floats:
        """The defects of values that were not asked as a whole: by how much the head that was left out is another."""


@dataclass(frozen=True, slots=True, eq=False)
class Switches:
    """Last tokens ``x (heads, width)``, each of which turns one head on and the others off: one answer per head and direction.

    ``strongest`` is the head that follows from the sum of all where they need not be checked.
    """

    answers: Answers
    totals: Totals
    x: Floats
    strongest: int

    @classmethod
    def of(cls, answers: Answers, totals: Totals, mixture: Mixture, steering: Steering) -> Switches:
        """The switches at the length that saturates."""
        length = answers.reach * answers.contrast
        x = answers.grid(steering.switches() * length, answers.reach)
        x = answers.there(x * min(1.0, length / np.linalg.norm(x, axis=1).max()))
        return cls(answers, totals, x, int(np.linalg.norm(mixture.parts, axis=1).argmax()))

    def ask(self, directions: Floats, *, whole: bool) -> tuple[Floats, Floats]:
        """Values of all heads, and how far they are from the sum of all; the strongest follows from it unless ``whole``."""
        heads, xp = len(self.x), array_namespace(directions)
        summed = self._sent(directions) / self.answers.reach @ self.totals.total
        if whole or heads == 1:
            told = self.of_heads(directions, range(heads))
            return told, on_host(xp.max(xp.abs(xp.sum(told, axis=1) - summed), axis=1))
        others = [head for head in range(heads) if head != self.strongest]
        told = self.of_heads(directions, others)
        rest = (summed - xp.sum(told, axis=1))[:, None]
        told = xp.concat([told[:, : self.strongest], rest, told[:, self.strongest :]], axis=1)
        return told, np.zeros(len(directions))

    def confirm(self, directions: Floats, values: Floats) -> Floats:
        """By how much the strongest head is another than it should be."""
        xp = array_namespace(directions)
        told = self.of_heads(directions, [self.strongest])[:, 0]
        return on_host(xp.max(xp.abs(told - values[:, self.strongest]), axis=1))

    def of_heads(self, directions: Floats, heads: Sequence[int]) -> Floats:
        """Values ``(n, chosen, outputs)`` of some heads; nothing checks the switches."""
        length, count = self.answers.reach, len(heads)
        u, xp = self._sent(directions), array_namespace(directions)
        which = xp.asarray(list(heads), device=device(directions))

        def build(start: int, stop: int) -> Floats:
            number = xp.arange(start, stop, device=device(directions))
            x = xp.take(self.x, xp.take(which, number % count, axis=0), axis=0)
            pairs: Floats = xp.stack([x + xp.take(u, number // count, axis=0), x], axis=1)
            return pairs

        told = self.answers.stream(build, len(u) * count, 2).reshape(len(u), count, -1)
        values: Floats = (told - xp.take(self.totals.of(self.x), which, axis=0)) / length
        return values

    def _sent(self, directions: Floats) -> Floats:
        return self.answers.grid(directions * self.answers.reach, self.answers.reach)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Directions ``U (n, width)``, values there ``Y (n, heads, outputs)``, and the steps that led to them from the base.

    A step is the number of a direction across the base, and how far it goes.
    """

    U: Floats
    Y: Floats
    steps: list[tuple[int, float]]

    def sifted(self, good: NDArray[np.bool_]) -> tuple[Batch, list[tuple[int, float]]]:
        """The good ones, and the steps of the others."""
        xp = array_namespace(self.U)
        kept = xp.asarray(np.flatnonzero(good), device=device(self.U))
        fine, others = ([self.steps[i] for i in np.flatnonzero(good == which)] for which in (True, False))
        return Batch(xp.take(self.U, kept, axis=0), xp.take(self.Y, kept, axis=0), fine), others

    def with_(self, other: Batch) -> Batch:
        """Both."""
        xp = array_namespace(self.U)
        return Batch(xp.concat([self.U, other.U]), xp.concat([self.Y, other.Y]), self.steps + other.steps)


def collect(
    answers: Answers,
    totals: Totals,
    mixture: Mixture,
    reach: float,
    slicer: Slicer,
    rng: np.random.Generator,
    *,
    widen: bool,
    first: bool = False,
) -> Slices:
    """Slices until the ranges of all heads are known and independent, or until all directions are asked.

    About ``rank + 4`` slices, ``width`` and a few at full rank; a slice costs ``heads - 1`` queries, or one where all positions
    answer. At last a random mixture of the directions is asked, whose values must follow by linearity. Where they do not, the
    head that was left out is asked too: what does not add up is asked again nearer to the base. Two heads that change sides
    together hide from sums, but not from mixtures. With ``widen`` ranges that are nearly dependent are asked for more slices.
    At a ``first`` base it is given up as soon as steps are asked nearer to it while more have failed than came out well: a head is
    about to change its side at the base itself.
    """
    phase(answers.oracle, "slices")
    xp = array_namespace(mixture.u)
    base = mixture.u / answers.reach
    size = float(np.abs(mixture.parts).max() / answers.reach + xp.max(xp.abs(totals.total)))
    slack = 64 * np.sqrt(mixture.heads) * answers.floor.of(size * answers.reach) / answers.reach
    told, defect = slicer.ask(base[None], whole=True)
    sure, whole, worst = Batch(base[None], told, []), answers.coarse, float(defect[0])
    new = none = Batch(base[None][:0], told[:0], [])
    waiting = [(row, reach) for row in range(len(mixture.around) - 1, -1, -1)]
    goal = slices_for(mixture.parts.shape[1] // mixture.heads)  # enough if the ranks share the outputs equally
    goals, seen, lost = (goal, wider(goal)), None, 0
    while worst < slack and min((abs(step) for _, step in waiting), default=reach) > reach / (
        SEVERAL.elsewhere if first and lost > len(sure.steps) + len(new.steps) else SEVERAL.patience
    ):
        state = bool(waiting), sure.steps + new.steps
        if state != seen:
            seen, both, doubtful = state, sure.with_(new), False
            found = Slices(U=both.U, Y=xp.permute_dims(both.Y, (1, 0, 2)))
            if waiting and answers.floor.relative < PROJECTOR_LOSS and not independent(found.Y, answers):
                bases = ranges_of(list(found.Y), answers)
                found = replace(found, split=enough(answers, bases, len(both.U), widen=widen))
                # a head of lower rank than there are slices beside one of too high a rank: a slice that failed may be behind it
                doubtful = len(both.U) >= goal and min(map(len, bases)) < len(both.U)
        done = not waiting or found.split is not None
        if done and not new.steps:
            return found
        failed: list[tuple[int, float]] = []
        if not done and not (doubtful and new.steps):
            count = 64 if answers.coarse else max(12 if widen else 4, len(both.U))
            count = min([count, len(waiting), *(goal - len(both.U) for goal in goals if goal > len(both.U))])
            steps = [waiting.pop() for _ in range(count)]
            rows = xp.take(mixture.around, xp.asarray([row for row, _ in steps], device=device(base)), axis=0)
            moved = rows * answers.there(np.array([step for _, step in steps]))[:, None]
            U = base + answers.grid(moved * answers.reach, answers.reach) / answers.reach
            told, defect = slicer.ask(U, whole=whole)
            good, failed = Batch(U, told, steps).sifted(defect < slack)
            new = new.with_(good)
        if new.steps and (done or doubtful or answers.coarse):
            if mixes(answers, slicer, sure, new, slack, rng):
                sure, new = sure.with_(new), none
            elif whole:
                new, failed = none, failed + new.steps
            else:
                whole = True
                new, failed = new.sifted(slicer.confirm(new.U, new.Y) < slack)
        lost += len(failed)
        waiting += [(row, -step / (1 if step > 0 else 4)) for row, step in failed[::-1]]  # turn round, then come closer
    raise NotInFamilyError(
        f"Switched answers do not add up to the one-token answers (at first off by {worst:.2g}, allowed {slack:.2g}). "
        "The heads could not be switched one by one: some share their scores, or the target is no plain attention.",
        evidence={"defect": worst, "allowed": float(slack)},
        signs=() if worst >= slack else (Sign.AT_AN_EDGE,),
    )


def mixes(answers: Answers, slicer: Slicer, sure: Batch, new: Batch, slack: float, rng: np.random.Generator) -> bool:
    """Whether a random mixture of new directions has the values that follow from theirs.

    A mixture at which a head changes sides itself says nothing about its parts: then another one is asked, three at the most.
    """
    base, value, xp = sure.U[0], sure.Y[0], array_namespace(new.U)
    for _ in range(3):
        signs = rng.choice([-1.0, 1.0], size=len(new.steps)) / np.sqrt(len(new.steps))
        weights = answers.there(signs)
        mixed, own = slicer.ask((base + weights @ (new.U - base))[None], whole=True)
        error = float(xp.max(xp.abs(value + xp.tensordot(weights, new.Y - value, axes=1) - mixed[0])))
        if own[0] < slack:
            break
    return error < float(slack * (1 + np.abs(signs).sum()))


def enough(answers: Answers, bases: list[Floats], slices: int, *, widen: bool) -> Split | None:
    """The ranges taken apart; None unless slices exceed every head's rank and the ranges are independent enough for projectors."""
    goal = slices_for(max(map(len, bases)))
    if goal > slices or sum(map(len, bases)) > bases[0].shape[1]:
        return None
    split = Split.of(bases)
    loss = answers.floor.relative * split.conditioning
    fine = loss < PROJECTOR_LOSS if not widen else loss < ill(answers) or (loss < WIDENED_LOSS and slices >= wider(goal))
    return split if fine else None


def wider(goal: int) -> int:
    """Slices where the ranges are badly conditioned: the weakest direction of each range shows some 3 times as well."""
    return 8 * goal // 5


def slices_for(rank: int) -> int:
    """Slices that show a rank and give its range; barely more than a high rank would be badly conditioned."""
    return rank + 2 + max(0, rank - 16) // 8
