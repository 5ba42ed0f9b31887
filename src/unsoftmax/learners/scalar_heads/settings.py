"""Every number that the learner of several heads behind scalar answers goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of several heads behind scalar answers goes by.

    What no comment derives was measured by ``benchmarks/scalar_heads.py``.
    """

    # build
    levels: float = 2.0**-30  # sums of levels agree to this, relative to the largest
    build_far: float = -(2.0**20)  # far to the left on any line
    stages: int = 4  # turns in which heads are measured, those that show best first: more would save little and cost calls

    # clusters
    rounding: float = 2.0**-52  # of an answer in exact float64 arithmetic, relative to its terms
    misfit: float = 2.0**-40  # of a joint fit: rounding of an answer, and of scores of up to a few hundred
    # values do not change with the token, unless read wrong, like the scores, of a head that is almost saturated
    same_values: float = 1e-6
    split_noise: float = 2.0**-44  # misfit of a split, relative to the responses: rounding times the dozen terms of an answer

    # design
    candidates: int = 400

    # flat
    kinds: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (1, 2), (5, 1), (1, 5))

    # learner
    long: float = 2.0**10  # one-token questions: long enough that a constant b does not cost digits of V
    # walked before heads that jump at one place are taken to share a hyperplane: a walk costs less than a joint fit
    lines: int = 2
    fresh: int = 12  # sequences of the learner's own check
    cancelled: float = 2.0**-30  # the sum of all values against their size, below which they are taken to add up to nothing
    worst: float = 1e-7  # heads that rounding alone moves further than this are not told apart
    good: float = 1e-11  # error of the own check that rounding explains for heads that are well apart
    # the largest for heads that are not: the held-out check, whose scores are larger, sees up to 20 times as much
    closest: float = 4e-10
    related: float = 0.1  # a model that misses by less has the heads, or their sums, and is worth refining
    largest_together: int = 600  # parameters refined together: a quarter of a second a step
    together_steps: int = 12
    # scores, of about 1, that readings of a head may differ by from what it says: saturated ones are off by far more
    consistent: float = 1e-3
    steady: float = 1e2  # times its expected error that a head may move when it is measured again
    almost: float = 1e-3  # a model that misses by less is one of heads almost alike
    within: float = 1e-2  # relative error of V, shared out among heads almost alike, that measuring them apart can mend
    alike: float = 0.05  # distance between the scores of two heads, relative, below which they are almost alike

    # loewner
    few: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (3, 1), (1, 3), (8, 1), (1, 8), (6, 1), (1, 6))
    most_together: int = 5  # the pencil of six heads loses nine of sixteen digits

    # measure
    quiet: float = 12.0  # scores of the other heads when they are known well enough to be subtracted
    legible: float = 20.0  # still larger ones tell nothing but their sign
    # heads with scores below this part of another's move too little beside it to need silencing, once they are known
    faint: float = 1e-2
    longer: float = 32.0  # steps over tokens, without biases
    # a head's first column is read at steps at which scores are about this; it serves where others are at most so many times longer
    first_score: float = 2.0
    lead: float = 8.0
    readable: float = 4.0  # larger scores are asked again nearer to zero: a sigmoid loses exp(|z|) of its precision

    # pairs
    chunk: int = 2**22  # numbers in one call: 32 MB

    # polish
    largest_polish: int = 1200  # parameters that are refined together; the time grows with the cube
    spare: float = 1.5  # answers per parameter
    visible: float = 64.0  # times its expected error: a W or c below that may be zero, and zeros have no relative error
    smallest: float = 1e-13  # singular value, relative, below which a direction is left alone

    # walk
    saturated: float = 45.0  # exp(-45) is far below float64 rounding: such a sigmoid is 0 or 1
    walk_far: float = 2.0**40  # length of tokens that saturate whatever can be
    # the walk's step over the step that just saturates: transitions are narrow, yet bisected in a dozen questions
    zoom: float = 2.0**12
    first_zoom: float = 2.0**2  # sigmoids of so short a step are wide: met in a few questions, if seldom one head alone
    zoom_limit: float = 2.0**24  # closer heads than SATURATED / ZOOM_LIMIT cannot be measured to 1e-8 afterwards
    # of the cells of a walk; more heads than that would share cells, and the next walk is twice as fine
    most_moving: float = 0.75
    # times rounding that readings of one pattern may contradict each other by: a sigmoid that is not quite 0 or 1 shows
    settled: float = 64.0
    roughly: float = 1e-3  # score and slope at the place of a jump, as foretold from scores far from zero
    tries: int = 2  # at judging a jump: the first place may come from scores far from zero
    same: float = 2.0**-38  # levels closer than this, relative to the largest, are one level


SCALAR = Settings()
