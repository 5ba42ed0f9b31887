"""Every number that the learner of labels goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of labels goes by.

    What no comment derives was measured by ``benchmarks/labels.py``.
    """

    # bill
    overhead: float = 4.0  # labels of a path beyond its bits: the way to the bracket, and the width of brackets

    # check
    check_lengths: tuple[int, int] = (2, 7)
    natural: float = 1.0  # standard deviation of the entries of a token
    halvings: int = 60
    draws: int = 6
    check_margin: float = 10.0  # times the largest change seen among models within the error bars
    tries: int = 40

    # classes
    sample: int = 96  # one-token questions per class among which starts of lines are chosen
    classes_octaves: tuple[float, float] = (-1.0, 4.0)  # lengths of those tokens, around that at which two labels were first seen
    fewest: int = 2  # tokens of a class, or it is too rare
    extra: float = 1.3  # lines per unknown
    last_bits: float = 2.0**-50
    classes_most_rounds: int = 70
    # misfit of the planes between classes, relative to the length of tokens, that rounding does not explain
    classes_bent: float = 1e-9
    flat: float = 1e-7  # singular value of what must be determined, relative to the largest, below which it is not
    # places of the boundary tried as the middle of a design: nearer, as found, and further out
    classes_longer: tuple[float, ...] = (0.25, 1.0, 4.0)
    octave: float = 2.0  # doublings of the distance from the origin, of which one place each is looked at
    enough: float = 0.5  # of the widest room, relative to the distance from the origin
    room: float = 0.5  # of the distance to the next class, that a design may take

    # design
    corners: int = 6  # keys that form a simplex, so that the score along v is known too
    short: float = 0.5  # of other keys' lengths: keys of the simplex cannot be mirrored, so their scores must not be too low

    # foresight
    tests: int = 12  # keys, two labels each
    length: float = 1.5  # of the keys that were asked
    foresight_margin: float = 8.0  # standard deviations on either side of the boundary foretold
    steps: int = 50
    # places between which a boundary must lie to be foretold
    foresight_lowest: float = -1.0
    foresight_highest: float = 5.0
    foresight_near: float = 1e-4
    misses: int = 2  # labels that may be wrong

    # learner
    accuracy: float = 2e-12  # relative error of W that is aimed at, where labels are right
    float32: float = 1e-5  # of targets that compute in float32
    noisy_accuracy: float = 1e-3
    patient: int = 50  # calls beyond one for each bit, where nothing hurries
    values: float = 2.0**-8  # accuracy of the plane, relative to that of W: distances from it enter as logarithms
    learner_clear: float = 0.03  # of the distance of tokens from the plane, to which it must be known before scores are asked
    clearing: int = 40  # rounds for that
    learner_near: float = 4.0  # over the length of tokens, the usual one: those nearer to the plane need it better known
    shallower: float = 0.25  # of the depth: where scores along v are so large that paths have no boundary
    designs: int = 6  # choices of tokens before a target is given up
    checks: int = 16  # pairs of fresh questions of each length, one on either side of the boundary
    # times the accuracy wanted, and the error of W, beyond which a result is none
    loosest: float = 30.0
    loose: float = 1e-5
    tiny: float = 1e-9  # scores of a W so small show nowhere
    early: int = 24  # calls of which questions are kept
    again: int = 32  # earlier labels that are asked again where the model fails

    # low rank
    low_rank_clear: float = 5.0  # times the largest rounding: singular values between are asked about once more
    finer: float = 2.0**-4
    looks: int = 3
    worth: float = 0.8  # of the entries of W: a rank with more parameters is read as if it were full
    spare: int = 2  # singular values of a block that must be rounding before a rank is low
    low_rank_hurried: int = 16  # widths from which a block is a small part of the bill, and rounds are saved on it
    shortest: float = 2.0**-8
    aimed: float = 0.1  # of a direction, what must be left of it beside v

    # majority
    wrong: float = 1e-8  # chance that the label which leads is wrong
    shaken: float = 2.0**-34  # relative change of a question asked again: labels that are wrong for a question stay wrong for it

    # paths
    # paths to one late one from which on that one gets a third and a fourth bit a round, for 7 and 15 labels
    few: tuple[int, int] = (16, 64)
    behind: float = 8.0  # times as wide as the usual bracket: three labels behind
    hurry: float = 2.0**-8

    # recognised
    questions: int = 12  # tokens of natural length, and the same many times as long
    recognised_longer: float = 2.0**12
    most_classes: int = 8  # different labels: a third of what so many numbers would be

    # scores
    coarse: float = 2.0**-7  # width of brackets when ranks and final widths are settled
    block: float = 2.0**-8  # and when a block shows whether its rank is low
    first_bits: int = 3  # of each of the first scores, from which their usual size is told
    scores_octaves: float = 1.5  # doublings by which it may be off before tokens are chosen anew
    # largest singular value of rounding alone, in units of it and of the root of the size of a block; 2 is usual
    noise: float = 3.0
    slack: float = 1.2  # finer than wanted
    nearly: float = 3.0  # times the accuracy wanted of W
    scores_most_rounds: int = 128  # twice the bits of a number
    # a key that never wins has a score too low for the lean of its token: the opposite one, further out, has a higher one. Twice as
    # far, not as far: keys of a simplex and their opposites alone do not tell the score along v.
    opposite: float = -2.0
    repairs: int = 6  # times that a path is moved
    scores_finest: float = 2.0**-49

    # search
    linear: float = 0.25  # brackets narrower than this share of the prior's standard deviation are halved in the middle
    # log-odds beyond which a key never wins, or its distance from the plane drowns in rounding
    search_lowest: float = -1.5
    search_highest: float = 6.0
    mirrored: float = 0.7  # standard deviations below 0 that a mirrored boundary may lie, since keys are not mirrored along v
    beyond: float = 2.0  # standard deviations of a prior that are taken at its word
    guessed: float = 2.0**-4  # of a standard deviation: brackets that have shrunk to a lower end which nobody asked
    deepest: float = 1e-300

    # sizes
    pairs: int = 8
    doublings: float = 12.0  # shorter and longer than the tokens of the first labels that are tried
    most_labels: int = 12  # where labels may be wrong
    normal: float = 1.5  # standard deviation of scores whose usual size is 1: of normal ones 1.25, of those of low rank more
    step: float = 1.0  # doublings to which a length is found
    beside: float = 0.125  # distance of tokens from the plane, of their offset
    sizes_known: float = 8.0  # times the uncertainty of the plane
    odds: float = 0.5  # log-odds that the score must exceed
    further: tuple[float, ...] = (2.0, 16.0, 128.0)  # times that length, where last tokens lie until W shows in their scores
    shown: float = 1.5  # times as large scores as beside the foot: then W shows
    faint: float = 0.1  # share of the scores that W is taken to have where it does not show
    sizes_longer: float = 6.0  # than where W alone would need them: last tokens at most
    moved: float = 8.0  # keys that had to be moved are several times as long as others
    sigma: float = 0.35  # standard deviation of scores that are asked: small, so that every path has its boundary near the middle
    # of the score along v, at a token's distance from the plane: where it is larger, some paths have no boundary
    lean: float = 0.06
    dominant: float = 1.0  # times that the part of W in scores exceeds the part that is the same for all tokens

    # start
    directions: int = 4
    start_lengths: tuple[float, ...] = (2.0**-4, 1.0, 2.0**4, 2.0**10, 2.0**20)  # of tokens, times the root of the width
    flips: int = 48  # labels far from the boundary that show whether labels are wrong now and then
    some_flips: int = 160  # the same before a target is refused
    more_flips: int = 464  # more of them, once one was wrong
    most: float = 0.2  # flip rate beyond which too few bits come through
    farthest: float = 0.9  # of the longest token allowed

    # values
    rough: int = 9  # bits of the rough search: then the plane is known to about a percent
    values_bent: float = 40.0  # misfit of a plane to the rough points, in units of their own rounding, that a plane does not show
    reach: float = 5.0  # standard deviations of the rough plane that fine brackets reach to either side
    widest: int = 6  # times that a bracket without a boundary is made eight times as wide
    values_finest: float = 2.0**-50  # width of fine brackets, relative to the tokens: the last bits
    values_most_rounds: int = 60
    alone: int = 5  # rounds of the fine search before others ride along
    values_hurried: float = 2.0**-20  # width of brackets, relative to the tokens, down to which it gets two bits a round
    values_known: float = 10.0  # standard deviations from 0 of a rough offset that is none


BOUNDARY = Settings()
