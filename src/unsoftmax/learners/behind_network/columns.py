"""From scores along single directions to W and c: columns at shifted places, few directions each once the rank is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, RefusalError, TooNoisyError, tried
from unsoftmax.learners.behind_network.lines import Reader, Target
from unsoftmax.learners.behind_network.settings import BEHIND
from unsoftmax.models import Attention, Floats


@dataclass(frozen=True, slots=True)
class Base:
    """A last token at which the target can be inverted."""

    place: Floats
    value: Floats
    steepest: Floats  # unit direction of u along which the answer changes most
    reader: Reader
    clarity: float  # change of the answer along the segment, in units of the noise


def tilted_frame(steepest: Floats, space: Floats, rng: np.random.Generator) -> Floats:
    """Unit directions ``(width, width)``, all leaning towards ``steepest``, the first ones into ``space``.

    An orthonormal frame f_k whose first vectors span ``space``, signed so that f_k·steepest >= 0, and then tilted:
    (f_k + steepest) / norm. No direction is flat even where the network is constant along f_k.
    """
    width = len(steepest)
    basis = np.linalg.qr(np.hstack([space, rng.normal(size=(width, width - space.shape[1]))]))[0].T
    basis *= np.where(basis @ steepest < 0, -1.0, 1.0)[:, None]
    tilted = basis + steepest
    return np.asarray(tilted / np.linalg.norm(tilted, axis=1, keepdims=True))


class Columns:
    """Reads ``W x + c`` at width + 1 places; where it is found to stay in a small space, with few directions each."""

    def __init__(self, target: Target, base: Base, rng: np.random.Generator) -> None:
        self.target, self.base, self.rng = target, base, rng
        self.width = len(base.place)
        self.space = np.zeros((self.width, 0))  # orthonormal columns: the range of W as far as it is known
        self.lines = 0
        self.rank_found = 0

    def learn(self) -> tuple[Floats, Floats, float]:
        """W, c and the estimated error of an entry of W."""
        origin, origin_error = self._column(self.base.place, self.base.value, None)
        axes = np.linalg.qr(self.rng.normal(size=(self.width, self.width)))[0]
        W = np.zeros((self.width, self.width))
        worst = origin_error
        for axis in axes:
            column, error, offset = self._offset_column(axis, origin)
            W += np.outer(column - origin, axis) / offset
            worst = max(worst, (error + origin_error) / abs(offset))
            change = (column - origin) - self.space @ (self.space.T @ (column - origin))
            known = np.linalg.norm(change) <= BEHIND.safety * np.sqrt(self.width) * (error + origin_error)
            if not known and self.space.shape[1] < self.width:
                change -= self.space @ (self.space.T @ change)  # twice is enough
                self.space = np.column_stack([self.space, change / np.linalg.norm(change)])
        self.rank_found = self.space.shape[1]
        return W, origin - W @ self.base.place, worst

    def _offset_column(self, axis: Floats, origin: Floats) -> tuple[Floats, float, float]:
        """``W x + c`` at a place moved along ``axis``, where the answer still changes steeply along the steepest direction."""
        reader = self.base.reader
        path = self.base.steepest if reader.mixing is None else reader.mixing.matrix @ self.base.steepest
        farthest = min(2 * reader.length, 0.5 * float(np.linalg.norm(self.base.place)))
        reason: RefusalError | None = None
        for offset in farthest * np.array(BEHIND.offsets):
            place = self.base.place + offset * axis
            values = self.target.one(np.stack([place, place + reader.length * path]))
            rise = (values[1] - values[0]) @ reader.view
            if rise < 0.4 * self.base.clarity * self.target.noise(values):
                continue
            found = tried(partial(self._column, place, values[0], origin), NotInFamilyError, TooNoisyError)
            if not isinstance(found, RefusalError):
                return *found, float(offset)
            reason = found
        raise reason or NotIdentifiableError(
            "The network bends too strongly around the best place found for its answers to be inverted beside it. "
            "Nothing was announced; try another `seed`, or tokens of another size with `max_norm`.",
        )

    def _column(self, place: Floats, value: Floats, origin: Floats | None) -> tuple[Floats, float]:
        """``W x + c`` at one place, from rank + 1 directions where that is consistent, else from width + 1 of them."""
        rank = self.space.shape[1]
        for _ in range(BEHIND.redraws):
            frame = np.vstack(
                [
                    tilted_frame(self.base.steepest, self.space, self.rng),
                    tilted_frame(self.base.steepest, self.space[:, :0], self.rng)[:1],
                ]
            )
            scores, errors = np.full(self.width + 1, np.nan), np.full(self.width + 1, np.nan)
            if origin is not None and rank < self.width:
                scores[: rank + 1], errors[: rank + 1] = self._read(place, value, frame[: rank + 1])
                column, error, agrees = _solve(frame[: rank + 1], scores[: rank + 1], errors[: rank + 1], origin, self.space)
                if agrees:
                    return column, error
            todo = np.isnan(errors)
            scores[todo], errors[todo] = self._read(place, value, frame[todo])
            column, error, agrees = _solve(frame, scores, errors, np.zeros(self.width), np.eye(self.width))
            if agrees:
                return column, error
        raise self._contradiction(
            "Scores read along different directions contradict each other at one place: they are not u·(W x + c) of a single head. "
            "Run `unsoftmax diagnose` to see which family the target belongs to.",
            evidence={"redraws": BEHIND.redraws},
        )

    @property
    def _contradiction(self) -> type[NotInFamilyError | TooNoisyError]:
        """What a contradiction means: exact answers prove the family wrong, coarse ones may only be too coarse."""
        return NotInFamilyError if self.target.floor.exact else TooNoisyError

    def _read(self, place: Floats, value: Floats, frame: Floats) -> tuple[Floats, Floats]:
        self.lines += len(frame)
        scores, errors, _ = self.base.reader.read(place, value, frame)
        return scores, errors

    def confirm(self, model: Attention) -> None:
        """Read a few scores at fresh places near by: they must be what W and c say, else scores are not bilinear."""
        norm = float(np.linalg.norm(self.base.place))
        for sign in (1.0, -1.0):
            shift = self.rng.normal(size=self.width)
            place = self.base.place + sign * min(self.base.reader.length, 0.5 * norm) * shift / np.linalg.norm(shift)
            value = self.target.one(place[None])[0]
            frame = tilted_frame(self.base.steepest, self.space[:, :0], self.rng)[:2]
            scores, errors = self._read(place, value, frame)
            wanted = frame @ (model.W[0] @ place + model.c[0])
            miss = np.abs(scores - wanted)
            gap = miss / (1e-7 * (1 + np.abs(wanted)) + BEHIND.safety * self.width * errors)
            if np.nanmax(gap, initial=0.0) > 1:
                raise self._contradiction(
                    f"Scores at a fresh place differ from x_i·W·x_N + c·x_i by up to {np.nanmax(miss):.2g}, far above the error "
                    "of reading them: they are not bilinear. Run `unsoftmax diagnose` to see which test the target fails.",
                    evidence={"gap": float(np.nanmax(gap))},
                    model=model,
                )


def _solve(frame: Floats, scores: Floats, errors: Floats, origin: Floats, space: Floats) -> tuple[Floats, float, bool]:
    """Fit ``origin + space @ a`` to scores along ``frame``; its error, and whether one direction too many agrees."""
    if np.isnan(scores).any() or len(scores) <= space.shape[1]:
        return origin, np.inf, False
    design = frame @ space
    weights = 1 / errors
    coefficients, *_ = np.linalg.lstsq(design * weights[:, None], (scores - frame @ origin) * weights)
    misfit = np.abs(scores - frame @ origin - design @ coefficients)
    spread = np.linalg.pinv(design * weights[:, None])
    error = float(np.linalg.norm(spread, axis=1).max(initial=errors.min()))
    return origin + space @ coefficients, error, bool((misfit <= BEHIND.safety * errors.max()).all())
