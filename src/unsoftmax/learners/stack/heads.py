"""How many heads there are, and each of them apart from the others at one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError
from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.settings import STACK, Settings
from unsoftmax.learners.stack.sigmoids import Fit, fit_sigmoids
from unsoftmax.learners.stack.sphere import Sphere, support
from unsoftmax.linalg import singular
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Last tokens ``x`` inside the coordinates ``S``, and steps ``u`` that lead from every one of them to the sphere again.

    With ``a`` in S and ``v`` orthogonal to all that lives in S, ``u = R(-beta a + gamma v)`` and ``x = R(cos t a + sin t y)`` have
    ``|x + u| = |x|`` for every ``y`` in S orthogonal to ``a`` if ``cos t = (beta^2 + gamma^2) / (2 beta)``.

    Where every position is answered ``v`` and one direction more are in S as well, and ``y`` is orthogonal to them: then tokens in
    the span of those three are last tokens too, and values and scores that the first steps tell are those of a whole crowd.
    """

    sphere: Sphere
    S: NDArray[np.int_]
    C: NDArray[np.int_]
    outputs: NDArray[np.int_]  # that are read: those outside S, or all
    a: Floats
    v: Floats
    beta: float
    third: Floats | None = None  # orthogonal to a and v, where those are in S
    few: bool = (
        False  # S has fewer coordinates than heads take tangents: the first of the ``ways`` are tangents to many last tokens
    )

    @classmethod
    def drawn(
        cls, sphere: Sphere, size: int, rho: float, rng: np.random.Generator, *, whole: bool, crowd: bool = False, few: bool = False
    ) -> Frame:
        """Random coordinates and directions; steps of ``rho`` radii; ``whole``: all outputs are read, ``crowd``: ``v`` is in S."""
        order = rng.permutation(sphere.width)
        inside = sphere.on(order[:size])
        outputs, beta = np.sort(order) if whole else order[size:], rho / np.sqrt(2)
        if crowd:
            a, v, third = np.linalg.qr(np.linalg.qr(inside.T)[0] @ rng.normal(size=(len(inside), 3)))[0].T
            return cls(sphere, order[:size], order[size:], outputs, a, v, beta, third)
        a = sphere.spread(inside, rng)
        v = sphere.spread(sphere.complement(inside), rng)
        return cls(sphere, order[:size], order[size:], outputs, a, v, beta, few=few)

    @property
    def crowded(self) -> Floats:
        """Orthonormal rows in S whose span holds the tokens of a crowd; none where the last position alone is answered."""
        rows = np.zeros((0, len(self.a))) if self.third is None else np.stack([self.a, self.v, self.third])
        rows[:, self.C] = 0.0  # rounding there would be sent 2^60 times as large
        return rows

    @property
    def cosine(self) -> float:
        """Of the angle between ``a`` and every last token."""
        return self.beta

    def step(self, direction: Floats, beta: float | None = None) -> Floats:
        """The step towards a unit ``direction`` orthogonal to all that lives in S; ``beta``: its part along ``-a``."""
        beta = self.beta if beta is None else beta
        gamma = np.sqrt(2 * beta * self.cosine - beta * beta)
        return np.asarray(self.sphere.radius * (-beta * self.a + gamma * direction))

    def reader(self, y: Floats) -> Floats:
        """Last tokens for unit vectors ``y (n, width)`` in S, orthogonal to ``a``."""
        tokens = self.sphere.radius * (self.cosine * self.a + np.sqrt(1 - self.cosine**2) * y)
        tokens[..., self.C] = 0.0  # rounding there would be sent 2^60 times as large
        return np.asarray(tokens)

    def ways(self) -> Floats:
        """An orthonormal basis ``(n, width)`` of the ``y``."""
        inside = np.linalg.qr(self.sphere.on(self.S).T)[0].T
        away = self.a[None] if self.third is None else self.crowded
        mixed = np.linalg.qr(np.concatenate([inside @ away.T, np.eye(len(inside))], axis=1))[0]
        return np.asarray(mixed[:, len(away) : len(inside)].T @ inside)


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """All heads at one step: ``A (heads, outputs C)`` and scores ``z (readers, heads)``."""

    frame: Frame
    readers: Floats
    fit: Fit
    gap: float  # smallest singular value that counts as a head over the largest that does not
    beta: float  # part of the step along the frame's ``-a``, in radii

    @property
    def heads(self) -> int:
        """Number of heads."""
        return int(self.fit.z.shape[1])

    @property
    def loudest(self) -> float:
        """Score of the strongest head, root mean square over last tokens."""
        return float(np.sqrt(np.mean(self.fit.z**2, axis=0)).max())

    @property
    def step(self) -> Floats:
        """The step itself."""
        return self.frame.step(self.frame.v, self.beta)

    @property
    def strength(self) -> float:
        """Score of the strongest head for a step of one radius, root mean square over last tokens."""
        return self.loudest * self.frame.sphere.radius / float(np.linalg.norm(self.step))

    @property
    def apart(self) -> float:
        """Angle from last tokens to keys at which the strongest head has scores of about one half."""
        return float(min(STACK.apart, 2 * np.arcsin(min(1.0, 0.5 / max(self.strength, 1e-300)))))


