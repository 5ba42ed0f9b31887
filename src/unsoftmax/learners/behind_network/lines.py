"""Reading attention scores through an unknown network: the one-token target serves as its own inverse.

Write ``G(x) = f([x])``. Without a residual the network sees only the mixed token, so ``f([x + u; x]) = G(x + t u)`` with
``t = sigmoid(u·(W x + c))``. Finding ``t`` on the segment is a root search that asks one-token questions only.
With a residual the segment runs along ``M u``, ``M = (I + V)^-1 V``; where ``M`` is known the same search applies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.behind_network.settings import BEHIND
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Floor


@dataclass(frozen=True, slots=True)
class Target:
    """The oracle as the two questions that are asked here: one token, and copies of one token before another."""

    oracle: Oracle
    floor: Floor

    def one(self, points: Floats) -> Floats:
        """``G`` at ``points (batch, width)`` -> ``(batch, outputs)``."""
        return self.ask(points[:, None, :])

    def pair(self, first: Floats, last: Floats, copies: int = 1) -> Floats:
        """Answers ``(batch, outputs)`` to ``copies`` of each row of ``first``, then the row of ``last``."""
        return self.ask(np.stack([first] * copies + [last], axis=1))

    def ask(self, sequences: Floats) -> Floats:
        """Answers ``(batch, outputs)`` at the last position, asked in calls of bounded size."""
        size = max(1, BEHIND.probe_bytes // (8 * sequences.shape[1] * sequences.shape[2]))
        parts = []
        for start in range(0, len(sequences), size):
            answers = self.oracle(sequences[start : start + size])
            answers = answers[:, -1] if answers.ndim == 3 else answers
            parts.append(answers.reshape(len(answers), -1))
        return np.concatenate(parts)

    def noise(self, answers: Floats) -> float:
        """Error to expect of one answer of this size."""
        return self.floor.of(float(np.abs(answers).max(initial=0.0))) + np.finfo(float).tiny


@dataclass(frozen=True, slots=True)
class Mixing:
    """With a residual, ``[x + u; x]`` is worth the single token ``x + t M u``: the matrix M and its relative error.

    Attributes:
        matrix: M ``(width, width)``.
        error: its relative error.
        scores: scores per unit length of the directions along which M was measured.
    """

    matrix: Floats
    error: float
    scores: Floats


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads ``unit direction · (W x + c)`` at a place, for many directions in parallel.

    Attributes:
        target: what is asked.
        view: unit vector ``(outputs,)`` along which vector answers are compared.
        length: length of ``u`` to start with.
        mixing: what a residual makes of attended tokens, or None where there is no residual.
    """

    target: Target
    view: Floats
    length: float
    mixing: Mixing | None = None

    def read(self, place: Floats, value: Floats, directions: Floats, copies: int = 1) -> tuple[Floats, Floats, Floats]:
        """Scores per unit length, their error estimates, and the lengths of ``u`` that served; NaN where no length did.

        Price per direction: one sequence of ``copies + 1`` tokens and 4 to 7 of one token; again for each shorter length tried.

        Args:
            place: the last token ``x (width,)``.
            value: ``G(x)``, ``(outputs,)``.
            directions: unit vectors ``(number, width)``.
            copies: how often ``x + u`` stands before ``x``.
        """
        scores, errors, lengths = (np.full(len(directions), np.nan) for _ in range(3))
        for shrink in BEHIND.shorter:
            left = np.flatnonzero(np.isnan(scores))
            if not len(left):
                break
            length = self.length * shrink
            logit, error = self._logits(place, value, length * directions[left], copies)
            scores[left], errors[left] = (logit - np.log(copies)) / length, error / length
            lengths[left] = np.where(np.isnan(logit), np.nan, length)
        return scores, errors, lengths

    def _logits(self, place: Floats, value: Floats, steps: Floats, copies: int) -> tuple[Floats, Floats]:
        answers = self.target.pair(place + steps, np.broadcast_to(place, steps.shape), copies)
        path = steps if self.mixing is None else steps @ self.mixing.matrix.T
        found = np.full(len(steps), np.nan)
        errors = np.full(len(steps), np.nan)
        t, error, good = _positions(self.target, self.view, place, value, path, answers)
        if self.mixing is not None:
            error = error + 2 * self.mixing.error
        good &= (t > 0.004) & (t < 0.996)  # beyond, the logit amplifies the error of t by more than 250: a shorter u is better
        found[good] = np.log(t[good] / (1 - t[good]))
        errors[good] = error[good] / (t[good] * (1 - t[good]))
        return found, errors


