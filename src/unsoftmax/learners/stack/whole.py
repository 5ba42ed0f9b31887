"""The whole stack: which layer each neuron is in, constants and epsilon, and a fit of all of it to answers at natural sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.stack.known import cliff
from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.neurons import Neurons
from unsoftmax.learners.stack.order import Order, equations, nudge
from unsoftmax.learners.stack.settings import EXACT, STACK, Settings
from unsoftmax.learners.stack.sphere import Sphere, support
from unsoftmax.linalg import singular
from unsoftmax.models import Attention, Floats, softmax
from unsoftmax.models.stack import MLP, Activation, Stack, activated


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A stack that can be called, and its largest error on fresh answers of natural size over their root mean square."""

    stack: Stack
    misfit: float


def facing(neurons: Neurons, sphere: Sphere) -> Neurons:
    """The same function with the linear part gone, where neurons that face the other way explain it.

    ``phi(z) = phi(-z) + z`` for ReLU, GELU and SiLU: bends do not tell which side of its plane a neuron is active on; with neurons
    that all bend on the sphere nothing linear is left when every one faces the right way.
    """
    if len(neurons.into) == 0:
        return neurons
    basis = sphere.complement(np.zeros((0, sphere.width)))
    effects = np.einsum("jo,ji->joi", neurons.out, neurons.into @ basis.T).reshape(len(neurons.into), -1)
    turned, *_ = np.linalg.lstsq(effects.T, -(neurons.linear @ basis.T).ravel(), rcond=None)
    flip = np.round(turned)
    if np.abs(turned - flip).max(initial=0.0) > STACK.round or not np.isin(flip, (0.0, 1.0)).all():
        return neurons
    sign = np.where(flip == 1.0, -1.0, 1.0)
    linear = neurons.linear + np.einsum("j,jo,ji->oi", flip, neurons.out, neurons.into)
    constant = neurons.constant + np.einsum("j,jo,j->o", flip, neurons.out, neurons.bias)
    if np.abs(linear).max() > STACK.round * max(float(np.abs(neurons.out).max()), 1e-300):
        return neurons
    return replace(
        neurons, into=sign[:, None] * neurons.into, bias=sign * neurons.bias, linear=np.zeros_like(linear), constant=constant
    )


def layers_of(
    limit: Limit, sphere: Sphere, heads: Attention, order: Order, neurons: Neurons, settings: Settings, rng: np.random.Generator
) -> tuple[NDArray[np.int_], Floats] | None:
    """The layer of each neuron, and the constants ``(layers, width)`` that each layer adds; None where they do not come out whole.

    One key at finite scale shows what MLPs before each layer add to it: linear in which neurons are among them.
    """
    last, m, width = int(order.layers.max()), len(neurons.into), sphere.width
    if last == 0:
        return np.zeros(m, dtype=int), neurons.constant[None]
    count = int(1.5 * last * (m + width) / max(1, width - support(width))) + 4
    points = sphere.dense(count, rng)
    told = nudge(limit, sphere, points, settings, rng)
    theta = (order.layers[:, None] < order.layers[None]).astype(float).ravel()
    design, right = [], []
    for i, p in enumerate(points):
        tangential = sphere.complement(p[None])
        rows, moved = equations(sphere, heads, told.some(i, 1), [np.asarray(tangential.T)] * heads.heads, bool(order.causal))
        blocks = rows[:, heads.heads**2 :].reshape(len(rows), heads.heads, -1)
        joined = np.stack([blocks[:, order.layers == layer].sum(1) for layer in range(1, last + 1)], axis=1)
        adds = np.concatenate([neurons.hidden(p[None])[0][:, None] * neurons.out, np.eye(width)]) @ tangential.T
        design.append((joined @ adds.T).reshape(len(rows), -1))
        right.append(moved - rows[:, : heads.heads**2] @ theta)
    solved = np.linalg.lstsq(np.concatenate(design), np.concatenate(right), rcond=1e-9)[0].reshape(last, m + width)
    before = np.round(solved[:, :m])
    if np.abs(solved[:, :m] - before).max(initial=0.0) > STACK.round or not np.isin(before, (0.0, 1.0)).all():
        return None
    constants = np.diff(np.concatenate([np.zeros((1, width)), solved[:, m:], neurons.constant[None]]), axis=0)
    return (before == 0.0).sum(0), constants


