"""Defences against extraction, tried one by one; one verdict, and a gate for continuous integration."""

from unsoftmax.audit.cells import Cell
from unsoftmax.audit.defences import Defence, standard_defences
from unsoftmax.audit.gate import Gate, parse_gate
from unsoftmax.audit.sweep import Audit, run_audit
from unsoftmax.audit.verdict import Conclusion, Verdict, conclude, outcome

__all__ = [
    "Audit",
    "Cell",
    "Conclusion",
    "Defence",
    "Gate",
    "Verdict",
    "conclude",
    "outcome",
    "parse_gate",
    "run_audit",
    "standard_defences",
]
