"""Every number that learning from examples goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What learning from examples goes by.

    What no comment derives was measured by ``benchmarks/from_examples.py``.
    """

    # data
    held_out: float = 0.08  # share of the answers kept for the check: enough to expose an overfit, little enough not to cause one
    most: float = 1e100  # sizes beyond this, or its inverse, leave the range of float64 on the way
    token_cut: float = 1e-10  # token directions with less than this share of the largest spread count as absent

    # errors
    largest: int = 3_000  # parameters whose normal matrix is inverted; its memory grows with the square, its time with the cube
    confident: float = 1.959964  # half-width of a 95% interval in standard deviations
    draws: int = 16
    # per draw: conjugate gradients, and the share of the gradient at which they end
    draw_steps: int = 300
    draw_accuracy: float = 1e-3
    confident_from_draws: float = 2.119905  # the same where the deviation is estimated from that many draws (Student's t)

    # fit
    # From this many feature entries on, the inner steps run in single precision (they only propose, float64 disposes) and on all
    # the threads that BLAS has.
    large: int = 200_000

    # layer
    # Below this share of the largest singular value a feature direction counts as absent: its values are set to zero
    # (least-norm solution) instead of being blown up. It sits well above the rounding of a QR of well-scaled columns.
    rank_cut: float = 1e-11
    # Cholesky QR squares the condition number. Above the first limit one round leaves a basis orthonormal to 1e-9, which is
    # enough for steps that the next evaluation corrects; a second round repairs it as long as the first is above the other limit.
    one_round: float = 1e-3
    two_rounds: float = 1e-5

    # refusals
    comfort: float = 4.0  # equations per unknown at which the fit found the layer in at least nine of ten trials

    # sculpt phases
    least_weight: float = 0.02  # weights below this have a logarithm that the distance to the answer no longer pins down
    trims: int = 3  # rounds of cutting off the rows that fit worst

    # sculpting
    net: int = 81  # points of the net on the line of heads: 3,240 pairs
    passes: int = 4  # sculptings with a better sum each time: the values found give the next one
    zooms: int = 4  # finer nets around the best pair, each a quarter as wide

    # search
    # Starts per head count and round: easy layers end in the first, which doubles the count; sparse data needs the last.
    rounds: tuple[int, ...] = (1, 1, 3, 8, 16, 40)
    together: int = 4  # starts that descend side by side where the problem is small
    most_heads: int = 32
    # share of the answers' size below which errors were never seen to hide a missing head of ordinary size
    little_noise: float = 0.03
    least_work: float = 4.0e8  # inner steps times feature entries that a search may always spend: about five seconds of one core
    exact: float = 1e-10  # relative training error below which nothing but rounding is left

    # verdict
    held_out_exact: float = 1e-8  # largest held-out error, relative to the answers' spread, that may be called exact
    surplus_for_noise: float = 3.0  # equations per unknown below which noise and misfit cannot be told apart
    most_noise: float = 0.3  # share of the answers' size that may be noise: poor fits of exact answers leave this much and more
    by_chance: float = 4.0  # times the share of the noise that as many unknowns take up, for the best of many starts takes up more
    misfit: float = 3.5  # standard deviations
    same_fit: float = 0.1  # two fits are the same when their answers differ by less than this share of the noise
    confirming_starts: int = 12


EXAMPLES = Settings()
