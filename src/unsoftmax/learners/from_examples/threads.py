"""Small matrix products on one thread: on a busy machine, threads that wait for each other take twenty times as long."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def one_thread() -> AbstractContextManager[Any]:
    """Keep BLAS to one thread within this context, where the package threadpoolctl is there to tell it so."""
    controller = _controller()
    return nullcontext() if controller is None else controller.limit(limits=1)


@cache
def _controller() -> Any:
    """Looks the loaded libraries up once: that takes milliseconds, to switch them microseconds."""
    return import_module("threadpoolctl").ThreadpoolController() if find_spec("threadpoolctl") else None
