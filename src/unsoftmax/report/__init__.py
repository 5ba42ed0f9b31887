"""Results to text, JSON and HTML; no numerics."""

from unsoftmax.report.files import save, save_recovery
from unsoftmax.report.record import recovery_json, recovery_record
from unsoftmax.report.screen import print_recovery

__all__ = ["print_recovery", "recovery_json", "recovery_record", "save", "save_recovery"]
