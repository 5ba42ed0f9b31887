"""The account of a recovery: what the run was, what it cost and saw, as typed fields; ``recovery.json`` is drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from unsoftmax.evidence import Evidence
from unsoftmax.models import Sizes
from unsoftmax.oracles.replayed import Kept
from unsoftmax.precision.law import Floor
from unsoftmax.version import __version__


@dataclass(frozen=True, slots=True)
class Fact:
    """One tested statement: ``number`` was measured, ``threshold`` is where it turns, ``sentence`` says what it means.

    ``passed`` is None where the answers cannot tell.
    """

    test: str
    number: float
    threshold: float
    passed: bool | None
    sentence: str

    def record(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Queries:
    """Sequences asked: to learn, for the held-out check, and to confirm what a journal replayed."""

    learn: int = 0
    check: int = 0
    confirm: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.learn + self.check + self.confirm

    def record(self) -> dict[str, int]:
        """As plain data for JSON; those of a journal only where there were any."""
        told = {"learn": self.learn, "check": self.check, "total": self.total}
        return told | {"confirm": self.confirm} if self.confirm else told


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase of learning asked."""

    queries: int
    tokens: int
    calls: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Account:
    """What a recovery was, beside its model and verdict; written once.

    Attributes:
        family: name of the family that explains the answers, or was tried last.
        width: of a token.
        layout: how answers are laid out: "scalar", "vector", "all positions"; None where the target was not heard.
        outputs: numbers of an answer.
        floor: how coarse answers are, where that was measured by asking.
        tolerance: the relative error on fresh sequences that the verdict allows.
        queries: sequences asked, by purpose.
        phases: what each phase of learning asked, where there were any.
        notes: sentences for the report.
        evidence: numbers of learners and refusals, for the report.
        tests: what was tested on the way; None where nothing is tested.
        seed: of the questions.
        seconds: that the run took.
        version: of this package.
        options: what the caller wished, as a report keeps it.
        journal: what the journal holds and replayed, where one was kept.
        sizes: heads, ranks, neurons and parameters of the model.
        labels: the answers name classes, so that none of them holds a number.
        examples: how many recorded examples were learned from; None where questions were asked.
        more: what one way to a recovery alone tells, for the report.
        target: name of the target, where it has one.
        command: the command line that ran.
        authorised_by: who allowed it.
        date: when it ended.
    """

    family: str | None = None
    width: int | None = None
    layout: str | None = None
    outputs: int | None = None
    floor: Floor | None = None
    tolerance: float | None = None
    queries: Queries | None = None
    phases: Mapping[str, Phase] | None = None
    notes: tuple[str, ...] = ()
    evidence: Evidence = field(default_factory=Evidence)
    tests: tuple[Fact, ...] | None = None
    seed: int | None = None
    seconds: float | None = None
    version: str = __version__
    options: Evidence | None = None
    journal: Kept | None = None
    sizes: Sizes | None = None
    labels: bool = False
    examples: int | None = None
    more: Evidence = field(default_factory=Evidence)
    target: str | None = None
    command: str | None = None
    authorised_by: str | None = None
    date: str | None = None

    def record(self) -> dict[str, Any]:
        """As plain data, under the names that ``recovery.json`` has; what does not apply is left out."""
        always: dict[str, Any] = {
            "family": self.family,
            "width": self.width,
            "layout": self.layout,
            "outputs": self.outputs,
            "floor": None if self.floor is None else asdict(self.floor),
            "tolerance": self.tolerance,
            "notes": list(self.notes),
            "evidence": dict(self.evidence),
            "seed": self.seed,
            "version": self.version,
        }
        some: dict[str, Any] = {
            "queries": None if self.queries is None else self.queries.record(),
            "phases": None if self.phases is None else {name: asdict(phase) for name, phase in self.phases.items()},
            "tests": None if self.tests is None else [fact.record() for fact in self.tests],
            "seconds": self.seconds,
            "options": None if self.options is None else dict(self.options),
            "journal": None if self.journal is None else asdict(self.journal),
            "examples": self.examples,
            "target": self.target,
            "command": self.command,
            "authorised_by": self.authorised_by,
            "date": self.date,
        }
        sizes = {} if self.sizes is None else self.sizes.record()
        return always | {name: value for name, value in some.items() if value is not None} | sizes | dict(self.more)
