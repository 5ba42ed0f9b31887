"""The condition of ``--fail-if``: comparisons joined by ``and`` and ``or``, read by a small parser."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clause:
    """One comparison, such as ``queries<100000``."""

    name: str
    sign: str
    number: float
    text: str

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether it is true of these numbers."""
        words = {"<=": "le", ">=": "ge", "==": "eq", "!=": "ne", "<": "lt", ">": "gt"}
        return bool(getattr(operator, words[self.sign])(values[self.name], self.number))

    def told(self, values: Mapping[str, float]) -> str:
        """The clause with the number that it was held against."""
        value = values[self.name]
        return f"{self.text} ({self.name} is {value:.6g})" if value < float("inf") else f"{self.text} (nothing was extracted)"


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition on what extraction achieved: alternatives, each a list of clauses that must all hold."""

    text: str
    alternatives: tuple[tuple[Clause, ...], ...]

    @property
    def names(self) -> set[str]:
        """The quantities that it needs."""
        return {clause.name for clauses in self.alternatives for clause in clauses}

    def tripped(self, values: Mapping[str, float]) -> tuple[Clause, ...]:
        """The clauses of the first alternative that holds, or nothing."""
        for clauses in self.alternatives:
            if all(clause.holds(values) for clause in clauses):
                return clauses
        return ()


def parse_gate(text: str) -> Gate:
    """Read a condition such as ``queries<100000 and error<1e-3``; ``and`` binds tighter than ``or``.

    Raises:
        ValueError: the text is no such condition; the message shows the part that is not.

    >>> gate = parse_gate("queries<100000 and error<1e-3")
    >>> [clause.text for clause in gate.tripped({"queries": 284, "error": 1e-14})]
    ['queries<100000', 'error<1e-3']
    """
    if len(text) > 1000:  # it is written by hand
        raise ValueError(f"The condition has {len(text)} characters; 1000 are allowed.")
    alternatives = re.split(r"\bor\b", text)
    return Gate(text, tuple(tuple(_clause(part, text) for part in re.split(r"\band\b", clauses)) for clauses in alternatives))


def _clause(part: str, text: str) -> Clause:
    names = ("queries", "error", "seconds", "price", "time")
    match = re.fullmatch(r"\s*([A-Za-z_]+)\s*(<=|>=|==|!=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*", part)
    if match is None or match[1] not in names:
        raise ValueError(
            f"In the condition {text!r}, {part.strip()!r} is not a comparison of {', '.join(names)} with a number. "
            'Write for example "queries<100000 and error<1e-3".'
        )
    return Clause(match[1], match[2], float(match[3]), part.strip())
