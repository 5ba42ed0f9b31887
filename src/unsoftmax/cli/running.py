"""What every command shares: its time, its live page, whose permission it has, and files for others' tools."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from unsoftmax.cli.options import Positive
from unsoftmax.safe_files import write_text

if TYPE_CHECKING:
    from unsoftmax.live import LiveView
    from unsoftmax.oracles.base import Oracle

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass
class Running:
    """One command while it runs.

    Attributes:
        max_time: seconds that it may take.
        authorised_by: who allowed it.
        files: where its record goes besides, by format.
        view: its live page, where one was wished for.
    """

    max_time: float | None
    authorised_by: str | None
    files: dict[str, Path | None]
    view: LiveView | None = None

    def limited(self) -> AbstractContextManager[float | None]:
        """Its time, for the part that may take long; what is done then is still written."""
        from unsoftmax.oracles.timed import time_limit

        return time_limit(self.max_time)

    def timed(self, oracle: Oracle, until: float | None) -> Oracle:
        """The target, not asked after that."""
        from unsoftmax.oracles.timed import Timed

        return oracle if until is None else Timed(oracle, until)

    def export(self, record: dict[str, Any], *, public: bool = False) -> None:
        """Write a record to the files that were named, by the names of their formats."""
        from unsoftmax.report import exports

        for name, path in self.files.items():
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, getattr(exports, f"to_{name}")(record), public=public)

    def end(self, verdict: str, sentence: str, *, mood: str, out: Path | None, following: str = "") -> None:
        """Tell the live page how it ended; ``mood`` as of a report."""
        if self.view is not None:
            files = "" if out is None else f"The files are in `{out}`."
            self.view.end(verdict=verdict, sentence=sentence, mood=mood, files=files, following=following)


def running(*, asks: bool = False, record: bool = False, gate: bool = False) -> Callable[[Command], Command]:
    """Add the shared options; the command gets one ``run`` in their place.

    Args:
        asks: it asks a target or learns: permission is recorded, and it can be watched.
        record: it ends with a record that others' tools may want.
        gate: its end may fail a build.
    """
    names = {"csv": "CSV", "markdown": "Markdown"} if record or gate else {}
    names |= {"junit": "JUnit XML", "sarif": "SARIF 2.1.0"} if gate else {}

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def run(*args: Any, max_time: float | None, live: bool = False, authorised_by: str | None = None, **options: Any) -> Any:
            state = Running(max_time, authorised_by, {name: options.pop(name) for name in names})
            if not live:
                return command(*args, run=state, **options)
            from unsoftmax.live import live_view

            subject = next(str(options[name]) for name in ("target", "endpoint", "examples") if name in options)
            with live_view(title=command.__name__, target=subject) as state.view:
                return command(*args, run=state, **options)

        added: Any = run
        path = click.Path(dir_okay=False, path_type=Path)
        for name in reversed(names):
            added = click.option(f"--{name}", type=path, metavar="FILE", help=f"Write the result as {names[name]}, too.")(added)
        if asks:
            said = "Who allowed this run, for the record; without it the report says that nobody stated it."
            added = click.option("--authorised-by", metavar="TEXT", help=said)(added)
            added = click.option("--live", is_flag=True, help="Show the run on a page of this machine while it lasts.")(added)
        limit = "End after this many seconds; what was answered stays in the journal, where there is one."
        return click.option("--max-time", type=Positive(), help=limit)(added)  # type: ignore[no-any-return]

    return add
