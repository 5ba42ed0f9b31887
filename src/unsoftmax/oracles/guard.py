"""The last gate before a target: nothing longer than allowed passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from array_api_compat import array_namespace

from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, Wrapper, in_parts


class NormGuard(Wrapper):
    """Stops a call that holds a token longer than ``max_norm``: that would be a fault of the learner."""

    def __init__(self, inner: Oracle, max_norm: float | None = None) -> None:
        super().__init__(inner)
        self.max_norm = max_norm

    def __call__(self, sequences: Floats, /) -> Floats:
        """Check every token, then ask."""
        self._check(sequences)
        return self.inner(sequences)

    def parts(self, sequences: Floats, before: Callable[[int, int], None]) -> Iterator[tuple[int, Floats]]:
        """Check every token, then ask request by request."""
        self._check(sequences)
        yield from in_parts(self.inner, sequences, before)

    def _check(self, sequences: Floats) -> None:
        if self.max_norm is not None and len(sequences):
            longest = float(array_namespace(sequences).vecdot(sequences, sequences).max()) ** 0.5
            assert longest <= self.max_norm, f"a learner built a token of length {longest!r}, beyond max_norm {self.max_norm!r}"
