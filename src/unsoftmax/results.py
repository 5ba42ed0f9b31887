"""What a recovery hands back: the model, the status, the check, the bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from unsoftmax.models import Floats, Model


class Status(Enum):
    """How a recovery ended; the value is a sentence with advice."""

    EXACT = "Recovered exactly: fresh answers agree to float64 rounding."
    WITHIN_TOLERANCE = "Recovered as far as the precision of the answers allows; fresh answers agree within the stated tolerance."
    NOT_IN_FAMILY = "Not recovered: the target is outside the model family. Run `unsoftmax diagnose` to see which test it fails."
    NOT_IDENTIFIABLE = "Not recovered: different parameters give these same answers; the reason says what would tell them apart."
    BUDGET_SPENT = "Not recovered: the budget is spent. Raise it and run again; a journal keeps what was paid for."
    TOO_NOISY = "Not recovered: the answers are too coarse for this budget. Allow more queries, longer tokens or a wider tolerance."
    DRIFTING = "Not recovered: the target contradicts its own earlier answers. Pin one version of it and run again."
    TARGET_FAILED = "Not recovered: the target failed to answer. Fix the cause and run again; a journal keeps what was paid for."

    @property
    def success(self) -> bool:
        """Whether a model was recovered and verified."""
        return self in (Status.EXACT, Status.WITHIN_TOLERANCE)


@dataclass(frozen=True, slots=True)
class Floor:
    """How far an answer may lie from the real-number truth: ``absolute + relative * size`` for answers of that size.

    Attributes:
        kind: "exact", "float32", "float16", "bfloat16", "rounded", "digits" or "noisy".
        relative: error relative to the largest answer or value that enters the computation.
        absolute: error that does not shrink with the answers (half a rounding step, a noise level).
        step: rounding step of the answers, where they are rounded.
        fresh: repeating a question gives another answer.
        batch: an answer depends on the batch it rides in, beyond ``relative``.
        given: the caller vouched for it (``tolerance=``), so that it may certify bounds.
    """

    kind: str = "exact"
    relative: float = 2.0**-50
    absolute: float = 0.0
    step: float | None = None
    fresh: bool = False
    batch: bool = False
    given: bool = False

    def of(self, size: float) -> float:
        """Error to expect of answers of magnitude ``size``."""
        return self.absolute + self.relative * size


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bounds:
    """Half-widths for each parameter, shaped like the model's blocks; ``kind`` is "certified" or "estimated" (95%)."""

    kind: str
    W: Floats | None = None
    V: Floats | None = None
    c: Floats | None = None
    b: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The held-out check: fresh sequences that no learner saw, answered by target and model."""

    sequences: int
    max_abs_error: float
    relative_error: float  # largest error over the root mean square of the answers' own spread
    by_length: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Learned:
    """What a learner hands to the driver, unverified.

    Attributes:
        model: the parameters found, in canonical form.
        ambiguity: in words: the parameters are equal to the target's up to what.
        bounds: error bars, where the learner has them.
        notes: sentences for the report: ranks, conditioning, choices made.
        evidence: numbers for the report.
    """

    model: Model
    ambiguity: str
    bounds: Bounds | None = None
    notes: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Recovery:
    """The outcome of a recovery.

    Attributes:
        model: the recovered model in canonical form, or what was found before a refusal (may be None).
        status: how it ended.
        queries: sequences asked while learning, calibration and sentinels included, held-out check excluded.
        check: the held-out check, or None if the run ended before it.
        bounds: error bars per parameter, or None.
        ambiguity: in words, what cannot be known.
        message: the verdict in one sentence; for a refusal, the reason.
        facts: everything else that the report and ``recovery.json`` tell.
    """

    model: Model | None
    status: Status
    queries: int
    check: Check | None
    bounds: Bounds | None
    ambiguity: str
    message: str
    facts: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: str | Path) -> None:
        """Write ``weights.safetensors``, ``recovery.json`` and ``report.html`` into ``folder``."""
        from unsoftmax.report import save_recovery

        save_recovery(self, folder)
