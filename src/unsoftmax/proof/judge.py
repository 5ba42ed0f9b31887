"""What a comparison with fresh answers entitles to say: pure functions of numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.precision.law import Floor
from unsoftmax.proof.compare import Compared
from unsoftmax.proof.limits import LIMITS
from unsoftmax.proof.settings import PROOF
from unsoftmax.results import Check


class Errors(NamedTuple):
    """Deviations relative to the spread of the answers of their kind: the largest of all, of sized and of natural sequences."""

    all: float
    sized: float
    natural: float


def relative_errors(seen: Compared, beyond: Floats | float = 0.0) -> Errors:
    """The largest deviations ``beyond`` what is explained otherwise ``(rows, 1)``, each in units of its kind's spread."""
    off = np.maximum(seen.deviations - beyond, 0.0).max(axis=1)
    spread = seen.spreads
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(off == 0, 0.0, off / spread)
    return Errors(*(float(shares[rows].max(initial=0.0)) for rows in (slice(None), ~seen.natural, seen.natural)))


def tolerance_of(floor: Floor, *, network: bool) -> float:
    """The relative error that a run holds itself to on fresh sequences, beyond what noise and rounding add.

    ``network``: answers pass through a network that is not known, so that no comparison is exact.
    """
    if floor.exact and not network:
        return LIMITS.exact
    loosest = max(LIMITS.loosest, 4 * floor.relative if floor.half else 0.0)
    return float(min(loosest, max(LIMITS.exact, LIMITS.coarse * floor.relative)))


def carries_noise(floor: Floor, noise: float) -> bool:
    """Whether answers carry random noise, measured by a fit; rounded ones may hide more of it than the rounding's own."""
    if floor.decimals and floor.step is not None:
        hidden = floor.fresh or noise <= floor.step  # more of it would show when a question is repeated: then it is a misfit
        return bool(noise > LIMITS.hidden_noise * floor.step and hidden)
    return bool(floor.random and noise > 0)


def varies(seen: Compared, relative: float) -> bool:
    """Whether sized answers vary by far more than rounding of their size: else a comparison of them is empty."""
    rows = ~seen.natural
    if not rows.any():
        rows = ~rows
    spread = float(seen.spreads[rows].max())
    return spread > PROOF.empty * min(relative, 2.0**-20) * float(np.abs(seen.answers[rows]).max()) and spread > 0


def unnoticed(sequences: int, confidence: float = PROOF.confidence) -> float:
    """Share of sequences on which a difference could have gone unnoticed, although so many drawn alike showed none.

    >>> round(unnoticed(235), 4)
    0.0194
    """
    return float(1.0 - (1.0 - confidence) ** (1.0 / max(1, sequences)))


def covered(seen: Compared, *, tolerance: float, max_norm: float | None, sampled: bool = False) -> str:
    """In words: which sequences were compared, and what that says about others drawn like them."""
    lengths = np.unique(seen.lengths)
    sizes = "tokens sized for the model's scores"
    if seen.natural.any():
        natural = "like the natural samples given" if sampled else "with entries of standard deviation one"
        sizes += f" and {natural}" if max_norm is None else f" and {natural}, none longer than {max_norm:g}"
    tokens = sum(len(batch.sequences) * batch.length for batch in seen.batches)
    words = (
        f"{seen.drawn} fresh sequences of {lengths.min()} to {lengths.max():,} tokens ({len(lengths)} lengths, drawn; "
        f"{tokens:,} tokens in all), {sizes}, "
        f"at {seen.where}. A target that differs by more than {tolerance:.1g} of the answers' spread on more than "
        f"{unnoticed(seen.drawn):.1%} of sequences drawn like these would have been noticed with {PROOF.confidence:.0%} "
        f"confidence, and so would one that does where one token in {1 / unnoticed(tokens):,.0f} meets it."
    )
    if seen.drawn < seen.sequences:
        words += f" {seen.sequences - seen.drawn} others were the most extreme of many short ones."
    if seen.unanswered:
        words += f" Natural tokens got no answer at lengths {', '.join(map(str, seen.unanswered))}: nothing is said about those."
    return words


def checked(seen: Compared, covers: str) -> Check:
    """The comparison as a ``Check``: the largest deviations, absolute and relative, and by length."""
    off = seen.deviations.max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(off == 0, 0.0, off / seen.spreads)
    errors = relative_errors(seen)
    lengths, which = np.unique(seen.lengths, return_inverse=True)
    worst = np.zeros(len(lengths))
    np.maximum.at(worst, which, shares)
    return Check(
        sequences=seen.sequences,
        max_abs_error=float(off.max()),
        relative_error=errors.all,
        natural_error=errors.natural if seen.natural.any() else None,
        by_length=dict(zip(lengths.tolist(), worst.tolist(), strict=True)),
        covers=covers,
    )
