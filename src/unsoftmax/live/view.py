"""From a run to its live page: the bill as it grows, the model as far as it is known, rows as they end, the verdict."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from unsoftmax.linalg import on_host
from unsoftmax.live.board import Board
from unsoftmax.live.pictures import error_curve, head_maps
from unsoftmax.live.server import LiveServer
from unsoftmax.models import Floats, Model
from unsoftmax.watching import Watcher, watched_by

if TYPE_CHECKING:
    from unsoftmax.audits import Cell


class LiveView(Watcher):
    """Listens to a run and keeps the board up to date; pictures are drawn four times a second at most.

    Attributes:
        errors: queries asked, and the error of the model of that moment on answers that it had not seen.
    """

    def __init__(self, board: Board, *, title: str, target: str, frame: float = 0.25, sample: int = 32) -> None:
        self.board = board
        self.frame, self.sample = frame, sample
        self.begun = time.monotonic()
        self.phases: dict[str, int] = {}
        self.expected: tuple[int, bool] | None = None
        self.model: Model | None = None
        self.errors: list[tuple[int, float]] = []
        self.rows: list[dict[str, Any]] = []
        self._drawn = 0.0
        self._phase = ""
        self._latest: Callable[[], Model] | None = None
        board.put("run", {"title": title, "target": target})

    @property
    def queries(self) -> int:
        """Asked so far."""
        return sum(self.phases.values())

    def count(self, phase: str, queries: int) -> None:
        """So many were asked for this phase."""
        self.phases[phase] = self.phases.get(phase, 0) + queries
        self._phase = phase
        self._bill(phase)

    def say(self, words: str) -> None:
        """Words in the place of the phase."""
        self._bill(words)

    def expects(self, queries: int, promised: bool) -> None:
        """The run will ask about so many queries in all."""
        self.expected = queries, promised

    def hears(self, sequences: Floats, answers: Floats) -> None:
        """Hold the model of the moment against answers that it has not seen; they cost nothing more."""
        if self.model is None or not self.model.can_answer or self._phase == "sentinels":
            return  # sentinels are questions asked again
        some = slice(None, None, max(1, len(answers) // self.sample))
        X, told = on_host(sequences[some]), on_host(answers[some])
        told = told[:, -1] if told.ndim == 3 else told.reshape(len(told), -1)
        with np.errstate(all="ignore"):
            said = self.model.answer(X)
            if said.shape != told.shape:
                return  # a mixture of the outputs, or labels: no error to speak of
            error = float(np.abs(said - told).max() / np.abs(told).max())
        if np.isfinite(error):
            self.errors.append((self.queries, error))

    def sees(self, draw: Callable[[], Model]) -> None:
        """The model as far as it is known."""
        self._latest = draw
        self._draw()

    def row(self, cell: Cell, total: int) -> None:
        """One row of an audit is finished."""
        self.rows.append(
            {
                "name": cell.defence.name,
                "status": cell.status.replace("_", " ").lower(),
                "queries": f"{cell.queries:,}",
                "error": "no copy" if cell.error is None else f"{cell.error:.1e}",
            }
        )
        self.phases[cell.defence.name] = cell.total_queries
        self.board.put("rows", {"rows": self.rows, "total": total})
        self._bill(f"{len(self.rows)} of {total} rows", total)

    def end(self, *, verdict: str, sentence: str, mood: str, files: str = "", following: str = "") -> None:
        """The verdict; nothing follows."""
        self._bill("done")
        self._draw(last=True)
        told = {"verdict": verdict, "sentence": sentence, "mood": mood, "files": files, "next": following}
        self.board.put("end", told, last=True)

    def _bill(self, phase: str, rows: int | None = None) -> None:
        seconds = time.monotonic() - self.begun
        done, share = self.queries, 0.0
        words = f"{done:,} queries"
        if self.expected is not None and done <= self.expected[0]:
            share = done / max(1, self.expected[0])
            words = f"{done:,} of {'at most' if self.expected[1] else 'about'} {self.expected[0]:,} queries"
        if rows is not None:
            share = len(self.rows) / rows
        left = "" if not 0.0 < share < 1.0 else f"about {seconds * (1 - share) / share:.0f} s left"
        self.board.put(
            "bill",
            {
                "phase": phase,
                "words": words,
                "share": 1.0 if phase == "done" else share,
                "seconds": f"{seconds:.1f} s",
                "left": left if phase != "done" else "",
                "phases": [] if self.rows else [[name, f"{count:,}"] for name, count in self.phases.items()],
            },
        )

    def _draw(self, last: bool = False) -> None:
        if self._latest is None or (not last and time.monotonic() - self._drawn < self.frame):
            return
        self.model = self._latest()
        maps = head_maps(self.model)
        self._drawn = time.monotonic()
        self.board.put("model", {"maps": maps, "curve": error_curve(self.errors) if self.errors else ""})


@contextmanager
def live_view(*, title: str, target: str) -> Iterator[LiveView]:
    """Serve the live page of what runs inside; yields what listens.

    Whoever sits at a terminal reads the page as long as they like and ends it with Ctrl-C; elsewhere the pages that are open get
    the verdict, and the run goes on.
    """
    board = Board()
    server = LiveServer(board)
    click.echo(f"Live view: {server.address}", err=True)
    view = LiveView(board, title=title, target=target)
    try:
        with watched_by(view):
            yield view
        if board.ended and sys.stderr.isatty() and sys.stdin is not None and sys.stdin.isatty():
            _stay(server)
    except BaseException as error:
        view.end(verdict="ENDED", sentence=f"The run ended without a verdict: {error or type(error).__name__}.", mood="bad")
        raise
    finally:
        server.close()


def _stay(server: LiveServer) -> None:
    click.echo(f"The live view stays at {server.address} until Ctrl-C.", err=True)
    try:
        while True:
            time.sleep(3600.0)
    except KeyboardInterrupt:
        pass
