"""What is shown while a target is asked: a progress bar on a terminal, silence elsewhere, and nothing beside a JSON document."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def progress_bar(enabled: bool = True) -> Iterator[Callable[[str, int], None] | None]:
    """Yields what ``recover`` calls after every answer: the phase, the questions so far, their rate; on stderr."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Queries per second."""

        def render(self, task: Task) -> Text:
            return Text("" if not task.speed else f"{task.speed:,.0f}/s", style="dim")

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<16}"),
        TextColumn("{task.completed:>10,} queries"),
        Rate(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def tell(phase: str, queries: int) -> None:
            progress.update(task, advance=queries, description=phase)

        class Retries(logging.Handler):
            """Says beside the bar that a request is being repeated."""

            def emit(self, record: logging.LogRecord) -> None:
                progress.update(task, description=record.getMessage())

        with told_to(Retries()):
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
