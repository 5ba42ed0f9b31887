"""Small matrix products on one thread: on a busy machine, threads that wait for each other take twenty times as long."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

FEW = 1000  # unknowns: normal equations of this size are a matter of milliseconds


def one_thread() -> AbstractContextManager[Any]:
    """Keep BLAS to one thread within this context."""
    limited: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limited


def threads_for(unknowns: int) -> AbstractContextManager[Any]:
    """One thread for solving in so few unknowns that more would mostly wait; as many as there are for larger systems."""
    return one_thread() if unknowns <= FEW else nullcontext()


@cache
def _controller() -> ThreadpoolController:
    """Looks the loaded libraries up once: that takes milliseconds, to switch them microseconds."""
    return ThreadpoolController()
