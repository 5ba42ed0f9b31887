"""What is shown while a target is asked: a progress bar on a terminal, silence elsewhere, and nothing beside a JSON document."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from unsoftmax.watching import Watcher, watched_by

if TYPE_CHECKING:
    from rich.progress import Progress

    from unsoftmax.live import LiveView

Tell = Callable[[str, int], None]


class Bar(Watcher):
    """Phase, questions so far of at most how many, their rate and the time left, in one line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None, of="")
        self._expected: tuple[int, bool] | None = None

    def count(self, phase: str, queries: int) -> None:
        """So many were asked for this phase."""
        self._progress.update(self._task, advance=queries, description=phase)
        self._tell_total()

    def say(self, words: str) -> None:
        """Words in the place of the phase."""
        self._progress.update(self._task, description=words)

    def expects(self, queries: int, promised: bool) -> None:
        """The run will ask about so many queries in all."""
        self._expected = queries, promised
        self._tell_total()

    def _tell_total(self) -> None:
        if self._expected is None:
            return
        most, promised = self._expected
        kept = self._progress.tasks[0].completed <= most  # an estimate that was passed tells nothing any more
        of = f"of {'at most' if promised else 'about'} {most:,}" if kept else ""
        self._progress.update(self._task, total=most if kept else None, of=of)


@contextmanager
def progress_bar(enabled: bool = True, view: LiveView | None = None) -> Iterator[Tell | None]:
    """Yields what ``recover`` calls after every answer, for the bar on stderr and the live page; None where nobody looks."""
    listening: list[Tell] = [] if view is None else [view.count]
    if not enabled or not sys.stderr.isatty():
        yield listening[0] if listening else None
        return
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Queries per second."""

        def render(self, task: Task) -> Text:
            return Text("" if not task.speed else f"{task.speed:,.0f}/s", style="dim")

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<16}"),
        TextColumn("{task.completed:>10,} {task.fields[of]} queries"),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = Bar(progress)
        listening.append(bar.count)

        class Retries(logging.Handler):
            """Says beside the bar that a request is being repeated."""

            def emit(self, record: logging.LogRecord) -> None:
                bar.say(record.getMessage())

        def tell(phase: str, queries: int) -> None:
            for listener in listening:
                listener(phase, queries)

        with told_to(Retries()), watched_by(bar):
            yield tell


@contextmanager
def told_to(handler: logging.Handler) -> Iterator[None]:
    """Hand what is said about repeated requests to ``handler``."""
    log = logging.getLogger("unsoftmax.retry")
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


@contextmanager
def stdout_kept(enabled: bool) -> Iterator[None]:
    """Send what a target prints, in this process or in one that it starts, to stderr: stdout is for one JSON document alone."""
    if not enabled:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
