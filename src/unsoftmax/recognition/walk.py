"""A decision as a walk: it names the test to make next, is told what that found, and ends in what it decided. It never asks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from unsoftmax.desk import Desk
from unsoftmax.recognition.case import Case

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask(Generic[T]):
    """A test to make next, with what it is to go by; nobody has asked yet."""

    test: Callable[..., T]
    settings: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()

    def made(self, subject: Desk | Case) -> T:
        """What the test finds."""
        return self.test(subject, *self.settings, **dict(self.named))


class OfDesk(Ask[T]):
    """A test made at the desk."""


class OfCase(Ask[T]):
    """A test of a diagnosis; a verdict that it finds is the last word there."""


Walk = Generator[Any, Any, R]  # yields what to do next, is sent what came of it, returns what was decided


def of_desk(test: Callable[Concatenate[Desk, P], T], *settings: P.args, **named: P.kwargs) -> Walk[T]:
    """What this test finds, made at the desk."""
    found: T = yield OfDesk(test, settings, tuple(named.items()))
    return found


def of_case(test: Callable[Concatenate[Case, P], T], *settings: P.args, **named: P.kwargs) -> Walk[T]:
    """What this test finds, made in a diagnosis."""
    found: T = yield OfCase(test, settings, tuple(named.items()))
    return found


def until(walk: Walk[R], end: type[T]) -> Walk[R | T]:
    """The same walk, over as soon as it is told an ``end``: that is then what was decided."""
    found: Any = None
    while True:
        try:
            step = walk.send(found)
        except StopIteration as over:
            decided: R = over.value
            return decided
        found = yield step
        if isinstance(found, end):
            walk.close()
            return found
