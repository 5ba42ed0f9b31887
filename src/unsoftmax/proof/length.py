"""How long a sequence a target takes."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import TargetError, tried
from unsoftmax.linalg import normal, on_host
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, is_local, phase
from unsoftmax.proof.settings import PROOF


def longest_taken(
    oracle: Oracle, rng: np.random.Generator, *, max_norm: float | None = None, vocabulary: Floats | None = None
) -> int:
    """Tokens that the target takes, up to ``LONGEST``: one query if it takes as many, up to six if it does not.

    A server that fails may be out of order: its failure ends the run here, where little was paid, and says what to try.
    """
    tokens = PROOF.short * normal((1, PROOF.longest, oracle.width), rng, getattr(oracle, "like", None))
    if max_norm is not None:
        tokens = tokens * min(1.0, 0.5 * max_norm / float(np.linalg.norm(on_host(tokens), axis=-1).max()))
    if vocabulary is not None:
        tokens = vocabulary[rng.integers(0, len(vocabulary), size=(1, PROOF.longest))]
    phase(oracle, "longest sequence")
    longest = PROOF.longest
    while longest > 1 and not _takes(oracle, tokens[:, :longest]):
        longest //= PROOF.step
    if 1 < longest < PROOF.longest and _takes(oracle, tokens[:, : 2 * longest]):
        longest *= 2
    return longest


def _takes(oracle: Oracle, sequence: Floats) -> bool:
    error = tried(lambda: oracle(sequence), TargetError)
    if isinstance(error, TargetError) and not is_local(oracle):
        raise TargetError(
            f"{error} The question was a sequence of {sequence.shape[1]} tokens: if the target takes fewer, say so with "
            "`max_length` (--max-length)."
        ) from error
    return not isinstance(error, TargetError)
