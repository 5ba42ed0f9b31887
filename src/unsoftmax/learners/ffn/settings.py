"""Every number that the learner of ReLU networks goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of ReLU networks goes by.

    What no comment derives was measured by ``benchmarks/networks.py``.
    """

    # depth
    looks: int = 8  # places asked, three questions each
    pool: int = 32  # places drawn for each, of which the one farthest from all other bends is asked
    step: float = 2.0**-10  # half the stretch that must hold the bend, in lengths of the network; the bends are known much better
    loud: float = 100.0  # times the expected error of an answer: a fainter bend says nothing
    agree: float = 0.1  # relative error of a bend that is still the same one

    # design
    design_largest: int = 4500  # parameters; beyond, the triangular solves for the pool cost more than they save

    undesigned: float = 0.05  # random points per parameter then (64-128-1: errors of 1e-10 with 0.02, 1e-11 with 0.05),
    undesigned_beside: float = 0.85  # and where gradients were told beside many bends: fewer leave errors of 1e-9
    wrong: float = 1e4  # misfit in expected errors from which on a network is no right one: those miss by 0.3 at most
    few: int = 24  # random points that are enough to show it

    # forms
    skip: float = 1e-8  # a linear part this small against the neurons is none, unless the check says that errors are larger

    # gradients
    shrink: float = 8.0  # a step that crossed a bend is repeated shorter by this factor
    tries: int = 40  # rounds of repair; each halves a group or shortens a step, so that few are ever used

    # hinges
    tied: float = 10.0  # weight of what is known beforehand about a linear part, against that of the answers

    # kinks
    trust: float = 6.0  # a deviation of that many expected errors is a deviation
    # half the distance of a pair of probes that finds a slope, relative to the scale and position; at least that
    near: float = 1e-6
    # the same in units of the root of the answers' relative precision: slopes and bends are then told equally well
    apart: float = 4.0
    passing: float = 1e-3  # of the usual distance of lines that pass each other: uncertain ones may meet by chance
    rounds: int = 400  # a bound only; the depth of the search is near log2 of the number of bends

    # share of the usual distance of bends that may stay unexplored on one side of one: more hide there in one of 1,200 lines, which
    # are then asked twice (0.03: one of 200, and one or two questions less)
    unexplored: float = 0.005
    wider: float = 100.0  # pairs that begin a piece are then so much farther apart, as fewer answers lengthen it

    # lattice
    lattice_largest: int = 64  # vectors; a reduction in double precision becomes slow and unreliable beyond
    steps: int = 200_000  # exchanges before a reduction is given up; a solvable case of 64 vectors needs a third
    swap: float = 0.99  # the constant of the exchange condition; nearer to 1 gives shorter vectors

    # learner
    attempts: int = 6  # lines tried before the target is refused; each adds what the ones before missed
    checks: int = 9  # fresh points that the finished network must answer
    least_checks: int = 3  # one at each distance
    foretold: int = 4  # answers that a model must foretell before it is fitted to them; each further one stands for a check
    accept: float = 1e-9  # error accepted there, relative to the spread of the answers; rounding leaves 1e-12 to 1e-11
    goal: float = 4e-11  # predicted standard error, relative to the spread, at which no more random points are asked
    doubt: float = 1e-8  # error of a rough model, relative to the numbers inside it, when a second line looks for what it lacks
    # bends followed along their hyperplanes, at least, before more than one hidden layer is said to be there
    least_looks: int = 4
    quiet: float = 1e3  # expected errors: answers that vary by less show no neuron at work
    rough: float = 2.0**-40  # relative precision of answers from which on a line may be read wrongly here and there
    outlier: float = 30.0  # an answer this many usual errors from the model was given in another linear piece than thought
    faint: float = 1e-14  # bends weaker than this share of the median are rounding

    # lift
    crossing: float = (
        0.1  # steps expected to cross a bend, of all into one block of new directions; one costs a question, two the block
    )
    betrayed: float = 1.0  # the same beside a line, where each costs one question, and shorter steps tell less
    through: float = 1e-3  # share of its distance left to a bend that a step is then thought to have crossed
    again: int = 6  # rounds of steps beside the line
    unheard: float = 1e-6  # relative size of a disagreement that a crossed bend would leave only by chance
    heard: float = 0.05  # share of a wrong slope that a check must show
    least_bases: int = 2  # asked at least, to see that the ground is known
    base: float = 1e4  # expected errors of an answer by which a base may be off: asking for one more costs a question
    crowded: int = (
        48  # bends from which on a block of directions is learned on the way to all others (32: 1.25 P with, 1.22 without;
    )
    # 64: 1.13 and 1.25)
    block: int = 4  # new directions for each known one in it
    elsewhere: float = 0.1  # size, beside the usual one, of a bend whose known components are smaller, unless they are
    faintest: float = 1e-3  # smaller than that: of 20 bends on a plane one is 30 times too small in one of 100 networks
    nearest: int = 16  # bends near a point that say how far a step may go
    candidates: int = 20  # points among which bases are chosen, for each bend,
    pool_largest: int = 2000  # and of them at most
    singular: float = 1e-13  # share of the largest singular value that is rounding
    nothing: float = 1e-14  # the same of rows that the bases are chosen by

    # line
    room: float = 4.0  # how far the first estimate of the numbers inside the target may fall short (terms cancel in its answers)

    # orientation
    binary: float = 1e-3  # how near to 0 or 1 the solution of the linear system must be to be read as a choice

    chance: float = 1e-3  # expected number of choices that fit by chance, beyond which the active sides are not guessed

    exactly: float = 1e-11  # what sums of parameters are off by that only rounding moved

    # places
    seen: float = 1e11  # distance at which to look, in units of (coarseness of the answers) / (their slope): leaves 11 digits
    plainly: float = 100.0  # times nearer than one would look anyhow: then no answers from afar are asked for it
    farthest: float = 1e6  # no farther than that, however coarse the answers
    reach: float = 1e5  # half length of a line, in distances from the origin: one bend in 1e5 lies farther out
    corner: float = 1e-3  # share of a leg taken by the probes that find its first slope

    # questions
    chunk_numbers: int = 2**22  # 32 MB of probes in one call

    # rough
    per_parameter: float = 2.5  # random points for each parameter of the network
    # short stretches on which the noise is measured, and points along each
    stretches: int = 8
    along: int = 6
    stretch: float = 2.0**-10  # their length, in distances from the origin: a bend in half of them would pass for noise
    excess: float = 3.0  # root mean square misfit, in noise, that a right network may leave: noise differs from place to place
    beyond: float = 8.0  # noises by which a single fresh answer may be off, beside what the fit leaves open
    rough_checks: int = 24  # fresh points that the finished network must answer
    needless: float = 9.0  # noises squared for each parameter by which the sum of squares may rise without a neuron that is none
    sure: float = 100.0  # standard errors that every neuron must have in strength, or their number is not known
    checked: int = 3  # checks of one fit: what one asks is fitted before the next
    lines: int = 10  # read before the target is refused
    # lines of which fewer bends than this share of the least are on one hyperplane: of 15 networks of 8 to 32 neurons in float32
    # two lines had 0.2 to 0.9 of them in common and three 0.45 or more, of a smooth function three had none
    strangers: int = 3
    same: float = 0.05
    rough_reach: float = 64.0  # half length of a line in distances from the origin: what lies farther out on one is near on another
    one_plane: float = 1e-2  # distance of two unit hyperplanes that are two readings of one
    least_gain: float = 0.05  # share of the sum of squares that one more neuron must promise to explain, to be tried,
    better: float = 0.9  # and misfit that it leaves, against that without it, to be kept
    damped: int = 40  # rounds of the damped fit,
    settled: float = 3e-3  # and the share of the sum of squares that one more round must take off
    vain: int = 3  # hyperplanes added in vain before another line is read


RELU = Settings()