def at_ratios(limit: Limit, frame: Frame, readers: Floats, step: Floats, settings: Settings) -> Floats:
    """Answers ``(readers, ratios, outputs C)`` to one key at ``step`` from each last token."""
    told = [limit.ask((readers + step)[:, None], readers, (key,), copies) for key, copies in settings.ratios]
    return np.stack([batch.moved[:, frame.outputs] for batch in told], axis=1)


def find_heads(limit: Limit, sphere: Sphere, settings: Settings, rng: np.random.Generator) -> Base | None:
    """Draw frames until every head is apart; restarts with shorter steps, more coordinates or other directions.

    None where there are more heads than can be told apart outside the last tokens' coordinates.
    """
    size, rho = max(6, round(settings.inside * sphere.width)), settings.rho
    size = min(size, sphere.width - 3)
    crowd, few = limit.sight is not None and sphere.width >= STACK.crowd_width, False
    reason = "no frame fits"
    for _ in range(settings.tries):
        frame = Frame.drawn(sphere, size, rho, rng, whole=limit.extrapolated, crowd=crowd, few=few)
        first = _asked(limit, frame, settings.first, settings, rng, apart=few)
        strength = typical_score(first[1], settings.odds)
        if strength > STACK.loud:  # fits would lose their way: shorter steps before more is asked
            rho *= STACK.typical / strength
            frame = Frame.drawn(sphere, size, rho, rng, whole=limit.extrapolated, crowd=crowd, few=few)
            first = _asked(limit, frame, settings.first, settings, rng, apart=few)
        readers, answers, heads, gap = _count(limit, frame, *first, settings, rng)
        if heads == 0:
            raise NotInFamilyError(
                "Keys before the last token change nothing: no head attends to anything, or all values are zero."
            )
        wanted = heads + settings.tangents + (3 if sphere.norm == "layer" else 2)
        if crowd and heads <= STACK.crowd_heads and sphere.width - (wanted + 2) >= heads + 2:
            wanted += 2
        else:
            crowd = False
        left = room(sphere.width, heads)
        if few and len(frame.S) > left >= STACK.narrowest:
            size = left
            continue
        if (len(frame.S) < wanted and not few) or heads > len(frame.outputs) - 2 or crowd != (frame.third is not None):
            size = max(size, wanted)
            if sphere.width - size < (3 if limit.extrapolated else heads + 2):
                if not limit.extrapolated and left >= STACK.narrowest:
                    size, few = left, True
                    continue
                if not limit.extrapolated and sphere.width - wanted >= 3:
                    return None
                raise NotIdentifiableError(
                    f"The answers show {heads} heads or more; the answers of a stack of width {sphere.width} can tell about "
                    f"{sphere.width - 6 if limit.extrapolated else room(sphere.width, STACK.narrowest)} heads apart in this way.",
                    evidence={"heads": heads},
                )
            continue
        fit, strong = None, 0.0
        for starts in _pencils(limit, frame, readers, answers, heads, settings, rng):
            fit = fit_sigmoids(
                answers, settings.odds, starts, floor=settings.floor, accept=settings.accept, rng=rng, like=limit.like
            )
            strong = float(np.sqrt(np.mean((fit.z if fit.z.size else starts[0]) ** 2, axis=0)).max())
            if fit.residual < settings.accept or strong > STACK.too_strong:
                break
        if fit is None:
            reason = "no pencil of derivatives has real, distinct eigenvalues"
            continue
        if fit.residual < settings.accept and strong <= STACK.too_strong:
            _demand_straight(limit, frame, readers, fit, settings)
            taken = settings.readers(heads)  # the first batch may have been larger
            return Base(frame, readers[:taken], replace(fit, z=fit.z[:taken]), gap, frame.beta)
        reason = f"{fit.z.shape[1]} heads are found that leave {fit.residual:.1e} of the answers"
        if strong > STACK.too_strong:
            rho *= max(0.5, STACK.shorter / strong)
    if few:  # every output tells more
        return None
    raise NotInFamilyError(
        f"Tokens of length 2^60 do not act as {heads} attention heads on normalised tokens: {reason}. "
        "The target may have positions that depend on distances, or heads that cannot be told apart.",
        evidence={"heads": heads},
    )