def _positions(
    target: Target, view: Floats, place: Floats, value: Floats, path: Floats, answers: Floats
) -> tuple[Floats, Floats, np.ndarray]:
    """Where on ``place + t path`` the one-token target gives ``answers``: ``t``, its error estimate, whether to trust it."""
    ends = target.one(place + path)
    noise = target.noise(np.concatenate([ends, answers, value[None]]))
    low = (value[None] - answers) @ view
    high = (ends - answers) @ view
    chord = high - low
    good = (low * high < 0) & (np.abs(chord) > 64 * noise)
    t, tail, slope, last = _roots(target, view, place, path, answers, low, high, good, noise)
    with np.errstate(divide="ignore", invalid="ignore"):
        bend = slope / chord
        off_line = np.abs(last - answers).max(axis=1)
        error = tail + noise / np.abs(slope)
    good &= np.isfinite(error) & (bend > 0.25) & (bend < 4.0)
    # with vector answers the whole answer must lie on the line, not only its projection
    return t, error, good & (off_line <= 64 * noise + 8 * tail * np.abs(slope) + 1e-6 * np.abs(chord))


def _roots(
    target: Target,
    view: Floats,
    place: Floats,
    path: Floats,
    answers: Floats,
    low: Floats,
    high: Floats,
    active: np.ndarray,
    noise: float,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Bracketed inverse interpolation on all segments at once (Chandrupatla 1997): root, error, slope there, last answers.

    A segment is done when one more secant step is known to leave an error below the noise of the answers.
    """
    number = len(path)
    a, fa = np.ones(number), high.copy()  # newest point
    b, fb = np.zeros(number), low.copy()  # the other end of the bracket
    c, fc = b.copy(), fb.copy()
    root, slope, tail = (np.full(number, np.nan) for _ in range(3))
    last = np.zeros_like(answers)
    chord = np.abs(high - low)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.clip(low / (low - high), 0.02, 0.98)
    active = active.copy()
    for _ in range(BEHIND.lines_max_steps):
        index = np.flatnonzero(active)
        if not len(index):
            break
        point = b[index] + t[index] * (a[index] - b[index])
        reply = target.one(place + point[:, None] * path[index])
        f = (reply - answers[index]) @ view
        last[index] = reply
        previous, f_previous = a[index], fa[index]
        same = np.sign(f) == np.sign(f_previous)
        c[index] = np.where(same, previous, b[index])
        fc[index] = np.where(same, f_previous, fb[index])
        b[index] = np.where(same, b[index], previous)
        fb[index] = np.where(same, fb[index], f_previous)
        a[index], fa[index] = point, f
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = (f - f_previous) / (point - previous)
            remain = np.abs(f * f_previous) / chord[index] ** 2
            step = np.where(np.abs(f) > 0, f / steep, 0.0)
        closed = np.abs(f) <= noise
        # the second condition limits what a kink of the network between the last two points could do
        done = closed | ((remain * chord[index] <= noise) & (np.abs(f) <= 1e-11 * chord[index]))
        finished = index[done]
        # at noise level the local secant is meaningless: take the chord's slope for the error and leave the root
        whole = (high - low)[index]
        root[finished] = (point - np.where(closed, 0.0, step))[done]
        slope[finished] = np.where(closed, np.where(np.abs(f_previous) > 1e3 * noise, steep, whole), steep)[done]
        tail[finished] = np.where(closed, 0.0, remain)[done]
        active[finished] = False
        t = _next_fraction(a, b, c, fa, fb, fc)
    return root, tail, slope, last


def _next_fraction(a: Floats, b: Floats, c: Floats, fa: Floats, fb: Floats, fc: Floats) -> Floats:
    """Where to look next, as a fraction of the way from ``b`` to ``a``: inverse quadratic where safe, else the middle."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        xi = (a - b) / (c - b)
        phi = (fa - fb) / (fc - fb)
        safe = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
        quadratic = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
    fraction = 1 - np.where(safe, quadratic, 0.5)
    return np.clip(np.where(np.isfinite(fraction), fraction, 0.5), 1e-12, 1 - 1e-12)
