"""Scores of all heads at any distance, from answers whose values are known: one linear solve each."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.decoder.limit import Limit
from unsoftmax.models import Floats
from unsoftmax.models.base import Places


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """Scores ``(n, heads)`` of keys ``p`` so many places before ``x``, with their standard errors."""

    p: Floats
    x: Floats
    offsets: Floats
    scores: Floats
    errors: Floats

    def joined(self, other: Readings) -> Readings:
        """Both together."""
        names = ("p", "x", "offsets", "scores", "errors")
        return Readings(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))


@dataclass(slots=True, eq=False)
class Reader:
    """Reads scores with known values ``V (heads, width, width)``; the answers without a key are asked once.

    A sequence is some zero tokens, the key, and ``n`` copies of the last token: then the key is ``n`` places before the last one.
    ``noise`` is the error of a limit answer in one output.
    """

    limit: Limit
    V: Floats
    noise: float
    alone: dict[bytes, Floats] = field(default_factory=dict)
    own: dict[tuple[bytes, int], tuple[Floats, Floats]] = field(default_factory=dict)

    def read(self, p: Floats, x: Floats, offsets: Floats) -> Readings:
        """Scores of ``p (n, width)`` so many places before ``x (n, width)``."""
        heads = len(self.V)
        scores, errors = np.zeros((len(p), heads)), np.full((len(p), heads), np.inf)
        copies = np.asarray(offsets).astype(int)
        together = [copies > 0] if self.limit.everywhere is not None else [copies == n for n in np.unique(copies)]
        for rows in map(np.flatnonzero, together):
            self._ask_own(x[rows], copies[rows])
            told = self._behind(p[rows], x[rows], copies[rows])
            for row, answer in zip(rows.tolist(), told, strict=True):
                scores[row], errors[row] = self._one(p[row], x[row], int(copies[row]), answer)
        return Readings(p, x, np.asarray(offsets, dtype=np.float64), scores, errors)

    def _behind(self, p: Floats | None, x: Floats, copies: Places) -> Floats:
        """Limits ``(n, width)`` at the last of so many copies of ``x``, behind a key or none.

        Where every position is answered, one sequence of the most copies tells all; else the rows have one number of copies.
        """
        most, zeros = int(copies.max()), self.limit.settings.zeros
        names = x if p is None else np.concatenate([p, x], axis=1)
        first, which = np.arange(len(x)), np.arange(len(x))
        if self.limit.everywhere is not None:
            _, first, which = np.unique(names, axis=0, return_index=True, return_inverse=True)
        tokens = np.repeat(x[first, None], most, axis=1)
        if p is not None:
            tokens = np.concatenate([p[first, None], tokens], axis=1)
        if self.limit.everywhere is None:
            return self.limit.ask(tokens, zeros)
        return np.asarray(self.limit.every(tokens, zeros)[which.ravel(), copies - most - 1])

    def _ask_own(self, x: Floats, copies: Places) -> None:
        """How much of every head's attention copies of a last token take, each asked once."""
        new = list({token.tobytes(): token for token in x if token.tobytes() not in self.alone}.values())
        if new:
            answers = self.limit.alone(np.array(new))
            self.alone.update({token.tobytes(): answer for token, answer in zip(new, answers, strict=True)})
        fresh = {(token.tobytes(), n): token for token, n in zip(x, copies.tolist(), strict=True)}
        fresh = {name: token for name, token in fresh.items() if name not in self.own}
        if not fresh:
            return
        answers = self._behind(None, np.array(list(fresh.values())), np.array([n for _, n in fresh]))
        for ((_, n), token), answer in zip(fresh.items(), answers, strict=True):
            columns = self._across(token, token @ self.V)
            lost, error = self._solved(-columns, answer - self.alone[token.tobytes()])  # k / (k + E)
            lost = np.clip(lost, 1e-12, 1.0)
            zeros = self.limit.settings.zeros
            self.own[token.tobytes(), n] = zeros / lost - zeros, zeros * error / lost**2

    def _one(self, p: Floats, x: Floats, n: int, answer: Floats) -> tuple[Floats, Floats]:
        """Scores of one key and their errors: the answer is linear in ``1 / (zeros + P + E)``."""
        E, dE = self.own[x.tobytes(), n]
        zeros = self.limit.settings.zeros
        key, last = p @ self.V, x @ self.V
        columns = self._across(x, (zeros + E)[:, None] * key - E[:, None] * last)
        moved = answer - self.alone[x.tobytes()] - self._across(x, (key - last).sum(axis=0, keepdims=True))[0]
        w, dw = self._solved(-columns, moved)
        w = np.maximum(w, 1e-300)
        P = 1 / w - zeros - E
        both = np.minimum(1.0, (zeros + np.abs(P)) / (zeros + E))  # of an error of E, the rest goes into w and cancels
        error = np.hypot(dw / w**2, dE * both) / np.maximum(np.abs(P), 1e-300)
        bad = ~(P > 0) | ~(error < 0.1)
        return np.where(bad, 0.0, np.log(np.where(bad, 1.0, P))), np.where(bad, np.inf, error)

    def _across(self, x: Floats, vectors: Floats) -> Floats:
        """Without their part along the last token."""
        return vectors - np.outer(vectors @ x, x) / (x @ x)

    def _solved(self, columns: Floats, moved: Floats) -> tuple[Floats, Floats]:
        """Least squares in ``columns (heads, width)``, and the standard errors."""
        inverse = np.linalg.pinv(columns.T)
        return inverse @ moved, self.noise * np.linalg.norm(inverse, axis=1)
