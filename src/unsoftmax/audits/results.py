"""What an audit hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from unsoftmax.audits.cells import Cell
from unsoftmax.audits.curves import Curve
from unsoftmax.audits.verdict import Conclusion
from unsoftmax.brevity import Brief


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What an audit was.

    Attributes:
        width: of a token.
        budget: sequences that each extraction might ask.
        max_norm: of the tokens, where the target takes no longer ones.
        seed: of all questions.
        version: of this package.
        honest_questions: asked of the undefended target, to measure by.
        honest_asked_twice: how many of them twice.
        honest_noise: standard deviation of the target's own noise, as these showed.
        seconds: that the audit took.
        date: when it ended.
    """

    width: int
    budget: int
    max_norm: float | None = None
    seed: int
    version: str
    honest_questions: int
    honest_asked_twice: int
    honest_noise: float
    seconds: float
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where an audit comes from: the target's name, whether it is a server, in which currency it is billed, who allowed it."""

    target: str
    remote: bool
    currency: str | None
    authorised_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Audit(Brief):
    """A finished audit.

    Attributes:
        cells: one per defence, the target as it stands first.
        conclusion: the verdict, the gate and the exit code.
        spread: standard deviation of honest answers.
        rate: sequences a second that the attacker may ask, where told.
        price: price of 1000 sequences, where told.
        run: what the audit was, and what it asked beside the extractions.
        curves: error against queries, where they were asked for.
        origin: where it comes from, where Python told.
    """

    cells: tuple[Cell, ...]
    conclusion: Conclusion
    spread: float
    rate: float | None
    price: float | None
    run: Run
    curves: tuple[Curve, ...] = ()
    origin: Origin | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """The run by the names of ``audit.json``, to be read by people and scripts; nothing in this package reads it."""
        return MappingProxyType(asdict(self.run) | ({} if self.origin is None else asdict(self.origin)))

    def save(self, folder: str | Path) -> None:
        """Write ``audit.json`` and ``report.html`` into ``folder``."""
        from unsoftmax.report.audit_record import save_audit

        save_audit(self, folder)
