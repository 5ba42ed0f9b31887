"""Values: each switched answer is ``V_h^T u`` of one head, and few of them give all where the ranges are independent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.vector_heads.addressing import Steering
from unsoftmax.learners.vector_heads.answers import Answers, orthonormal
from unsoftmax.learners.vector_heads.demixing import Mixture, Totals
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase

MOST_ROUNDS = 40
SLICES_PER_RANK = 5
MIXTURES = 3  # drawn before a whole round is asked again
ILL = 1e-11  # relative error of values through projectors beyond which more slices are worth their price
PROJECTOR_LOSS = 1e-7  # values through projectors lose the conditioning of the ranges; beyond this they are asked directly


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Directions ``U (slices, width)`` of about unit length and each head's value there, ``Y (heads, slices, outputs)``."""

    U: Floats
    Y: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """``V (heads, width, outputs)`` and the rank of each head's values; ``direct`` if all directions were asked."""

    V: Floats
    ranks: tuple[int, ...]
    direct: bool
    conditioning: float


AskSlices = Callable[[Floats], tuple[Floats, Floats]]
"""Directions ``(n, width)`` of unit length to values ``(n, heads, outputs)`` and the defect of the sum rule ``(n,)``."""


def switched(answers: Answers, totals: Totals, steering: Steering) -> AskSlices:
    """Ask for slices with one last-position answer per head and direction."""
    length, x_length = answers.reach, answers.reach * answers.contrast
    x = answers.grid(steering.switches() * x_length, length)
    x = x * min(1.0, x_length / np.linalg.norm(x, axis=1).max())

    def ask(directions: Floats) -> tuple[Floats, Floats]:
        u = answers.grid(directions * length, length)
        pairs = np.stack(np.broadcast_arrays(x + u[:, None], x), axis=2)
        told = answers.last(pairs.reshape(-1, 2, answers.width)).reshape(len(u), len(x), -1) - totals.of(x)
        defect = np.abs(told.sum(axis=1) - u @ totals.total).max(axis=1)
        return told / length, defect / length

    return ask


def values_from(answers: Answers, slices: Slices, total: Floats | None) -> Values:
    """Every head's values: from the slices alone where they cover all directions, else split from ``total (width, outputs)``."""
    heads, _, outputs = slices.Y.shape
    width = slices.U.shape[1]
    bases = [range_of(block, answers) for block in slices.Y]
    ranks = tuple(len(basis) for basis in bases)
    stacked = np.concatenate(bases)
    spread = np.linalg.svd(stacked, compute_uv=False)
    conditioning = float(spread[0] / spread[-1]) if len(stacked) <= outputs else np.inf
    if total is not None:
        weights = np.linalg.pinv(stacked)
        blocks = np.split(weights, np.cumsum(ranks)[:-1], axis=1)
        V = np.stack([total @ block @ basis for block, basis in zip(blocks, bases, strict=True)])
        return Values(V=V, ranks=ranks, direct=False, conditioning=conditioning)
    solved = np.linalg.lstsq(slices.U, slices.Y.transpose(1, 0, 2).reshape(len(slices.U), -1), rcond=None)[0]
    V = solved.reshape(width, heads, outputs).transpose(1, 0, 2)
    V = np.stack([block @ basis.T @ basis for block, basis in zip(V, bases, strict=True)])
    return Values(V=V, ranks=ranks, direct=True, conditioning=float(np.linalg.cond(slices.U)))


