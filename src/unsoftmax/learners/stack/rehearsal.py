"""Error bars of heads read from coarse answers: the same steps on heads that are known, in the same arithmetic, for no question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from unsoftmax.errors import RefusalError, tried
from unsoftmax.learners.stack.settings import STACK
from unsoftmax.learners.stack.sphere import Sphere
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Bounds


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsed:
    """Heads in float32 arithmetic on a residual path, beside a constant as large as the function of the last token was."""

    heads: Attention
    sphere: Sphere
    beside: Floats

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self.sphere.width

    def __call__(self, sequences: Floats, /) -> Floats:
        """The last answer, rounded wherever a target would round."""
        assert self.heads.V is not None
        single = np.float32
        tokens = np.asarray(sequences, dtype=single)
        flat = tokens - tokens.mean(-1, keepdims=True, dtype=single) if self.sphere.norm == "layer" else tokens
        seen = flat / np.sqrt((flat * flat).mean(-1, keepdims=True, dtype=single))
        hidden = tokens[:, -1] + self.beside.astype(single)
        for W, V, c in zip(*(block.astype(single) for block in (self.heads.W, self.heads.V, self.heads.c)), strict=True):
            scores = np.einsum("nti,ni->nt", seen, seen[:, -1] @ W.T + c)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            hidden = hidden + np.einsum("nt,nti->ni", weights / weights.sum(1, keepdims=True), seen) @ V
        return np.asarray(hidden, dtype=np.float64)


def rehearsed_bounds(
    heads: Attention,
    sphere: Sphere,
    beside: Floats,
    learn: Callable[[Oracle, np.random.Generator], tuple[Attention, float]],
    misfit: float,
    rng: np.random.Generator,
) -> Bounds | None:
    """Bars for W, V and c, one width per head and block, from the errors of ``learn`` on these heads; None where it fails.

    ``learn`` tells heads and what they leave of the answers. Errors grow with that, which differs from run to run with the
    tokens drawn: those of a rehearsal count as if it had left the ``misfit`` of the run itself.
    """
    target = Rehearsed(heads, sphere, beside)
    squares: list[list[Floats]] = []
    for _ in range(STACK.rehearsals):
        learned = tried(lambda: learn(target, rng), RefusalError)
        if isinstance(learned, RefusalError) or learned[0].W.shape != heads.W.shape:  # refused, it tells nothing about errors
            continue
        found, left = learned
        far = np.linalg.norm((found.W[:, None] - heads.W[None]).reshape(heads.heads, heads.heads, -1), axis=2)
        order = np.argsort(scipy.optimize.linear_sum_assignment(far)[1])
        blocks = ((getattr(found, name)[order] - getattr(heads, name)).reshape(heads.heads, -1) for name in ("W", "V", "c"))
        squares.append([np.mean((misfit / left * block) ** 2, axis=1) for block in blocks])
    if not squares:
        return None
    widths = STACK.bar * STACK.few * np.sqrt(np.mean(squares, axis=0))
    W, V, c = (
        np.broadcast_to(width.reshape(-1, *(1,) * (block.ndim - 1)), block.shape)
        for width, block in zip(widths, (heads.W, heads.V, heads.c), strict=True)
        if block is not None
    )
    return Bounds(kind="estimated", W=W, V=V, c=c)
