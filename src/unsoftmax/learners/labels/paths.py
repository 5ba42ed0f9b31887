"""Paths through the questions, on each of which the label changes once, and rounds that ask all of them in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.labels.asking import Asker
from unsoftmax.learners.labels.search import Flags, Halving
from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.models import Floats

Rows = NDArray[np.int_]


class Paths(Protocol):
    """Questions of two tokens along many paths."""

    def tokens(self, rows: Rows, at: Floats) -> Floats:
        """The questions ``(rows, 2, width)`` at these places."""

    def above(self, rows: Rows, labels: Flags) -> Flags:
        """Whether these labels say that the boundary lies at a higher place."""


@dataclass(slots=True, eq=False)
class Lines:
    """Straight lines of one-token questions, from "no" to "yes", each asked as a token and its copy."""

    start: Floats
    direction: Floats

    def points(self, rows: Rows | slice, at: Floats) -> Floats:
        """The tokens ``(rows, width)`` at these places."""
        return self.start[rows] + at[:, None] * self.direction[rows]

    def tokens(self, rows: Rows, at: Floats) -> Floats:
        """Each point twice: copies of one token weigh nothing, whatever their scores, and all questions have two tokens."""
        return np.repeat(self.points(rows, at)[:, None], 2, axis=1)

    def above(self, rows: Rows, labels: Flags) -> Flags:
        """A "no" puts the boundary above."""
        return ~labels


@dataclass(slots=True, eq=False)
class Keys:
    """Questions ``[p; x]``: x on one side of the threshold, p at place q on the other side, ``exp(-q)`` times as far from it.

    At the boundary ``(p - x)·(W x + c) = q``, up to what is not known of v and the threshold: there the score makes up for the
    distances.

    Attributes:
        last: the tokens x.
        foot: x moved along v to the threshold.
        beside: offset of p at right angles to v.
        normal: unit vector along v.
        far: distance of x from the threshold, negative where its label is "yes".
    """

    last: Floats
    foot: Floats
    beside: Floats
    normal: Floats
    far: Floats

    def __len__(self) -> int:
        return len(self.last)

    def part(self, rows: Rows) -> Keys:
        """Some of these paths."""
        return Keys(self.last[rows], self.foot[rows], self.beside[rows], self.normal, self.far[rows])

    def keys(self, rows: Rows | slice, at: Floats) -> Floats:
        """The tokens p at places q."""
        beyond = self.far[rows] * np.exp(-at)
        return self.foot[rows] + self.beside[rows] + beyond[:, None] * self.normal

    def tokens(self, rows: Rows, at: Floats) -> Floats:
        """``[p; x]`` at places q."""
        return np.stack([self.keys(rows, at), self.last[rows]], axis=1)

    def above(self, rows: Rows, labels: Flags) -> Flags:
        """Where p has won over x, it could lie closer to the threshold: q is higher."""
        won: Flags = labels == (self.far[rows] > 0)
        return won


@dataclass(slots=True, eq=False)
class Group:
    """Paths, what is known of their boundaries, and how narrow their brackets are to become.

    Attributes:
        late: paths that started after the others and get two bits a round, for three labels, until they have caught up; or more.
        repairs: how often each path was moved because it had no boundary.
    """

    paths: Paths
    search: Halving
    until: float | Floats
    late: Flags
    repairs: Rows
    hurry: float = BOUNDARY.hurry  # width down to which a group that is late as a whole hurries

    def turn(self) -> tuple[Rows, Floats]:
        """The paths still wider than wanted and where each is asked next; late ones at 3 places, at 7 or 15 where they are few."""
        rows: Rows = np.flatnonzero((self.search.width > self.until) & ~self.search.lost)
        at = self.search.middle(rows)
        between = (at != self.search.low[rows]) & (at != self.search.high[rows])  # no number lies between neighbours
        rows, at = rows[between], at[between]
        if not self.late[rows].any():
            return rows, at
        late = self.late[rows]
        bits = 2 + sum(int(late.sum()) * many <= len(rows) for many in BOUNDARY.few)
        cuts = self.search.cuts(rows[late], bits)
        return np.concatenate([rows[~late], *(rows[late] for _ in cuts)]), np.concatenate([at[~late], *cuts])

    @classmethod
    def of(cls, paths: Paths, search: Halving, until: float | Floats, late: bool = False, hurry: float = BOUNDARY.hurry) -> Group:
        """All of these paths, late or not."""
        count = search.prior.count
        return cls(paths, search, until, np.full(count, late), np.zeros(count, dtype=int), hurry)

    def part(self, rows: Rows) -> Group:
        """Some of these paths."""
        assert isinstance(self.paths, Keys)
        return Group(self.paths.part(rows), self.search.part(rows), self.until, self.late[rows], self.repairs[rows], self.hurry)

    def pace(self) -> None:
        """Late are paths that lie far behind the usual one, until they have caught up with it."""
        width = self.search.width
        usual = self.hurry if self.late.all() else float(np.median(width[~self.late]))
        self.late = (self.late & (width > usual)) | (width > BOUNDARY.behind * np.maximum(usual, self.until))


def rounds(asker: Asker, groups: Sequence[Group], most: int, also: Sequence[Group] = ()) -> int:
    """Ask every open path of every group once a round, in one call, for up to ``most`` rounds; returns how many it took.

    The groups ``also`` ride along: their open paths are asked too, but nobody waits for them.
    """
    for done in range(most):
        turns = [(group, *group.turn()) for group in groups]
        if not any(len(rows) for _, rows, _ in turns):
            return done
        turns = [turn for turn in [*turns, *((group, *group.turn()) for group in also)] if len(turn[1])]
        labels = asker(np.concatenate([group.paths.tokens(rows, at) for group, rows, at in turns]))
        for group, rows, at in turns:
            group.search.learn(rows, at, group.paths.above(rows, labels[: len(rows)]))
            group.pace()
            labels = labels[len(rows) :]
    return most