def first_guess(stack: Stack, neurons: Neurons, layers: NDArray[np.int_], constants: Floats, sphere: Sphere) -> Stack:
    """A stack with these MLPs; what is linear in the last one becomes ReLU neurons that are active everywhere."""
    mlps = []
    for layer, constant in enumerate(constants):
        mine = layers == layer
        first, bias, out = neurons.into[mine], neurons.bias[mine], neurons.out[mine]
        if layer == len(constants) - 1 and np.abs(neurons.linear).max() > 0:
            left, values, right = singular(neurons.linear)
            kept = values > 1e-6 * max(float(np.abs(neurons.out).max(initial=0.0)), float(values[0]))
            always = np.full(int(kept.sum()), 2 * sphere.radius)  # a normalised token is nowhere that long
            more = (left * values).T[kept]
            constant = constant - always @ more
            first, bias, out = np.concatenate([first, right[kept]]), np.concatenate([bias, always]), np.concatenate([out, more])
        mlps.append(MLP(first, bias, out.T, constant, cast(Activation, neurons.phi.name)))
    return Stack([Attention(a.W, a.V, a.c, np.zeros(stack.width)) for a in stack.layers], stack.norm, STACK.epsilon, mlps)


def fitted(ask: Callable[[Floats], Floats], stack: Stack, rng: np.random.Generator, causal: bool) -> Whole:
    """Gauss-Newton over constants and epsilon, from long tokens to short ones, then over everything; then fresh answers.

    Price: ``share`` answers per parameter and output at each of four sizes, some ``width`` for each neuron that is rarely on or
    rarely off, and a tenth of that for the check.
    """
    vector = _Vector.of(stack)
    free = vector.constants()
    each = max(6, int(STACK.share * len(free) / stack.width))
    asked: list[tuple[Floats, Floats]] = []
    for size in STACK.sizes:
        drawn = [size * rng.normal(size=(-(-each // len(STACK.keys)), length, stack.width)) for length in STACK.keys]
        if size == STACK.sizes[1]:
            drawn.append(size * _aimed(stack, rng)[:, None])
        asked += [(tokens, ask(tokens)) for tokens in drawn if len(tokens)]
        free[0] = size <= 1  # longer tokens do not show epsilon
        vector = _descended(vector, free, asked, causal)
    found, misfit = _bare(_descended(vector, np.ones_like(free), asked, causal).stack()), 0.0
    for size in STACK.sizes[1:]:
        tokens = size * rng.normal(size=(max(4, each // 10), 3, stack.width))
        told = ask(tokens)
        off = found(tokens, causal=causal) - told
        misfit = max(misfit, float(np.abs(off).max() / np.sqrt(np.mean((told - tokens[:, -1]) ** 2))))
    return Whole(found, misfit)


def _aimed(stack: Stack, rng: np.random.Generator) -> Floats:
    """Normalised tokens ``(n, width)`` where neurons are on that seldom are, or off: random ones would not show all of them."""
    assert stack.mlps is not None
    sphere = Sphere(stack.width, stack.norm)
    points = sphere.dense(STACK.sphere_points, rng)
    found = [np.zeros((0, stack.width))]
    for mlp in stack.mlps:
        on = points @ mlp.first.T + mlp.first_bias > 0
        for w, bias, share in zip(mlp.first, mlp.first_bias, on.mean(0), strict=True):
            edge = abs(bias) / max(float(np.linalg.norm(w)) * sphere.radius, 1e-300)
            if edge >= 1 or STACK.rare <= share <= 1 - STACK.rare:
                continue
            count = 2 * stack.width
            centre = -np.sign(bias) * w / np.linalg.norm(w)
            around = sphere.dense(count, rng) / sphere.radius
            around -= np.outer(around @ centre, centre)
            around /= np.linalg.norm(around, axis=1, keepdims=True)
            angles = np.arccos(edge) * rng.uniform(size=(count, 1)) ** (1 / stack.width)
            found.append(sphere.radius * (np.cos(angles) * centre + np.sin(angles) * around))
    return np.concatenate(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Vector:
    """The parameters of a stack as one vector, W and V in factors as narrow as their ranks.

    Attributes:
        numbers: epsilon first.
        shapes: of the blocks after it.
        like: a stack of the same shape.
    """

    numbers: Floats
    shapes: tuple[tuple[int, ...], ...]
    like: Stack

    @classmethod
    def of(cls, stack: Stack) -> _Vector:
        """All parameters of a whole stack."""
        assert stack.mlps is not None
        assert stack.epsilon is not None
        blocks: list[Floats] = []
        for layer, mlp in zip(stack.layers, stack.mlps, strict=True):
            assert layer.V is not None
            blocks += [np.ravel(layer.b), mlp.first, mlp.first_bias, mlp.second, mlp.second_bias, layer.c]
            blocks += [factor for matrix in (*layer.W, *layer.V) for factor in _factors(matrix)]
        numbers = np.concatenate([[stack.epsilon], *(block.ravel() for block in blocks)])
        return cls(numbers, tuple(block.shape for block in blocks), stack)

    def constants(self) -> NDArray[np.bool_]:
        """Which of the numbers are epsilon or constants that layers add."""
        found, at = [np.array([True])], 0
        for layer in self.like.layers:
            for i in range(6 + 4 * layer.heads):
                found.append(np.full(int(np.prod(self.shapes[at])), i in (0, 4)))
                at += 1
        return np.concatenate(found)

    def answers(self, many: Floats, tokens: Floats, causal: bool) -> Floats:
        """Last answers ``(many, n, width)`` of stacks with other ``many (many, numbers)``, all at once: for derivatives."""
        assert self.like.mlps is not None
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        parts = np.split(many[:, 1:], np.cumsum(sizes)[:-1], axis=1)
        blocks = iter([part.reshape(len(many), *shape) for part, shape in zip(parts, self.shapes, strict=True)])
        epsilon, flat = np.abs(many[:, 0])[:, None, None, None], Sphere(self.like.width, self.like.norm).flat
        later = np.triu(np.full((tokens.shape[1],) * 2, -np.inf), 1) if causal else 0.0

        def bare(x: Floats) -> Floats:
            centred = flat(x)
            return np.asarray(centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + epsilon))

        hidden = np.broadcast_to(tokens, (len(many), *tokens.shape))
        for layer, mlp in zip(self.like.layers, self.like.mlps, strict=True):
            constant, first, bias, second, end, c = (next(blocks) for _ in range(6))
            matrices = np.stack([next(blocks) @ next(blocks) for _ in range(2 * layer.heads)], axis=1)
            W, V = (part[:, :, None] for part in np.split(matrices, 2, axis=1))
            seen = bare(hidden)[:, None]  # (many, 1, n, length, width)
            scores = (seen @ W.swapaxes(3, 4) + c[:, :, None, None]) @ seen.swapaxes(3, 4) + later
            hidden = hidden + (softmax(scores) @ seen @ V).sum(1) + constant[:, None, None]
            inner = bare(hidden) @ first.swapaxes(1, 2)[:, None] + bias[:, None, None]
            hidden = hidden + activated(inner, mlp.activation) @ second.swapaxes(1, 2)[:, None] + end[:, None, None]
        return np.asarray(hidden[:, :, -1])

    def stack(self) -> Stack:
        """The inverse of ``of``."""
        assert self.like.mlps is not None
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        parts = np.split(self.numbers[1:], np.cumsum(sizes)[:-1])
        blocks = iter([part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)])
        layers, mlps = [], []
        for layer, mlp in zip(self.like.layers, self.like.mlps, strict=True):
            constant = next(blocks)
            mlps.append(MLP(next(blocks), next(blocks), next(blocks), next(blocks), mlp.activation))
            c = next(blocks)
            matrices = np.stack([next(blocks) @ next(blocks) for _ in range(2 * layer.heads)])
            layers.append(Attention(matrices[: layer.heads], matrices[layer.heads :], c, constant))
        return Stack(layers, self.like.norm, abs(float(self.numbers[0])), mlps)


def _bare(stack: Stack) -> Stack:
    """The same function without what normalised tokens do not see: after a LayerNorm, the all-ones direction."""
    assert stack.mlps is not None
    flat = Sphere(stack.width, stack.norm).flat
    layers = []
    for layer in stack.layers:
        assert layer.V is not None
        layers.append(
            Attention(
                flat(flat(layer.W).swapaxes(1, 2)).swapaxes(1, 2),
                flat(layer.V.swapaxes(1, 2)).swapaxes(1, 2),
                flat(layer.c),
                layer.b,
            )
        )
    mlps = [MLP(flat(mlp.first), mlp.first_bias, mlp.second, mlp.second_bias, mlp.activation) for mlp in stack.mlps]
    return Stack(layers, stack.norm, stack.epsilon, mlps)


def _factors(matrix: Floats) -> tuple[Floats, Floats]:
    """Two factors whose product is the matrix, as narrow as its rank."""
    left, values, right = singular(matrix)
    rank = cliff(values, EXACT.cliff)
    return left[:, :rank] * np.sqrt(values[:rank]), np.sqrt(values[:rank])[:, None] * right[:rank]


def _descended(start: _Vector, free: NDArray[np.bool_], asked: list[tuple[Floats, Floats]], causal: bool) -> _Vector:
    """Gauss-Newton over the ``free`` parameters with derivatives by differences; steps of least length."""
    lengths = sorted({tokens.shape[1] for tokens, _ in asked})
    groups = [tuple(np.concatenate(x) for x in zip(*(one for one in asked if one[0].shape[1] == n), strict=True)) for n in lengths]

    def left(numbers: Floats) -> Floats:
        many = numbers.reshape(-1, len(start.numbers))
        gaps = [(start.answers(many, tokens, causal) - told).reshape(len(many), -1) for tokens, told in groups]
        return np.concatenate(gaps, axis=1)

    vector = start.numbers
    gap, units = left(vector)[0], np.eye(len(vector))[free]
    for _ in range(STACK.whole_steps):
        steps = STACK.rise * np.maximum(np.abs(vector), 0.1)
        steps[0] = 1e-3 * max(abs(vector[0]), STACK.epsilon)
        parts = np.array_split(steps[free][:, None] * units, -(-len(units) // STACK.together))
        slope = (np.concatenate([left(vector + part) - gap for part in parts]) / steps[free][:, None]).T
        sizes = np.linalg.norm(slope, axis=0)
        sizes = np.maximum(sizes, 1e-9 * float(sizes.max()) + 1e-300)  # below, differences are rounding
        change = np.linalg.lstsq(slope / sizes, -gap, rcond=1e-9)[0] / sizes @ units
        for halved in 0.5 ** np.arange(6):
            trial = left(vector + halved * change)[0]
            if np.linalg.norm(trial) < np.linalg.norm(gap):
                break
        else:
            break
        arrived = halved == 1 and np.linalg.norm(trial) > 0.7 * np.linalg.norm(gap)
        vector, gap = vector + halved * change, trial
        if arrived:
            break
    return replace(start, numbers=vector)
