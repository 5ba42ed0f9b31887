"""``verify``: does a target run exactly these weights?"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unsoftmax.errors import check_positive
from unsoftmax.models import Floats, Model
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.oracles.base import LastPosition
from unsoftmax.oracles.contradiction import replicas
from unsoftmax.oracles.meter import Metered
from unsoftmax.precision.first_look import first_look
from unsoftmax.precision.formats import formats
from unsoftmax.proof.compare import compared
from unsoftmax.proof.fresh import COUNT, PER_LENGTH, Fresh, fresh_batches
from unsoftmax.proof.judge import checked, covered
from unsoftmax.proof.length import longest_taken
from unsoftmax.results import Floor

# two honest evaluations of one model differ by this many units of their precision at most, in units of the answers' spread
SLACK = {"exact": 1024.0, "float32": 1024.0, "float16": 64.0, "bfloat16": 64.0}  # measured: 80 in float32, 25 in half precision
DOUBLE = 2.0**-50
STEADY = 2.0**-8  # of the largest answer: where answers vary by less, their own size tells the size of rounding
REPEATED = 4  # batches of fresh sequences that are asked again where repetitions differ
LARGEST = 6.0  # deviation of some thousand answers in standard deviations of their noise, beyond the doubt about its size
DOUBTS = 5.0  # standard errors by which deviations may exceed the noise of repetitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
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


def verify(
    target: Any,
    model: Model,
    *,
    width: int | None = None,
    max_norm: float | None = None,
    max_length: int | None = None,
    check: int | None = None,
) -> Verification:
    """Compare a target with a model on fresh sequences, as far as rounding, a short number format or noise of its answers let it.

    Price: 182 queries, and 76 more where only noise could explain a deviation.

    Args:
        target: as for ``recover``.
        model: the weights that the target should run.
        width: token length, where the target does not tell it.
        max_norm: send no token longer than this.
        max_length: send no sequence of more tokens than this; None finds out what the target takes.
        check: fresh sequences to compare; None for about 235.

    >>> import numpy as np, unsoftmax as us
    >>> head = us.Attention.single(W=np.eye(3), v=[1.0, 2.0, 3.0])
    >>> us.verify(head, head).matches
    True
    """
    if getattr(model, "V", model) is None:
        raise ValueError("This model holds W and c only (its values were not learned), so it predicts no answers to compare with.")
    check_positive(max_norm=max_norm)
    oracle = Metered(as_oracle(target, width if width is not None or hasattr(target, "width") else model.width))
    if oracle.width != model.width:
        raise ValueError(f"The target takes tokens of width {oracle.width}, the weights are for width {model.width}.")
    rng = np.random.default_rng(secrets.randbits(256))
    look = first_look(oracle, rng=rng, max_norm=max_norm)
    if look.outputs != (model.outputs or 1):
        raise ValueError(f"The target answers with {look.outputs} numbers, a model of these weights with {model.outputs or 1}.")
    longest = longest_taken(oracle, rng, max_norm=max_norm) if max_length is None else max_length
    times = 1.0 if check is None else check / COUNT
    batches = fresh_batches(model, rng, max_norm=max_norm, longest=longest, times=times)
    seen = compared(oracle, model, batches)
    answers, deviations = seen.answers, seen.answers - seen.predicted
    found = checked(seen, covered(seen, tolerance=SLACK["exact"] * DOUBLE, max_norm=max_norm))
    size = max(float(np.sqrt(np.mean(np.var(answers, axis=0)))), STEADY * float(np.abs(answers).max()), np.finfo(float).tiny)
    written = formats(answers)
    floors = [Floor(), *([] if look.floor.fresh else written)]
    ratios = [_excess(floor, answers, deviations, size) for floor in floors]
    best = next((i for i, ratio in enumerate(ratios) if ratio <= 1.0), int(np.argmin(ratios)))
    floor, excess = floors[best], ratios[best]
    if excess > 1.0:
        noise = _noise(oracle, answers, batches)
        if noise > DOUBLE * size and replicas(LastPosition(oracle), batches[0].sequences[0])[0] == 1:  # several models are no noise
            floor = Floor("noisy", absolute=noise, step=written[0].step if written else None, fresh=True)
            excess = _beyond_noise(deviations, floor, answers.shape[1])
    relative = found.max_abs_error / size
    return Verification(
        matches=excess <= 1.0,
        max_abs_deviation=found.max_abs_error,
        relative_deviation=relative,
        threshold=relative / excess if excess > 0 else SLACK["exact"] * DOUBLE,
        sequences=found.sequences,
        queries=oracle.spent,
        floor=floor,
        by_length=found.by_length,
        covers=found.covers,
    )


def _noise(oracle: Metered, answers: Floats, batches: list[Fresh]) -> float:
    """Standard deviation of one answer's noise, from a few batches asked again."""
    again = np.concatenate(
        [LastPosition(oracle)(batch.sequences).reshape(len(batch.sequences), -1) for batch in batches[:REPEATED]]
    )
    return float(np.sqrt(np.mean((again - answers[: len(again)]) ** 2) / 2))


def _beyond_noise(deviations: Floats, floor: Floor, outputs: int) -> float:
    """How many times deviations exceed what noise, measured on a few repetitions, explains: the largest, and all together."""
    step = floor.step or 0.0
    doubt = 1.0 + DOUBTS * float(np.sqrt(0.5 / deviations.size + 0.5 / (REPEATED * PER_LENGTH * outputs)))
    largest, typical = float(np.abs(deviations).max()), float(np.sqrt(np.mean(deviations**2)))
    return max(largest / (LARGEST * doubt * floor.absolute + step), typical / (doubt * float(np.hypot(floor.absolute, step))))


def _excess(floor: Floor, answers: Floats, deviations: Floats, size: float) -> float:
    """How many times deviations exceed what this precision explains."""
    coarse = floor.relative * (np.abs(answers) + SLACK.get(floor.kind, 0.0) * size) + floor.absolute
    explained = coarse * (1.0 + 2.0**-20) + SLACK["exact"] * DOUBLE * size
    return float((np.abs(deviations) / explained).max())
