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
    tokens: tuple[int, int] = (2, 7)  # of the fresh sequences on either side of the boundary that the model must tell apart
    margin: float = 10.0  # times the largest change seen among models within the error bars
    answer_rounding: float = 64 * 2.0**-52  # of an answer, relative to the values in it

    # classes
    sample: int = 96  # one-token questions per class among which starts of lines are chosen
    sample_octaves: tuple[float, float] = (-1.0, 4.0)  # lengths of those tokens, around that at which two labels were first seen
    extra: float = 1.3  # lines per unknown
    # misfit of the planes between classes, relative to the length of tokens, that rounding does not explain
    classes_bent: float = 1e-9
    flat: float = 1e-7  # singular value of what must be determined, relative to the largest, below which it is not
    # places of the boundary tried as the middle of a design: nearer, as found, and further out
    middles: tuple[float, ...] = (0.25, 1.0, 4.0)
    room: float = 0.5  # of the distance to the next class, that a design may take; and of the widest room, that a place must have

    # design
    corners: int = 6  # keys that form a simplex, so that the score along v is known too
    short: float = 0.5  # of other keys' lengths: keys of the simplex cannot be mirrored, so their scores must not be too low

    # equations
    rounding: float = 2.0**-52  # of products of tokens with v, relative to their size

    # learner
    accuracy: float = 2e-12  # relative error of W that is aimed at, where labels are right
    float32: float = 1e-5  # of targets that compute in float32
    noisy_accuracy: float = 1e-3  # where some labels are wrong
    patient: int = 50  # calls beyond one for each bit, where nothing hurries
    values: float = 2.0**-8  # accuracy of the plane, relative to that of W: distances from it enter as logarithms
    clear: float = 0.03  # of the distance of tokens from the plane, to which it must be known before scores are asked
    near: float = 4.0  # over the length of tokens, the usual one: those nearer to the plane need it better known
    shallower: float = 0.25  # of the depth: where scores along v are so large that paths have no boundary
    loosest: float = 30.0  # times the accuracy wanted, and the error of W, beyond which a result is none
    loose: float = 1e-5
    tiny: float = 1e-9  # scores of a W so small show nowhere
    early: int = 24  # calls of which questions are kept

    # low rank
    rank_clear: float = 5.0  # times the largest rounding: singular values between are asked about once more
    worth: float = 0.8  # of the entries of W: a rank with more parameters is read as if it were full
    spare: int = 2  # singular values of a block that must be rounding before a rank is low
    hurried_widths: int = 16  # widths from which a block is a small part of the bill, and rounds are saved on it
    aimed: float = 0.1  # of a direction, what must be left of it beside v

    # majority
    wrong: float = 1e-8  # chance that the label which leads is wrong
    shaken: float = 2.0**-34  # relative change of a question asked again: labels that are wrong for a question stay wrong for it

    # paths
    # paths to one late one from which on that one gets a third and a fourth bit a round, for 7 and 15 labels
    few: tuple[int, int] = (16, 64)
    behind: float = 8.0  # times as wide as the usual bracket: three labels behind
    hurry: float = 2.0**-8  # width of brackets of scores at which a block shows its rank: late ones hurry until then

    # recognised
    questions: int = 12  # tokens of natural length, and the same many times as long
    longer: float = 2.0**12  # so many times
    most_classes: int = 2 * questions // 3  # different labels: a third of what so many numbers would be

    # scores
    first_bits: int = 3  # of each of the first scores, from which their usual size is told
    octaves: float = 1.5  # doublings by which it may be off before tokens are chosen anew
    # largest singular value of rounding alone, in units of it and of the root of the size of a block; 2 is usual
    noise: float = 3.0
    slack: float = 1.2  # finer than wanted
    nearly: float = 3.0  # times the accuracy wanted of W
    # a key that never wins has a score too low for the lean of its token: the opposite one, further out, has a higher one. Twice as
    # far, not as far: keys of a simplex and their opposites alone do not tell the score along v.
    opposite: float = -2.0
    repairs: int = 6  # times that a path is moved

    # search
    bits: int = 50  # of a place relative to the tokens: the last ones that a float64 tells
    finest: float = 2.0**-bits
    linear: float = 0.25  # brackets narrower than this share of the prior's standard deviation are halved in the middle
    lowest: float = -1.5  # log-odds beyond which a key never wins, or its distance from the plane drowns in rounding
    highest: float = 6.0
    mirrored: float = 0.7  # standard deviations below 0 that a mirrored boundary may lie, since keys are not mirrored along v
    beyond: float = 2.0  # standard deviations of a prior that are taken at its word

    # sizes
    beside: float = 0.125  # distance of tokens from the plane, of their offset
    odds: float = 0.5  # log-odds that the score must exceed
    sigma: float = 0.35  # standard deviation of scores that are asked: small, so that every path has its boundary near the middle

    # start
    directions: int = 4  # asked on either side, at each of these lengths
    lengths: tuple[float, ...] = (2.0**-4, 1.0, 2.0**4, 2.0**10, 2.0**20)  # of tokens, times the root of the width
    first: int = 2 * directions * len(lengths)
    flips: int = 48  # labels far from the boundary that show whether labels are wrong now and then
    most: float = 0.2  # flip rate beyond which too few bits come through

    # values
    rough: int = 9  # bits of the rough search: then the plane is known to about a percent
    values_bent: float = 40.0  # misfit of a plane to the rough points, in units of their own rounding, that a plane does not show
    reach: float = 5.0  # standard deviations of the rough plane that fine brackets reach to either side
    widest: int = 6  # times that a bracket without a boundary is made eight times as wide
    alone: int = 5  # rounds of the fine search before others ride along
    hurried: float = 2.0**-20  # width of brackets, relative to the tokens, down to which it gets two bits a round


BOUNDARY = Settings()
