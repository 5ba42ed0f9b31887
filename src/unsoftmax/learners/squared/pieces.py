"""Parabolas on a line, and how well answers tell them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from unsoftmax.models import Floats


@dataclass(frozen=True, eq=False)
class Piece:
    """Answers ``(n, outputs)`` at places ``(n,)`` of a line, with the errors to expect of them; three or more make a parabola."""

    places: Floats
    answers: Floats
    errors: Floats

    @property
    def low(self) -> float:
        """Where it begins."""
        return float(self.places.min())

    @property
    def high(self) -> float:
        """Where it ends."""
        return float(self.places.max())

    def _powers(self, t: Floats) -> Floats:
        nearest = self.places[np.argmin(self.errors)]  # where answers are told best no digits are to cancel
        return np.asarray(((t - nearest) / (self.high - self.low))[:, None] ** np.arange(3))

    @cached_property
    def _solve(self) -> Floats:
        rows = self._powers(self.places) / self.errors[:, None]
        scales = np.linalg.norm(rows, axis=0)
        return np.asarray(np.linalg.pinv(rows / scales) / scales[:, None])

    def __call__(self, t: Floats) -> Floats:
        """Values ``(n, outputs)``, continued where need be."""
        return np.asarray(self._powers(t) @ (self._solve @ (self.answers / self.errors[:, None])))

    def doubt(self, t: Floats) -> Floats:
        """Error to expect of them, ``(n,)``."""
        return np.asarray(np.linalg.norm(self._powers(t) @ self._solve, axis=1))

    def joined(self, *others: Piece) -> Piece:
        """One piece of the answers of all."""
        pieces = (self, *others)
        return Piece(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("places", "answers", "errors")))


def share(left: Piece, right: Piece, place: float) -> float:
    """Where a place lies between two pieces, 0 to 1 inside, in a measure that is fine near the start and coarse far out."""
    low, high, here = np.arcsinh([left.high, right.low, place])
    return float((here - low) / (high - low))


def between(left: Piece, right: Piece, part: float = 0.5) -> float:
    """A place between two pieces, so far on the way, in that measure."""
    low, high = np.arcsinh([left.high, right.low])
    return float(np.sinh(low + part * (high - low)))


def astride(piece: Piece, place: float) -> bool:
    """Whether a piece that was just begun has a bend in its midst, and is none."""
    width = piece.high - piece.low
    return len(piece.places) == 3 and piece.low - width <= place <= piece.high + width
