"""Everything that was asked of a decoder, as the last fit sees it; and long blocks of tokens, asked for that fit alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from unsoftmax.learners.decoder.limit import Asked, Limit
from unsoftmax.learners.decoder.start import on_sphere
from unsoftmax.models import Floats
from unsoftmax.models.base import Places


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """Answers less those to the last tokens alone: ``repeats`` of ``p`` before ``copies`` of ``x`` behind zero tokens.

    Rows with the same last token stand side by side. They share the error of the answer to that token alone, whose variance is
    ``shared`` times that of another answer.
    """

    p: Floats
    x: Floats
    repeats: Places
    copies: Places
    zeros: Floats
    moved: Floats
    shared: float
    starts: Places = field(init=False)
    sizes: Places = field(init=False)

    def __post_init__(self) -> None:
        new = np.flatnonzero((np.abs(np.diff(self.x, axis=0)) > 1e-9).any(axis=1)) + 1
        starts = np.concatenate([np.zeros(1, dtype=np.intp), new])
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "sizes", np.diff(np.append(starts, len(self.x))))

    def some(self, rows: Places) -> Data:
        """A part of them, in the same order."""
        p, x, moved = self.p[rows], self.x[rows], self.moved[rows]
        return Data(p, x, self.repeats[rows], self.copies[rows], self.zeros[rows], moved, self.shared)

    def white(self, rows: Floats) -> Floats:
        """Rows ``(n, any)`` made independent: of what all rows of one last token have in common, the shared error is taken out."""
        less = (1 - 1 / np.sqrt(1 + self.shared * self.sizes)) / self.sizes
        return np.asarray(rows - np.repeat(np.add.reduceat(rows, self.starts) * less[:, None], self.sizes, axis=0))


def collected(asked: list[Asked], shared: float) -> Data:
    """What was asked, as far as the answer to the last token alone is known."""
    alone = {_name(x): answer for a in asked if a.zeros == 0 and a.tokens.shape[1] == 1 for x, answer in a.each()}
    numbers = {name: i for i, name in enumerate(alone)}
    rows = []
    for a in asked:
        if a.zeros == 0 and a.tokens.shape[1] == 1:
            continue
        for tokens, answer in zip(a.tokens, a.answers, strict=True):
            last = tokens[-1]
            keys = int((tokens != last).any(axis=1).sum())
            key = tokens[0] if keys else np.zeros_like(last)
            name = _name(last)
            rows.append((numbers[name], key, last, keys, len(tokens) - keys, float(a.zeros), answer - alone[name]))
    rows.sort(key=lambda row: row[0])
    p, x, repeats, copies, zeros, moved = (np.array(column) for column in list(zip(*rows, strict=True))[1:])
    return Data(p, x, repeats, copies, zeros, moved, shared)


def _name(token: Floats) -> bytes:
    """A token up to rounding: products of the same numbers may differ in their last bits."""
    return (np.round(token, 9) + 0.0).tobytes()


def ask_blocks(limit: Limit, lasts: Floats, longest: int, rng: Generator) -> None:
    """Fresh keys before ``lasts (n, width)``, whose answers alone are known: as many copies of the key as of the last token.

    Scores at far distances hardly show where one key stands before a hundred copies of the last token: its share of the attention
    is a hundredth. A block of keys as long as that has half of it, and shows the mean of scores over its distances, in which slow
    rotations do not cancel. Blocks of every length show rotations of every speed.
    """
    settings = limit.settings
    for length in settings.blocks:
        size = max(1, min(length, longest // 2))
        x = np.repeat(lasts, settings.each, axis=0)
        p = on_sphere(rng.normal(size=x.shape), limit.radius)
        limit.ask(np.concatenate([np.repeat(p[:, None], size, axis=1), np.repeat(x[:, None], size, axis=1)], axis=1), 0)
