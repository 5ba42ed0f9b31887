"""What a learner may see of a target: questions in, answers out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import numpy as np

from unsoftmax.errors import RefusalError
from unsoftmax.models import Floats


@runtime_checkable
class Oracle(Protocol):
    """Answers sequences of vectors with numbers; nothing else is visible."""

    @property
    def width(self) -> int:
        """Length of a token vector."""

    def __call__(self, sequences: Floats, /) -> Floats:
        """Map ``(batch, length, width)`` to ``(batch,)``, ``(batch, outputs)`` or ``(batch, length, outputs)``."""


class Wrapper:
    """An oracle around another one; every attribute that it lacks is looked up further inside."""

    def __init__(self, inner: Oracle) -> None:
        self.inner = inner

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self.inner.width

    def __call__(self, sequences: Floats, /) -> Floats:
        """Pass the question on unchanged."""
        return self.inner(sequences)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not yet set: while unpickling or copying
            raise AttributeError(name)
        return getattr(self.inner, name)


def phase(oracle: Oracle, name: str) -> None:
    """Say what the following questions are for; meters and progress bars listen, other oracles ignore it."""
    begin = getattr(oracle, "begin_phase", None)
    if begin is not None:
        begin(name)


def one_commit(oracle: Oracle) -> AbstractContextManager[None]:
    """Say that nothing is decided on the answers to the next calls before all are there: in a journal one commit will do."""
    begin = getattr(oracle, "one_commit", None)
    told: AbstractContextManager[None] = nullcontext() if begin is None else begin()
    return told


def foretell(oracle: Oracle, W: Callable[[], Floats]) -> None:
    """Offer the score matrix of one head as it will be unless something is asked again, though nobody has looked at it yet.

    A device still answers then: whoever listens loses no time by asking what comes next. Nobody but a desk does.
    """
    listen = getattr(oracle, "foretold", None)
    if listen is not None:
        listen(W())


def is_local(oracle: Oracle) -> bool:
    """Whether the target runs in this process: what fails then fails because of the question, not of the way to the target."""
    return bool(getattr(oracle, "local", False))


class LastPosition(Wrapper):
    """Of a target that answers at every position, only the last answer."""

    def __call__(self, sequences: Floats, /) -> Floats:
        """Answer with ``(batch, outputs)``."""
        answers = self.inner(sequences)
        return answers[:, -1] if answers.ndim == 3 else answers


def all_parts(parts: Callable[[Floats, Callable[[int, int], None]], Iterator[tuple[int, Floats]]], sequences: Floats) -> Floats:
    """All answers of an oracle that sends several requests; a failure tells how many sequences had been sent until then."""
    sent = 0

    def before(start: int, count: int) -> None:
        nonlocal sent
        sent += count

    try:
        return np.concatenate([answers for _, answers in parts(sequences, before)])
    except RefusalError as error:
        error.billed = sent if error.billed is None else error.billed
        raise


def in_parts(oracle: Oracle, sequences: Floats, before: Callable[[int, int], None]) -> Iterator[tuple[int, Floats]]:
    """The answers as they come, ``(start, answers)`` each: request by request from oracles that send several, else all at once.

    ``before(start, count)`` is called right before questions leave, so that an intent can be written down.
    """
    while isinstance(oracle, Wrapper) and type(oracle).__call__ is Wrapper.__call__:  # a wrapper that changes nothing
        oracle = oracle.inner
    parts = getattr(type(oracle), "parts", None)
    if parts is None:
        before(0, len(sequences))
        yield 0, oracle(sequences)
    else:
        yield from parts(oracle, sequences, before)
