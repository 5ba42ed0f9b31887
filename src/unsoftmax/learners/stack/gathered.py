"""Scores where every position is answered: sparse tokens of known values are keys and last tokens for each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.stack.limit import Batch, Limit
from unsoftmax.learners.stack.scores import Values, largest_score, weigh
from unsoftmax.learners.stack.settings import STACK
from unsoftmax.models import Floats


@dataclass(slots=True, eq=False)
class Gathered:
    """Tokens that meet in sequences until each has seen so many others as wanted.

    Attributes:
        limit: the target.
        tokens: ``(n, width)``, sparse.
        wanted: ``(n,)``: how many different others each is to see; none for tokens that are keys alone.
        rng: breaks ties.
        met: ``(n, n)``: whether a token (row) has seen another (column).
        batches: the answers, one batch for each position.
    """

    limit: Limit
    tokens: Floats
    wanted: NDArray[np.int_]
    rng: np.random.Generator
    met: NDArray[np.bool_] = field(init=False)
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.met = np.eye(len(self.tokens), dtype=bool)

    @property
    def needed(self) -> NDArray[np.bool_]:
        """Which tokens (columns) each one (row) could do with."""
        lacking = self.wanted - (self.met.sum(1) - 1) > 0
        return np.asarray(~self.met & lacking[:, None])

    def ask(self, size: int, most: int | None = None) -> None:
        """Sequences of ``size`` tokens, at most so many, each token chosen to see or be seen by most that need it."""
        size, both = min(size, len(self.tokens)), self.limit.sight == "all"
        sequences: list[list[int]] = []
        while (most is None or len(sequences) < most) and self.needed.any():
            needed = self.needed
            some: list[int] = []
            for _ in range(size):
                here = np.array(some, dtype=int)
                seen = needed[:, here].sum(1) if some else needed.sum(0)  # the first of a sequence may see nobody
                gain = seen + (needed[here].sum(0) if some else needed.sum(1)) * both + 0.5 * self.rng.random(len(needed))
                gain[some] = -1
                some.append(int(gain.argmax()))
            for one, seen in zip(some, self.limit.seen(size), strict=True):
                self.met[one, np.asarray(some)[seen]] = True
            sequences.append(some)
        if sequences:
            self.batches += self.limit.together(self.tokens[np.array(sequences)])

    def columns(self, values: Values, frames: list[Floats] | None = None) -> tuple[Floats, float]:
        """``W_h x + c_h (tokens, heads, n)``, in the span of ``frames`` if given, and the misfit.

        NaN where scores are too large to be read in this way, or too few: a token with a large score for itself hardly sees others.
        """
        told: list[list[tuple[Floats, Floats, Floats]]] = [[] for _ in self.tokens]
        misfit, places = 0.0, {token.tobytes(): i for i, token in enumerate(self.tokens)}
        for batch in self.batches:
            one = weigh(batch, values, self.limit.like)
            misfit = max(misfit, one.misfit)
            for i, reader in enumerate(batch.readers):
                told[places[reader.tobytes()]].append((batch.steps[i] @ values.basis.T, one.z[i], one.error[i]))
        radius = float(np.linalg.norm(self.tokens[0]))
        found = np.full((len(self.tokens), values.heads, len(values.basis)), np.nan)
        for i, mine in enumerate(told):
            if not mine or self.wanted[i] == 0:
                continue
            steps = np.concatenate([one[0] for one in mine])
            z, error = (np.concatenate([one[part] for one in mine], axis=1) for part in (1, 2))
            fine = np.isfinite(z) & (np.abs(np.nan_to_num(z)) < 2 * largest_score(values.heads))
            for h in range(values.heads):
                frame = np.eye(len(values.basis)) if frames is None else frames[h]
                design = steps[fine[h]] @ frame / error[h, fine[h]][:, None]
                if len(design) >= frame.shape[1]:
                    solved, _, _, spectrum = np.linalg.lstsq(design, z[h, fine[h]] / error[h, fine[h]], rcond=None)
                    found[i, h] = frame @ solved if spectrum[-1] * STACK.blurred > radius else np.nan
        return found, misfit
