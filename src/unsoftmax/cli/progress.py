"""A progress bar on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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

        yield tell
