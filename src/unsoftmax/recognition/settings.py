"""Every number that the family tests go by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from unsoftmax.precision.settings import READING


@dataclass(frozen=True, slots=True)
class Settings:
    """What the family tests go by.

    What no comment derives was measured by ``benchmarks/diagnose.py`` and the two further zoos.
    """

    # case
    huge: float = 1e100  # beyond this, answers are rescaled
    # a test fails beyond this many floors: the floor was measured at two places only, others are up to ten times coarser
    safety: float = 50.0

    # depth
    halvings: int = 12  # of an interval around a kink; most are alone in it after five
    search: int = 18  # questions that the search for a kink takes at least
    follow: int = 10  # and those that follow it once: four for the way it runs, six for far away
    beside: float = 2.0**-3  # of the interval: how far outside it the slopes beside the kink are read
    short: float = 2.0**-6  # of the interval: a step aside that leaves the kink in it, mostly
    stretch: float = 2.0**-6  # of the interval: half of what must hold the kink elsewhere
    depth_far: float = 2.0  # how far the kink is followed each way, in lengths of a token
    same: float = 1e-3  # relative error of a kink that is still the same far away
    depth_enough: int = 2  # losses that tell: another kink may hide one
    straight: float = 16.0  # floors that a half without a kink may bend by
    # share of the stronger half's bend that the weaker has, so many times in a row, where a line is smooth
    even: float = 0.3
    evenly: int = 4
    depth_loud: float = 100.0  # floors that a kink must show in such a stretch
    jump_halvings: int = 7  # of a stretch that may hold a jump
    jump_beside: float = 2.0**-5  # of it: how far outside it the slopes beside it are read
    jump_floors: float = 200.0  # that answers may lie off the lines with these slopes
    jump_clear: float = 4.0  # times these, and what a kink in the last half leaves between the lines, that a jump is

    # floor
    float64: float = 2.0**-50  # a handful of roundings; measured noise may be smaller by luck
    float32: float = 2.0**-22
    surprise: float = 24.0  # bits by which answers must be rounder than chance before they are called rounded
    exact: float = 2.0**-44  # relative noise of one-token answers up to which they count as exact
    pairs_again: int = 10  # questions asked twice where errors have no law; rounding by chance leaves two in three as they are
    turns: int = 4  # times that a question is asked alone once more where its answers differ
    versions: int = 3  # different ones of those five, at most, that come back: jitter of 2^-45 has one of a few hundred by chance
    jittery: float = READING.jittery  # up to which a recovery takes answers that differ from call to call for their precision
    tiny: float = 2.0**-17  # step of the noise line: fourth differences of a smooth target vanish to 2^-68

    # heads
    fit: int = 44
    check: int = 7
    heads_far: int = 6
    # floors that the largest of 44 right answers may miss by: of float64 ones, sums of 24 numbers, 4.9 was met in 120 layers, of up
    # to 64 numbers 1.8 in 118
    heads_floors: float = 8.0
    heads_length: int = 24  # tokens of the sequences that are fitted
    most_scalar: int = 6
    most_vector: int = 16
    grid: int = 101  # of the scan, each way
    coarse: int = 61  # of the places for one more head
    branches: int = 8  # fits with one head less that are grown
    spots: int = 6  # places for the new head, for each of them
    random: int = 40  # random starts per head
    steepest: float = 60.0  # scores per step that a search goes to; beyond four times that a head counts as hard
    # what a fit of heads may miss by where two are almost alike, of what is allowed; other targets miss by 1e10 or so
    nearly: float = 2.0**24
    split: int = 2  # heads at most whose neighbours are looked at: ten numbers each, of 44 answers
    # floors, and share of what was missed by, that heads almost alike leave of it: 20 and 1e-5 at most in 36 pairs of gaps of 1e-6
    # to 0.1; other targets leave 470 and 0.02 at least
    split_floors: float = 100.0
    split_share: float = 1e-3
    heads_largest: float = 1.5  # largest factor of the steps, as a power of two

    # heads or not
    wide: int = 96  # layers wider than this are asked at several token lengths whether one head can be
    # distance from the line that no rounding explains: of the line, and of the rounding
    plainly: float = 1e-9
    roughly: float = 2.0**13
    # change by another order that rounding and noise explain, in units of each
    order_relative: float = 1024.0
    order_absolute: float = 8.0
    # factor of a long token, and how far its answer may miss that of the short one, of its size
    long: float = 2.0**12
    clip: float = 1e-6
    far: float = 2.0**20  # length of tokens whose scores saturate unless something bounds them
    long_sequence: int = 64  # tokens of a sequence that few windows hold
    further_end: float = 1.3  # length of another last token: no ratio of those on the line
    chosen: float = 1e-11  # change of an answer, of its size, that is rounding where weights are zero and one

    # long tokens: times as long, in exact answers, as those of order one; learners of exact answers send such by nature
    cut_far: float = 2.0**60
    drown: float = 2.0**30  # times as long, and as short, where answers are noisy: learners drown the noise so
    cut_powers: tuple[int, int] = (12, 60)  # of two: within the first a target is no head, beyond the second nothing is asked
    cut_ways: int = 3  # further directions that long tokens are sent along, where those of the first look are cut
    cut_room: int = 5  # powers of two that are kept clear of, for values along other directions may be larger

    # invariances
    length: int = 5

    # line
    order: int = 8  # of the curve: 9 nodes, 5 of which come first
    line_lengths: tuple[int, ...] = (2, 3, 4, 6, 12, 40)
    line_loud: float = 200.0  # floors between the ends of a line, at least: a score is then known to a few percent
    uneven: float = 12.0  # steepest over least steep part of a curve that can be inverted
    bend: float = 0.01  # of the rise: what the last two orders may hold before the line is cut
    line_largest: float = 6.0  # score difference that a pair shows well
    behind: float = 5.0  # tolerances between the answer at a mean and the mean of the answers that tell one from the other
    sure: float = 0.35  # of what is allowed for coarse answers: a line that misses by more proves nothing
    sharp: float = 6e3  # a cap of 30 then misses by twice what was missed by
    sharper: float = 3e4  # the same for large scores, where a cap bends them by less than their square
    steep: float = 2.0  # score differences, at least, where large ones are looked at
    confirm: int = 45  # questions for a second line

    # one head
    # floors of a test, as many as the fresh answers of a recovery let pass: what misses by less than these may be one head all the
    # same, as far as `recover` tells
    faint: float = 340.0
    faint_coarse: float = 41.0  # the same of coarse answers: a recovery lets 2,048 floors pass, of which ``safety`` are one here
    # the same where a network takes part: 1e-8 of the answers pass, and a test allows a thousand floors of theirs
    faint_bent: float = 1e4
    one_head_lengths: tuple[int, ...] = (2, 2, 3, 3, 4, 6, 12, 40)
    # longer sequences, of lengths that are drawn, and tokens of the shortest
    further: int = 6
    steepest_further: float = 25.0  # score differences in them: what bends larger ones does not show in natural sequences
    least_further: int = 5
    natural: float = 3.0  # standard deviations by which natural tokens are longer than usual, at most: some thousand hold none such
    # how far away the last tokens lie, in turn, in lengths of the plane's axes: scores may change their law with what asks
    asked_from: tuple[float, ...] = (1.0, 4.0)
    wider: tuple[float, ...] = (
        1.0,
        2.0,
        64.0,
    )  # how far apart their tokens lie, in turn: at last, mostly, until scores are that steep
    fewer_lengths: tuple[int, ...] = (2, 3, 4, 6, 12, 40)  # where each costs three questions

    # one token
    deaf: float = 0.02  # of the answers' size: where tests allow more than that, no change by earlier tokens can be excluded
    places: int = 6  # where curvature is looked at

    # neurons that sleep on ordinary tokens: times longer ones that wake them, and steps aside there, of their length
    awake: float = 2.0**8
    aside: float = 2.0**-4

    # piecewise
    # tokens at x + u and at x: ratios 1/4 and 4 to read, 2/3 to check
    copies: tuple[tuple[int, int], ...] = ((1, 4), (4, 1), (2, 3))
    shared: int = 16  # copies of the token that stands in for a whole sequence
    wanted: float = 1.0  # score difference of a step
    alike: int = 5  # pairs of sequences that must be answered alike
    afar: float = 30.0  # times longer tokens, where neurons that are no ReLU have bent back to straight ones
    piecewise_enough: int = 60  # questions that a plane may need with all that follows

    # positions
    positions: int = 14  # questions that they may take before all lengths are asked: each compares all positions of one length

    # quick relu
    quick_relu_sizes: tuple[float, ...] = (1.0, 0.125, 8.0)  # entries of tokens at which earlier ones are listened for

    # times what the law was told to, by which bends must exceed that before it is taken to hold of them: within forty Transformers
    # one lay at 70
    clear: float = 100.0
    bent_pairs: int = 6  # pairs that are asked where they are fainter
    bent_reach: float = 1.5  # how far apart their tokens are, in lengths of the plane's axes
    bent_loud: float = 10.0  # tolerances that a bend, or a miss, must show

    # stepwise
    biased: float = 2.0**-34  # relative noise that rounding of scores of up to 2^19, as a large bias makes them, explains
    pairs: int = 2  # of tokens, for each of three sizes
    stepwise_sizes: tuple[float, ...] = (0.3, 1.0, 2.0)
    apart: float = 0.05  # share by which two slopes of a smooth function never differ at such steps
    # pairs of which one token is moved by a small share of its length, and the change of weight by a large move that must show
    still_pairs: int = 2
    small: float = 2.0**-12
    moved_far: float = 2.0**-6
    free: float = 0.01  # distance of a weight from 0 and 1 at which small moves of a score show
    few: int = 2  # pairs that must show it, for one may lie beside a jump of its own


TESTS = Settings()