def typical_score(answers: Floats, odds: Floats) -> float:
    """Root mean square of scores, roughly, from ``answers (readers, ratios, outputs)``: how little the ratio of copies matters.

    Values of many heads are as good as orthogonal: squares of answers are those of weights, on the average, of normal scores.
    """
    few, many = answers[:, 0], answers[:, -1]
    told = np.sum((many - few) ** 2) / max(float(np.sum((many + few) ** 2)), 1e-300)
    sizes = 2.0 ** np.arange(-3, 6, 0.25)
    z = sizes[:, None] * ndtri((np.arange(199) + 0.5) / 199)
    low, high = (expit(z + np.log(ratio)) for ratio in (odds[0], odds[-1]))
    shares = np.mean((high - low) ** 2, axis=1) / np.mean((high + low) ** 2, axis=1)
    return float(np.exp(np.interp(-told, -shares, np.log(sizes))))


def _asked(
    limit: Limit, frame: Frame, count: int, settings: Settings, rng: np.random.Generator, *, apart: bool
) -> tuple[Floats, Floats]:
    """Random last tokens of the frame, and the answers at its step; ``apart``: orthogonal to some ways, tangents to them all."""
    ways = frame.ways()[STACK.few_tangents * apart :]
    y = rng.normal(size=(count, len(ways)))
    readers = frame.reader(y / np.linalg.norm(y, axis=1, keepdims=True) @ ways)
    return readers, at_ratios(limit, frame, readers, frame.step(frame.v), settings)


