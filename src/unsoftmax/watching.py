"""Who watches a run: learners show what they have, meters what was answered; as a rule nobody looks, and nothing is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unsoftmax.models import Floats, Model


class Watcher:
    """Looks on while a target is asked; what it does with it changes nothing of the run."""

    def expects(self, queries: int, promised: bool) -> None:
        """The run will ask about so many queries in all; ``promised``: never more."""

    def hears(self, sequences: Floats, answers: Floats) -> None:
        """A call was answered."""

    def sees(self, draw: Callable[[], Model]) -> None:
        """``draw()`` is the model as far as it is known: what was not read yet is zero. It takes its time, so only if needed."""


_present: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())


def watchers() -> tuple[Watcher, ...]:
    """Whoever watches this run."""
    return _present.get()


@contextmanager
def watched_by(*several: Watcher) -> Iterator[None]:
    """Let these watch what runs inside, beside those that watch already; with nobody, unwatched."""
    before = _present.set((*_present.get(), *several) if several else ())
    try:
        yield
    finally:
        _present.reset(before)
