"""One head from probes that are all drawn before the first answer: compressed sensing of a low-rank score matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, TooNoisyError
from unsoftmax.learners.non_adaptive.low_rank_fit import Fit, fit_rank, nuclear_norm
from unsoftmax.learners.non_adaptive.measurements import Measurements, polished
from unsoftmax.learners.non_adaptive.settings import FIXED
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.probes.fixed import FixedProbes
from unsoftmax.probes.rank_one import bias_pair, grid_of_pairs, random_pairs, singles
from unsoftmax.results import Check, Floor, Learned

KIND = "non-adaptive"


@dataclass(frozen=True, slots=True)
class NonAdaptiveLearner:
    """Recover one head (W of low rank, v, b) from random rank-one measurements fixed beforehand.

    Price: ``oversampling * (d + r (2 d - r))`` queries, values and scores together, by default 2.2 times the number of parameters
    (3 for r = 1); with ``rank=None``, or where that is no less, ``d^2 + d`` and a few more. All in one round.
    Assumes scalar or vector answers and no query bias. Score matrices up to a Frobenius norm of about ``25 / scale`` can be read.
    Reference: the paper's non-adaptive theorem (nuclear norm); the default solver works on the factors of W.

    Attributes:
        rank: rank of W, or a bound on it; None plans for full rank.
        oversampling: probes per parameter; None chooses as above.
        method: "factored", or "nuclear" as in the paper (then polished on its rank).
        scale: size of the scores asked for, relative to the norm of W.
        floor: how coarse the answers are.
        max_norm: longest token that may be sent.
    """

    rank: int | None = None
    oversampling: float | None = None
    method: Literal["factored", "nuclear"] = "factored"
    scale: float = 2.0**-8
    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None

    def plan(self, width: int, rng: np.random.Generator, *, checks: int = 0) -> FixedProbes:
        """Draw all probes: single tokens, then one pair that shows a query bias followed by the measurements.

        With ``checks``, a third array of that many longer sequences, which no solver sees: for ``recorded_check``.
        """
        count, dense = pairs_needed(width, self.rank, self.oversampling)
        back = held_back(count)
        if dense:
            measured = np.concatenate(
                [
                    grid_of_pairs(width, rng, scale=self.scale, max_norm=self.max_norm),
                    random_pairs(width, count - width**2, rng, scale=self.scale, max_norm=self.max_norm),
                ]
            )
        else:
            measured = random_pairs(width, count, rng, scale=self.scale, max_norm=self.max_norm)
        pairs = np.concatenate([bias_pair(width, rng, self.max_norm), measured])
        record = {"kind": KIND, "width": width, "rank": self.rank, "dense": dense, "held_back": back, "scale": self.scale}
        arrays = [singles(width, self.max_norm), pairs]
        if checks:
            tokens = rng.normal(size=(checks, FIXED.check_length, width))
            if self.max_norm is not None:
                tokens *= 0.99 * self.max_norm / np.linalg.norm(tokens, axis=2, keepdims=True)
            arrays.append(tokens)
        return FixedProbes(tuple(arrays), record)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Draw the probes, ask them all, solve. Refuses when there are too few for the rank that W turns out to have."""
        probes = self.plan(oracle.width, rng)
        answers = []
        for name, asked in zip(("values", "measurements"), probes.arrays, strict=True):
            phase(oracle, name)
            size = max(1, FIXED.call_bytes // (8 * asked.shape[1] * asked.shape[2]))
            answers.append(np.concatenate([oracle(asked[at : at + size]) for at in range(0, len(asked), size)]))
        return self.learn(probes, answers, rng=rng)

    def learn(self, probes: FixedProbes, answers: Sequence[Floats], *, rng: np.random.Generator) -> Learned:
        """Solve for the head from probes and their answers alone; no target is needed."""
        record = probes.record
        if record.get("kind") != KIND or len(probes.arrays) < 2:
            raise ValueError(f"These probes are of kind {record.get('kind')!r}; this learner takes plans of kind {KIND!r}.")
        scalar = answers[0].ndim == 1
        single, pair = (np.asarray(said[:, -1] if said.ndim == 3 else said).reshape(len(said), -1) for said in answers[:2])
        if self.floor.exact and all(np.array_equal(said, said.astype(np.float32)) for said in (single, pair)):
            # no question can be spent on the precision of the answers, but single precision shows by itself
            return replace(self, floor=Floor(kind="float32", relative=2.0**-22)).learn(probes, answers, rng=rng)
        V, b = self._values(probes.arrays[0][:, 0], single)
        measured = self._scores(probes.arrays[1], pair, V, b)
        fit, rank = self._dense(measured) if record.get("dense") else self._low_rank(measured.readable(), record, rng)
        return Learned(
            model=Attention(
                W=fit.W[None],
                V=V.T if scalar else V[None],
                b=(b[0] if scalar else b) if np.any(b) else None,
            ),
            ambiguity="The parameters are unique in this form: W, v and b are determined by the function.",
            notes=(
                f"W has rank {rank}; {int(measured.good.sum())} of {len(measured.z)} measurements fixed beforehand could be used.",
                f"Measurements that no fit saw are met to {fit.misfit:.1e} of the scores.",
            ),
            evidence={
                "rank": rank,
                "measurements": int(measured.good.sum()),
                "held_back_misfit": fit.misfit,
                "method": self.method,
            },
            ranks=(rank,),
        )

    def _values(self, tokens: Floats, answers: Floats) -> tuple[Floats, Floats]:
        b = answers[0]
        size = float(np.abs(tokens).max())
        V = (answers[1:] - b) / size
        if np.abs(V).max() * size <= 64 * self.floor.of(float(np.abs(answers).max())):
            raise NotIdentifiableError(
                f"Every one-token answer equals {b[0]:.6g}: the values are zero, so the attention weights never show and W cannot "
                "be identified. Ask a target whose answers depend on its tokens."
            )
        return V, b

    def _scores(self, pairs: Floats, answers: Floats, V: Floats, b: Floats) -> Measurements:
        """Measurements ``u·W·x = z`` with unit-sized ``u`` and ``x``, and their errors."""
        low, high = pairs[:, 1] @ V, pairs[:, 0] @ V
        span = high - low
        up = np.einsum("bo,bo->b", answers - b - low, span)
        down = np.einsum("bo,bo->b", high + b - answers, span)
        # a key's value is a sum of width products: its rounding is relative to their size, not to what is left of them
        sizes = np.linalg.norm(pairs[:, 0], axis=1) * np.linalg.norm(V) + np.abs(b).max()
        noise = self.floor.absolute + self.floor.relative * sizes
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.log(up / down)
            errors = noise * np.linalg.norm(span, axis=1) * (1 / up + 1 / down)
        if not (np.isfinite(errors[0]) and abs(scores[0]) <= 64 * errors[0]):
            raise NotInFamilyError(
                "A key before the zero token does not weigh one half: the head has a query bias, for which fixed probes are not "
                "made, or is no single head. Use adaptive probes (`adaptive=True`)."
            )
        scores, errors = scores[1:], errors[1:]
        readable = np.isfinite(scores) & (errors > 0) & (errors < 0.05)
        # scores far up lose digits by the factor exp(score): they would spoil the others, and enough are left without them
        usual = float(np.quantile(errors[readable], 0.1)) if readable.any() else 0.0
        good = readable & (errors <= FIXED.worst * usual)
        if good.sum() < 0.5 * len(good):
            raise TooNoisyError(
                f"{int((~good).sum())} of {len(good)} pairs are saturated or drowned: W is too large for these probes. Plan again "
                "with a smaller `scale`, or use adaptive probes.",
                evidence={"unreadable": int((~good).sum()), "pairs": len(good)},
            )
        key_size = float(np.sqrt(np.mean(pairs[1:, 0] ** 2)))
        token_size = float(np.sqrt(np.mean(pairs[1:, 1] ** 2)))
        gain = key_size * token_size
        return Measurements((pairs[1:, 0] - pairs[1:, 1]) / key_size, pairs[1:, 1] / token_size, scores / gain, errors / gain, good)

    def _allowed(self, noise: float) -> float:
        """Misfit of held-back pairs that counts as agreement, for scores with this relative error."""
        allowed = max(FIXED.agrees, 100 * noise)
        if allowed > FIXED.loosest:
            raise TooNoisyError(
                f"The scores asked for are known only to {noise:.1g} of their size, too little to tell a solution from an "
                "interpolation. Plan with a larger `scale`, or use adaptive probes.",
                evidence={"score_error": noise},
            )
        return allowed

    def _dense(self, measured: Measurements) -> tuple[Fit, int]:
        """W of any rank: every column from the grid of pairs, tested on the random pairs behind it."""
        width = measured.u.shape[1]
        square = width**2
        if not measured.good[:square].all():
            raise TooNoisyError(
                f"{int((~measured.good[:square]).sum())} of {square} pairs are saturated: W is too large for these probes. Plan "
                "again with a smaller `scale`, or use adaptive probes.",
                evidence={"unreadable": int((~measured.good).sum())},
            )
        keys = measured.u[:square].reshape(width, width, width)
        columns = np.linalg.solve(keys, measured.z[:square].reshape(width, width, 1))[..., 0]  # row j: W x_j
        W = np.linalg.solve(measured.x[:square:width], columns).T
        size, noise = measured.size(), measured.noise()
        if size == 0 or size <= 64 * noise <= FIXED.invisible:
            return Fit(np.zeros((width, width)), 0.0), 0
        misfit = measured.misfit(W, slice(square, None))
        if misfit > self._allowed(noise / size):
            raise NotInFamilyError(
                f"Random pairs differ from the matrix found by {misfit:.2g} of the scores: not x_i·W·x_N of a single head. "
                "Run `unsoftmax diagnose` to see which family the target belongs to.",
                evidence={"misfit": misfit},
            )
        values = np.linalg.svd(W, compute_uv=False)
        return Fit(W, misfit), int((values > 1e3 * max(noise / size, 1e-14) * values[0]).sum())

    def _low_rank(self, measured: Measurements, record: dict[str, object], rng: np.random.Generator) -> tuple[Fit, int]:
        """W from fewer measurements than entries; the fit returned carries the misfit on held-back ones."""
        width, count = measured.u.shape[1], len(measured.z)
        back = held_back(count)
        fitted = measured.part(slice(0, count - back))
        size, noise = measured.size(), measured.noise()
        if size == 0 or size <= 64 * noise <= FIXED.invisible:
            return Fit(np.zeros((width, width)), 0.0), 0
        allowed = self._allowed(noise / size)
        tried: dict[int, float] = {}
        for rank, starts in self._ranks(width, count - back, record):
            fit = self._fit(fitted, rank, starts, max(1e-11, 4 * noise / size), rng)
            misfit = measured.misfit(fit.W, slice(count - back, None))
            tried[rank] = min(misfit, tried.get(rank, np.inf))
            if misfit <= allowed:
                values = np.linalg.svd(fit.W, compute_uv=False)
                true_rank = int((values > max(allowed, 1e-7) * values[0]).sum())
                return Fit(polished(measured, fit.W, true_rank), misfit), true_rank
        best = min(tried, key=lambda rank: tried[rank]) if tried else None
        told = (
            "they cannot settle any rank"
            if best is None
            else f"the best fit (rank {best}) misses held-back ones by {tried[best]:.2g}"
        )
        raise NotIdentifiableError(
            f"Too few probes, or W has a higher rank than planned for: {count} measurements of a {width} x {width} matrix; {told}. "
            f"Plan with a higher `rank`, more `oversampling`, or `rank=None` for any rank and {width**2 + width} queries.",
            evidence={"measurements": count, "misfit": tried},
        )

    def _fit(self, fitted: Measurements, rank: int, starts: int, solved: float, rng: np.random.Generator) -> Fit:
        if self.method == "factored":
            return fit_rank(fitted.u, fitted.x, fitted.z, rank, rng, starts, solved)
        return Fit(polished(fitted, nuclear_norm(fitted.u, fitted.x, fitted.z).W, rank), 0.0)

    def _ranks(self, width: int, measurements: int, record: dict[str, object]) -> list[tuple[int, int]]:
        """Ranks to try with the number of starts: the planned one first, then every one that the measurements could settle."""
        if record.get("dense") and measurements >= width**2:
            return [(width, 1)]
        enough = [rank for rank in range(1, width) if measurements >= 1.1 * rank * (2 * width - rank)]
        planned = record.get("rank")
        if isinstance(planned, int):
            lower = [rank for rank in enough if rank < planned]
            return ([(planned, FIXED.starts)] if planned in enough else []) + [(rank, 2) for rank in lower]
        return [(rank, 2) for rank in enough] + [(rank, FIXED.starts) for rank in enough]


def recorded_check(learned: Learned, probes: FixedProbes, answers: Sequence[Floats]) -> Check | None:
    """The held-out check on recorded answers, from the plan's third array; None if the plan has none."""
    if len(probes.arrays) < 3:
        return None
    said = answers[2][:, -1] if answers[2].ndim == 3 else answers[2]
    error = np.abs(learned.model.answer(probes.arrays[2]) - said.reshape(len(said), -1)).max()
    spread = float(np.sqrt(np.mean((said - said.mean(axis=0)) ** 2))) or 1.0
    return Check(
        sequences=len(said),
        max_abs_error=float(error),
        relative_error=float(error) / spread,
        by_length={FIXED.check_length: float(error) / spread},
    )


def price(width: int, rank: int | None = None, oversampling: float | None = None) -> list[tuple[str, int, int]]:
    """Phases with queries and tokens; exact, since nothing depends on the answers."""
    pairs = 1 + pairs_needed(width, rank, oversampling)[0]
    return [("values", width + 1, width + 1), ("measurements", pairs, 2 * pairs)]


def pairs_needed(width: int, rank: int | None, oversampling: float | None) -> tuple[int, bool]:
    """How many pairs are measured, and whether they are the dense grid for any rank."""
    everything = width**2 + max(FIXED.fewest_back, math.ceil(0.02 * width**2))
    if rank is None or rank >= width:
        return everything, True
    factor = oversampling if oversampling is not None else (3.0 if rank <= 1 else 2.2)
    pairs = math.floor(factor * (width + rank * (2 * width - rank))) - (width + 1) - 1
    return (everything, True) if pairs >= everything else (max(pairs, 1), False)


def held_back(count: int) -> int:
    """How many of so many measurements are kept for the test."""
    return max(FIXED.fewest_back, int(FIXED.held_back * count))
