"""The score matrix and query bias of attention in front of a known network, rank unknown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import NotIdentifiableError
from unsoftmax.learners.transformer.model import Network, Sequences
from unsoftmax.learners.transformer.paths import BROKEN, Paths
from unsoftmax.learners.transformer.settings import TRANSFORMER
from unsoftmax.models import Floats

LEAN = np.cos(np.pi / 4)  # share of the steepest direction in every step


@dataclass(frozen=True, slots=True, eq=False)
class ScoreReader:
    """Reads ``u·(W x + c)`` from one question ``[x + u; x]``: the answer is the network at ``x + sigmoid(u·(W x + c)) mix u``.

    Args:
        sequences: where to ask.
        network: the target on one token.
        mix: ``(width, width)``, the identity without residual.
        reach: length of ``u`` to begin with.
        c: the query bias where it is known; its share is taken off what ``column`` reads.
        paths: how paths through the network are judged and inverted.
    """

    sequences: Sequences
    network: Network
    mix: Floats
    reach: float
    c: Floats
    paths: Paths = BROKEN

    def steps(self, x: Floats, directions: Floats) -> Floats:
        """For each row of ``directions`` a step ``u`` with a part along it, on which the network is steep and monotone.

        Raises:
            NotIdentifiableError: the network is constant around ``x``.
        """
        steepest = self.steepest(x)
        chosen = np.zeros_like(directions)
        best = np.zeros(len(directions))
        across = directions - np.outer(directions @ steepest, steepest)
        sizes = np.linalg.norm(across, axis=1, keepdims=True)
        across = np.where(sizes > 1e-6, across / np.maximum(sizes, 1e-300), 0.0)
        for shrink in (1.0, 0.5, 0.25, 1 / 16, 1 / 256, 2.0**-14):
            for lean, turn in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
                open_ = best <= 0.2 * best.max(initial=0.0) if shrink < 0.5 else np.full(len(best), True)
                if not open_.any():
                    continue
                u = lean * LEAN * steepest + turn * np.sqrt(1 - LEAN**2) * across[open_]
                u = self._allowed(x, u * (shrink * self.reach))
                score = self.paths.quality(self.network, np.repeat(x[None], len(u), axis=0), u @ self.mix.T)
                rows = np.flatnonzero(open_)[score > best[open_]]
                chosen[rows] = u[score > best[open_]]
                best[rows] = score[score > best[open_]]
        if not (best > 0).all():
            raise NotIdentifiableError(
                f"The network behind the attention does not change along {int((best <= 0).sum())} of {len(best)} paths from a "
                "point of the probed region, so the attention scores there leave no trace in the answers."
            )
        return chosen

    def steepest(self, x: Floats) -> Floats:
        """The direction of ``u`` in which the answer changes most."""
        gradient = self.network.gradients(x[None])[0] @ self.mix
        return np.asarray(np.linalg.svd(gradient, full_matrices=False)[2][0])

    def _allowed(self, x: Floats, u: Floats) -> Floats:
        if self.sequences.max_norm is None:
            return u
        room = 0.999 * self.sequences.max_norm - float(np.linalg.norm(x))
        lengths = np.linalg.norm(u, axis=1, keepdims=True)
        return np.asarray(u * np.minimum(1.0, room / lengths))

    def read(self, last: Floats, steps: Floats) -> tuple[Floats, Floats]:
        """Scores per step ``z (n,)`` with the (possibly shortened) steps ``u (n, width)`` that they belong to."""
        steps = steps.copy()
        scores = np.zeros(len(steps))
        todo = np.arange(len(steps))
        for _ in range(TRANSFORMER.tries):
            answers = self.sequences.pairs(last[todo], steps[todo])
            t = self.paths.place_of(self.network, last[todo], steps[todo] @ self.mix.T, answers)
            safe = np.clip(t, 1e-12, 1 - 1e-12)
            scores[todo] = np.log(safe / (1 - safe))
            large = np.abs(scores[todo]) > TRANSFORMER.largest_score
            if not large.any():
                break
            factor = np.where(np.abs(scores[todo]) > 12, 1 / 8, 2.0 / np.maximum(np.abs(scores[todo]), 1e-9))
            todo, factor = todo[large], factor[large]
            steps[todo] *= factor[:, None]
        return scores, steps


def column(reader: ScoreReader, x: Floats, known: Floats, size: float, rng: np.random.Generator) -> tuple[Floats, bool]:
    """``w = W x`` (or ``W x + c`` while c is not known), and whether it left the column space ``known (width, rank)``.

    It costs ``rank + 1`` questions if ``w`` lies in that space, else ``width``. Returns ``w`` and whether it left that space.
    ``size`` is the length of the columns so far.
    """
    width, rank = known.shape
    steepest = reader.steepest(x)
    across_known = known - np.outer(steepest, steepest @ known)
    spanned = np.linalg.svd(across_known, full_matrices=False)[0] if rank else np.zeros((width, 0))
    first = np.concatenate([steepest[:, None], spanned[:, : min(rank, width - 1)]], axis=1)
    basis = np.linalg.qr(np.concatenate([first, rng.normal(size=(width, width - first.shape[1]))], axis=1))[0]
    count = first.shape[1]
    scores, steps = _read(reader, x, basis[:, :count].T)
    if rank < width:
        amounts = np.linalg.lstsq(steps @ known, scores, rcond=None)[0] if rank else np.zeros(0)
        left = scores - steps @ known @ amounts
        lengths = np.linalg.norm(steps, axis=1)
        inside = np.linalg.norm(left / lengths) <= TRANSFORMER.rank * max(size, float(np.linalg.norm(scores / lengths)))
        if inside or np.abs(left).max() <= TRANSFORMER.silent:
            return known @ amounts, False
    if count < width:
        more, more_steps = _read(reader, x, basis[:, count:].T)
        scores, steps = np.concatenate([scores, more]), np.concatenate([steps, more_steps])
    return np.asarray(np.linalg.solve(steps, scores)), True


def _read(reader: ScoreReader, x: Floats, directions: Floats) -> tuple[Floats, Floats]:
    steps = reader.steps(x, directions)
    scores, steps = reader.read(np.repeat(x[None], len(steps), axis=0), steps)
    return scores - steps @ reader.c, steps
