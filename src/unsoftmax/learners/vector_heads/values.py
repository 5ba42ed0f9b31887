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
ILL = 1e-11  # relative error of values through projectors beyond which more questions are worth their price
LARGEST_NOISE = 2.0  # the largest singular value of n x n independent errors is 2 sqrt(n) of them
WITHIN = 64.0  # units of the expected error by which a switched answer may be off; a switch that fails is off by a value
PROJECTOR_LOSS = 1e-7  # values through projectors lose the conditioning of the ranges; beyond this they are asked directly
WIDENED_LOSS = 1e-9  # the same where more slices are all that can be asked of the ranges


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

    def errors(self, answers: Answers) -> Floats:
        """Relative error of each V, ``(heads,)``; split from their sum, faint ones share the error of the others."""
        sizes = np.linalg.norm(self.V, axis=(1, 2))
        share = np.ones(len(sizes)) if self.direct else self.conditioning * sizes.max() / np.maximum(sizes, 1e-300)
        return np.asarray(answers.floor.relative * share)


AskSlices = Callable[[Floats], tuple[Floats, Floats]]
"""Directions ``(n, width)`` of unit length to values ``(n, heads, outputs)`` and the defect of the sum rule ``(n,)``."""


@dataclass(frozen=True, slots=True, eq=False)
class Switches:
    """Last tokens ``x (heads, width)``, each of which turns one head on and the others off: one answer per head and direction."""

    answers: Answers
    totals: Totals
    x: Floats

    @classmethod
    def of(cls, answers: Answers, totals: Totals, steering: Steering) -> Switches:
        """The switches at the length that saturates."""
        x_length = answers.reach * answers.contrast
        x = answers.grid(steering.switches() * x_length, answers.reach)
        return cls(answers, totals, x * min(1.0, x_length / np.linalg.norm(x, axis=1).max()))

    def slices(self, directions: Floats) -> tuple[Floats, Floats]:
        """Values of all heads, and how far they are from the sum of all."""
        told = self._ask(directions, self.x)
        u = self.answers.grid(directions * self.answers.reach, self.answers.reach)
        return told, np.abs(told.sum(axis=1) - u / self.answers.reach @ self.totals.total).max(axis=1)

    def of_head(self, directions: Floats, head: int) -> Floats:
        """Values ``(n, outputs)`` of one head; nothing checks the switch."""
        return self._ask(directions, self.x[head][None])[:, 0]

    def _ask(self, directions: Floats, x: Floats) -> Floats:
        length = self.answers.reach
        u = self.answers.grid(directions * length, length)
        pairs = np.stack(np.broadcast_arrays(x + u[:, None], x), axis=2)
        told = self.answers.last(pairs.reshape(-1, 2, self.answers.width)).reshape(len(u), len(x), -1) - self.totals.of(x)
        return np.asarray(told / length)


def direct_values(answers: Answers, slices: Slices) -> Values:
    """Every head's values from slices that cover all directions."""
    heads, count, outputs = slices.Y.shape
    # ranks beyond doubt, but of the values all that stands out of rounding: a weak direction left out costs digits of all of W
    ranks = tuple(len(range_of(block, answers)) for block in slices.Y)
    bases = [range_of(block, answers, units=LARGEST_NOISE) for block in slices.Y]
    solved = np.linalg.lstsq(slices.U, slices.Y.transpose(1, 0, 2).reshape(count, -1), rcond=None)[0]
    blocks = solved.reshape(-1, heads, outputs).transpose(1, 0, 2)
    V: Floats = np.stack([block @ basis.T @ basis for block, basis in zip(blocks, bases, strict=True)]).astype(np.float64)
    return Values(V=V, ranks=ranks, direct=True, conditioning=float(np.linalg.cond(slices.U)))


def split_values(switches: Switches, slices: Slices, reach: float) -> Values:
    """Every head's values: the sum of all, split by the projectors on their ranges.

    Where the ranges are nearly dependent the head with the largest part in that is asked for in all directions, about ``width``
    queries, and taken out of the sum: the ranges of the others are further apart.
    """
    answers = switches.answers
    bases = [range_of(block, answers) for block in slices.Y]
    V, left = np.zeros((len(bases), answers.width, slices.Y.shape[2])), list(range(len(bases)))
    while True:
        ends = np.cumsum([len(bases[head]) for head in left])[:-1]
        mixing, spread, rows = np.linalg.svd(np.concatenate([bases[head] for head in left]), full_matrices=False)
        conditioning = float(spread[0] / spread[-1])
        rest = switches.totals.total - V[[head for head in range(len(bases)) if head not in left]].sum(axis=0)
        for head, block in zip(left, np.split(rest @ rows.T / spread @ mixing.T, ends, axis=1), strict=True):
            V[head] = block @ bases[head]
        if answers.floor.relative * conditioning < ILL or len(left) == 1:
            return Values(V=V, ranks=tuple(map(len, bases)), direct=False, conditioning=conditioning)
        head = left[int(np.argmax([np.linalg.norm(part) for part in np.split(mixing[:, -1], ends)]))]
        V[head] = whole_head(switches, slices, head, V[head], bases[head], conditioning, reach)
        left.remove(head)


