"""Every number that the learner of smooth networks goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of smooth networks goes by.

    What no comment derives was measured by ``benchmarks/smooth.py``.
    """

    # answers
    pattern: float = 1e-7  # relative distance from a hyperplane within which an answer from very far is left out of a fit
    # pre-activations beyond which an answer is one from very far: there a neuron is a corner, and a corner has no derivative
    far: float = 1e3

    # bends
    looks: int = 7  # answers on one line across a neuron that name its activation
    shrink: float = 3.0  # each at a distance this much shorter than the one before
    again: int = 2  # rounds of looks, each nearer, before a neuron is a corner; nearer still, errors of its offset look like a bend
    round: float = 1e-3  # share of the distance that an answer must lie off the corner to show a bend
    bends_agree: float = 1e-5  # error, in widths of the bend, at which an activation fits
    bends_apart: float = 20.0  # how much worse the next one must fit
    # neurons that may fit none before the target is refused: two neurons of one direction look like another bend
    strangers: int = 3
    sharpness_least: float = 0.15  # sharpness times distance at which one answer tells the sharpness well
    sharpness_most: float = 4.0
    free: float = 2.0  # logarithm of the sharpness, and widths of the bend, by which a fit may leave the best of its grid
    tries: int = 14  # answers per neuron at most

    # design
    largest: int = 1500  # parameters; beyond, the factorisation costs more than the points that it saves
    design_ridge: float = 1e-12  # ridge relative to the columns: the answers so far leave directions open

    # fitting
    fitting_ridge: float = 1e-14  # ridge relative to the columns: directions that no answer determines stay where they are

    # forms
    skip: float = 1e-8  # a linear part this small against the neurons is none

    # learner
    checks: int = 12  # fresh points that the finished network must answer
    accept: float = 1e-9  # error accepted there, relative to the spread of the answers
    pool: int = 6  # points drawn for each random one asked near by, of which the most telling are asked
    least: int = 8  # random points at least
    # misfit, in expected errors, beyond which a network has not been found, whatever fresh answers say; right ones end near 0.03,
    # at most 1 where a fit stops because rounding explains the rest
    unexplained: float = 30.0
    spread: int = 256  # points of the model at which the spread of its answers is measured

    # limit
    farthest: float = 2.0**100  # from there a bend of width 1 is sharp within 1e-30
    nearest: float = 2.0**30  # and from there within 1e-9: less, and bends are seen to be round
    room: float = 64.0  # longest point asked of the limit, at least, where tokens are bounded; in lengths of the usual token
    # steps per gradient that cross a bend and are repeated; short steps lose digits, which the later fit takes back
    caution: float = 0.35
    # error of the limit, relative to its spread, that the later fit takes back: it starts within 1e-7 of the solution and converges
    # quadratically, and what it ends in is held against fresh answers near by; another line would cost P questions
    accept_limit: float = 1e-7
    checks_limit: int = 6  # fresh points that the limit must answer: a first sieve, before those of the finished network
    extra: float = 0.05  # random points, as a share of P / outputs: the fit of the smooth network takes back what they would have

    # naming
    distance: float = 2.0**20  # of the line from the origin: bends of width one are then far apart, and straight in between
    clear: float = 2.0**11  # distance from a bend at which it is straight
    same: float = 1e-7  # error of a continued piece, relative to the answers, that is none
    naming_agree: float = 1e-4  # error, in widths of the bend, at which an activation fits

    # offsets
    further: float = 4.0  # by how much farther straightness is tried next
    # change of slope, relative to a neuron's, that is straight; a finer test mistakes errors of slopes for bends
    straight: float = 1e-7
    enough: float = 1e-6  # an offset that only this share of an equation's size tells is not told

    # paths
    grid: int = 49  # places looked at on a path; its bends are wider than the steps between them, or the path is not taken

    # recognition
    # share of a token by which it is moved both ways; a ReLU network of 100 neurons bends there one time in thirty
    step: float = 2.0**-10
    # second difference, relative to the answers: 1e-16 / 1e-10 of rounding below, a millionth of a bend above
    bent_near: float = 1e-10
    places: int = 2  # at which it must bend: one corner by accident is one in thirty, two are one in a thousand
    rough_places: int = 4  # looked at by coarse answers, of which as many as above must bend
    even: float = 0.1  # how far from four times the bend at twice the distance may be; a smooth one is within a thousandth or so
    # the same from afar, where a corner in between would look like a bend: one time in a thousand for 64 neurons
    narrow: float = 2.0**-15
    # second difference from afar, relative to the answers there, that is straight; gates leave narrow^2 = 1e-9
    straight_afar: float = 1e-12
    grows: float = 1e-6  # share of the slope near by that must be left from afar
    deaf: float = 1e-9  # change of the answer by an earlier token, relative to the answers, that is none

    # inverse
    inversions: int = 60  # starts; of networks with four neurons a coordinate one to thirteen were needed
    inversion_rounds: int = 60  # of damped Gauss–Newton from each
    inversion_ridge: float = 1e-12  # against steps without end where the network is flat
    inversion: float = 2.0**-45  # error of an explained answer, relative to the numbers that the network adds up
    inversion_points: int = 64  # points that must be found again before anything is asked through a network
    through: float = 2.0**-46  # relative error of points found that way, at least: rounding, and what an inversion loses
    through_most: float = 2.0**-36  # beyond, heads are not told apart; another point with the same values is farther off by far
    heads_far: float = 2.0**36  # length of tokens that saturate heads
    heads_questions: int = 10  # times the square of the width: so many questions plain heads never take
    heads_checks: int = 4  # fresh sequences of each of four lengths
    heads_accept: float = 1e-9  # error accepted there, relative to the spread of the answers

    # rough
    rough_agree: float = 0.02  # error, in widths of the bend, of a look by coarse answers; SiLU and GELU are 0.05 apart
    rough_apart: float = 5e-3  # so much worse another activation may fit there and still be the one: GELUs are 1e-3 apart
    rough_points: float = 3.0  # random points near by, as a share of P / outputs: coarse answers must outweigh their errors
    rough_fit: float = 1.0  # misfit, in expected errors, of a network that explains coarse answers; right ones end below 0.1

    # shared
    suspect: float = 1e-9  # error, in widths of the bend, of two answers near a hyperplane that rounding explains
    shared_apart: float = 100.0  # times the usual error of all neurons, from which on one bend does not explain them
    coarse: int = 7  # distances on each side at which the extent of the bends is looked for
    bent: float = 1e-5  # share of the distance by which an answer must leave the straight parts to lie within the bends
    fine: int = 14  # answers within the extent, each time that it is narrowed down
    starts: int = 60  # of the fit, for two bends; twice as many for three
    most: int = 3  # bends of one direction that are looked for
    # error, in units of the jump and of the step between answers, at which bends may explain a line; the fit of all tells
    fits: float = 1e-5
    exactly: float = 1e-11  # error at which they do, and nothing is gained by one more
    faint: float = 1e-7  # share of the strongest jump below which a bend is none

    # pairs
    # third moments of two neurons almost alike, in units of the root of the second, from which their fit starts: output weights
    # of 1 to 2, 7, 100 and 1000
    thirds: tuple[float, ...] = (0.7, 2.3, 10.0, 32.0)
    tried: int = 2  # of these fits, the best, that the fit of all parameters goes on from
    closest: float = 1e-9  # distance, relative to row and bias, below which rounding leaves nothing of the one between two neurons
    parallel: float = 1e-5  # angle between rows of one direction, once all is fitted
    alike: float = 0.1  # distance in row and bias, relative to them, at which two neurons are almost duplicates
    gains: float = 0.1  # share of the misfit at most that two neurons in place of one may leave

    # misfit that is rounding's beyond doubt; more of it, and more than fresh answers left before, wants a further look
    calm: float = 0.2
    more: int = 4  # random points asked then, times width and two (one output)

    # fewest
    # misfit per number left over, in those of a network with one neuron more, at which the smaller network explains as much: what
    # is rounding for both changes by less, and a neuron that answers tell leaves many times as much
    as_good: float = 2.0


BENDS = Settings()
