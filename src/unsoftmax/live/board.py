"""What the page shows, part by part; readers wait for what they have not seen yet."""

from __future__ import annotations

import json
import threading
from typing import Any


class Board:
    """Parts of a page by name, each as it stands now; a new content takes the place of the old one.

    Attributes:
        ended: whether the last part was put.
    """

    def __init__(self) -> None:
        self._parts: dict[str, tuple[int, str]] = {}
        self._count = 0
        self._changed = threading.Condition()
        self.ended = False

    def put(self, name: str, content: dict[str, Any], *, last: bool = False) -> None:
        """Set a part; ``last`` says that nothing follows."""
        with self._changed:
            self._count += 1
            self._parts[name] = self._count, json.dumps(content, allow_nan=False)
            self.ended = self.ended or last
            self._changed.notify_all()

    def news(self, seen: int, patience: float) -> tuple[int, list[tuple[str, str]]]:
        """Parts set since the count ``seen``, oldest first, as JSON, and the count by now; waits up to ``patience`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._count > seen, timeout=patience)
            fresh = sorted((number, name, text) for name, (number, text) in self._parts.items() if number > seen)
            return self._count, [(name, text) for _, name, text in fresh]