def _count(
    limit: Limit, frame: Frame, readers: Floats, answers: Floats, settings: Settings, rng: np.random.Generator
) -> tuple[Floats, Floats, int, float]:
    """Last tokens, answers and the number of heads: the dimension that answers with one fixed step span."""
    while True:
        rows = answers.reshape(-1, len(frame.outputs))
        values = np.linalg.svd(rows, compute_uv=False)
        silent = settings.silent * np.sqrt(len(rows)) * max(float(np.abs(rows).max()), 1e-300)
        heads = int((values > silent).sum()) if np.abs(rows).max() > settings.nothing else 0
        gap = float(values[heads - 1] / values[heads]) if 0 < heads < len(values) else np.inf
        wanted = max(-(-(heads + 6) // len(settings.ratios)), settings.readers(heads)) - len(readers)
        if wanted <= 0 or heads > len(frame.outputs) - 2:
            return readers, answers, heads, gap
        apart = frame.few and len(readers) < places(heads, settings)
        more = _asked(limit, frame, min(wanted, max(4, len(readers) // 4)), settings, rng, apart=apart)
        readers, answers = np.concatenate([readers, more[0]]), np.concatenate([answers, more[1]])


def _pencils(
    limit: Limit, frame: Frame, readers: Floats, answers: Floats, heads: int, settings: Settings, rng: np.random.Generator
) -> Iterator[list[Floats]]:
    """Scores to start from, ``(readers, heads)`` each, best first: from derivatives to one side, then from both.

    The derivative along tangent ``t`` at last token ``r`` and ratio ``k`` is ``sum_h D_rkh M_th A_h``. At one last token, for as
    many tangents as there are heads, mixtures of the ratios are diagonal in the same heads. Where last tokens have too few
    coordinates for that, there are as many of them as heads take, and mixtures of a few tangents to all of them are.
    """
    basis = singular(answers.reshape(-1, answers.shape[2]))[2][:heads]
    if heads == 1:
        yield [scores_along(answers, settings.odds, basis)]
        return
    ways, step, h = frame.ways(), frame.step(frame.v), settings.difference
    many = places(heads, settings) if frame.few else 1
    centres = _unit((readers[:many] - frame.sphere.radius * frame.cosine * frame.a) @ ways.T)
    if frame.few:
        tangents = np.eye(len(ways))[: STACK.few_tangents]
    else:
        around = np.concatenate([centres.T, rng.normal(size=(len(ways), heads + settings.tangents))], axis=1)
        tangents = np.linalg.qr(around)[0][:, 1:].T

    def told(side: float) -> Floats:
        y = np.cos(h) * centres[:, None] + side * np.sin(h) * tangents
        found = at_ratios(limit, frame, frame.reader(y.reshape(-1, len(ways)) @ ways), step, settings)
        return found.reshape(len(centres), len(tangents), *found.shape[1:])

    def starts(derivatives: Floats) -> Iterator[list[Floats]]:
        J = derivatives @ basis.T  # (places, tangents, ratios, heads)
        mixed = J.transpose(1, 0, 2, 3) if frame.few else J.transpose(2, 0, 1, 3)
        found = _diagonal(mixed.reshape(len(mixed), -1, heads), rng)
        if found:
            yield [scores_along(answers, settings.odds, vectors.T @ basis) for vectors in found]

    ahead = told(1.0)
    if not settings.central:
        yield from starts((ahead - answers[: len(centres), None]) / h)
    yield from starts((ahead - told(-1.0)) / (2 * h))


def room(width: int, heads: int) -> int:
    """What so many heads leave to the coordinates of last tokens: outputs for each, the support of sparse ones, and two more."""
    return width - heads - support(width) - 2


def places(heads: int, settings: Settings) -> int:
    """Last tokens at which derivatives along a few tangents tell so many heads apart."""
    return -(-(heads + STACK.few_spare) // len(settings.ratios))


def _diagonal(J: Floats, rng: np.random.Generator) -> list[Floats]:
    """Eigenvectors of pencils of ``J (ratios, tangents, heads)`` that have real eigenvalues, farthest apart first."""
    found: list[tuple[float, Floats]] = []
    for _ in range(STACK.mixtures):
        first, second = (np.tensordot(rng.normal(size=len(J)), J, axes=1) for _ in range(2))
        values, vectors = np.linalg.eig(np.linalg.lstsq(first, second, rcond=None)[0].T)
        if np.abs(values.imag).max() > 1e-3 * np.abs(values).max():
            continue
        real = np.sort(values.real)
        gap = float(np.diff(real).min() / np.abs(real).max() / np.linalg.cond(vectors.real))
        found.append((gap, vectors.real))
    found.sort(key=lambda one: -one[0])
    return [vectors for _, vectors in found[: STACK.starts]]


def scores_along(answers: Floats, k: Floats, directions: Floats) -> Floats:
    """Scores ``(readers, heads)`` if the values of each head lie along one of ``directions (heads, outputs)``.

    A head's share is ``y = s k / (k + eta_b)`` for reader ``b`` and ratio ``k``, so ``k y = s k - eta_b y``: linear in ``s, eta``.
    """
    n, times, outputs = answers.shape
    y = np.linalg.lstsq(directions.T, answers.reshape(-1, outputs).T, rcond=None)[0].reshape(len(directions), n, times)
    size = np.maximum(np.sum(y * y, axis=2, keepdims=True), 1e-300)
    beside = k - y * (y @ k)[:, :, None] / size  # what eta cannot explain of k
    s = np.sum(beside * k * y, axis=(1, 2)) / np.maximum(np.sum(beside * k, axis=(1, 2)), 1e-300)
    eta = np.sum(y * k * (s[:, None, None] - y), axis=2) / size[:, :, 0]
    return np.asarray(-np.log(np.clip(eta, 1e-3, 1e3)).T)


def _demand_straight(limit: Limit, frame: Frame, readers: Floats, fit: Fit, settings: Settings) -> None:
    """Scores are linear in the last token: on a circle of them, a constant, a sine and a cosine. Refuse what is not.

    The circle leads through the first two last tokens, whose scores are known; a few others on it are asked.
    """
    ways = frame.ways()
    if len(ways) < 2:
        return
    known = (readers[:2] - frame.sphere.radius * frame.cosine * frame.a) @ ways.T
    plane = np.linalg.qr(_unit(known).T)[0]
    turns = 2 * np.pi * (0.5 + np.arange(STACK.circle)) / STACK.circle
    round_ = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    readers = frame.reader(round_ @ plane.T @ ways)
    waves = np.concatenate([np.ones((2 + STACK.circle, 1)), np.concatenate([_unit(known) @ plane, round_])], axis=1)
    batch = limit.ask((readers + frame.step(frame.v))[:, None], readers)
    shares = np.linalg.lstsq(fit.A.T, batch.moved[:, frame.outputs].T, rcond=None)[0].T
    z = np.concatenate([fit.z[:2], logit(np.clip(shares, 1e-6, 1 - 1e-6))])  # beyond, rounding decides
    off = np.abs(z - waves @ np.linalg.lstsq(waves, z, rcond=None)[0]).max(0)
    inside = np.abs(z).max(0) < STACK.seen
    worst = float(off[inside].max()) if inside.any() else 0.0
    if worst > settings.straight:
        raise NotInFamilyError(
            f"For very long tokens scores of {fit.z.shape[1]} sigmoids fit single questions but are not linear in the last token: "
            f"on a circle they are off by {worst:.1e}. The target has another attention than softmax of bilinear scores "
            "(capped scores, normalised queries, kernels).",
            evidence={"score_bend": worst},
        )


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))
