"""Values: each switched answer is ``V_h^T u`` of one head, and few of them give all where the ranges are independent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.vector_heads.addressing import Steering
from unsoftmax.learners.vector_heads.answers import Answers
from unsoftmax.learners.vector_heads.demixing import Mixture, Totals
from unsoftmax.linalg import on_host, spectrum
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase

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
    """Every head's values ``V_h = left_h @ right_h``, and how answers are read as sums of them.

    Attributes:
        left: ``(heads, width, k)``.
        right: ``(heads, k, outputs)``; rows of zeros fill up heads of smaller rank. None where ``left`` is V itself.
        dual: ``(outputs, heads * k)``, which turns an answer into each head's coordinates along ``right``; None where ranges are
            not independent enough, and only all heads together explain an answer.
        ranks: of each head's values.
        conditioning: of the ranges, or of the directions where all were asked.
        direct: all directions were asked, of every head.
    """

    left: Floats
    right: Floats | None
    dual: Floats | None
    ranks: tuple[int, ...]
    conditioning: float
    direct: bool = False

    @property
    def V(self) -> Floats:
        """The values themselves, ``(heads, width, outputs)``."""
        whole: Floats = self.left if self.right is None else self.left @ self.right
        return whole

    @property
    def heads(self) -> int:
        """Number of heads."""
        return int(self.left.shape[0])

    @property
    def outputs(self) -> int:
        """Length of an answer."""
        return int((self.left if self.right is None else self.right).shape[2])

    def ordered(self) -> Values:
        """The same with the largest values first."""
        xp, order = array_namespace(self.left), np.argsort(-self.sizes, kind="stable")
        there = xp.asarray(order, device=device(self.left))
        right = None if self.right is None else xp.take(self.right, there, axis=0)
        dual = self.dual
        if dual is not None:
            dual = xp.take(dual.reshape(len(dual), self.heads, -1), there, axis=1).reshape(len(dual), -1)
        ranks = tuple(self.ranks[head] for head in order)
        return replace(self, left=xp.take(self.left, there, axis=0), right=right, dual=dual, ranks=ranks)

    def coordinates(self, told: Floats) -> Floats:
        """Answers ``(n, outputs)`` as each head's coordinates ``(heads, n, k)``, or ``(1, n, outputs)`` of all together."""
        if self.dual is None:
            return told[None]
        apart: Floats = array_namespace(told).permute_dims((told @ self.dual).reshape(len(told), self.heads, -1), (1, 0, 2))
        return apart

    @property
    def metric(self) -> Floats:
        """How errors of answers go together in coordinates: ``(heads, k, k)``, or ``(1, outputs, outputs)`` of all together."""
        xp = array_namespace(self.left)
        if self.dual is None:
            return xp.eye(self.outputs, dtype=self.left.dtype, device=device(self.left))[None]  # type: ignore[no-any-return]
        rows = xp.permute_dims(self.dual.reshape(self.outputs, self.heads, -1), (1, 2, 0))
        squares: Floats = rows @ rows.swapaxes(1, 2)
        return squares

    def errors(self, answers: Answers) -> Floats:
        """Relative error of each V, ``(heads,)``; split from their sum, faint ones share the error of the others."""
        sizes = self.sizes
        share = np.ones(len(sizes)) if self.direct else self.conditioning * sizes.max() / np.maximum(sizes, 1e-300)
        return np.asarray(answers.floor.relative * share)

    @property
    def sizes(self) -> Floats:
        """The Frobenius norm of each head's values, on the host: rows of ``right`` are orthonormal."""
        return on_host(array_namespace(self.left).linalg.vector_norm(self.left, axis=(1, 2)))


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


def direct_values(answers: Answers, slices: Slices) -> Values:
    """Every head's values from slices that cover all directions."""
    heads, count, outputs = slices.Y.shape
    xp = array_namespace(slices.Y)
    # ranks beyond doubt, but of the values all that stands out of rounding: a weak direction left out costs digits of all of W
    # (the largest singular value of n x n independent errors is 2 sqrt(n) of them)
    bases = [range_of(block, answers, units=2.0) for block in slices.Y]
    ranks = tuple(len(range_of(block, answers)) for block in slices.Y)
    solved = xp.linalg.solve(slices.U, xp.permute_dims(slices.Y, (1, 0, 2)).reshape(count, -1))
    blocks = xp.permute_dims(solved.reshape(-1, heads, outputs), (1, 0, 2))
    V = xp.stack([block @ basis.T @ basis for block, basis in zip(blocks, bases, strict=True)])
    conditioning = float(xp.linalg.matrix_norm(slices.U, ord="fro") * xp.linalg.matrix_norm(xp.linalg.inv(slices.U), ord="fro"))
    return Values(V, None, None, ranks, conditioning / count, direct=True)


