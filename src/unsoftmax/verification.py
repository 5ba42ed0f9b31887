"""``verify``: does a target answer as these weights do?"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unsoftmax.brevity import Brief
from unsoftmax.deployment.halves import beyond_half
from unsoftmax.errors import check_positive
from unsoftmax.families import family_of, named
from unsoftmax.models import Floats, Model
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.oracles.base import LastPosition
from unsoftmax.oracles.contradiction import replicas
from unsoftmax.oracles.meter import Metered
from unsoftmax.precision.first_look import first_look
from unsoftmax.precision.formats import formats
from unsoftmax.proof.compare import Compared, compared, predicted_as
from unsoftmax.proof.fresh import Fresh, fresh_batches
from unsoftmax.proof.judge import checked, covered
from unsoftmax.proof.length import longest_taken
from unsoftmax.proof.limits import LIMITS
from unsoftmax.proof.settings import PROOF
from unsoftmax.results import Floor


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verification(Brief):
    """Whether a target answers as a model does.

    Attributes:
        matches: no answer deviates by more than the precision of the target explains.
        max_abs_deviation: largest deviation.
        relative_deviation: the same against the standard deviation of the answers, or 1/256 of the largest if that is more.
        threshold: relative deviation that the target's precision explains; where that differs from answer to answer, the relative
            deviation divided by the worst ratio of a deviation to what is explained there.
        sequences: fresh sequences compared.
        queries: everything asked, the look at the precision included.
        floor: precision of the answers.
        by_length: largest relative deviation by length of the sequences.
        covers: in words, what was compared.
        would_show: behind float16 or bfloat16 answers, the smallest relative change that would have shown: by block, where every
            weight of it is off by an amount of its own, and of all scores as a whole (``"scores"``); None: none below 1.
    """

    matches: bool
    max_abs_deviation: float
    relative_deviation: float
    threshold: float
    sequences: int
    queries: int
    floor: Floor
    by_length: dict[int, float] = field(default_factory=dict)
    covers: str = ""
    would_show: dict[str, float | None] = field(default_factory=dict)


def verify(
    target: Any,
    model: Model,
    *,
    width: int | None = None,
    max_norm: float | None = None,
    max_length: int | None = None,
    check: int | None = None,
    tolerance: float = 0.0,
    on_progress: Callable[[str, int], None] | None = None,
) -> Verification:
    """Compare a target with a model on fresh sequences, as far as rounding, a short number format or noise of its answers let it.

    Price: 242 queries; 72 more where only noise could explain a deviation, 960 more where answers are float16 or bfloat16 numbers.

    Args:
        target: as for ``recover``.
        model: the weights that the target should run; the heads of a stack or decoder alone are compared on very long tokens.
        width: token length, where the target does not tell it.
        max_norm: send no token longer than this.
        max_length: send no sequence of more tokens than this; None finds out what the target takes.
        check: fresh sequences to compare; None for about 235.
        tolerance: how well the model itself is known, as a share of the answers' spread: a recovered one matches only so far.
        on_progress: called with a phase name and a number of sequences after every call.

    >>> import numpy as np, unsoftmax as us
    >>> head = us.Attention.single(W=np.eye(3), v=[1.0, 2.0, 3.0])
    >>> us.verify(head, head).matches
    True
    """
    part = None if model.can_answer else named(family_of(model))
    if part is not None and not part.compares_parts:
        raise ValueError(
            "Parts of this model were not learned (the values of a head, a network behind it), so it predicts no answers to "
            "compare with."
        )
    check_positive(max_norm=max_norm)
    known = as_oracle(target, width if width is not None or hasattr(target, "width") else model.width)
    oracle = Metered(known, on_count=on_progress)
    if oracle.width != model.width:
        raise ValueError(f"The target takes tokens of width {oracle.width}, the weights are for width {model.width}.")
    if part is not None:
        tolerance = max(tolerance, part.part_error)
    rng = np.random.default_rng(secrets.randbits(256))
    look = first_look(oracle, rng=rng, max_norm=max_norm)
    if look.outputs != (model.outputs or 1):
        raise ValueError(f"The target answers with {look.outputs} numbers, a model of these weights with {model.outputs or 1}.")
    longest = longest_taken(oracle, rng, max_norm=max_norm) if max_length is None else max_length
    batches = fresh_batches(model, rng, max_norm=max_norm, longest=longest, count=check)
    seen = compared(oracle, model, batches) if part is None else part.compare_part(oracle, model, batches, look.grid, rng)
    answers, deviations = seen.answers, seen.answers - seen.predicted
    found = checked(seen, covered(seen, tolerance=max(tolerance, LIMITS.slack * LIMITS.double), max_norm=max_norm))
    size = _sizes(seen)
    slack = tolerance * size
    if part is None:  # by the rounding of scores
        slack = slack + LIMITS.shaken * np.abs(predicted_as(seen, model.shaken(LIMITS.shake * LIMITS.double, rng)) - seen.predicted)
    written = formats(answers)
    floors = [Floor(), *written]
    ratios = [_excess(floor, answers, deviations, size, slack) for floor in floors]
    best = next((i for i, ratio in enumerate(ratios) if ratio <= 1.0), int(np.argmin(ratios)))
    floor, excess = floors[best], ratios[best]
    would_show: dict[str, float | None] = {}
    if floor.half and part is None:
        beyond = beyond_half(oracle, model, floor.unit, rng, max_norm)
        excess = max(excess, beyond.excess)
        would_show = beyond.shown
    elif excess > 1.0 and part is None:
        noise = _noise(oracle, model, seen, batches)
        if noise > LIMITS.double * float(size.max()) and replicas(LastPosition(oracle), batches[0].sequences[0])[0] == 1:
            # several models are no noise
            floor = Floor("noisy", absolute=noise, step=written[0].step if written else None, fresh=True)
            excess = _beyond_noise(np.maximum(np.abs(deviations) - slack, 0.0), floor, answers.shape[1])
    relative = float((np.abs(deviations) / size).max())
    return Verification(
        matches=excess <= 1.0,
        max_abs_deviation=found.max_abs_error,
        relative_deviation=relative,
        threshold=relative / excess if excess > 0 else max(tolerance, LIMITS.slack * LIMITS.double),
        sequences=found.sequences,
        queries=oracle.spent,
        floor=floor,
        by_length=found.by_length,
        covers=found.covers,
        would_show=would_show,
    )


def _sizes(seen: Compared) -> Floats:
    """What rounding is relative to, for each row ``(rows, 1)``: the spread of answers of its kind, or a share of the largest."""
    size = seen.spreads.copy()
    for kind in (False, True):
        rows = seen.natural == kind
        if rows.any():
            size[rows] = np.maximum(size[rows], LIMITS.steady * float(np.abs(seen.answers[rows]).max()))
    return np.maximum(size, np.finfo(float).tiny)[:, None]


def _noise(oracle: Metered, model: Model, seen: Compared, batches: list[Fresh]) -> float:
    """Standard deviation of one answer's noise, from a few batches asked again."""
    again = compared(oracle, model, batches[: LIMITS.repeated]).answers
    return float(np.sqrt(np.mean((again - seen.answers[: len(again)]) ** 2) / 2))


def _beyond_noise(deviations: Floats, floor: Floor, outputs: int) -> float:
    """How many times deviations exceed what noise, measured on a few repetitions, explains: the largest, and all together."""
    step = floor.step or 0.0
    doubt = 1.0 + LIMITS.repetition_doubts * float(
        np.sqrt(0.5 / deviations.size + 0.5 / (LIMITS.repeated * PROOF.per_length * outputs))
    )
    largest, typical = float(np.abs(deviations).max()), float(np.sqrt(np.mean(deviations**2)))
    return max(
        largest / (LIMITS.largest * doubt * floor.absolute + step), typical / (doubt * float(np.hypot(floor.absolute, step)))
    )


def _excess(floor: Floor, answers: Floats, deviations: Floats, size: Floats, slack: Floats) -> float:
    """How many times deviations exceed what this precision explains."""
    units = 0.0 if floor.decimals or floor.digits else LIMITS.slack_half if floor.half else LIMITS.slack
    coarse = floor.relative * (np.abs(answers) + units * size) + floor.absolute
    explained = coarse * (1.0 + 2.0**-20) + LIMITS.slack * LIMITS.double * size + slack
    return float((np.abs(deviations) / explained).max())
