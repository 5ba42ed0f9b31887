"""Is there a residual path, and what do the values do beside it: from questions whose attention is saturated."""

from __future__ import annotations

import numpy as np
from scipy.linalg import qr

from unsoftmax.errors import NotIdentifiableError
from unsoftmax.learners.transformer.model import Network, Sequences
from unsoftmax.learners.transformer.settings import TRANSFORMER
from unsoftmax.models import Floats


class FarProbes:
    """Far out every score is huge: of ``[x + u; x]`` and ``[x - u; x]`` one puts all attention on the first token.

    The network is linear around a far ``x`` (its cells grow with the distance), so such an answer is
    ``network(x) + gradient·mix·u``.
    """

    def __init__(self, sequences: Sequences, network: Network, length: float) -> None:
        self.sequences, self.network, self.share = sequences, network, 1.0
        rounding = sequences.floor.relative / TRANSFORMER.stride  # of a step's change, which is that much smaller than the answers
        self.agree = max(TRANSFORMER.agree, 64 * rounding)
        self.distance = (
            TRANSFORMER.far * length if sequences.max_norm is None else min(TRANSFORMER.far * length, 0.9 * sequences.max_norm)
        )

    def places(self, count: int, rng: np.random.Generator) -> Floats:
        """Random far points with a fair margin to every bend, ``(count, width)``; narrow cells count as much as wide ones."""
        width = self.network.normal.shape[1]
        points = rng.normal(size=(8 * count, width))
        points *= self.distance / np.linalg.norm(points, axis=1, keepdims=True)
        norms = np.maximum(np.linalg.norm(self.network.normal, axis=1), 1e-300)
        margins = (np.abs(self.network.before(points)) / norms).min(axis=1, initial=np.inf)
        fair = np.minimum(
            margins, TRANSFORMER.margin * TRANSFORMER.stride * self.distance
        )  # beyond that, the order is that of the draw
        return points[np.sort(np.argsort(-fair, kind="stable")[:count])]

    def attended(self, x: Floats, u: Floats) -> tuple[Floats, Floats, Floats]:
        """Answers at ``[x ± u; x]``: the steps that drew the attention, the change they made, and how clear the choice was (0 is
        clear).

        Attention that does not look at the tokens at all (W = 0, c = 0) puts half on each: ``self.share`` is then 1/2, and found
        here.
        """
        here = self.network(x)
        plus, minus = self.sequences.pairs(x, u) - here, self.sequences.pairs(x, -u) - here
        strong, weak = np.linalg.norm(plus, axis=1), np.linalg.norm(minus, axis=1)
        up = strong >= weak
        changes = np.where(up[:, None], plus, minus)
        ratio = np.minimum(strong, weak) / np.maximum(np.maximum(strong, weak), 1e-300)
        if np.all(np.linalg.norm(plus + minus, axis=1) <= self.agree * strong):
            self.share, ratio = 0.5, np.zeros(len(x))
        return np.where(up[:, None], u, -u), changes / self.share, ratio


def has_residual(probes: FarProbes, rng: np.random.Generator) -> bool | None:
    """Whether the answers contradict a layer without residual path, by ``2 * PAIRS`` far questions; None if no score saturates."""
    x = probes.places(4 * TRANSFORMER.pairs, rng)
    gradients = probes.network.gradients(x)
    steepest = np.linalg.svd(gradients, full_matrices=False)[2][:, 0]
    best = np.argsort(-np.linalg.norm(gradients, axis=(1, 2)), kind="stable")[: TRANSFORMER.pairs]
    x, u = x[best], steepest[best] * TRANSFORMER.stride * probes.distance
    noise = rng.normal(size=u.shape)
    u = u + 0.3 * noise * (np.linalg.norm(u, axis=1) / np.linalg.norm(noise, axis=1))[:, None]
    steps, changes, ratio = probes.attended(x, u)
    clear = ratio < probes.agree
    if not clear.any():
        return None
    expected = probes.network(x + steps) - probes.network(x)
    deviation = np.linalg.norm(changes - expected, axis=1) / np.maximum(np.linalg.norm(expected, axis=1), 1e-300)
    return bool(np.median(deviation[clear]) > probes.agree)


