"""Every number that the laws of families and the choices between learners go by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the laws of families and the choices between learners go by.

    What no comment derives was measured by ``benchmarks/diagnose.py`` and ``benchmarks/golden.py``.
    """

    # candidates
    bent: float = 0.01  # of the answers' size: no rounding or noise of steady float64 answers bends them so far
    # the same for float32 numbers, among which those of half precision are: four of them miss by 0.016 at most
    bent_single: float = 0.05
    computed: float = 4.0  # numbers inside a float32 target may be that much larger than its answers
    # answers in the first look's test of straightness, each within the tolerance vouched for
    vouched: float = 4 * (1 + 2.0**-30)

    # attention
    some: int = 16  # questions more or less than planned, as the answers demand
    noisy_check_reserve: int = 256  # queries that a budget leaves to the held-out check under noise; of large ones, a share
    check_share: float = 0.02
    largest_check_share: float = 0.25  # of a small budget
    spare: int = 8  # sentinels, and answers asked again
    first_questions: int = 64  # and to the questions before a noisy head is fitted
    asked_before: int = 40  # the first look, calibration and sentinels
    plenty: int = 1000  # queries that a narrow target is given in any case
    generous: int = 60  # queries per parameter that noisy answers are given of a large budget
    rounded: float = 64.0  # units of the floor, of answers themselves, that no model explains
    coarsely: float = 2.0**11  # misfit of one right head on a few float32 answers, in units of the floor
    fits: float = 1e-10  # the same for exact answers, of their size
    faintly: float = 1e-6  # where it misses by less, rounding of faint outputs, chance, or a tolerance that suits is looked for
    rehearsed: int = (
        2**21
    )  # numbers in all questions of a run that is rehearsed: beyond, bars follow from the answers' precision alone
    # entries of the tokens whose scores are of order one, at least: else natural ones score 2^60, which no float64 tells
    shortest: float = 2.0**-30
    # tokens of the sequences that tell one head from several that pass for one; the longer one shows a window, too
    lengths: tuple[int, int] = (64, 4)
    repeated: int = 4  # times that a long one is asked again, before a window is what it is missed for

    # stack and decoder
    narrowest: int = 6  # width of the narrowest stack that is tried
    straight: float = 1e-9  # one-token answers nearer to an affine function than that have no norm in them
    # largest error of some hundred fresh sequences, long ones among them, over that of the learner's few
    spread: float = 8.0

    # decoder
    rounding: float = 2.0**-40  # differences of answers, relative, that rounding inside the target explains
    # answers that do not repeat
    again: int = 16  # times that each question is asked
    grown: float = 1e3  # answers to very long tokens, over those to ordinary ones, that no norm bounds
    within: float = 2.5  # errors within which two means are one; those of two directions must differ by twice that
    near: float = 0.7  # share of what answers vary by at all, from which on they are little but noise
    least: int = 12  # width below which there is no room for the first design and its outputs

    # smooth
    # copies that are sent, and how far their answer may be from that to one, of its size
    copies: int = 3
    alike: float = 1e-9
    # deviation of one-token answers from an affine function, relative to their size, that no float32 inside explains
    curved: float = 2.0**-20

    # stack
    checks: int = 4  # sequences that the learner tries by itself; the proof asks some hundred more
    ellipsoid: float = 1e-3  # distance from one up to which answers lie on it; epsilon inside post-norm blocks leaves 1e-5
    bounded: float = 2.0**20  # answers to tokens of length 2^40 and more, where the last token is zero
    # deviation of one-token answers from a straight line, relative to their size, that tokens rounded to 8 bits explain
    rounded_bend: float = 2.0**-3
    single_misfit: float = 2.0**-14  # of the answers' size: what scores of float32 explain, up to some thousand of them


LAWS = Settings()
