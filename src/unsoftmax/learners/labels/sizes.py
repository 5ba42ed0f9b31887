"""How long tokens must be for scores of a useful size: a handful of labels at lengths that double."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.labels.asking import Asker
from unsoftmax.learners.labels.paths import Group, Rows, rounds
from unsoftmax.learners.labels.search import Flags, Halving, Prior
from unsoftmax.learners.labels.values import PlaneSearch
from unsoftmax.models import Floats

PAIRS = 8
DOUBLINGS = 12.0  # shorter and longer than the tokens of the first labels that are tried
MOST_LABELS = 12  # where labels may be wrong
NORMAL = 1.5  # standard deviation of scores whose usual size is 1: of normal ones 1.25, of those of low rank more
STEP = 1.0  # doublings to which a length is found
BESIDE = 0.125  # distance of tokens from the plane, of their offset
KNOWN = 8.0  # times the uncertainty of the plane
ODDS = 0.5  # log-odds that the score must exceed
FURTHER = (2.0, 16.0, 128.0)  # times that length, where last tokens lie until W shows in their scores
SHOWN = 1.5  # times as large scores as beside the foot: then W shows
FAINT = 0.1  # share of the scores that W is taken to have where it does not show
LONGER = 6.0  # than where W alone would need them: last tokens at most
MOVED = 8.0  # keys that had to be moved are several times as long as others
SIGMA = 0.35  # standard deviation of scores that are asked: small, so that every path has its boundary near the middle
LEAN = 0.06  # of the score along v, at a token's distance from the plane: where it is larger, some paths have no boundary
DOMINANT = 1.0  # times that the part of W in scores exceeds the part that is the same for all tokens


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
        last = foot - BESIDE * length * self.normal
        keys = foot + length * (self.key[rows] + BESIDE * np.exp(-ODDS) * self.normal)
        return np.stack([keys, last], axis=1)

    def above(self, rows: Rows, labels: Flags) -> Flags:
        """Where p has not won, it must be longer."""
        return ~labels


def climbed(asker: Asker, ladder: Ladder, low: float, high: float, also: list[Group]) -> float:
    """The usual size of the scores of keys of length 1; as if they won at the last length where they never do."""
    count = len(ladder.reach)
    won = asker(ladder.tokens(np.arange(count), np.full(count, high)))
    ladder.key[~won] *= -1  # of a key and its opposite one has a positive score
    search = Halving(Prior(count, None, np.full(count, low), np.full(count, high)))
    rounds(asker, [Group.of(ladder, search, STEP, late=asker.hurried)], MOST_LABELS, also)
    return float(np.mean(np.exp2(-search.centre))) * ODDS * NORMAL


def sizes(
    asker: Asker,
    fine: PlaneSearch,
    length: float,
    *,
    max_norm: float | None,
    rng: np.random.Generator,
    centre: Floats | None = None,
    room: float = np.inf,
) -> Sizes:
    """Lengths that give scores of standard deviation ``SIGMA``; the search for the plane goes on. Price: about ``16 PAIRS`` labels.

    Around ``centre``, the foot of the plane if it is None, tokens may lie up to ``room`` away.
    """
    offset, width = fine.plane.offset, asker.width
    if max_norm is not None and centre is None:
        room = 0.9 * (max_norm**2 - offset**2) ** 0.5
    out = abs(offset) if centre is None else float(np.linalg.norm(centre))
    high = min(np.log2(max(length, out)) + DOUBLINGS, np.log2(room / 2))

    def climb(far: float, low: float, high: float) -> float:
        """The usual size of scores so far from the foot, for keys no shorter than that distances from the plane are known."""
        while True:
            plane = fine.plane
            blur = np.hypot(plane.offset_spread, plane.normal_spread * np.hypot(out, far))
            known = np.log2(KNOWN * blur / BESIDE)
            if known < max(low, high - DOUBLINGS) or not rounds(asker, [fine.group], 1):
                break
        beside, foot = plane.beside, plane.offset * plane.normal if centre is None else centre
        found = rng.normal(size=(2, PAIRS, width - 1)) @ beside if width > 1 else np.tile(plane.normal, (2, PAIRS, 1))
        reach, keys = found / np.linalg.norm(found, axis=2, keepdims=True)
        return climbed(asker, Ladder(foot, plane.normal, far * reach, keys), min(max(low, known), high - 2), high, [fine.group])

    constant = climb(0.0, high - 2 * DOUBLINGS, high)
    first = 1 / constant  # keys so long have scores of 1 beside the foot of the plane itself
    far, per_far = 0.0, constant
    for longer in FURTHER:
        far = min(longer * first, room / 2)
        per_far = climb(far, np.log2(first) - DOUBLINGS, min(np.log2(first) + 2, high))
        if per_far > SHOWN * constant or far == room / 2:
            break
    entry = np.sqrt(max(per_far**2 - constant**2, (FAINT * constant) ** 2)) / far  # of W, root mean square
    reach = min(max(np.sqrt(SIGMA / entry), DOMINANT * constant / entry), LONGER * np.sqrt(SIGMA / entry), room / 2)
    longest = room / MOVED
    key = min(SIGMA / float(np.hypot(reach * entry, constant)), longest)
    depth = min(reach, LEAN / SIGMA * key * np.sqrt(width + 1))
    return Sizes(float(reach), float(depth), float(key), float(longest), float(key * reach * entry))