def split_values(switches: Switches, slices: Slices, reach: float) -> Values:
    """Every head's values: the sum of all, split by the projectors on their ranges.

    Where the ranges are nearly dependent the head with the largest part in that is asked for in all directions, about ``width``
    queries, and taken out of the sum: the ranges of the others are further apart.
    """
    answers, total = switches.answers, switches.totals.total
    bases = [range_of(block, answers) for block in slices.Y]
    split, ranks = Split.of(bases), tuple(map(len, bases))
    if answers.floor.relative * split.conditioning < ill(answers):
        left, right = (stacked(part) for part in (split.parts(total), bases))
        return Values(left, right, split.padded(right.shape[1]), ranks, split.conditioning)
    xp, left_over = array_namespace(total), list(range(len(bases)))
    V: list[Floats] = [total] * len(bases)
    while True:
        for head, part in zip(left_over, split.parts(total), strict=True):
            V[head] = part @ bases[head]
        if answers.floor.relative * split.conditioning < ill(answers) or len(left_over) == 1:
            return Values(xp.stack(V), None, None, ranks, split.conditioning)
        head = left_over.pop(split.most_dependent)
        V[head] = whole_head(switches, slices, head, V[head], bases[head], split.conditioning, reach)
        total = total - V[head]
        split = Split.of([bases[other] for other in left_over])


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Ranges, given by orthonormal rows each, taken apart: ``dual (outputs, all ranks)`` gives the coordinates along the rows.

    ``weakest (all ranks,)`` is the combination of rows that comes nearest to zero.
    """

    sizes: tuple[int, ...]
    dual: Floats
    conditioning: float
    weakest: Floats

    @classmethod
    def of(cls, bases: Sequence[Floats]) -> Split:
        """Of rows ``(rank, outputs)`` of each head; they must not outnumber the outputs."""
        xp = array_namespace(bases[0])
        orthonormal, triangle = xp.linalg.qr(xp.concat(list(bases)).T)
        inverse = xp.linalg.inv(triangle)
        (largest, _), (smallest, weakest) = (_largest(matrix) for matrix in (triangle.T, inverse))
        return cls(tuple(map(len, bases)), orthonormal @ inverse.T, largest * smallest, weakest)

    def parts(self, rows: Floats) -> list[Floats]:
        """Coordinates ``(n, rank)`` of each head, of rows ``(n, outputs)``."""
        apart, ends = rows @ self.dual, np.cumsum(self.sizes)
        return [apart[:, end - size : end] for size, end in zip(self.sizes, ends, strict=True)]

    def padded(self, rank: int) -> Floats:
        """The dual with columns of zeros, so that every head has ``rank`` of them."""
        xp, ends = array_namespace(self.dual), np.cumsum(self.sizes)
        pieces = []
        for size, end in zip(self.sizes, ends, strict=True):
            pieces.append(self.dual[:, end - size : end])
            if size < rank:
                pieces.append(xp.zeros((len(self.dual), rank - size), dtype=self.dual.dtype, device=device(self.dual)))
        whole: Floats = xp.concat(pieces, axis=1)
        return whole

    @property
    def most_dependent(self) -> int:
        """The range with the largest part in the weakest combination."""
        parts = np.split(on_host(self.weakest), np.cumsum(self.sizes)[:-1])
        return int(np.argmax([np.linalg.norm(part) for part in parts]))


def _largest(matrix: Floats) -> tuple[float, Floats]:
    """The largest singular value of a matrix and its left singular vector, to a percent, by repeated multiplication."""
    xp = array_namespace(matrix)
    vector = matrix @ xp.ones(matrix.shape[1], dtype=matrix.dtype, device=device(matrix))
    for _ in range(24):
        vector = matrix @ (matrix.T @ (vector / xp.linalg.vector_norm(vector)))
    size = float(xp.linalg.vector_norm(vector))
    return float(np.sqrt(size)), vector / size


def stacked(blocks: Sequence[Floats]) -> Floats:
    """Blocks of several sizes filled up with zeros: ``(blocks, most rows, most columns)``."""
    xp, first = array_namespace(blocks[0]), blocks[0]
    shape = tuple(max(block.shape[i] for block in blocks) for i in (0, 1))
    whole: Floats = xp.zeros((len(blocks), *shape), dtype=first.dtype, device=device(first))
    for number, block in enumerate(blocks):
        whole[number, : block.shape[0], : block.shape[1]] = block
    return whole


def whole_head(
    switches: Switches, slices: Slices, head: int, estimate: Floats, basis: Floats, conditioning: float, reach: float
) -> Floats:
    """The values of one head, asked for in all directions that the slices leave out.

    A switch that fails shows in an answer outside the range of the head, or far from the estimate.
    """
    answers, xp = switches.answers, array_namespace(estimate)
    base = slices.U[0]
    others = xp.linalg.qr(slices.U.T, mode="complete")[0].T[len(slices.U) :]
    size = float(xp.max(xp.abs(slices.Y))) * answers.floor.relative * WITHIN
    U, Y, todo = [slices.U], [slices.Y[head]], np.arange(len(others))
    for step in reach * np.array([1.0, -1.0, 0.25, -0.25, 2.0**-4, -(2.0**-4)]):  # turn round, then come closer
        directions = base + float(step) * xp.take(others, xp.asarray(todo, device=device(others)), axis=0)
        directions = answers.grid(directions * answers.reach, answers.reach) / answers.reach
        told = switches.of_heads(directions, [head])[:, 0]
        outside, away = (on_host(xp.max(xp.abs(told - near), axis=1)) for near in (told @ basis.T @ basis, directions @ estimate))
        good = (outside < WITHIN * size) & (away < conditioning * size)
        kept = xp.asarray(np.flatnonzero(good), device=device(others))
        U.append(xp.take(directions, kept, axis=0))
        Y.append(xp.take(told, kept, axis=0))
        todo = todo[~good]
        if not len(todo):
            break
    if len(todo):  # where no step works the estimate stands
        U.append(base + xp.take(others, xp.asarray(todo, device=device(others)), axis=0))
        Y.append(U[-1] @ estimate)
    found: Floats = xp.linalg.solve(xp.concat(U), xp.concat(Y)) @ basis.T @ basis
    return found


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
    answers: Answers, totals: Totals, mixture: Mixture, reach: float, slicer: Slicer, rng: np.random.Generator, *, widen: bool
) -> Slices:
    """Slices until the ranges of all heads are known and independent, or until all directions are asked.

    About ``rank + 4`` slices, ``width`` and a few at full rank; a slice costs ``heads - 1`` queries, or one where all positions
    answer. At last a random mixture of the directions is asked, whose values must follow by linearity. Where they do not, the
    head that was left out is asked too: what does not add up is asked again nearer to the base. Two heads that change sides
    together hide from sums, but not from mixtures. With ``widen`` ranges that are nearly dependent are asked for more slices.
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
    goals, doubtful = (goal, wider(goal)), False
    while worst < slack and min((abs(step) for _, step in waiting), default=reach) > reach / 2**12:
        both = sure.with_(new)
        found = Slices(U=both.U, Y=xp.permute_dims(both.Y, (1, 0, 2)))
        done = not waiting
        if waiting and answers.floor.relative < PROJECTOR_LOSS:
            bases = [range_of(block, answers) for block in found.Y]
            done = enough(answers, bases, len(both.U), widen=widen)
            # a head of lower rank than there are slices beside one of too high a rank: a slice that failed may be behind it
            doubtful = len(both.U) >= goal and min(map(len, bases)) < len(both.U)
        if done and not new.steps:
            return found
        failed: list[tuple[int, float]] = []
        if not done and not (doubtful and new.steps):
            count = 64 if answers.coarse else max(4, len(both.U))
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
        waiting += [(row, -step / (1 if step > 0 else 4)) for row, step in failed[::-1]]  # turn round, then come closer
    raise NotInFamilyError(
        f"Switched answers do not add up to the one-token answers (at first off by {worst:.2g}, allowed {slack:.2g}). "
        "The heads could not be switched one by one: some share their scores, or the target is no plain attention.",
        evidence={"defect": worst, "allowed": float(slack)},
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


def enough(answers: Answers, bases: list[Floats], slices: int, *, widen: bool) -> bool:
    """Whether the slices exceed every head's rank and the ranges are independent, well enough for projectors."""
    goal = slices_for(max(map(len, bases)))
    if goal > slices or sum(map(len, bases)) > bases[0].shape[1]:
        return False
    loss = answers.floor.relative * Split.of(bases).conditioning
    return loss < PROJECTOR_LOSS if not widen else loss < ill(answers) or (loss < WIDENED_LOSS and slices >= wider(goal))


def wider(goal: int) -> int:
    """Slices where the ranges are badly conditioned: the weakest direction of each range shows some 3 times as well."""
    return 8 * goal // 5


def slices_for(rank: int) -> int:
    """Slices that show a rank and give its range; barely more than a high rank would be badly conditioned."""
    return rank + 2 + max(0, rank - 16) // 8


def ill(answers: Answers) -> float:
    """Relative error of values through projectors beyond which more questions are worth their price.

    Random ranges that fill all outputs have a condition number of a few times the width.
    """
    return max(1e-11, 64 * answers.floor.relative * answers.width)


def range_of(block: Floats, answers: Answers, units: float = 64.0) -> Floats:
    """Orthonormal rows that span the rows of ``block`` as far as the answers, off by so many ``units`` of rounding, can tell."""
    sizes, columns = spectrum(block.T)
    noise = units * answers.floor.of(float(array_namespace(block).max(abs(block))) * answers.reach) / answers.reach
    basis: Floats = columns.T[: int((sizes > noise * np.sqrt(max(block.shape))).sum())]
    return basis
