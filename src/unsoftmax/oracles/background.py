"""An event loop in a thread of its own, so that asynchronous transports serve plain calls.

A thread rather than ``asyncio.run``: callers may live inside a running loop (a notebook), and Ctrl-C must reach the waiting
caller at once, whatever the network does.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class Background:
    """Runs coroutines for one owner; stops when the owner is gone."""

    def __init__(self, owner: object) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="unsoftmax-network", daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(owner, _stop, self._loop, self._thread)

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start ``work``; the future that it gives can be waited for and cancelled from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for ``work``; when the wait is interrupted, the work is cancelled."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel everything and end the thread."""
        self._stop()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    def cancel_all() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_soon(loop.stop)  # after the cancelled tasks had their turn

    if not thread.is_alive() or loop.is_closed():
        return
    loop.call_soon_threadsafe(cancel_all)
    if threading.current_thread() is not thread:
        thread.join(timeout=1.0)
    if not thread.is_alive():
        loop.close()
