"""Every number that the learner of a head behind a network goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of a head behind a network goes by.

    What no comment derives was measured by ``benchmarks/behind_network.py``.
    """

    # columns
    safety: float = 50.0  # a disagreement counts from this many estimated standard errors on
    redraws: int = 2  # other directions that are tried at a place where they contradict each other
    # how far a place is moved, in turn, until the network can be inverted there
    offsets: tuple[float, ...] = (1.0, -1.0, 0.5, -0.5, 0.2, -0.2)

    # learner
    # root mean square of a token's entries, tried in turn
    scales: tuple[float, ...] = (
        1.0,
        1.0,
        0.25,
        4.0,
        1.0,
        1 / 16,
        16.0,
        0.25,
        4.0,
        1 / 64,
        64.0,
        2.0**-9,
        2.0**9,
        2.0**-12,
        2.0**12,
    )
    # a segment this many times longer than the noise settles a score to 1e-10: no need to look for a better place
    clear: float = 2.0**36
    attempts: int = 3  # places at which the whole is tried before the last reason is given as the refusal
    learner_copies: int = 3  # of the first token, in the test that tells a residual or a second head

    # lines
    probe_bytes: int = 2**26  # no more than this many bytes of probes at once
    lines_max_steps: int = 40  # bisection alone resolves a segment to 2^-40; interpolation needs four or five steps
    # lengths tried where a segment is bent or its score saturates
    shorter: tuple[float, ...] = (1.0, 1 / 3, 1 / 9, 1 / 27, 1 / 243)

    # residual
    residual_max_steps: int = 40  # quasi-Newton steps; about eight are needed on a segment that is nearly straight
    farthest: float = 1e6  # times the size of a token: a search that leaves by so much does not come back
    residual_copies: int = 4


BEHIND = Settings()
