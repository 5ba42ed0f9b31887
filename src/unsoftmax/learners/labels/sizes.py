"""How long tokens must be for scores of a useful size: a handful of labels at lengths that double."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.labels.asking import Asker
from unsoftmax.learners.labels.paths import Group, Rows, rounds
from unsoftmax.learners.labels.search import Flags, Halving, Prior
from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.learners.labels.values import PlaneSearch
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths of what is asked.

    Attributes:
        reach: how far the last tokens lie from the foot of the plane, beside v.
        depth: how far they lie along v, times the root of ``width + 1``.
        key: offset of a key from its last token.
        longest: the longest key allowed.
        shown: the part of scores that comes from W.
    """

    reach: float
    depth: float
    key: float
    longest: float = np.inf
    shown: float = 0.0


@dataclass(slots=True, eq=False)
class Ladder:
    """Questions ``[p; x]`` at lengths ``2^place``: the longer, the surer p wins, if its score is positive."""

    foot: Floats
    normal: Floats
    reach: Floats  # (count, width): last tokens from the foot of the plane, but for their distance from it
    key: Floats  # (count, width): directions of the keys from there

    def tokens(self, rows: Rows, at: Floats) -> Floats:
        """``[p; x]`` at these lengths."""
        length = np.exp2(at)[:, None]
        foot = self.foot + self.reach[rows]
        last = foot - BOUNDARY.beside * length * self.normal
        keys = foot + length * (self.key[rows] + BOUNDARY.beside * np.exp(-BOUNDARY.odds) * self.normal)
        return np.stack([keys, last], axis=1)

    def above(self, rows: Rows, labels: Flags) -> Flags:
        """Where p has not won, it must be longer."""
        return ~labels


@dataclass(frozen=True, slots=True, eq=False)
class SizeSearch:
    """How long tokens must be, around ``centre`` (None: the foot of the plane), up to ``room`` away.

    Attributes:
        length: of the tokens of the first labels.
        pairs: of tokens asked side by side.
        doublings: shorter and longer than ``length`` that are tried.
        normal: standard deviation of scores whose usual size is 1: of normal ones 1.25, of those of low rank more.
        known: times the uncertainty of the plane that tokens lie from it.
        further: times the first length, where last tokens lie until W shows in their scores.
        shown: times as large scores as beside the foot: then W shows.
        faint: share of the scores that W is taken to have where it does not show.
        longer: than where W alone would need them: last tokens at most.
        moved: keys that had to be moved are that many times as long as others.
        lean: of the score along v, at a token's distance from the plane: where it is larger, some paths have no boundary.
    """

    asker: Asker
    fine: PlaneSearch
    length: float
    rng: np.random.Generator
    centre: Floats | None = None
    room: float = np.inf
    pairs: int = 8
    doublings: float = 12.0
    normal: float = 1.5
    known: float = 8.0
    further: tuple[float, ...] = (2.0, 16.0, 128.0)
    shown: float = 1.5
    faint: float = 0.1
    longer: float = 6.0
    moved: float = 8.0
    lean: float = 0.06

    def run(self) -> Sizes:
        """Lengths that give scores of standard deviation ``sigma``; the search for the plane goes on. About ``16 pairs`` labels."""
        room = self.room
        high = min(np.log2(max(self.length, self._out)) + self.doublings, np.log2(room / 2))
        constant = self._climb(0.0, high - 2 * self.doublings, high)
        first = 1 / constant  # keys so long have scores of 1 beside the foot of the plane itself
        far, per_far = 0.0, constant
        for longer in self.further:
            far = min(longer * first, room / 2)
            per_far = self._climb(far, np.log2(first) - self.doublings, min(np.log2(first) + 2, high))
            if per_far > self.shown * constant or far == room / 2:
                break
        entry = np.sqrt(max(per_far**2 - constant**2, (self.faint * constant) ** 2)) / far  # of W, root mean square
        # of last tokens, if scores came from W alone; longer where others have a part in them
        alone = np.sqrt(BOUNDARY.sigma / entry)
        reach = min(max(alone, constant / entry), self.longer * alone, room / 2)
        longest = room / self.moved
        key = min(BOUNDARY.sigma / float(np.hypot(reach * entry, constant)), longest)
        depth = min(reach, self.lean / BOUNDARY.sigma * key * np.sqrt(self.asker.width + 1))
        return Sizes(float(reach), float(depth), float(key), float(longest), float(key * reach * entry))

    @property
    def _out(self) -> float:
        """Distance of the design from the origin."""
        return abs(self.fine.plane.offset) if self.centre is None else float(np.linalg.norm(self.centre))

    def _climb(self, far: float, low: float, high: float) -> float:
        """The usual size of scores so far from the foot, for keys no shorter than that distances from the plane are known."""
        while True:
            plane = self.fine.plane
            blur = np.hypot(plane.offset_spread, plane.normal_spread * np.hypot(self._out, far))
            known = np.log2(self.known * blur / BOUNDARY.beside)
            if known < max(low, high - self.doublings) or not rounds(self.asker, [self.fine.group], 1):
                break
        foot, width = plane.offset * plane.normal if self.centre is None else self.centre, self.asker.width
        found = np.tile(plane.normal, (2, self.pairs, 1))
        if width > 1:
            found = self.rng.normal(size=(2, self.pairs, width - 1)) @ plane.beside
        reach, keys = found / np.linalg.norm(found, axis=2, keepdims=True)
        return self._climbed(Ladder(foot, plane.normal, far * reach, keys), min(max(low, known), high - 2), high)

    def _climbed(self, ladder: Ladder, low: float, high: float) -> float:
        """The usual size of the scores of keys of length 1; as if they won at the last length where they never do."""
        asker, count = self.asker, len(ladder.reach)
        won = asker(ladder.tokens(np.arange(count), np.full(count, high)))
        ladder.key[~won] *= -1  # of a key and its opposite one has a positive score
        search = Halving(Prior(count, None, np.full(count, low), np.full(count, high)))
        octave = Group.of(ladder, search, 1.0, late=asker.hurried)
        rounds(asker, [octave], BOUNDARY.bits, [self.fine.group])
        return float(np.mean(np.exp2(-search.centre))) * BOUNDARY.odds * self.normal
