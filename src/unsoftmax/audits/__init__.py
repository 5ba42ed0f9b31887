"""Defences against extraction, tried one by one; one verdict, and a gate for continuous integration."""

from unsoftmax.audits.cells import Cell
from unsoftmax.audits.curves import Curve, budgets_up_to
from unsoftmax.audits.defences import Defence, standard_defences
from unsoftmax.audits.file import AuditFile, read_audit
from unsoftmax.audits.gate import Gate, parse_gate
from unsoftmax.audits.results import Audit, Origin, Run
from unsoftmax.audits.sweep import run_audit
from unsoftmax.audits.verdict import Conclusion, Verdict, conclude, outcome
from unsoftmax.audits.wording import read_defence

__all__ = [
    "Audit",
    "AuditFile",
    "Cell",
    "Conclusion",
    "Curve",
    "Defence",
    "Gate",
    "Origin",
    "Run",
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