def read_mix(probes: FarProbes, rng: np.random.Generator) -> Floats:
    """The matrix ``mix = (1 + V)^-1 V`` with residual, from ``width + 1`` questions in each of ``width / outputs`` far cells.

    Only its product with the network's normals leaves a trace; where they do not span the space the shortest choice is taken.
    """
    network = probes.network
    width, outputs = network.normal.shape[1], network.out.shape[1]
    candidates = probes.places(12 * width, rng)
    stacked = network.gradients(candidates)
    flat = stacked.reshape(len(candidates), -1)
    rank = int(np.linalg.matrix_rank(stacked.reshape(-1, width), tol=1e-9 * np.linalg.norm(stacked)))
    if rank == 0:
        raise NotIdentifiableError("The network is constant far out, so the value matrix leaves no trace in saturated answers.")
    order = qr(flat.T, pivoting=True, mode="r")[1]
    rough = probes.agree > TRANSFORMER.agree
    count = -(-rank // outputs) * (2 if rough else 1)
    while count < min(len(order), 2 * rank):  # cells that differ by one neuron have most of their gradients in common
        sizes = np.linalg.svd(stacked[order[:count]].reshape(-1, width), compute_uv=False)
        if sizes[rank - 1] >= max(TRANSFORMER.clear, probes.agree) * sizes[0]:
            break
        count += 1
    cells = order[:count]
    x, gradients = candidates[cells], stacked[cells]
    u = rng.normal(size=x.shape)
    u *= TRANSFORMER.stride * probes.distance / np.linalg.norm(u, axis=1, keepdims=True)
    first, first_changes, _ = probes.attended(x, u)
    sides, values = [], []
    across = np.linalg.qr(rng.normal(size=(width, width)))[0] * (0.5 * TRANSFORMER.stride * probes.distance)
    starts = np.repeat(x, width - 1, axis=0)
    base = np.repeat(first, width - 1, axis=0)
    turns = np.tile(across[: width - 1], (len(x), 1))
    steps = base + turns
    here = network(starts)
    changes = (probes.sequences.pairs(starts, steps) - here) / probes.share
    quiet = np.linalg.norm(changes, axis=1) < probes.agree * np.median(np.linalg.norm(first_changes, axis=1))
    if quiet.any():  # the other side of the base step draws the attention then
        steps[quiet] = base[quiet] - turns[quiet]
        changes[quiet] = (probes.sequences.pairs(starts[quiet], steps[quiet]) - here[quiet]) / probes.share
    for k in range(len(x)):
        own = slice(k * (width - 1), (k + 1) * (width - 1))
        sides.append(np.concatenate([first[k : k + 1], steps[own]]))
        values.append(np.concatenate([first_changes[k : k + 1], changes[own]]))
    seen = [np.linalg.solve(side, value).T for side, value in zip(sides, values, strict=True)]  # gradient @ mix, (outputs, width)
    mix = np.asarray(np.linalg.lstsq(gradients.reshape(-1, width), np.concatenate(seen), rcond=1e-9)[0])
    share = probes.share
    if rough:
        return _without_outliers(np.repeat(gradients, width, axis=0), np.concatenate(sides), np.concatenate(values), mix)
    return _refined(network, mix, np.repeat(x, width, axis=0), share * np.concatenate(sides), share * np.concatenate(values))


def _without_outliers(gradients: Floats, u: Floats, changes: Floats, mix: Floats) -> Floats:
    """``mix`` with ``gradient mix u = change`` in most rows: least absolute deviations, by weights that follow what is left.

    In short precision a step that another bend or a half-hearted choice of the attention has spoilt cannot be told beforehand.
    """
    rows = np.einsum("now,nv->nowv", gradients, u).reshape(-1, mix.size)
    goals = changes.ravel()
    for _ in range(TRANSFORMER.robust):
        left = np.abs(goals - rows @ mix.ravel())
        weights = 1 / np.sqrt(np.maximum(left, np.median(left) + 1e-300))
        mix = np.linalg.lstsq(rows * weights[:, None], goals * weights, rcond=1e-9)[0].reshape(mix.shape)
    return mix


def _refined(network: Network, mix: Floats, x: Floats, u: Floats, changes: Floats) -> Floats:
    """Newton steps for ``network(x + mix u) = network(x) + change``.

    For the case that some step left the linear piece of its ``x``.
    """
    goals = network(x) + changes
    size = float(np.linalg.norm(changes))
    best, lowest = mix, np.inf
    for _ in range(TRANSFORMER.newton):
        gaps = goals - network(x + u @ mix.T)
        error = float(np.linalg.norm(gaps))
        if error < lowest:
            best, lowest = mix, error
        if error <= TRANSFORMER.agree * size:
            break
        gradients = network.gradients(x + u @ mix.T)
        rows = np.einsum("now,nv->nowv", gradients, u).reshape(-1, mix.size)
        mix = mix + np.linalg.lstsq(rows, gaps.ravel(), rcond=1e-10)[0].reshape(mix.shape)
    return best
