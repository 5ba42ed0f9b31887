"""The one verdict: from what extraction achieved to a word, a sentence and an exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from unsoftmax.audits.cells import Cell
from unsoftmax.audits.gate import Gate

CLOSE = 1e-2  # an error within this share of the answers' spread: a copy that users could not tell apart
ROUGH = 0.5  # up to here a model explains most of the answers


class Verdict(Enum):
    """What the audit says of the target as it stands; the value is a sentence."""

    EXTRACTABLE = "A copy of the model can be extracted within the budget."
    PARTIAL = "A part of the model, or a rough copy of it, can be extracted within the budget."
    NOT_WITHIN_BUDGET = "Extraction did not succeed within the budget; a larger one may."
    OUT_OF_FAMILY = "The target is outside the model families that this tool extracts; other attacks were not tried."
    INCONCLUSIVE = "The audit could not decide; the reason stands beside it."

    @property
    def words(self) -> str:
        """As screens and files show it."""
        return self.name.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The verdict with all that follows from it: screen, JSON and exit code read this and nothing else."""

    verdict: Verdict
    gate: str | None  # the condition, where there was one
    gate_failed: bool
    sentence: str
    exit_code: int
    stopped_by: tuple[str, ...]  # defences under which nothing useful came out
    weakened_by: tuple[str, ...]  # defences under which only a rough, partial or unverified copy came out


def contradicts(cell: Cell) -> bool:
    """Whether a success misses the honest answers by far more than its own check: the target tells questions apart.

    An exact copy is within ``CLOSE`` of every honest answer, under any defence. Of the target as it stands the same holds for a
    copy within tolerance, up to what its own check showed.
    """
    if cell.error is None or not cell.values_known:
        return False
    if cell.status == "EXACT":
        return cell.error > CLOSE
    own = cell.status == "WITHIN_TOLERANCE" and cell.defence.base and cell.check_error is not None
    return own and cell.error > max(ROUGH, 100.0 * (cell.check_error or 0.0))  # honest questions are no harder than that


def whole_part(cell: Cell) -> bool:
    """Whether all that can be read of a deep model came out."""
    return bool(cell.part) and cell.error is not None and cell.error <= CLOSE


def outcome(cell: Cell) -> Verdict:
    """What one cell shows."""
    if cell.status in ("EXACT", "WITHIN_TOLERANCE") and cell.values_known and cell.error is not None and cell.error <= CLOSE:
        return Verdict.EXTRACTABLE
    if cell.status in ("DRIFTING", "TARGET_FAILED", "ERROR") or contradicts(cell):
        return Verdict.INCONCLUSIVE
    # a defence may spoil the extraction's own check, but not the comparison with undefended answers: a close copy is leaked
    if cell.status == "NOT_IN_FAMILY" and not cell.told and (cell.error is None or cell.error > CLOSE):
        return Verdict.OUT_OF_FAMILY
    scores_only = cell.status in ("EXACT", "WITHIN_TOLERANCE") and not cell.values_known
    if scores_only or (cell.error is not None and cell.error <= ROUGH):
        return Verdict.PARTIAL
    if cell.status in ("NOT_IDENTIFIABLE", "INCONCLUSIVE"):
        return Verdict.INCONCLUSIVE
    return Verdict.NOT_WITHIN_BUDGET


def conclude(cells: list[Cell], values: Mapping[str, float], gate: Gate | None) -> Conclusion:
    """The verdict on the first cell, the target as it stands; ``values`` are the numbers that the gate may name.

    Exit code 1 if the gate fails, or cannot be decided; 3 or 5 if the target failed or drifted; else 0.
    """
    present = cells[0]
    verdict = outcome(present)
    compared = cells[1:] if verdict is Verdict.EXTRACTABLE or present.part else []
    reason = present.message
    if contradicts(present):
        reason = (
            f"The extraction's own check agrees, and yet its copy misses honest answers by {present.error:.2g} of their spread: "
            "the target answers the two kinds of questions differently, so that neither tells what it is."
        )
    sentence = verdict.value if verdict is not Verdict.INCONCLUSIVE else f"{verdict.value} {reason}"
    sentence += f" Extracted: {present.part}." if verdict is Verdict.PARTIAL and present.part else ""
    failed = False
    if gate is not None:
        tripped = gate.tripped(values)
        undecided = verdict is Verdict.INCONCLUSIVE
        failed = bool(tripped) or undecided
        if tripped:
            sentence += f" Gate failed: {' and '.join(clause.told(values) for clause in tripped)}."
        elif undecided:
            sentence += f" Gate failed: {gate.text!r} cannot be decided."
        else:
            sentence += f" Gate passed: {gate.text!r} does not hold."
    # inconclusive for the target's own fault, as every command reports it
    code = {"TARGET_FAILED": 3, "DRIFTING": 5}.get(present.status, int(failed))
    return Conclusion(
        verdict=verdict,
        gate=None if gate is None else gate.text,
        gate_failed=failed,
        sentence=sentence,
        exit_code=code,
        stopped_by=tuple(c.defence.name for c in compared if outcome(c) is Verdict.NOT_WITHIN_BUDGET),
        weakened_by=tuple(c.defence.name for c in compared if outcome(c) is Verdict.PARTIAL and not whole_part(c)),
    )
