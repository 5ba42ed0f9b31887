"""Defences against extraction, tried one by one; one verdict, and a gate for continuous integration."""

from unsoftmax.audit.cells import Cell
from unsoftmax.audit.curves import Curve, budgets_up_to
from unsoftmax.audit.defences import Defence, standard_defences
from unsoftmax.audit.file import AuditFile, read_audit
from unsoftmax.audit.gate import Gate, parse_gate
from unsoftmax.audit.sweep import Audit, run_audit
from unsoftmax.audit.verdict import Conclusion, Verdict, conclude, outcome
from unsoftmax.audit.wording import read_defence

__all__ = [
    "Audit",
    "AuditFile",
    "Cell",
    "Conclusion",
    "Curve",
    "Defence",
    "Gate",
    "Verdict",
    "budgets_up_to",
    "conclude",
    "outcome",
    "parse_gate",
    "read_audit",
    "read_defence",
    "run_audit",
    "standard_defences",
]
