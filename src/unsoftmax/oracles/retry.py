"""When to ask again: bounded, with growing pauses, and as the server wishes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import stamina

from unsoftmax.errors import TargetError

# stamina reports each pause to its logger; without a handler Python would print that to stderr
logging.getLogger("stamina").addHandler(logging.NullHandler())


class TransientError(TargetError):
    """A failure that may pass: worth another attempt.

    Attributes:
        wait: seconds that the server asked to wait, if it did.
        lost: the request may have been answered and the reply lost, so that asking again may be billed twice.
        doubtful: rarely passes (a plain 500, a garbled reply): only a few attempts.
    """

    def __init__(self, message: str, *, wait: float | None = None, lost: bool = False, doubtful: bool = False) -> None:
        super().__init__(message)
        self.wait = wait
        self.lost = lost
        self.doubtful = doubtful


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to keep trying one request before the target counts as failed.

    Attributes:
        attempts: tries of one request in all, the first included.
        doubtful_attempts: the same for failures that rarely pass.
        total: seconds after which no new try is made.
        first_pause: seconds before the second try; doubles from try to try, with as much jitter.
        longest_pause: upper bound of that growth.
        longest_wait: a server that asks for a longer wait than this ends the run (it can be resumed).
    """

    attempts: int = 8
    doubtful_attempts: int = 3
    total: float = 180.0
    first_pause: float = 0.2
    longest_pause: float = 10.0
    longest_wait: float = 120.0

    def tries(self, noticed: Callable[[TransientError], None]) -> Any:
        """The attempts of one request, to be looped over (``for`` or ``async for``), each a context manager.

        Args:
            noticed: told of every failure that will be followed by another attempt.
        """
        doubtful = 0

        def verdict(error: Exception) -> bool | float:
            nonlocal doubtful
            if not isinstance(error, TransientError):
                return False
            if error.wait is not None and error.wait > self.longest_wait:
                return False
            doubtful += error.doubtful
            if doubtful >= self.doubtful_attempts:
                return False
            noticed(error)
            return True if error.wait is None else error.wait

        return stamina.retry_context(
            on=verdict,
            attempts=self.attempts,
            timeout=self.total,
            wait_initial=self.first_pause,
            wait_max=self.longest_pause,
            wait_jitter=self.first_pause,
        )

    def given_up(self, error: TransientError) -> str:
        """Why there is no further attempt, in words."""
        if error.wait is not None and error.wait > self.longest_wait:
            return (
                f"{error} The server asks to wait {error.wait:.0f} s, beyond the {self.longest_wait:.0f} s allowed; run again then."
            )
        return f"{error} That did not pass within {self.attempts} attempts and {self.total:.0f} s; answers so far are not lost."


def wait_asked(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, in seconds or as a date; None if it is absent or unreadable.

    >>> wait_asked("2.5"), wait_asked("soon"), wait_asked("-3")
    (2.5, None, 0.0)
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None
