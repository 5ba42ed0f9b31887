"""Counting what is asked, and stopping before it costs too much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unsoftmax.errors import BudgetExceededError, RefusalError
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, Wrapper
from unsoftmax.oracles.local import Batches
from unsoftmax.watching import watchers


@dataclass
class Count:
    """What one phase asked: sequences, tokens and calls."""

    queries: int = 0
    tokens: int = 0
    calls: int = 0

    def add(self, queries: int, length: int) -> None:
        """Count one call of sequences of one length."""
        self.queries += queries
        self.tokens += queries * length
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
        batches: Batches | None = getattr(self.inner, "batches", None)
        vain = self._vain()
        if batches is not None:
            batches.allowance = None if self.budget is None else self.budget - self.spent
        sent = len(sequences)
        try:
            answers = self.inner(sequences)
        except Exception as error:
            if isinstance(error, RefusalError) and error.billed is not None:
                sent = error.billed
            raise
        finally:
            self.charge(self._phase, sent + self._vain() - vain, sequences.shape[1])
        for watcher in watchers():
            watcher.hears(sequences, answers)
        return answers

    def _vain(self) -> int:
        return int(getattr(self.inner, "vain", 0))

    def charge(self, phase: str, queries: int, length: int) -> None:
        """Count sequences of ``length`` tokens that were sent, whatever came back: what failed is paid for, too."""
        if queries == 0:
            return
        self.spent += queries
        self.phases.setdefault(phase, Count()).add(queries, length)
        if self._on_count is not None:
            self._on_count(phase, queries)


class Budgeted(Metered):
    """An oracle that may be asked ``budget`` sequences and no more."""

    def __init__(self, inner: Oracle, budget: int) -> None:
        super().__init__(inner, budget=budget)