def collect(answers: Answers, totals: Totals, mixture: Mixture, reach: float, ask: AskSlices, rng: np.random.Generator) -> Slices:
    """Slices until the ranges of all heads are known and independent, or until all directions are asked.

    About ``1.25 * rank + 6`` slices, ``width`` and a few at full rank; a slice costs ``heads`` queries, or one where all positions
    answer. Two heads that change sides together can hide from the sum rule, so each round ends with a random mixture of its
    directions, whose values must follow by linearity.
    """
    phase(answers.oracle, "slices")
    width = answers.width
    base = mixture.u / answers.reach
    # steps orthogonal to the base: the directions would be nearly dependent otherwise
    around = np.linalg.qr(np.concatenate([base[None], orthonormal(rng, width - 1, width)]).T)[0].T[1:]
    size = float(np.abs(mixture.parts).max() / answers.reach + np.abs(totals.total).max())
    slack = 64 * np.sqrt(mixture.heads) * answers.floor.of(size * answers.reach) / answers.reach
    told, defect = ask(base[None])
    U, Y = [base], [told[0]]
    waiting = [(row, reach) for row in around[::-1]]
    goal = slices_for(totals.total.shape[1] // mixture.heads)  # enough if the ranks share the outputs equally
    goals = (goal, wider(goal))
    count, worst = 3, float(defect[0])
    for _ in range(MOST_ROUNDS if worst < slack else 0):
        if not waiting or enough(answers, np.stack(Y, axis=1)):
            return Slices(U=np.stack(U), Y=np.stack(Y, axis=1))
        batch = [waiting.pop() for _ in range(min(count, len(waiting)))]
        steps = answers.grid(np.stack([row * step for row, step in batch]) * answers.reach, answers.reach) / answers.reach
        told, defect = ask(base + steps)
        good = defect < slack
        if good.any():
            for _ in range(MIXTURES):
                signs = rng.choice([-1.0, 1.0], size=int(good.sum())) / np.sqrt(good.sum())
                mixed, own = ask((base + signs @ steps[good])[None])
                error = float(np.abs(Y[0] + np.tensordot(signs, told[good] - Y[0], axes=1) - mixed[0]).max())
                if own[0] < slack:  # else a head changes sides at the mixture, which says nothing about its parts
                    break
            worst = max(worst, error)
            good &= error < slack * (1 + np.abs(signs).sum())
        U.extend((base + steps)[good])
        Y.extend(told[good])
        again = [(row, -step / (1 if step > 0 else 4)) for (row, step), fine in zip(batch, good, strict=True) if not fine]
        waiting += again[::-1]  # turn round, then come closer
        if min((abs(step) for _, step in waiting), default=reach) < reach / 2**12:
            break
        count = max(4, len(U)) if answers.bits > 24 else 64
        count = min([count, *(goal - len(U) for goal in goals if goal > len(U))])
    raise NotInFamilyError(
        f"Switched answers do not add up to the one-token answers (off by {worst:.2g}, allowed {slack:.2g}). "
        "The heads could not be switched one by one: some share their scores, or the target is no plain attention.",
        evidence={"defect": worst, "allowed": float(slack)},
    )


def enough(answers: Answers, Y: Floats) -> bool:
    """Whether the slices exceed every head's rank and the ranges are independent, well enough for projectors."""
    bases = [range_of(block, answers) for block in Y]
    goal = slices_for(max(map(len, bases)))
    if goal > Y.shape[1] or sum(map(len, bases)) > Y.shape[2]:
        return False
    spread = np.linalg.svd(np.concatenate(bases), compute_uv=False)
    loss = answers.floor.relative * float(spread[0] / spread[-1])
    return loss < PROJECTOR_LOSS and (loss < ILL or Y.shape[1] >= wider(goal))


def wider(goal: int) -> int:
    """Slices where the ranges are badly conditioned: the weakest direction of each range shows some 3 times as well."""
    return 8 * goal // 5


def slices_for(rank: int) -> int:
    """Slices that show a rank and give its range: barely more than the rank would be badly conditioned."""
    return max(rank + 2, SLICES_PER_RANK * rank // 4)


def range_of(block: Floats, answers: Answers) -> Floats:
    """Orthonormal rows that span the rows of ``block`` as far as the answers can tell."""
    _, spread, rows = np.linalg.svd(block, full_matrices=False)
    length = answers.reach
    noise = 64 * answers.floor.of(float(np.abs(block).max()) * length) / length
    basis: Floats = rows[spread > noise * np.sqrt(max(block.shape))]
    return basis
