"""Every number that the learner of gated networks goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of gated networks goes by.

    What no comment derives was measured by ``benchmarks/smooth.py``.
    """

    # arcs
    # angle between the three places that begin a piece: continued over an angle t, they lose (t / step)^2 of precision
    step: float = 2.0**-14
    closest: float = 2.0**-24  # bends nearer to each other are not told apart: the steps across their cell would lose all digits
    finer: float = 0.1  # of the ground left around a bend: probes that do not come this much closer tell no more about it
    rounds: int = 200  # a bound only; the depth of the search is near log2 of the number of bends
    pieces: int = 6  # pieces per bend found, and 64 more, at which a function is no piecewise quadratic one: it bends everywhere

    # forms
    nothing: float = 1e-8  # a part this small against its neighbours is none: biases against one, a linear part against the gates

    # limit
    attempts: int = 4  # planes tried before the target is refused
    room: float = 8.0  # the numbers inside the target against the largest of the first answers (terms cancel in them)
    first: int = 4  # answers that tell the size
    spare: int = 8  # random points beyond those that the sides need: they tell whether every gate was found
    extra: float = 0.1  # further random points, the most telling of many, as a share of the parameters of the limit
    pool: int = 4  # points drawn for each of them
    binary: float = 0.1  # how near to 0 or 1 the solution of the linear system must be to be read as a choice of sides
    explained: float = 1e-4  # error of the gates with their sides, relative to the answers, that the fit can take back
    stray: float = 1e-9  # error after the fit, relative to the numbers inside, that rounding explains

    # offsets
    choice: int = 3  # random directions offered for each unknown, beside the pairs across each hyperplane
    offset_turns: int = 8  # rounds of solving, each with the products of biases of the one before

    # plane
    # steps per cell that cross a hyperplane and are repeated; short steps lose digits, which the later fit takes back
    caution: float = 0.15
    short: float = 0.1  # the longest step beside a bend where little is let through, as a share of that: solving must converge
    lost: float = 1e6  # growth of a quadratic form, in sizes of the answers, at which solving for slopes has diverged
    shrink: float = 8.0  # a cell whose check fails is asked again with steps shorter by this factor
    repairs: int = 10  # rounds of that
    slope_turns: int = 12  # rounds of solving for the products of slopes, each right to as many more digits as a step is short
    wrong: float = 1e-5  # error of a cell's check, relative to a step's change, from which on one of its steps crossed a hyperplane
    loud: float = 0.03  # of the largest such error: smaller ones may be its consequence


GATES = Settings()
