"""Every number that the learner of squared ReLU networks goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of squared ReLU networks goes by.

    What no comment derives was measured by ``benchmarks/smooth.py``.
    """

    # learner
    extra: float = 0.3  # random points near by, as a share of P / outputs: without them functions are right to 1e-9 only

    # line
    farthest: float = 2.0**20  # place on the line from which it is looked at: bends beyond are one in ten thousand
    nearer: float = 16.0  # factor between further places from there inwards: continuing a piece so far loses two or three digits
    room: float = 4.0  # size of the numbers inside the target, over the largest of the answers (terms cancel in them)
    # distance between the three places that begin a piece, as a share of the stretch in which it lies: a bend is seldom in
    # between, and continued over the stretch it loses five digits
    begin: float = 2.0**-8
    inside: float = 0.35  # distance from the middle of a stretch up to which its strongest bend tells where to look next
    beside: float = 0.1  # how far beside it: at a bend an answer belongs to neither piece
    end: float = 0.8  # share of the way from a piece to its bend at which it is asked once more
    sure: float = 2.0  # expected errors within which answers are the same
    far: float = 100.0  # errors that a piece may gather on the way to an answer that is not looked at half way too
    closest: float = 2.0**-22  # stretch, relative to its distance, in which bends are not told apart any more
    patience: int = 24  # questions per piece (and 16 more), at which the target is no piecewise quadratic function

    # steps
    latest: float = 0.9  # share of the way through a cell, at most, at which steps are taken
    # step off the line, as a share of the distance to the next bend on it: one in ten crosses a hyperplane and is repeated, and
    # ten times as short a step loses a digit of every row
    aside: float = 2.0**-4
    aside_first: float = 2.0**-8  # the same in the first cell, where a step that crosses one has all repeated
    clear: float = 0.7  # share of the distance from a hyperplane by which a step may have come nearer to it
    shorter: float = 8.0  # factor of steps that are repeated, at least: a row told by an answer across its bend is not told
    repairs: int = 8  # rounds of that
    astray: float = 0.5  # share of all steps that seem to cross one, from which on it is the line that was misread

    # sides
    binary: float = 0.1  # how near to 0 or 1 the solution of a linear system must be to be read as a choice of sides
    explained: float = 1e-4  # error of that choice, relative to all forms, that the fit can take back
    precise: float = 1e-8  # the same where the choice is found by a lattice, which takes more digits


SQUARES = Settings()
