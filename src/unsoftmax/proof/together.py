"""Sequences of many lengths as a few arrays, so that a model answers all of them in a few steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import device
from numpy.typing import NDArray

from unsoftmax.linalg import alike, array_namespace, on_host, there
from unsoftmax.models import Floats
from unsoftmax.proof.settings import PROOF

Absent = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Together:
    """Batches of sequences, shorter ones filled up in front to the length of longer ones.

    Attributes:
        groups: sequences ``(n, longest, width)``, and which of the tokens are none ``(n, 1, longest)``; None where all are some.
        batches: numbers of the batches in each group.
        sizes: sequences of each batch.
    """

    groups: tuple[tuple[Floats, Absent | None], ...]
    batches: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, batches: list[Floats], like: Floats | None) -> Together:
        """These batches on the device of ``like``, all in one group but for the long ones; on the host, large ones each apart."""
        kinds: dict[int, list[int]] = {}
        for number, batch in enumerate(batches):
            length = int(batch.shape[1])
            kind = int(length > PROOF.moderate)
            if like is None:
                kind = -number if math.prod(batch.shape) > PROOF.step_apart else 1 + (length - 1).bit_length()
            kinds.setdefault(kind, []).append(number)
        groups = tuple(_padded([batches[i] for i in some], like) for some in kinds.values())
        return cls(groups, tuple(map(tuple, kinds.values())), tuple(len(batch) for batch in batches))

    def told(self, forward: Callable[[Sequence[tuple[Floats, Absent | None]]], list[Floats]]) -> Floats:
        """What a forward pass of all groups tells for each sequence, in the order of the batches."""
        told = forward(self.groups)
        if len(told) == 1:
            return told[0]
        parts: list[Floats] = [told[0]] * len(self.sizes)
        for answers, batches in zip(told, self.batches, strict=True):
            at = 0
            for number in batches:
                parts[number] = answers[at : (at := at + self.sizes[number])]
        joined: Floats = array_namespace(told[0]).concat(parts)
        return joined


def _padded(batches: list[Floats], like: Floats | None) -> tuple[Floats, Absent | None]:
    lengths = [int(batch.shape[1]) for batch in batches]
    counts, longest = [len(batch) for batch in batches], max(lengths)
    kind = np.empty(0) if like is None else like
    moved = [
        on_host(batch) if like is None else alike(batch, like) if isinstance(batch, np.ndarray) else batch for batch in batches
    ]
    if min(lengths) == longest:
        return (moved[0] if len(moved) == 1 else array_namespace(kind).concat(moved)), None
    xp = array_namespace(kind)
    sequences = xp.zeros((sum(counts), longest, batches[0].shape[2]), dtype=kind.dtype, device=device(kind))
    at = 0
    for batch in moved:
        sequences[at : (at := at + len(batch)), longest - batch.shape[1] :] = batch
    first = np.repeat(longest - np.array(lengths), counts)
    return sequences, there((np.arange(longest) < first[:, None])[:, None], like)
