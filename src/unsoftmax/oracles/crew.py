"""Requests under way at once, in threads that an interrupted program does not wait for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from unsoftmax.errors import TargetError

Result = TypeVar("Result")
Before = Callable[[int, int], None]  # told of a task's start and size
Task = tuple[int, int, Callable[[threading.Event], Result]]  # start, size, and the work; the event tells it that it was given up


def in_turn(tasks: Iterator[Task[Result]], room: Callable[[], int], before: Before | None = None) -> Iterator[tuple[int, Result]]:
    """Run tasks, up to ``room()`` of them at once, and yield ``(start, result)`` in order.

    A task that stands alone runs in the caller's own thread. When one fails with a ``TargetError``, no further one is started,
    those under way are still waited for and yielded, and then the error is raised. When the caller is interrupted, they are
    given up. ``before`` is called in the caller's thread right before a task starts.
    """
    waiting: deque[tuple[int, Future[Result]]] = deque()
    given_up = threading.Event()
    failure: TargetError | None = None
    upcoming = next(tasks, None)
    try:
        while waiting or (upcoming is not None and failure is None):
            if upcoming is not None and failure is None and len(waiting) < room():
                start, size, work = upcoming
                upcoming = next(tasks, None)
                alone = not waiting and (upcoming is None or room() == 1)
                if before is not None:
                    before(start, size)
                waiting.append((start, _start(work, given_up, inline=alone)))
                continue
            start, future = waiting[0]
            try:
                result = future.result()
            except TargetError as error:
                failure = failure or error
            else:
                yield start, result
            waiting.popleft()
    finally:
        given_up.set()
    if failure is not None:
        raise failure


def size_of_requests(questions: int, largest: int, streams: int | None) -> int:
    """How many questions of a call go into one request: as many as it may hold, or an even share of ``streams`` requests."""
    return largest if streams is None else min(largest, max(1, -(-questions // streams)))


def _start(work: Callable[[threading.Event], Result], given_up: threading.Event, *, inline: bool) -> Future[Result]:
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work(given_up))
        except Exception as error:
            future.set_exception(error)

    if inline:
        run()
    else:
        threading.Thread(target=run, name="unsoftmax-request", daemon=True).start()
    return future


def check_wanted(given_up: Any) -> None:
    """End a task whose caller is gone."""
    if given_up is not None and given_up.is_set():
        raise TargetError("The request was given up.")
