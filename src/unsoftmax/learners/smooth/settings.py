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
    bends_shrink: float = 3.0  # each at a distance this much shorter than the one before
    # rounds of looks, each nearer, before a neuron is a corner; nearer still, errors of its offset look like a bend
    again: int = 2
    round: float = 1e-3  # share of the distance that an answer must lie off the corner to show a bend
    bends_agree: float = 1e-5  # error, in widths of the bend, at which an activation fits
    bends_apart: float = 20.0  # how much worse the next one must fit
    # neurons that may fit none before the target is refused: two neurons of one direction look like another bend
    strangers: int = 3
    # sharpness times distance at which one answer tells the sharpness well
    bends_least: float = 0.15
    bends_most: float = 4.0
    free: float = 2.0  # logarithm of the sharpness, and widths of the bend, by which a fit may leave the best of its grid
    bends_tries: int = 14  # answers per neuron at most

    # design
    largest: int = 1500  # parameters; beyond, the factorisation costs more than the points that it saves
    design_faint: float = 1e-12  # ridge relative to the columns: the answers so far leave directions open

    # fitting
    fitting_rounds: int = 40  # steps, most of them with an old factorisation
    factors: int = 12  # factorisations at most
    fitting_faint: float = 1e-14  # ridge relative to the columns: directions that no answer determines stay where they are
    gain: float = 0.2  # a step that leaves more of the misfit than this wants a new factorisation
    # one that leaves more than this ends the fit, if it is fresh or the gaps are already what rounding explains
    little: float = 0.5
    longest: int = 8  # halvings of a step that makes things worse

    # forms
    skip: float = 1e-8  # a linear part this small against the neurons is none

    # learner
    learner_checks: int = 12  # fresh points that the finished network must answer
    learner_accept: float = 1e-9  # error accepted there, relative to the spread of the answers
    learner_extra: float = 0.4  # random points as a share of P / outputs
    learner_room: float = 2.19  # questions per parameter, in all, that random points may fill (one output)
    fewest: float = 0.1  # random points, as a share of P, that are asked in any case
    learner_pool: int = 6  # points drawn for each of them, of which the most telling are asked
    learner_least: int = 8  # and at least so many
    attempts: int = 3  # each from four times as far out
    quiet: float = 30.0  # misfit, in expected errors, beyond which neurons are looked at for a second one of their direction
    loud: float = 1e4  # misfit, in expected errors, beyond which a fit has not found the network; right ones end near 0.02
    bends_on: float = 1e-3  # height that a neuron may still have, in widths of its bend, where it is taken to be straight
    most_shared: int = 4  # directions that several neurons share; more are not looked into
    spread: int = 256  # points of the model at which the spread of its answers is measured

    # limit
    farthest: float = 2.0**100  # from there a bend of width 1 is sharp within 1e-30
    nearest: float = 2.0**30  # and from there within 1e-9: less, and bends are seen to be round
    # longest point asked of the limit, at least, where tokens are bounded; in lengths of the usual token
    limit_room: float = 64.0
    # steps per gradient that cross a bend and are repeated; short steps lose digits, which the later fit takes back
    caution: float = 0.35
    # random points, as a share of P / outputs: the fit of the smooth network takes back what they would have
    limit_extra: float = 0.05

    # naming
    distance: float = 2.0**20  # of the line from the origin: bends of width one are then far apart, and straight in between
    spacing: float = 2.0**10  # between the answers that begin a piece
    clear: float = 2.0**11  # distance from a bend at which it is straight
    searches: int = 24  # halvings of the line before a bend is given up
    same: float = 1e-7  # error of a continued piece, relative to the answers, that is none
    naming_agree: float = 1e-4  # error, in widths of the bend, at which an activation fits
    naming_rounds: int = 2  # of looks, each nearer
    lines: int = 3  # tried before nothing is said

    # offsets
    first: float = 64.0  # distance from every hyperplane at which straightness is tried first
    further: float = 4.0  # and by how much farther the next
    offsets_tries: int = 16  # up to 7e10 away
    # change of slope, relative to a neuron's, that is straight; a finer test mistakes errors of slopes for bends
    offsets_straight: float = 1e-7
    several: int = 64  # random directions far from all hyperplanes that are offered beside the pairs across each
    enough: float = 1e-6  # an offset that only this share of an equation's size tells is not told

    # paths
    grid: int = 49  # places looked at on a path; its bends are wider than the steps between them, or the path is not taken
    halvings: int = 56  # to the last bit of a place

    # places
    places_pool: int = 4000  # random directions, of which the one farthest from the hyperplanes is taken
    places_rounds: int = 12  # of local search around it, each with a smaller step
    nearby: int = 48  # points tried in each

    # recognition
    # share of a token by which it is moved both ways; a ReLU network of 100 neurons bends there one time in thirty
    step: float = 2.0**-10
    # second difference, relative to the answers: 1e-16 / 1e-10 of rounding below, a millionth of a bend above
    recognition_bent: float = 1e-10
    places: int = 2  # at which it must bend: one corner by accident is one in thirty, two are one in a thousand
    even: float = 0.1  # how far from four times the bend at twice the distance may be; a smooth one is within a thousandth or so
    # the same from afar, where a corner in between would look like a bend: one time in a thousand for 64 neurons
    narrow: float = 2.0**-15
    # second difference from afar, relative to the answers there, that is straight; gates leave NARROW^2 = 1e-9
    recognition_straight: float = 1e-12
    grows: float = 1e-6  # share of the slope near by that must be left from afar
    deaf: float = 1e-9  # change of the answer by an earlier token, relative to the answers, that is none

    # shared
    suspect: float = 1e-9  # error, in widths of the bend, of two answers near a hyperplane that rounding explains
    shared_apart: float = 100.0  # times the usual error of all neurons, from which on one bend does not explain them
    coarse: int = 7  # distances on each side at which the extent of the bends is looked for
    shared_shrink: float = 3.0  # each shorter by this factor
    shared_bent: float = 1e-5  # share of the distance by which an answer must leave the straight parts to lie within the bends
    fine: int = 14  # answers within the extent, each time that it is narrowed down
    narrowings: int = 3  # times
    alone: int = 12  # starts of the fit of one bend
    starts: int = 60  # of the fit, for two bends; twice as many for three
    long: int = 400  # steps of the last fit
    shared_most: int = 3  # bends of one direction that are looked for
    # error, in units of the jump and of the step between answers, at which bends may explain a line; the fit of all tells
    fits: float = 1e-5
    exactly: float = 1e-11  # error at which they do, and nothing is gained by one more
    shared_faint: float = 1e-7  # share of the strongest jump below which a bend is none

    # transformer
    transformer_checks: int = 16  # fresh sequences, of 2, 3, 5 and 8 tokens, that the finished model must answer
    transformer_accept: float = 1e-8  # error accepted there, relative to the spread of the answers
    bias: float = 1e-7  # scores that a query bias must reach, after the fit, to be one
    many: float = 0.35  # sequences for the fit, as a share of P / outputs
    transformer_room: float = 2.09  # questions per parameter, in all, that they may fill (one output)
    transformer_extra: float = 0.12  # random points for the network alone, as a share of P / outputs: sequences tell as much


BENDS = Settings()
