"""The numbers by which fresh answers are judged, each with its reason; nothing else in this room is a threshold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What a proof allows. Those marked "measured" were set by ``benchmarks/hunt.py`` and ``benchmarks/truth.py``.

    Attributes:
        exact: relative error on fresh sequences up to which float64 answers count as matched (the contract's).
        coarse: the same in units of the answers' own relative precision, for coarser answers (measured).
        loosest: relative error beyond which a match proves nothing.
        half: share of the answers' spread beyond which noise hides any model.
        almost: heads that explain fresh sequences this far, but not to rounding, are merged ones (measured).
        constant: misfit of one head that the rounding of a large constant explains, of the largest answer (measured).
        hidden_noise: of a rounding step: rounding alone errs by 0.29 (rms) of it.
        repetitions: fresh questions asked again where noise may hide within a rounding step.
        shake: units of the precision by which scores inside a target may be off.
        shaken: times the change under one such draw: another draw may be larger.
        doubts: standard deviations by which predictions may be off within the stated error bars.
        foreign: times what rounding and error bars explain, of float64 answers, beyond which something else takes part. Heads of
            every kind reach 1.3 at most, foreign bodies that change natural answers by 1e-9 reach 2,000 (measured).
        faintest: of the loudest output's spread: what is fainter is rounding of the others.
        own_rounding: of an output's size: misfit that its own rounding explains.
        foretold_lengths: of natural sequences on which errors by short numbers and by error bars are foretold without asking.
        foretold: tokens of all those of one length.
        ties: sequences of one length at most.
        shared: tokens of each where all scores are known to one share of themselves.
        moderate: scores that numbers of 4 bytes tell to a thousandth.
        tied: tokens of all those of one length where only error bars count.
        sensitive: of them that are looked at closely: those that one draw within the bars moves most.
        asked_again: fresh questions, the worst, that are repeated before a target is blamed.
        again: of a misfit of very long sequences that only chance explains when asked again: two strokes of it may look alike.
        grows: times what answers differ by from call to call, by which a model that was learned from them may miss.
        puzzling: early answers, at most, that a right model does not explain and that are asked again.
        fewest: fresh sequences, or nothing is announced.
        slack: units of precision by which two honest evaluations of one model differ at most, of the answers' spread
            (``tests/test_verification.py``: 80 in float32).
        slack_half: the same in half precision (25).
        double: precision of float64 answers in such units.
        steady: share of the largest answer: where answers vary by less, their own size tells the size of rounding.
        repeated: batches of fresh sequences that are asked again where repetitions differ.
        largest: deviation of some thousand answers in standard deviations of their noise, beyond the doubt about its size.
        repetition_doubts: standard errors by which deviations may exceed the noise of repetitions.
    """

    exact: float = 1e-8
    coarse: float = 2048.0
    loosest: float = 1e-2
    half: float = 0.5
    almost: float = 1e-5
    constant: float = 2.0**-38
    hidden_noise: float = 0.31
    repetitions: int = 32
    shake: float = 4.0
    shaken: float = 8.0
    doubts: float = 4.0
    foreign: float = 16.0
    faintest: float = 2.0**-44
    own_rounding: float = 2.0**-40
    foretold_lengths: tuple[int, ...] = (1, 2, 4, 16, 64)
    foretold: int = 4096
    ties: int = 2048
    shared: int = 12
    moderate: float = 2.0**12
    tied: int = 32768
    sensitive: int = 64
    asked_again: int = 4
    again: float = 2.0**-10
    grows: float = 2.0**12
    puzzling: int = 32
    fewest: int = 11
    slack: float = 1024.0
    slack_half: float = 64.0
    double: float = 2.0**-50
    steady: float = 2.0**-8
    repeated: int = 4
    largest: float = 6.0
    repetition_doubts: float = 5.0


LIMITS = Limits()
