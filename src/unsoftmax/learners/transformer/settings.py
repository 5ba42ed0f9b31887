"""Every number that the learner of Transformers goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of Transformers goes by.

    What no comment derives was measured by ``benchmarks/networks.py``.
    """

    # fit
    rounds: int = 6
    student: float = 2.2  # standard deviations of a 95% interval, where each parameter rests on a dozen answers or so
    largest_leverage: float = 0.99  # an answer that alone determines a parameter says nothing about its own error
    largest: int = 250_000_000  # numbers in the system of equations; beyond, the model is left as it was read
    faint: float = 1e-13  # ridge relative to the columns: directions that no answer determines stay where they are

    # learner
    checks: int = 16  # fresh sequences, of 2, 3, 5 and 8 tokens, that the finished model must answer
    accept: float = 1e-8  # error accepted there, relative to the spread of the answers
    bias: float = 1e-7  # scores that a query bias must reach, after the fit, to be one
    no_worse: float = 2.0  # misfit without scores against that with them, up to which answers do not show that there are any
    coarse: float = 2.0  # more answers for the fit where they are rounded, per entry of W
    # sequences for each entry of W and fits, each from the last, where answers are of short precision
    rough_share: float = 4.0
    rough_rounds: int = 3
    rough_accept: float = 2048.0  # units of that precision which the finished model may miss by, as the proof allows
    doubtful: float = 3.0  # half widths of its 95% interval that a bias, or a direction of W, must reach
    farthest: float = 1e6  # length of tokens that outweigh rounding, where no bound is set

    # model
    chunk_numbers: int = 2**22  # 32 MB of probes in one call

    # paths
    chunk: int = 256  # paths worked out at once

    # reading
    no_bias: float = 1e-9  # scores at x = 0 below this (in exact answers) mean that there is no query bias
    places: int = 64  # random places, of which the steepest stands in for an origin at which no neuron is awake
    asleep: float = 1e-6  # steepness of the network, relative to the steepest of those places, below which it is rounding

    # scores
    largest_score: float = 3.0  # |logit| beyond which a step is repeated shorter: the sigmoid has lost a factor 10 of its slope
    tries: int = 14  # a saturated step is shortened by 8 each time: enough for scores of 1e12
    rank: float = 1e-8  # a column is inside the space found so far if it leaves it by no more than this share of its length
    silent: float = 1e-10  # scores below this are rounding: no column at all

    # values
    # distance of saturated probes, in lengths of the network: a score that is moderate by accident is then one in 1e9
    far: float = 1e6
    margin: float = 5.0  # distance to the nearest bend, in steps, that is fair
    stride: float = 1e-3  # their step against that distance: small enough to stay in one linear piece, large enough to saturate
    pairs: int = 4  # places at which the two hypotheses are compared
    robust: int = 20  # rounds of reweighting
    newton: int = 12  # steps at most; one or two where a piece was left
    clear: float = 1e-4  # least singular value of the gradients used, relative to the largest: more cells are asked below it
    agree: float = 1e-5  # relative deviation that still counts as agreement


TRANSFORMER = Settings()
