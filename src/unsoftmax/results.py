"""What a recovery hands back: the model, the status, the check, the bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from unsoftmax.accounts import Account, Queries
from unsoftmax.accounts import Fact as Fact
from unsoftmax.brevity import Brief
from unsoftmax.errors import RefusalError, Sign
from unsoftmax.evidence import Evidence
from unsoftmax.models import Floats, Model
from unsoftmax.precision.law import Floor as Floor


class Status(Enum):
    """How a recovery ended; the value is a sentence with advice."""

    EXACT = "Recovered exactly: fresh answers agree to float64 rounding."
    WITHIN_TOLERANCE = "Recovered as far as the precision of the answers allows; fresh answers agree within the stated tolerance."
    NOT_IN_FAMILY = "Not recovered: the target is outside the model family. Run `unsoftmax diagnose` to see which test it fails."
    INCONCLUSIVE = "Not recovered, and not shown to be outside the model families: the reason says what would decide."
    NOT_IDENTIFIABLE = "Not recovered: different parameters give these same answers; the reason says what would tell them apart."
    BUDGET_SPENT = "Not recovered: the budget is spent. Raise it and run again; a journal keeps what was paid for."
    TOO_NOISY = "Not recovered: the answers are too coarse for this budget. Allow more queries, longer tokens or a wider tolerance."
    DRIFTING = "Not recovered: the target contradicts its own earlier answers. Pin one version of it and run again."
    TARGET_FAILED = "Not recovered: the target failed to answer. Fix the cause and run again; a journal keeps what was paid for."

    @property
    def success(self) -> bool:
        """Whether a model was recovered and verified."""
        return self in (Status.EXACT, Status.WITHIN_TOLERANCE)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bounds:
    """Half-widths for each parameter, shaped like the model's blocks; ``kind`` is "certified" or "estimated" (95%)."""

    kind: str
    W: Floats | None = None
    V: Floats | None = None
    c: Floats | None = None
    b: Floats | None = None

    @property
    def certified(self) -> bool:
        """Whether the truth lies inside for certain, where answers are as precise as the caller said."""
        return self.kind == "certified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The held-out check: fresh sequences that no learner saw, answered by target and model."""

    sequences: int
    max_abs_error: float
    relative_error: float  # largest error over the root mean square of the answers' own spread
    natural_error: float | None = None  # the same of sequences with tokens of natural size; None where none were asked
    by_length: dict[int, float] = field(default_factory=dict)  # relative errors, by number of tokens
    covers: str = ""  # in words: what was compared, and what that says about other sequences


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Learned:
    """What a learner hands to the driver, unverified.

    Attributes:
        model: the parameters found, in canonical form.
        ambiguity: in words: the parameters are equal to the target's up to what.
        bounds: error bars, where the learner has them.
        notes: sentences for the report: ranks, conditioning, choices made.
        evidence: numbers for the report, frozen when it is made: they are printed, and nothing reads them.
        ranks: rank of each head's W, where it was found.
        noise: the answers' noise as a fit measured it, and from how many degrees of freedom.
        entry_error: expected error of an entry of W where that is coarser than the answers are.
        known_to: expected relative error of the scores, as conditioning and the learner's own check tell; 0 where it is rounding.
        mixing: ``(I + V)^-1 V (width, width)`` of a residual path around attention whose network is not known.
        rehearsals: what the learner found when the model itself was asked in the target's place, where that gave the error bars.
        values_again: bars of V rest on values that were asked again, which fresh answers do not tell better.
        causal: where every position is answered, whether later tokens are hidden from it.
        labels: what a target says that tells classes and nothing else; empty for numbers.
        flip_rate: share of these labels that are wrong.
        answers_off: relative standard deviation of the answers that these rehearsals assume.
    """

    model: Model
    ambiguity: str
    bounds: Bounds | None = None
    notes: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=Evidence)
    ranks: tuple[int, ...] | None = None
    noise: tuple[float, int] | None = None
    entry_error: float = 0.0
    known_to: float = 0.0
    mixing: Floats | None = None
    rehearsals: tuple[Model, ...] = ()
    answers_off: float = 0.0
    values_again: bool = False
    causal: bool = False
    labels: tuple[float, ...] = ()
    flip_rate: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "evidence", Evidence(self.evidence))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Outcome:
    """What a learner came back with, as a value: something learned, or the reason why not.

    Attributes:
        learned: the model found, unverified.
        refusal: why nothing was learned, or why what was learned does not explain the answers.
    """

    learned: Learned | None = None
    refusal: RefusalError | None = None

    @property
    def explains(self) -> bool:
        """Whether what was learned explains the answers so far, so that fresh ones may judge it."""
        return self.learned is not None and self.refusal is None

    @property
    def signs(self) -> tuple[Sign, ...]:
        """What a refusal says beside its reason."""
        return () if self.refusal is None else self.refusal.signs


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Proof:
    """What fresh answers say about a model.

    Attributes:
        status: EXACT or WITHIN_TOLERANCE, or that of the refusal.
        check: how far fresh answers deviate; None if the run ended before.
        tolerance: the relative error on fresh sequences that the verdict allows, noise and rounding of the answers included.
        refusal: why the model is not announced.
        bounds: error bars that allow for the misfit seen; None where those of the learner stand.
    """

    status: Status
    check: Check | None
    tolerance: float
    refusal: RefusalError | None = None
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Recovery(Brief):
    """The outcome of a recovery.

    Attributes:
        model: the recovered model in canonical form, or what was found before a refusal (may be None).
        status: how it ended.
        queries: sequences asked while learning, calibration and sentinels included, held-out check excluded.
        check: the held-out check, or None if the run ended before it.
        bounds: error bars per parameter, or None.
        ambiguity: in words, what cannot be known.
        message: the verdict in one sentence; for a refusal, the reason.
        account: what the run was, cost and saw, as typed fields; ``facts`` shows it by the names of ``recovery.json``.
    """

    model: Model | None
    status: Status
    queries: int
    check: Check | None
    bounds: Bounds | None
    ambiguity: str
    message: str
    account: Account = field(default_factory=Account)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The account by the names of ``recovery.json``, to be read by people and scripts; nothing in this package reads it."""
        return MappingProxyType(self.account.record())

    @property
    def spent(self) -> Queries:
        """Sequences asked, by purpose."""
        return self.account.queries or Queries(self.queries)

    def noted(self, *notes: str) -> Recovery:
        """The same with more sentences for the report; a recovery itself is never written to."""
        return replace(self, account=replace(self.account, notes=(*self.account.notes, *notes)))

    def of(self, *, target: str, command: str, authorised_by: str | None, date: str) -> Recovery:
        """The same with where it comes from: the target's name, the command line, who allowed it, and when."""
        known = replace(self.account, target=target, command=command, authorised_by=authorised_by, date=date)
        return replace(self, account=known)

    def save(self, folder: str | Path) -> None:
        """Write ``weights.safetensors``, ``recovery.json`` and ``report.html`` into ``folder``."""
        from unsoftmax.report import save_recovery

        save_recovery(self, folder)
