"""Several endpoints of one model: they share the questions, and what they answer must agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from threading import Event

import numpy as np

from unsoftmax.errors import TargetError
from unsoftmax.models import Floats
from unsoftmax.oracles.adapt import identity_of
from unsoftmax.oracles.base import Oracle, all_parts, is_local
from unsoftmax.oracles.crew import in_turn
from unsoftmax.oracles.local import Layout
from unsoftmax.oracles.text import plain


class Several:
    """Endpoints or devices that run the same model: each call is divided among them, and asked side by side.

    The share that each one gets moves on with every call, so that questions asked twice and the fresh questions of a check reach
    all of them: one that runs other weights contradicts the others there, as a replica behind one address would.

    Args:
        members: oracles of the same width.

    Attributes:
        served: which of them had the shares of the last call, in order.

    >>> import numpy as np, unsoftmax as us
    >>> head = us.Attention.single(W=np.eye(3), v=[1.0, 2.0, 3.0])
    >>> both = us.oracles.Several([us.oracles.as_oracle(head), us.oracles.as_oracle(head)])
    >>> us.recover(both, seed=0).status.name
    'EXACT'
    """

    def __init__(self, members: Sequence[Oracle]) -> None:
        widths = [member.width for member in members]
        if not members or len(set(widths)) != 1:
            raise ValueError(
                f"The targets take tokens of widths {widths}; endpoints of one model take the same, and one is needed."
            )
        self.members = tuple(members)
        self._turn = 0
        self.served: tuple[int, ...] = ()
        self._layout = Layout()
        self._axes = 0

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self.members[0].width

    @property
    def local(self) -> bool:
        """Whether all of them run in this process."""
        return all(map(is_local, self.members))

    @property
    def identity(self) -> str:
        """What a journal knows them by: all of them, in any order."""
        return "several: " + "; ".join(sorted(map(identity_of, self.members)))

    @property
    def repeated(self) -> int:
        """Sequences that any of them was sent again because a reply was lost."""
        return sum(int(getattr(member, "repeated", 0)) for member in self.members)

    @property
    def vain(self) -> int:
        """Sequences that any of them was sent beyond those that were wanted."""
        return sum(int(getattr(member, "vain", 0)) for member in self.members)

    def close(self) -> None:
        """Let go of the connections of all that have some."""
        for member in self.members:
            close = getattr(member, "close", None)
            if callable(close):
                close()

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask all, each its share."""
        return all_parts(self.parts, sequences)

    def parts(self, sequences: Floats, before: Callable[[int, int], None]) -> Iterator[tuple[int, Floats]]:
        """The shares as they are answered, ``(start, answers)``; ``before`` is told of each that leaves."""
        count, turn = len(self.members), self._turn
        self._turn += 1
        shares = min(count, max(1, len(sequences)))
        self.served = tuple((turn + share) % count for share in range(shares))
        ends = np.linspace(0, len(sequences), shares + 1).round().astype(int).tolist()

        def work(number: int, share: Floats) -> Callable[[Event], Floats]:
            return lambda given_up: self._ask(number, share)

        tasks = ((a, b - a, work(n, sequences[a:b])) for n, (a, b) in zip(self.served, pairwise(ends), strict=True))
        for start, answers in in_turn(tasks, lambda: count, before):
            self._layout.keep(answers.shape)
            self._axes = self._axes or answers.ndim
            # one number may have an axis of its own or none
            yield start, answers if answers.ndim == self._axes else answers.reshape(-1, *(1,) * (self._axes - 1))

    def _ask(self, number: int, share: Floats) -> Floats:
        try:
            return self.members[number](share)
        except TargetError as error:
            error.args = (f"Of {len(self.members)} targets, number {number + 1}: {plain(error)}",)
            raise
