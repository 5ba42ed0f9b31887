"""From outcomes to exit codes; one table for every command."""

from __future__ import annotations

from unsoftmax.errors import RefusalError, UnsoftmaxError
from unsoftmax.results import Status

SUCCESS, NOT_RECOVERED, BAD_INPUT, TARGET_FAILED, BUDGET_SPENT, DRIFTING = 0, 1, 2, 3, 4, 5

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


def code_of(error: BaseException) -> int | None:
    """The exit code of an exception, or None if it is a fault of ours and deserves its traceback."""
    if isinstance(error, RefusalError):
        return CODES[Status[error.status_name]]
    if isinstance(error, UnsoftmaxError | ValueError | OSError):
        return BAD_INPUT
    return None
