"""W and c from the boundaries of two tokens, of full or of low rank."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.labels.asking import Asker
from unsoftmax.learners.labels.design import Design
from unsoftmax.learners.labels.equations import Equations, Scores, equations
from unsoftmax.learners.labels.paths import Group, Keys, Rows, rounds
from unsoftmax.learners.labels.search import Halving, Prior
from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.learners.labels.values import PlaneSearch
from unsoftmax.models import Floats


class DesignError(Exception):
    """The tokens asked do not suit the scores."""


class LostError(DesignError):
    """Some paths have no boundary, wherever their keys are: the tokens are too far from the plane."""

    def __init__(self, paths: int) -> None:
        super().__init__(f"{paths} paths without a boundary")
        self.paths = paths


class SizeError(DesignError):
    """Scores are ``ratio`` times as large as they should be."""

    def __init__(self, ratio: float) -> None:
        super().__init__(f"scores are {ratio:.3g} times as large as they should be")
        self.ratio = ratio


@dataclass(slots=True, eq=False)
class Reading:
    """Scores being read: everything asked so far, by last token."""

    asker: Asker
    fine: PlaneSearch
    design: Design
    accuracy: float
    rng: np.random.Generator
    last_round: int  # by which brackets should be narrow: towards the end, those that would not be are halved twice a round
    blocks: list[tuple[Group, Rows]] = field(default_factory=list)  # groups with the token of each path

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self.asker.width

    def add(self, tokens: Rows, directions: Floats, *, late: bool = False) -> None:
        """Paths of keys in these directions beside these last tokens; ``late`` ones hurry at first.

        Of keys along an axis, not at the corners of the simplex, those with a positive score are taken: one label tells.
        """
        paths = self.design.keys(tokens, directions)
        length = np.linalg.norm(directions, axis=1)
        corner = np.isclose(length, BOUNDARY.short)
        prior = Prior(len(paths), np.where(corner, BOUNDARY.short, 1.0) * BOUNDARY.sigma)
        group = Group.of(paths, Halving(prior), 0.0)
        self.blocks.append((group, tokens))
        rounds(self.asker, [group], 1, also=[*(g for g, _ in self.blocks[:-1]), self.fine.group])
        group.late[:] = late
        below = np.flatnonzero(~corner & (group.search.high <= 0))
        paths.beside[below] *= -1
        group.search.mirror(below)

    def keep(self, wanted: Rows, keys: int) -> None:
        """Ask the paths of other tokens than these no further; they are forgotten. Tokens had ``keys`` paths each."""
        kept = []
        for group, tokens in self.blocks:
            rows = np.flatnonzero(np.isin(tokens, wanted))
            if len(rows):
                kept.append((group.part(rows), tokens[rows]))
        assert all(sum((tokens == token).sum() for _, tokens in kept) == keys for token in wanted)
        self.blocks = kept

    def go_on(self, until: float, final: bool = False) -> None:
        """Ask all groups until their brackets are as narrow as ``until``; paths without a boundary are moved.

        Unless this is final, narrow paths go on while others catch up: all will have to become far narrower.
        """
        groups = [group for group, _ in self.blocks]
        narrow = max(until, 2 * BOUNDARY.finest)
        for group in groups:
            group.until = narrow if final else max(min(until, self.accuracy), 2 * BOUNDARY.finest)
        for _ in range(2 * BOUNDARY.bits):
            self._repair()
            if all((group.search.width <= narrow).all() for group in groups):
                return
            if final:
                left = max(1, self.last_round - self.asker.rounds)
                for group in groups:
                    group.late |= np.log2(group.search.width / narrow) > left
            rounds(self.asker, groups, 1, also=[self.fine.group])
        raise LostError(sum(int((group.search.width > narrow).sum()) for group in groups))

    def coarse(self, share: float = 2 * BOUNDARY.hurry) -> float:
        """A width of brackets at which W shows: ``share``, or less where its part of the scores is small."""
        return share * min(1.0, 2 * self.design.sizes.shown / BOUNDARY.sigma)

    def look(self) -> None:
        """After the first bits of the first scores: are they as large as they should be?"""
        group = self.blocks[0][0]
        rounds(self.asker, [group], BOUNDARY.first_bits, also=[self.fine.group])
        ratio = group.search.size()
        longer = self.design.sizes.key < self.design.sizes.longest / 2
        if abs(np.log2(ratio)) > BOUNDARY.octaves and (ratio > 1 or longer):
            raise SizeError(ratio)

    def settle(self) -> None:
        """Keys from now on are as long as the first scores say."""
        ratio, sizes = self.blocks[0][0].search.size(), self.design.sizes
        self.design = replace(self.design, sizes=replace(sizes, key=min(sizes.key / ratio, sizes.longest)))

    def _repair(self) -> None:
        """Start paths without a boundary in sight anew: other side and further where no key ever wins, closer where all do.

        Where the other side did not help, the key goes along with the one of its token that wins most easily.
        """
        for group, tokens in self.blocks:
            rows = np.flatnonzero(group.search.lost)
            if not len(rows):
                continue
            keys = group.paths
            assert isinstance(keys, Keys)
            group.repairs[rows] += 1
            if group.repairs.max() > BOUNDARY.repairs:
                raise LostError(int((group.repairs > BOUNDARY.repairs).sum()))
            never = group.search.centre[rows] < 0
            keys.beside[rows] *= np.where(never, BOUNDARY.opposite, 0.5)[:, None]
            for row in rows[never & (group.repairs[rows] > 1)]:
                keys.beside[row] += self._easiest(tokens[row])
            group.search.restart(rows)
            group.late[rows] = True

    def _easiest(self, token: int) -> Floats:
        """The key beside this token whose boundary is furthest up, of those that have one."""
        best, found = -np.inf, np.zeros(self.width)
        for group, tokens in self.blocks:
            assert isinstance(group.paths, Keys)
            rows = np.flatnonzero((tokens == token) & np.isfinite(group.search.width))
            if len(rows) and group.search.low[rows].max() > best:
                row = rows[np.argmax(group.search.low[rows])]
                best, found = group.search.low[row], group.paths.beside[row]
        return found

    def equations(self, wanted: Rows, unit: bool = False) -> Equations:
        """The equations of these tokens, token by token in that order, in the order in which their keys were asked.

        With ``unit`` the variances are those of brackets of width 1.
        """
        plane = self.fine.plane
        parts = [equations(group, plane) for group, _ in self.blocks]
        owner = np.concatenate([tokens for _, tokens in self.blocks])
        order = np.concatenate([np.flatnonzero(owner == token) for token in wanted])
        steps, odds, variance = (np.concatenate([getattr(p, name) for p in parts])[order] for name in ("steps", "odds", "variance"))
        return Equations(steps, odds, np.full(len(odds), 1 / 12) if unit else variance)


def span(directions: Floats) -> Floats:
    """An orthonormal basis of what a set of directions spans."""
    _, singular, right = np.linalg.svd(directions, full_matrices=False)
    return right[singular > 1e-9 * max(singular[0], 1e-300)] if len(singular) else right


def pivots(columns: Floats) -> NDArray[np.int_]:
    """Columns in the order in which each adds most to those before."""
    left = columns.copy()
    order: list[int] = []
    for _ in range(columns.shape[1]):
        sizes = np.linalg.norm(left, axis=0)
        sizes[order] = -1.0
        best = int(np.argmax(sizes))
        order.append(best)
        unit = left[:, best] / max(float(sizes[best]), 1e-300)
        left = left - np.outer(unit, unit @ left)
    return np.array(order)


def wanted_width(reading: Reading, rough: Scores, per_width: Scores) -> float:
    """How narrow brackets must be for the accuracy wanted of W and, where there is one, nearly that of c.

    Both follow from what they are like and from their errors per width of a bracket.
    """
    W, c = float(np.linalg.norm(rough.W)), float(np.linalg.norm(rough.c))
    width = reading.accuracy * W / (BOUNDARY.slack * float(np.sqrt(per_width.W_variance.sum())))
    error = float(np.sqrt(per_width.c_variance.sum()))
    if c < BOUNDARY.noise * float(np.sqrt(rough.c_variance.sum())):
        return width
    return float(np.clip(BOUNDARY.nearly * reading.accuracy * c / (BOUNDARY.slack * error), width / BOUNDARY.nearly, width))


def block_sizes(width: int) -> list[int]:
    """Sizes of the blocks in which a very low rank is looked for before all products are asked."""
    return [BOUNDARY.corners] if width > BOUNDARY.corners else []


def grown(reading: Reading, before: int, size: int, late: bool = False) -> None:
    """Ask what the first ``size`` tokens and keys have beyond the first ``before``."""
    pairs = [(token, key) for token in range(size) for key in range(size) if token >= before or key >= before]
    tokens, keys = np.array(pairs).T
    reading.add(tokens, reading.design.directions[keys], late=late)
