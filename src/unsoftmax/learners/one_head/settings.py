"""Every number that the learner of one head goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of one head goes by.

    What no comment derives was measured by ``benchmarks/one_head.py`` and ``benchmarks/cost.py``.
    """

    # learner
    # last tokens against keys where nothing forbids it: their own value and score drop below the rounding
    separation: float = 2.0**-60
    nearest: float = 0.25  # last tokens against keys otherwise: keeps the frames well conditioned
    beside: float = 1.0  # the same where keys are steps from the last token: longer ones cost as many digits as they give
    # rms score of the probes: larger loses digits in the tails, smaller loses them against the rounding
    score: float = 0.6
    careful: float = 0.15  # the same for the first column, because a few probes tell its size only roughly
    largest_gain: float = 2.0**120  # a W that shows no score at this magnification is zero
    low_rank_growth: float = 32.0  # of errors in W that is known through a basis of its range (measured: 3 to 100)
    readable: float = 12.0  # scores beyond this are not trusted to tell the size of others
    resizes: int = 4  # times that a whole set of keys is asked again because one of them saturates
    # error bars of W against W from which on it is not called known (they are a few dozen times wider than errors are)
    digits: float = 1e-4
    unseen: float = 1e-8  # size that a W of no visible entry may have against the query bias, to be called zero
    strays: float = 0.25  # share of the keys that may saturate for those alone to be asked again
    median: float = 0.67  # of the absolute scores of random keys, where their rms is 1
    # errors of coarse answers that scores of natural tokens may magnify: 16 units of the answers' precision, where fresh ones are
    # held to 2,048 and two tokens that nearly tie show an error of scores up to a hundred times larger
    magnified: float = 64.0
    axis: float = 2.0**3  # the least length of tokens that tell values beside a constant
    share_of_c: float = 8.0  # c is in every column and costs as much as one, so that it is read so many times better
    patience: int = 4  # times as many questions that W may take for that
    # axes asked again, and numbers that they tell, to see how far values are off: a standard deviation known to an eighth or better
    axes_again: int = 8
    read_again: int = 16
    learner_search: int = 24  # steps of a search for the right size; each covers many powers of two

    # positions
    loud: float = 2.0**70  # size of the tokens that win all attention: ordinary tokens and the constant vanish beside them
    asking: float = 2.0**20  # size of the tokens that attend to them: large, so that W x outweighs a query bias
    naming: float = 2.0**-16  # step of the factors that tell which loud token was looked at
    positions_search: int = 12  # changes of size before giving up
    ladder: float = 60.0  # powers of two, up and down, among which the size of a query bias is looked for
    biased: float = 1.5  # score that the bias gives a token along the most biased of as many directions: the others have less
    askers: int = 16  # asking tokens per direction: few loud directions are then missed

    # score matrix
    noise: float = 4.0  # rounding error of a score in units of the answers' relative precision (measured: 1 to 3)
    # a block is regular without a closer look if rounding would have to be this many times larger to make it singular
    certain: float = 64.0
    evident: float = 2.0**-22  # of a block's size: singular values beyond it show in their squares, whose rounding is far smaller
    vanished: float = 32.0  # singular values up to this many times the rounding of one product, times sqrt(size), are rounding
    chosen: int = 32  # columns of a low rank that are chosen among those read, since one alone may be faint by chance
    spare: int = 2  # rows more that a singular block is looked at with
    # the rank is low only if singular values drop by this much, or a third of all decades; one that fades is read whole
    gap: float = 30.0
    # products read with scores this many times too small are read again; by chance they are 4 to 20 times so
    faintly: float = 32.0
    typical: int = 32  # tokens that tell the size of scores for all
    pilot: int = 8  # products or rows that are read ahead of the others, because the size of scores is known only roughly
    signs: int = 8  # choices of signs for the keys that read rows
    waste: float = 0.02  # share of the bill that finding a low rank may cost
    # growth of that share up to full rank: few heads have a rank of half their width, and steps take time
    waste_more: float = 6.0
    wasted: int = 8  # queries that it may cost besides
    mended: int = 256  # width up to which rounding in the rotations is mended; beyond, that of the answers outweighs it
    nearly_all: float = 0.9  # of the width: a rank beyond this saves no more than 1% of the queries
    haste: float = 8.0  # growth of that share on a device, where a step takes as long as many thousand queries
    hasted: int = 4096  # and queries that it may cost besides there, or 1/16 of all

    # scores
    saturated: float = 8.0  # a score beyond this has lost four digits; it is asked again with a shorter token
    saturated_coarsely: float = 4.0  # two digits, where answers have no more than seven
    retries: int = 8
    faintest: float = 1e-6  # value direction, of the strongest, that still carries a score
    # units of the answers' precision: a direction fainter than that would cost more digits than queries
    worth_asking: float = 2.0**17


HEAD = Settings()
