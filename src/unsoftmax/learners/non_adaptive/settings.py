"""Every number that learning from fixed probes goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What learning from fixed probes goes by.

    What no comment derives was measured by ``benchmarks/special_access.py``.
    """

    # learner
    held_back: float = 0.05  # share of the pairs that no fit sees: they tell a solution from an interpolation
    fewest_back: int = 8
    starts: int = 8  # of the factored solver when the rank is known
    agrees: float = 1e-8  # misfit of held-back pairs, relative to the scores, up to which exact answers count as explained
    invisible: float = 1e-8  # scores between tokens of unit entries below this leave every answer as if W were zero
    loosest: float = 1e-2  # beyond, held-back pairs prove nothing
    worst: float = 1e3  # a score whose error is this many times the usual one is left out
    check_length: int = 6
    call_bytes: int = 2**26

    # low rank fit
    alternations: int = 40  # half of them usually decide whether a start leads home
    newton_steps: int = 60
    solved: float = 1e-11  # relative misfit at which a fit counts as exact; rounding leaves 1e-13
    stalled: float = 0.995  # an alternation that lowers the misfit by less has found a local minimum or the wrong rank


FIXED = Settings()
