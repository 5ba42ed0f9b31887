"""What the vector-answer learner needs around an oracle: streaming, sizes of tokens, and tolerances that follow the floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from unsoftmax.errors import TargetError
from unsoftmax.linalg import alike, orthonormal
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Floor


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """An oracle with its floor: asks in pieces and sizes the tokens.

    Attributes:
        oracle: the target.
        floor: how coarse its answers are.
        max_norm: no token longer than this, or None.
    """

    oracle: Oracle
    floor: Floor
    max_norm: float | None = None

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self.oracle.width

    @property
    def like(self) -> Floats | None:
        """An array of the kind that probes are built of, where the target has a device of its own."""
        kind: Floats | None = getattr(self.oracle, "like", None)
        return kind

    def there(self, array: Floats) -> Floats:
        """An array of this host as one of the kind that probes are built of."""
        return alike(array, self.like)

    def rotation(self, rng: np.random.Generator) -> Floats:
        """A random rotation ``(width, width)``, where probes are built."""
        return orthonormal(self.width, rng, like=self.like)

    @property
    def bits(self) -> int:
        """Bits that the target keeps of every coordinate."""
        return self.floor.bits

    @property
    def coarse(self) -> bool:
        """Whether the answers are far from exact, so that errors must be averaged down."""
        return self.floor.relative > 2.0**-40 or self.floor.absolute > 0

    @property
    def reach(self) -> float:
        """Length of the tokens that saturate the softmax: far above any weight, far below overflow."""
        if self.max_norm is not None:
            return float(2.0 ** np.floor(np.log2(self.max_norm / 2)))
        return 2.0**36 if self.bits > 24 else 2.0**20

    @property
    def contrast(self) -> float:
        """Length of the last token against the others while saturating; below 1 so that its own value adds no error."""
        if self.max_norm is not None:
            return 0.5
        return 2.0**-20 if self.bits > 24 else 2.0**-9

    def eps(self, size: float) -> float:
        """Relative error of answers of magnitude ``size``."""
        return float(self.floor.of(size) / size) if size > 0 else self.floor.relative

    def grid(self, tokens: Floats, length: float) -> Floats:
        """Round so that sums of two such tokens, none longer than ``2 * length``, are exact in the target's arithmetic."""
        step = float(2.0 ** (np.ceil(np.log2(length)) + 2 - self.bits))
        rounded: Floats = array_namespace(tokens).round(tokens / step) * step
        return rounded

    def last(self, sequences: Floats) -> Floats:
        """Ask and return the answers at the last position, ``(batch, outputs)``."""
        return self.stream(lambda start, stop: sequences[start:stop], len(sequences), sequences.shape[1])

    def everywhere(self, sequences: Floats) -> Floats:
        """Ask and return the answers at every position, ``(batch, length, outputs)``."""
        step = self._step(sequences.shape[1])
        parts = [self.oracle(sequences[i : i + step]) for i in range(0, len(sequences), step)]
        told: Floats = array_namespace(*parts).concat(parts)
        return told

    def stream(self, build: Callable[[int, int], Floats], count: int, length: int) -> Floats:
        """Ask ``count`` sequences, or groups of ``length`` tokens, that ``build(start, stop)`` makes in turn; last position."""
        step = self._step(length)
        parts = []
        for start in range(0, count, step):
            sequences = build(start, min(start + step, count))
            xp = array_namespace(sequences)
            if self.max_norm is not None and float(xp.max(xp.linalg.vector_norm(sequences, axis=-1))) > self.max_norm:
                raise AssertionError("a probe is longer than max_norm")
            answers = self.oracle(sequences)
            if answers.ndim == 1:
                answers = answers[:, None]
            parts.append(answers[:, -1] if answers.ndim == 3 else answers)
        if len({part.shape[1] for part in parts}) > 1:
            raise TargetError("The target changed the number of its outputs between two calls; it must stay the same.")
        told: Floats = xp.concat(parts)
        return told

    def _step(self, length: int) -> int:
        """Sequences, or groups of so many tokens, at once: 32 MB of probes, on a device 512."""
        return max(1, 2 ** (22 if self.like is None else 26) // (length * self.width))


def unit(rng: np.random.Generator, count: int, width: int) -> Floats:
    """Random rows of length one."""
    rows = rng.normal(size=(count, width))
    scaled: Floats = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return scaled
