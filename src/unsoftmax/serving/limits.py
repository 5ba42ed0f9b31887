"""Limits on how much is answered, counted in sequences as an audit counts them, whatever batches they come in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Limiter:
    """Lets ``rate`` sequences a second pass, and up to one second's worth at once; a larger batch waits until all are paid for."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not rate > 0:
            raise ValueError(f"The rate is {rate}; it must be above 0 sequences a second.")
        self._rate = rate
        self._clock = clock
        self._room = max(1.0, rate)
        self._seen = clock()
        self._lock = threading.Lock()

    def take(self, sequences: int = 1) -> float:
        """Let a batch pass and return 0.0, or return the seconds that it has to wait.

        A batch that no second has room for passes when the room is full, and is paid off by those that follow.
        """
        with self._lock:
            now = self._clock()
            most = max(1.0, self._rate)
            self._room = min(most, self._room + (now - self._seen) * self._rate)
            self._seen = now
            needed = min(float(sequences), most)
            if self._room < needed:
                return (needed - self._room) / self._rate
            self._room -= sequences
            return 0.0


class Quota:
    """Answers ``most`` sequences in all; a batch that exceeds what is left is refused whole."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """Sequences that may still be asked."""
        return self.most - self._taken

    def take(self, sequences: int) -> bool:
        """Whether a batch passes; it is then counted."""
        with self._lock:
            if self._taken + sequences > self.most:
                return False
            self._taken += sequences
            return True
