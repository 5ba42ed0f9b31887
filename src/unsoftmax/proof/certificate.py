"""The certificate of a recovered layer: it answers like the target, says nothing twice, and nothing else would fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Attention, Floats
from unsoftmax.proof.settings import PROOF
from unsoftmax.symmetry import attention_jacobian, canonical, head_gap, identifiability, numerical_nullity


@dataclass(frozen=True, slots=True)
class Certificate:
    """Why a recovered attention layer may be believed, or not.

    Attributes:
        holds: all conditions are met.
        held_out: relative error on fresh sequences.
        reduced: the layer is in canonical form: no two heads equal, none empty.
        nullity: directions in parameter space that no answer shows.
        condition: condition number of the answers' Jacobian at random sequences, None where the layer is too large.
        estimated_error: held-out error, or rounding if that is larger, times the condition; an estimate of the parameters'
            relative error, not a bound.
        gap: smallest relative distance between the (W, c) of two heads; infinite for one head.
        reasons: sentences: what fails, or what was checked.
    """

    holds: bool
    held_out: float
    reduced: bool
    nullity: int
    condition: float | None
    estimated_error: float | None
    gap: float
    reasons: tuple[str, ...]


def certificate(model: Attention, *, held_out: float, tolerance: float = 1e-8, rounding: float = 2.0**-52) -> Certificate:
    """Judge a recovered layer: held-out error, canonical reduction, nullity, conditioning. Asks nothing.

    A small held-out error alone is not enough: extra heads with V close to zero, or heads split in two, answer alike. With a
    nullity of zero and ``rounding * condition`` below 0.1 no other layer of as many heads is near.

    Args:
        model: the recovered layer.
        held_out: its relative error on fresh sequences.
        tolerance: the largest held-out error that counts as a match.
        rounding: relative precision of the answers.
    """
    if model.values is None:
        raise ValueError("A certificate judges answers, and this layer has no V. Judge W and c by other means.")
    gap = head_gap(model)
    known = identifiability(model)
    # what the held-out error leaves open is no difference between heads, nor a value
    reduced = canonical(model, tolerance=max(2.0**-46, min(held_out, tolerance))).heads == model.heads
    reduced = reduced and any(map(model.values.shows, range(model.heads)))
    condition = None
    if known.parameters <= PROOF.largest_jacobian:
        numerical, condition = numerical_nullity(_rows(model, known.parameters))
        condition = np.inf if numerical > known.nullity else condition
    error = None if condition is None else max(rounding, held_out) * condition
    failures = []
    if not held_out <= tolerance:
        failures.append(f"Fresh sequences differ by {held_out:.2g} of their spread, where {tolerance:.1g} is allowed.")
    if not reduced:
        failures.append("The layer is not in canonical form: two of its heads are equal, or one has no value.")
    if known.nullity:
        failures.append(f"{known.nullity} directions in parameter space show in no answer.")
    if condition is not None and rounding * condition > PROOF.worst:
        failures.append(f"The answers determine the parameters only to {rounding * condition:.1g} (condition {condition:.1g}).")
    reasons = tuple(failures) or (
        f"Fresh sequences agree to {held_out:.1g} of their spread.",
        f"{model.heads} head{'s' * (model.heads != 1)} in canonical form; every direction in parameter space shows in the answers.",
        *(() if error is None else (f"Estimated parameter error {error:.1g} (condition {condition:.1g}).",)),
    )
    return Certificate(not failures, held_out, reduced, known.nullity, condition, error, gap, reasons)


def _rows(model: Attention, parameters: int) -> Floats:
    """The Jacobian at random sequences of 1 to 6 tokens whose scores are around 1 for the heads, strong or weak."""
    rng = np.random.default_rng(0)  # fixed: a verdict must not change from call to call
    strengths = np.linalg.norm(model.W, axis=(1, 2)) / model.width + np.linalg.norm(model.c, axis=1) / np.sqrt(model.width)
    live = strengths[strengths > 0.0]
    sizes = np.unique(1.0 / np.sqrt(live)) if live.size else np.ones(1)
    sizes = np.concatenate([sizes, 2.0 * sizes]) / np.sqrt(model.width)
    count = 2 * parameters // (5 * len(sizes) * (model.outputs or 1)) + 8
    pieces = [attention_jacobian(model, size * rng.normal(size=(count, n, model.width)))[1] for size in sizes for n in range(1, 7)]
    return np.concatenate(pieces).reshape(-1, parameters)
