"""Every number that fresh questions and their comparison go by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What fresh questions and their comparison go by.

    What no comment derives was measured by ``benchmarks/hunt.py`` and ``benchmarks/truth.py``.
    """

    # bars
    unremarkable: float = 256.0  # units of precision by which a right model misses the largest answers
    written: float = 0.42  # of the last bit: root mean square of what writing a number down leaves out, over all mantissas
    two_sided: float = 1.96  # standard deviations of a 95% interval
    evenly: float = 0.95 * 3**0.5  # the same of errors that are spread evenly
    # mean square of the bars of values, over that of writing them down, beyond which answers are sums in short numbers: 5% of those
    # are below, and 5% of answers that are only cast beyond
    sums: float = 2.0
    normal: float = 0.6745  # median of the absolute value of a standard normal number

    # certificate
    largest_jacobian: int = 1200  # parameters; its singular values take about a second there and grow with the cube
    worst: float = 0.1  # estimated relative error beyond which a parameter is a guess

    # compare
    draws: int = 8  # of rounding errors, or of parameters within their error bars, to see how far predictions are in doubt

    # fresh
    longest: int = 256  # tokens of the longest sequences that are compared
    # the same where the caller allows longer ones, and numbers in each: a limit is no wish, and memory and time are finite
    furthest: int = 2**14
    furthest_numbers: int = 2**22
    moderate: int = 64
    per_length: int = 12  # sequences of each moderate length, sized for the model's scores
    sized: int = 11  # moderate lengths
    # lengths, and sequences of each, with tokens of natural size
    natural: int = 5
    per_natural: int = 7
    extremes: int = 3  # of one token, and of two, that are the most extreme of so many
    pool: int = 1024
    # and one more length, drawn
    long: tuple[int, ...] = (96, 128, 256)
    per_long: int = 17  # tokens cost little beside queries, and what strikes one in thousands of them is met in long sequences
    tokens: int = 14900  # of all of them, on average over the lengths drawn
    # up to so many where each costs little: exact answers in this process, of which a long sequence tells as much as a short one
    many_tokens: int = 33000
    many_numbers: int = 2**20  # and so many numbers in them: wide tokens cost more
    fewer_long: int = 10  # then, of each length but the longest
    large: int = 2**20  # numbers in all from which on drawing them takes longer than asking
    step_apart: int = 2**15  # numbers of a batch from which on a step of its own is faster than filling it up to others' length

    # rare
    beyond: int = 1024  # tokens of the shortest of the very long sequences
    very_long: int = 2**18  # and of the longest: ten milliseconds of a narrow head
    very_many: int = 2**21  # numbers in one at most
    by_bits: int = 2**18  # numbers of one from which on drawing them would take longer than asking
    patience: float = 0.25  # seconds for one, were the target to compare all tokens with each other

    # judge
    empty: float = 2.0**10  # roundings by which answers must vary, or a comparison of them proves nothing
    confidence: float = 0.99  # of the statement about sequences that were not asked

    # length
    short: float = 2.0**-4  # entries of the tokens: too small to overflow anything
    step: int = 4  # each further try is so many times shorter

    # tangent
    beside: float = 1.5  # answers for each parameter, at least: a fit of fewer leaves too little of what it does not explain
    plenty: float = 2.5  # and at most
    largest_tangent: int = 2400  # parameters; their equations take two seconds there, and only where a misfit asks for them
    worst_rows: float = 0.75  # rows that miss by more than so many others are looked at before these
    null: float = 1e-13  # of the largest singular value: smaller ones are rounding
    second_order: float = 8.0

    # noisy
    share: float = 0.02  # of the learning queries that a check may add; never fewer than the least
    least: int = 256
    false_alarm: float = 1e-6
    doubts: float = 3.0  # the error bars are estimates too, and errors of the parameters move many predictions at once
    slope_error: float = 0.25  # standard error of the slope of answers against predictions, beyond which the check proves nothing
    slope_resolution: float = 0.1  # W itself is known to a tenth
    single_outlier: float = 7.0
    lengths: int = 11  # of loud sequences


PROOF = Settings()
