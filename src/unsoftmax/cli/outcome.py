"""From outcomes to exit codes; one table for every command."""

from __future__ import annotations

from unsoftmax.errors import RefusalError, UnsoftmaxError
from unsoftmax.oracles.text import plain
from unsoftmax.results import Status

SUCCESS, NOT_RECOVERED, BAD_INPUT, TARGET_FAILED, BUDGET_SPENT, DRIFTING = 0, 1, 2, 3, 4, 5
LONGEST = 2000  # characters of a message

CODES = {
    Status.EXACT: SUCCESS,
    Status.WITHIN_TOLERANCE: SUCCESS,
    Status.NOT_IN_FAMILY: NOT_RECOVERED,
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
    return plain(error, LONGEST)


def code_of(error: BaseException) -> int | None:
    """The exit code of an exception, or None if it is a fault of ours and deserves its traceback."""
    if isinstance(error, RefusalError):
        return CODES[Status[error.status_name]]
    if isinstance(error, UnsoftmaxError | ValueError | OSError | MemoryError):
        return BAD_INPUT
    return None
