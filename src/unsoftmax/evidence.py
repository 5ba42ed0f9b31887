"""Numbers for people: written once, printed in reports, and nothing is decided on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Evidence(Mapping[str, Any]):
    """Named numbers and words for a report; it cannot be changed, only joined with more into another.

    >>> seen = Evidence({"misfit": 0.2}) | {"neurons": 3}
    >>> seen, dict(seen)["neurons"]
    (Evidence({'misfit': 0.2, 'neurons': 3}), 3)
    """

    __slots__ = ("_told",)

    def __init__(self, told: Mapping[str, Any] | None = None) -> None:
        self._told: dict[str, Any] = dict(told or {})

    def __getitem__(self, name: str) -> Any:
        return self._told[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)

    def __or__(self, more: Mapping[str, Any]) -> Evidence:
        return Evidence({**self, **more})

    def __repr__(self) -> str:
        return f"Evidence({self._told!r})"
