"""Small matrix products on one thread: on a busy machine, threads that wait for each other take twenty times as long."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[Any]:
    """Keep BLAS to one thread within this context."""
    limited: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limited


@cache
def _controller() -> ThreadpoolController:
    """Looks the loaded libraries up once: that takes milliseconds, to switch them microseconds."""
    return ThreadpoolController()
