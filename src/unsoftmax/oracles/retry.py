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
LOG = logging.getLogger("unsoftmax.retry")  # the command line shows it beside its progress bar
LOG.addHandler(logging.NullHandler())


class TransientError(TargetError):
    """A failure that may pass: worth another attempt.

    Attributes:
        wait: seconds that the server asked to wait, if it did.
        lost: the request may have been answered and the reply lost, so that asking again may be billed twice.
        doubtful: rarely passes (a plain 500, a garbled reply): only a few attempts.
        unreached: nobody took the connection; before the first reply of a server that is most likely a wrong address.
    """

    def __init__(
        self,
        message: str,
        *,
        wait: float | None = None,
        lost: bool = False,
        doubtful: bool = False,
        unreached: bool = False,
    ) -> None:
        super().__init__(message)
        self.unreached = unreached
        self.wait = wait
        self.lost = lost
        self.doubtful = doubtful


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to keep trying one request before the target counts as failed.

    Attributes:
        attempts: tries of one request in all, the first included.
        doubtful_attempts: the same for failures that rarely pass.
        first_attempts: the same for a server that nobody has met yet and that takes no connection.
        total: seconds after which no new try is made.
        first_pause: seconds before the second try; doubles from try to try, with as much jitter.
        longest_pause: upper bound of that growth.
        longest_wait: a server that asks for a longer wait than this ends the run (it can be resumed).
    """

    attempts: int = 8
    doubtful_attempts: int = 3
    first_attempts: int = 2
    total: float = 180.0
    first_pause: float = 0.2
    longest_pause: float = 10.0
    longest_wait: float = 120.0

    def tries(self, noticed: Callable[[TransientError], None], *, met: bool = True) -> Any:
        """The attempts of one request, to be looped over (``for`` or ``async for``), each a context manager.

        Args:
            noticed: told of every failure that will be followed by another attempt.
            met: whether the server has ever replied; a stranger that cannot be reached is given up at once.
        """
        doubtful = unreached = again = 0

        def verdict(error: Exception) -> bool | float:
            nonlocal doubtful, unreached, again
            if not isinstance(error, TransientError):
                return False
            if error.wait is not None and error.wait > self.longest_wait:
                return False
            doubtful += error.doubtful
            unreached += error.unreached and not met
            if doubtful >= self.doubtful_attempts or unreached >= self.first_attempts:
                return False
            noticed(error)
            again += 1
            if again < self.attempts:  # the last failure is asked about too
                LOG.info("retrying %d of %d", again, self.attempts - 1)
            return True if error.wait is None else error.wait

        return stamina.retry_context(
            on=verdict,
            attempts=self.attempts,
            timeout=self.total,
            wait_initial=self.first_pause,
            wait_max=self.longest_pause,
            wait_jitter=self.first_pause,
        )

    def given_up(self, error: TransientError, attempts: int, seconds: float, *, met: bool = True) -> str:
        """Why there is no further attempt, in words: how many there were and how long they took."""
        if error.wait is not None and error.wait > self.longest_wait:
            return (
                f"{error} The server asks to wait {error.wait:.0f} s, beyond the {self.longest_wait:.0f} s allowed; run again then."
            )
        told = f"{error} Tried {attempts} time{'s'[: attempts != 1]} in {seconds:.1f} s."
        if error.unreached and not met:
            return f"{told} Nothing answered there before: check the address and the port, and that the server runs."
        return f"{told} Answers so far are not lost: run the same command again."


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