def whole_head(
    switches: Switches, slices: Slices, head: int, estimate: Floats, basis: Floats, conditioning: float, reach: float
) -> Floats:
    """The values of one head, asked for in all directions that the slices leave out.

    A switch that fails shows in an answer outside the range of the head, or far from the estimate.
    """
    width, base = switches.answers.width, slices.U[0]
    others = np.linalg.qr(slices.U.T, mode="complete")[0].T[len(slices.U) :]
    size = float(np.abs(slices.Y).max()) * switches.answers.floor.relative * WITHIN
    U, Y, todo = [slices.U], [slices.Y[head]], np.arange(width - len(slices.U))
    for step in reach * np.array([1.0, -1.0, 0.25, -0.25, 2.0**-4, -(2.0**-4)]):  # turn round, then come closer
        directions = base + step * others[todo]
        directions = switches.answers.grid(directions * switches.answers.reach, switches.answers.reach) / switches.answers.reach
        told = switches.of_head(directions, head)
        outside, away = np.abs(told - told @ basis.T @ basis), np.abs(told - directions @ estimate)
        good = (outside.max(axis=1) < WITHIN * size) & (away.max(axis=1) < conditioning * size)
        U.append(directions[good])
        Y.append(told[good])
        todo = todo[~good]
        if not len(todo):
            break
    U.append(base + others[todo])  # where no step works the estimate stands
    Y.append(U[-1] @ estimate)
    return np.asarray(np.linalg.lstsq(np.concatenate(U), np.concatenate(Y), rcond=None)[0] @ basis.T @ basis)


def collect(
    answers: Answers, totals: Totals, mixture: Mixture, reach: float, ask: AskSlices, rng: np.random.Generator, *, widen: bool
) -> Slices:
    """Slices until the ranges of all heads are known and independent, or until all directions are asked.

    About ``1.25 * rank + 6`` slices, ``width`` and a few at full rank; a slice costs ``heads`` queries, or one where all positions
    answer. Two heads that change sides together can hide from the sum rule, so each round ends with a random mixture of its
    directions, whose values must follow by linearity. With ``widen`` ranges that are nearly dependent are asked for more slices.
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
        if not waiting or enough(answers, np.stack(Y, axis=1), widen=widen):
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


def enough(answers: Answers, Y: Floats, *, widen: bool) -> bool:
    """Whether the slices exceed every head's rank and the ranges are independent, well enough for projectors."""
    bases = [range_of(block, answers) for block in Y]
    goal = slices_for(max(map(len, bases)))
    if goal > Y.shape[1] or sum(map(len, bases)) > Y.shape[2]:
        return False
    spread = np.linalg.svd(np.concatenate(bases), compute_uv=False)
    loss = answers.floor.relative * float(spread[0] / spread[-1])
    return loss < PROJECTOR_LOSS if not widen else loss < ILL or (loss < WIDENED_LOSS and Y.shape[1] >= wider(goal))


def wider(goal: int) -> int:
    """Slices where the ranges are badly conditioned: the weakest direction of each range shows some 3 times as well."""
    return 8 * goal // 5


def slices_for(rank: int) -> int:
    """Slices that show a rank and give its range: barely more than the rank would be badly conditioned."""
    return max(rank + 2, SLICES_PER_RANK * rank // 4)


def range_of(block: Floats, answers: Answers, units: float = 64.0) -> Floats:
    """Orthonormal rows that span the rows of ``block`` as far as the answers, off by so many ``units`` of rounding, can tell."""
    _, spread, rows = np.linalg.svd(block, full_matrices=False)
    length = answers.reach
    noise = units * answers.floor.of(float(np.abs(block).max()) * length) / length
    basis: Floats = rows[spread > noise * np.sqrt(max(block.shape))]
    return basis
