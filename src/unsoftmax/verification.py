"""``verify``: does a target run exactly these weights?"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unsoftmax.checks.first_look import first_look
from unsoftmax.checks.held_out import fresh_sequences, held_out, predictor
from unsoftmax.models import Attention, Model
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.oracles.meter import Metered
from unsoftmax.results import Floor

SLACK = 1024.0  # two honest evaluations of one model differ by this many units of the answers' precision at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Whether a target answers as a model does.

    Attributes:
        matches: no answer deviates by more than the precision of the target explains.
        max_abs_deviation: largest deviation.
        relative_deviation: the same against the standard deviation of the answers.
        threshold: relative deviation that the target's precision explains.
        sequences: fresh sequences compared.
        queries: everything asked, the look at the precision included.
        floor: precision of the answers.
        by_length: largest deviation by length of the sequences.
    """

    matches: bool
    max_abs_deviation: float
    relative_deviation: float
    threshold: float
    sequences: int
    queries: int
    floor: Floor
    by_length: dict[int, float] = field(default_factory=dict)


def verify(target: Any, model: Model, *, width: int | None = None, max_norm: float | None = None) -> Verification:
    """Compare a target with a model on fresh sequences; about 181 queries.

    Args:
        target: as for ``recover``.
        model: the weights that the target should run.
        width: token length, where the target does not tell it.
        max_norm: send no token longer than this.

    >>> import numpy as np, unsoftmax as us
    >>> head = us.Attention.single(W=np.eye(3), v=[1.0, 2.0, 3.0])
    >>> us.verify(head, head).matches
    True
    """
    if isinstance(model, Attention) and model.V is None:
        raise ValueError("This model holds W and c only (its values were not learned), so it predicts no answers to compare with.")
    oracle = Metered(as_oracle(target, width if width is not None or hasattr(target, "width") else model.width))
    if oracle.width != model.width:
        raise ValueError(f"The target takes tokens of width {oracle.width}, the weights are for width {model.width}.")
    rng = np.random.default_rng(secrets.randbits(256))
    floor = first_look(oracle, rng=rng, max_norm=max_norm).floor
    check = held_out(oracle, predictor(model), fresh_sequences(model, rng, max_norm=max_norm))
    spread = check.max_abs_error / check.relative_error if check.relative_error else 1.0
    relative = 2.0**-50 if floor.kind == "coarse" else floor.relative
    threshold = SLACK * relative + 8 * floor.absolute / spread
    return Verification(
        matches=check.relative_error <= threshold,
        max_abs_deviation=check.max_abs_error,
        relative_deviation=check.relative_error,
        threshold=threshold,
        sequences=check.sequences,
        queries=oracle.spent,
        floor=floor,
        by_length=check.by_length,
    )
