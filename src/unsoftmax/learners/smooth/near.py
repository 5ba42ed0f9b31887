"""One hidden layer from answers near by alone: where tokens may not be long, or neurons that level off leave no limit to look at.

Second derivatives at any point are ``sum_j h_j n_j n_j^T`` with the neurons' unit rows: those at many points span the rank-one
matrices of the rows and nothing else, and up to ``d (d - 1) / 2`` of them are the only ones in that span. What each neuron adds to
the second derivatives, as a function of where the points lie along its row, tells its sharpness, its place and the activation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.forms import AMBIGUITY, to_network, without_skip
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Floats
from unsoftmax.models.activations import BOUNDED, SMOOTH, Activation, activation_named
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned


@dataclass(frozen=True, slots=True)
class NearNetworkLearner:
    """Recover ``A phi(B x + b) + c`` (+ a linear skip) from points of natural length; ``phi`` as from afar, or tanh or sigmoid.

    Price: ``d^2 + d + 1`` queries for each of about ``m / p + 6`` points, ``extra`` of the parameters more, and 16 checks.

    Assumes: at most ``d (d - 1) / 2`` neurons, no two of one direction, that bend where points of that length lie.

    Args:
        floor: how coarse the answers are.
        max_norm: no token longer than this is asked.
        scale: standard deviation of the numbers in a point.
        spare: second derivatives asked beyond those that showed something new, ``(p, )`` at each point.
        fewest: points at least, so that each neuron is seen from several sides of its bend.
        starts: of the search for rows, for each neuron.
        clear: times the rounding of second derivatives, by which the weakest neuron must show: what is none was at most 0.13 times
            it, the weakest neuron at least 390 times, over 18 networks of six kinds.
        extra: random points as a share of ``P / outputs``.
        checks: fresh points that the network must answer.
        accept: error accepted there, relative to the spread of the answers.
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    scale: float = 1.0
    spare: int = 6
    fewest: int = 20
    starts: int = 40
    clear: float = 8.0
    extra: float = 0.6
    checks: int = 16
    accept: float = 1e-9

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the network; the answers may be scalars or vectors."""
        questions = Questions(oracle, floor=self.floor, max_norm=self.max_norm)
        width = oracle.width
        scale = self.scale if self.max_norm is None else min(self.scale, self.max_norm / (3 * np.sqrt(width)))
        phase(oracle, "second derivatives")
        points, seconds, count = self._seconds(questions, scale, rng)
        rows = self._rows(seconds, count, rng)
        phase(oracle, "random points")
        outputs = questions.answers.shape[1]
        parameters = (count * (width + 1 + outputs) + outputs) / outputs
        questions.ask(_short(scale * rng.normal(size=(int(self.extra * parameters) + 2 * width, width)), self.max_norm))
        answers = Answers(questions.points, questions.answers, self.floor)
        begun = sorted((self._begun(phi, rows, points, seconds, answers) for phi in _activations()), key=lambda one: one[0])
        fitted, misfit = min((self._fitted(curves, answers) for _, curves in begun[:2]), key=lambda one: one[1])
        phase(oracle, "check")
        fresh = _short(scale * rng.normal(size=(self.checks, width)), self.max_norm)
        told = questions.ask(fresh)
        spread = float(np.linalg.norm(answers.answers.std(axis=0))) or 1.0
        error = float(np.linalg.norm(told - fitted(fresh), axis=1).max()) / spread
        rounding = (self.floor.absolute + self.floor.relative * float(fitted.sizes(fresh).max())) / spread
        network = to_network(fitted)
        evidence = {
            "neurons": count,
            "activation": fitted.phi.name,
            "skip": network.skip is not None,
            "check_error": error,
            "misfit": misfit,
        }
        if not (error <= self.accept + 30 * rounding and misfit <= BENDS.unexplained):
            raise NotInFamilyError(
                f"Second derivatives near by are those of {count} neurons, but {fitted.phi.name} neurons, the nearest, miss fresh "
                f"answers by {error:.1e} of their spread ({misfit:.1e} times the rounding in the fit). The activation is none of "
                f"{', '.join(phi.name for phi in _activations())}, or there is more than one hidden layer.",
                evidence=evidence,
                model=network,
            )
        return Learned(model=network, ambiguity=AMBIGUITY, evidence=evidence)

    def price(self, width: int, neurons: int, outputs: int = 1) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """Queries and tokens by phase, each as (low, high); every query is one token."""
        some = max(4, width // 2)
        points = max(self.fewest, -(-(neurons + self.spare) // outputs))
        stencil = width * width + width + 1
        parameters = (neurons * (width + 1 + outputs) + outputs) / outputs
        random = int(self.extra * parameters) + 2 * width
        ranges = {
            "second derivatives": (points * stencil, (points + 2 * some) * stencil),
            "random points": (random, random),
            "check": (self.checks, self.checks),
        }
        return [(name, bounds, bounds) for name, bounds in ranges.items()]

    def _seconds(self, questions: Questions, scale: float, rng: np.random.Generator) -> tuple[Floats, Floats, int]:
        """Points, second derivatives ``(points, outputs, width, width)``, and how many neurons they show."""
        width = questions.width
        step = scale * self.floor.relative**0.25
        stencil, first, second = _stencil(width, step)
        most = width * (width - 1) // 2
        points, found = np.empty((0, width)), np.empty((0, 1, width, width))
        while True:
            fresh = _short(scale * rng.normal(size=(max(4, width // 2), width)), self.max_norm)
            told = questions.ask((fresh[:, None] + stencil).reshape(-1, width)).reshape(len(fresh), len(stencil), -1)
            size = float(np.abs(told).max())
            seconds = _differences(told, width, step, first, second)
            points, found = np.concatenate([points, fresh]), np.concatenate([found.reshape(-1, *seconds.shape[1:]), seconds])
            rounding = 4 * (self.floor.relative * size + self.floor.absolute) / step**2
            flat = found.reshape(-1, width * width)
            singular = np.linalg.svd(flat, compute_uv=False)
            count = int((singular > self.clear * rounding * np.sqrt(len(flat))).sum())
            if len(flat) >= count + self.spare and len(points) >= self.fewest:
                break
            if count > most:
                raise NotIdentifiableError(
                    f"Second derivatives near by show more than {most} neurons, or none: so many cannot be told apart in width "
                    f"{width} without long tokens. Allow longer ones (`max_norm`).",
                    evidence={"directions": count},
                )
        if not 0 < count <= most:
            raise NotIdentifiableError(
                f"Second derivatives near by show {count} neurons; between 1 and {most} can be told apart in width {width} "
                "without long tokens. Allow longer ones (`max_norm`).",
                evidence={"directions": count},
            )
        return points, found, count

    def _rows(self, seconds: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Unit rows ``(count, width)``: the vectors whose rank-one matrices lie in the span of the second derivatives."""
        width = seconds.shape[-1]
        span = np.linalg.svd(seconds.reshape(-1, width * width), full_matrices=False)[2][:count].reshape(count, width, width)
        span = (span + span.transpose(0, 2, 1)) / 2
        rows: list[Floats] = []
        for _ in range(4):
            u = rng.normal(size=(self.starts * count, width))
            for _ in range(400):
                u /= np.linalg.norm(u, axis=1, keepdims=True)
                inside = np.einsum("kij,si,sj->sk", span, u, u, optimize=True)
                u += 2 * np.einsum("sk,kij,sj->si", inside, span, u, optimize=True)
            u /= np.linalg.norm(u, axis=1, keepdims=True)
            share = np.linalg.norm(np.einsum("kij,si,sj->sk", span, u, u, optimize=True), axis=1)
            for i in np.argsort(-share):
                if share[i] > 1 - 1e-4 and all(abs(u[i] @ row) < 1 - 1e-3 for row in rows):
                    rows.append(u[i])
            if len(rows) >= count:
                break
        if len(rows) != count:
            raise NotIdentifiableError(
                f"Second derivatives near by span {count} dimensions, but {len(rows)} rows of neurons were found in them: neurons "
                "nearly share directions, or there is more than one hidden layer. Longer tokens (`max_norm`) tell more.",
                evidence={"directions": count, "rows": len(rows)},
            )
        return np.array(rows)

    def _begun(self, phi: Activation, rows: Floats, points: Floats, seconds: Floats, answers: Answers) -> tuple[float, Curves]:
        """How far second derivatives are from those of neurons of these rows and this activation, and that network."""
        outputs, width = seconds.shape[1], rows.shape[1]
        system = np.einsum("ji,jk->jik", rows, rows).reshape(len(rows), -1).T
        shares = np.linalg.lstsq(system, seconds.reshape(-1, width * width).T, rcond=None)[0]
        shares = shares.reshape(len(rows), len(points), outputs)
        bends = [_bend(phi, points @ row, share) for row, share in zip(rows, shares, strict=True)]
        sharp, shift, out = (np.array([getattr(bend, name) for bend in bends]) for name in ("sharp", "shift", "out"))
        curves = Curves(phi, out, sharp[:, None] * rows, shift, np.zeros((outputs, width)), np.zeros(outputs))
        rest = answers.answers - curves(answers.points)
        straight: Floats = np.linalg.lstsq(np.c_[answers.points, np.ones(len(rest))], rest, rcond=None)[0].astype(np.float64)
        return float(np.median([bend.misfit for bend in bends])), replace(curves, linear=straight[:-1].T, constant=straight[-1])

    def _fitted(self, curves: Curves, answers: Answers) -> tuple[Curves, float]:
        """The network fitted to all answers, without a linear part where there is none, and the misfit in expected errors."""
        fitted, misfit = answers.fit(curves, True)
        if misfit > BENDS.unexplained:
            return fitted, misfit
        return without_skip(fitted, lambda model: answers.fit(model, False)[0]), misfit


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What a neuron adds to second derivatives, as a bend; ``misfit`` relative to all of it."""

    sharp: float
    shift: float
    out: Floats
    misfit: float


def _activations() -> list[Activation]:
    return [activation_named(name) for name in (*SMOOTH, *BOUNDED)]


def _short(points: Floats, max_norm: float | None) -> Floats:
    """Points no longer than allowed, with a little room for steps."""
    if max_norm is None:
        return points
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    return np.asarray(points * np.minimum(1.0, 0.9 * max_norm / lengths))


def _stencil(width: int, step: float) -> tuple[Floats, NDArray[np.int_], NDArray[np.int_]]:
    """Steps ``(1 + 2 width + width (width - 1), width)`` along axes and pairs of them, both ways, and the axes of each pair."""
    axes = step * np.eye(width)
    first, second = np.triu_indices(width, 1)
    both = axes[first] + axes[second]
    return np.concatenate([np.zeros((1, width)), axes, -axes, both, -both]), first, second


def _differences(told: Floats, width: int, step: float, first: NDArray[np.int_], second: NDArray[np.int_]) -> Floats:
    """Second derivatives ``(points, outputs, width, width)`` from the answers ``(points, steps, outputs)`` of a stencil."""
    pairs = len(first)
    here, up, down = told[:, :1], told[:, 1 : 1 + width], told[:, 1 + width : 1 + 2 * width]
    ahead, back = told[:, 1 + 2 * width : 1 + 2 * width + pairs], told[:, 1 + 2 * width + pairs :]
    own = (up + down - 2 * here) / step**2
    mixed = ((ahead + back - 2 * here) / step**2 - own[:, first] - own[:, second]) / 2
    found = np.zeros((len(told), width, width, told.shape[2]))
    found[:, np.arange(width), np.arange(width)] = own
    found[:, first, second] = found[:, second, first] = mixed
    return np.moveaxis(found, 3, 1)


def _bend(phi: Activation, along: Floats, shares: Floats) -> Told:
    """Sharpness, shift and output weights ``(outputs,)`` of the neuron that adds ``shares (points, outputs)`` to the second
    derivatives of points at places ``along``; by least squares from the best of a grid."""

    def curve(sharp: Floats, shift: Floats) -> Floats:
        z, small = np.asarray(sharp)[..., None] * along + np.asarray(shift)[..., None], 1e-5
        return np.asarray((phi.slope(z + small) - phi.slope(z - small)) / (2 * small) * np.asarray(sharp)[..., None] ** 2)

    def left(columns: Floats) -> Floats:
        """What one neuron leaves of the shares."""
        weights = columns @ shares / np.maximum((columns**2).sum(axis=-1), 1e-300)[..., None]
        return np.asarray(shares - columns[..., :, None] * weights[..., None, :])

    signs = (1.0,) if phi.even or phi.name in BOUNDED else (1.0, -1.0)
    sharp, shift, sign = (grid.ravel() for grid in np.meshgrid(np.geomspace(0.05, 20, 49), np.linspace(-5, 5, 41), signs))
    errors = (left(curve(sign * sharp / np.std(along), shift)) ** 2).sum(axis=(1, 2))
    best = int(np.argmin(errors))
    way, size = sign[best] / np.std(along), float(np.linalg.norm(shares)) or 1.0

    def gaps(unknown: Floats) -> Floats:
        return left(curve(way * np.exp(unknown[0]), unknown[1])).ravel() / size

    result = scipy.optimize.least_squares(gaps, [np.log(sharp[best]), shift[best]], xtol=1e-15, ftol=1e-15, gtol=1e-15)
    found = way * float(np.exp(np.clip(result.x[0], -20, 20)))
    columns = curve(found, result.x[1])
    out = np.asarray(columns @ shares / max(float(columns @ columns), 1e-300))
    return Told(found, float(result.x[1]), out, float(np.linalg.norm(result.fun)))
