"""Counting what is asked, and stopping before it costs too much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unsoftmax.errors import BudgetExceededError, RefusalError
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, Wrapper
from unsoftmax.watching import watchers


@dataclass
class Count:
    """What one phase asked: sequences, tokens and calls."""

    queries: int = 0
    tokens: int = 0
    calls: int = 0

    def add(self, sequences: Floats) -> None:
        """Count one call."""
        self.queries += sequences.shape[0]
        self.tokens += sequences.shape[0] * sequences.shape[1]
        self.calls += 1


class Metered(Wrapper):
    """Counts every sequence asked, by phase; with ``budget``, refuses the call that would exceed it.

    Attributes:
        spent: sequences asked so far.
        phases: what each phase asked, in order of first appearance.
    """

    def __init__(self, inner: Oracle, budget: int | None = None, on_count: Callable[[str, int], None] | None = None) -> None:
        super().__init__(inner)
        self.budget = budget
        self.spent = 0
        self.phases: dict[str, Count] = {}
        self._phase = "asked"
        self._on_count = on_count

    @property
    def tokens(self) -> int:
        """Tokens sent so far."""
        return sum(count.tokens for count in self.phases.values())

    def begin_phase(self, name: str) -> None:
        """Count the following questions under ``name``."""
        self._phase = name

    def __call__(self, sequences: Floats, /) -> Floats:
        """Count, then ask. A call beyond the budget is not asked at all."""
        wanted = self.spent + sequences.shape[0]
        if self.budget is not None and wanted > self.budget:
            raise BudgetExceededError(
                f"The next step needs {wanted} queries in total but the budget is {self.budget}; {self.spent} were asked. "
                "Raise `budget`; `unsoftmax plan` shows where the queries go. Answers in a journal are kept.",
                evidence={"wanted": wanted, "budget": self.budget, "spent": self.spent},
                billed=0,
            )
        try:
            answers = self.inner(sequences)
        except Exception as error:
            sent = error.billed if isinstance(error, RefusalError) else None
            self.charge(self._phase, sequences[: len(sequences) if sent is None else sent])
            raise
        self.charge(self._phase, sequences)
        for watcher in watchers():
            watcher.hears(sequences, answers)
        return answers

    def charge(self, phase: str, sequences: Floats) -> None:
        """Count sequences that were sent, whatever came back: a failed reply, NaN and a wrong shape are paid for, too."""
        if len(sequences) == 0:
            return
        self.spent += sequences.shape[0]
        self.phases.setdefault(phase, Count()).add(sequences)
        if self._on_count is not None:
            self._on_count(phase, sequences.shape[0])


class Budgeted(Metered):
    """An oracle that may be asked ``budget`` sequences and no more."""

    def __init__(self, inner: Oracle, budget: int) -> None:
        super().__init__(inner, budget=budget)
