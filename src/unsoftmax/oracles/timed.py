"""A limit on the time of a whole run."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from unsoftmax.errors import BudgetExceededError
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, Wrapper, in_parts


class Timed(Wrapper):
    """Asks nothing more once the clock of this machine has passed ``until`` (seconds since 1970)."""

    def __init__(self, inner: Oracle, until: float | None) -> None:
        super().__init__(inner)
        self._until = until

    @property
    def identity(self) -> str:
        """A time limit changes no answer: the target inside."""
        from unsoftmax.oracles.adapt import identity_of

        return identity_of(self.inner)

    def __call__(self, sequences: Floats, /) -> Floats:
        """Look at the clock, then ask."""
        self._check()
        return self.inner(sequences)

    def parts(self, sequences: Floats, before: Callable[[int, int], None]) -> Iterator[tuple[int, Floats]]:
        """Look at the clock before every request."""

        def checked(start: int, count: int) -> None:
            self._check()
            before(start, count)

        yield from in_parts(self.inner, sequences, checked)

    def _check(self) -> None:
        if self._until is not None and time.time() >= self._until:
            raise time_is_over()


def time_is_over() -> BudgetExceededError:
    """The refusal of a run whose time is over."""
    return BudgetExceededError(
        "The time of this run (--max-time) is over. Raise it and run the same command again; answers in a journal are kept.",
        billed=0,
    )


@contextmanager
def time_limit(seconds: float | None) -> Iterator[float | None]:
    """Run a block for at most ``seconds``; yields when that ends (seconds since 1970), for ``Timed``.

    Arithmetic and replies that hang are interrupted by an alarm of the operating system, in the main thread alone.

    Raises:
        BudgetExceededError: the time is over.
    """
    if seconds is None:
        yield None
        return
    until = time.time() + seconds

    def ring(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 5.0)  # again, should something swallow it
        raise time_is_over()

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield until
        return
    before = signal.signal(signal.SIGALRM, ring)
    other, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield until
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if other:  # somebody else's alarm, such as that of a test
            signal.setitimer(signal.ITIMER_REAL, other)
