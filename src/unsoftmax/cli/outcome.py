"""From outcomes to exit codes; one table for every command."""

from __future__ import annotations

import dis
import os
import shlex
import sys
import tempfile
import traceback

from unsoftmax.errors import RefusalError, UnsoftmaxError
from unsoftmax.oracles.text import plain
from unsoftmax.results import Status
from unsoftmax.version import __version__

SUCCESS, NOT_RECOVERED, BAD_INPUT, TARGET_FAILED, BUDGET_SPENT, DRIFTING = 0, 1, 2, 3, 4, 5
FAULT = 70  # a fault of ours (EX_SOFTWARE)

CODES = {
    Status.EXACT: SUCCESS,
    Status.WITHIN_TOLERANCE: SUCCESS,
    Status.NOT_IN_FAMILY: NOT_RECOVERED,
    Status.INCONCLUSIVE: NOT_RECOVERED,
    Status.NOT_IDENTIFIABLE: NOT_RECOVERED,
    Status.TOO_NOISY: NOT_RECOVERED,
    Status.TARGET_FAILED: TARGET_FAILED,
    Status.BUDGET_SPENT: BUDGET_SPENT,
    Status.DRIFTING: DRIFTING,
}


def words_of(error: BaseException) -> str:
    """What to tell about an exception, in one printable line."""
    if isinstance(error, MemoryError):
        return f"This does not fit into the memory of this machine ({plain(error)}). Choose a smaller width or fewer numbers."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{plain(error.filename)} cannot be read or written: {plain(error.strerror)}."
    known = isinstance(error, UnsoftmaxError | ValueError | OSError)
    return plain(error, 2000) if known else f"{type(error).__name__}: {plain(error, 2000)}."


def keep_traceback(error: BaseException, words: list[str]) -> str:
    """Write the traceback of a fault into a file of its own, and tell where it is."""
    try:
        handle, name = tempfile.mkstemp(prefix="unsoftmax-fault-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"unsoftmax {__version__}, Python {sys.version}\n{shlex.join(words[:1])} …\n\n")
            file.write("".join(traceback.format_exception(error)))
        return f"in {name}"
    except OSError:
        return "shown with --debug"


def code_of(error: BaseException) -> int | None:
    """The exit code of an exception, or None if it is a fault of ours and deserves its traceback."""
    if isinstance(error, RefusalError):
        return CODES[Status[error.status_name]]
    if isinstance(error, ValueError) and not isinstance(error, UnsoftmaxError):
        return BAD_INPUT if _deliberate(error) else None
    if isinstance(error, UnsoftmaxError | OSError | MemoryError):
        return BAD_INPUT
    return None


def _deliberate(error: ValueError) -> bool:
    """Whether a line of ours raised it on purpose: arrays that do not fit together raise it, too, and that is a fault of ours."""
    trace = error.__traceback__
    if trace is None:
        return True
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    ours = os.path.abspath(code.co_filename).startswith(package + os.sep)
    return ours and dis.opname[code.co_code[trace.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
