"""Which layer each head is in, and the MLPs of earlier layers: one key at finite scale among infinite ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray
from scipy.linalg import lstsq

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, Sign
from unsoftmax.learners.stack.least import least_squares
from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.settings import EXACT, STACK, Settings
from unsoftmax.learners.stack.sphere import Sphere, support
from unsoftmax.linalg import alike, on_host
from unsoftmax.models import Attention, Floats
from unsoftmax.models.stack import Stack, normalised
from unsoftmax.oracles.base import Oracle


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """The layer of each head, and how it shows.

    Attributes:
        layers: ``(heads,)``, from 0.
        causal: whether the key saw only what stands before it; None where one layer leaves nothing to see.
        off: largest distance of an entry of the order from zero or one.
        residual: relative misfit of all answers.
    """

    layers: NDArray[np.int_]
    causal: bool | None
    off: float
    residual: float


@dataclass(frozen=True, slots=True, eq=False)
class Nudged:
    """Contexts in which one key was sent at finite scale, and what that changed, times the scale.

    Attributes:
        points: ``(n, width)``: the key, on the sphere.
        tokens: ``(n, length, width)``: all tokens, the key behind ``STACK.context`` others.
        places: ``(n,)``: where the one stands whose answer is told.
        moved: ``(n, width)``, right at clean outputs.
    """

    points: Floats
    tokens: Floats
    places: NDArray[np.int_]
    moved: Floats

    @property
    def readers(self) -> Floats:
        """The tokens whose answers are told, ``(n, width)``."""
        return np.asarray(self.tokens[np.arange(len(self.tokens)), self.places])

    def and_also(self, other: Nudged) -> Nudged:
        """The contexts of both."""
        return Nudged(*(np.concatenate([getattr(one, name) for one in (self, other)]) for name in self.__slots__))

    def some(self, start: int, count: int) -> Nudged:
        """``count`` of the contexts."""
        return Nudged(*(getattr(self, name)[start : start + count] for name in self.__slots__))


def nudge(
    limit: Limit,
    sphere: Sphere,
    points: Floats,
    settings: Settings,
    rng: np.random.Generator,
    inside: NDArray[np.int_] | None = None,
    readers: int = 1,
) -> Nudged:
    """Ask a random context around each of ``points (n, width)``, two questions each; tokens are zero but for ``inside``.

    Of the ``readers`` behind the point all answers are told, where the target tells them.
    """
    count, pool = len(points), np.arange(sphere.width) if inside is None else inside
    few = min(support(sphere.width), len(pool) - 1)
    before = [sphere.sparse(pool, rng) for _ in range(count * STACK.context)]
    behind = [sphere.sparse(rng.choice(pool, size=few, replace=False), rng) for _ in range(count * readers)]
    shape = count, -1, sphere.width
    far = np.concatenate([np.reshape(before, shape), points[:, None], np.reshape(behind, shape)], axis=1)
    near = far.copy()
    scale = settings.scale * 2.0 ** (settings.nodes - 1)
    near[:, STACK.context] *= settings.finite / scale
    if readers == 1:
        moved = (limit.raw(near, scale) - limit.raw(far, scale))[:, None]
    else:
        moved = (limit.everywhere(near) - limit.everywhere(far))[:, -readers:]
    places = np.tile(far.shape[1] - readers + np.arange(readers), count)
    flat = settings.finite * moved.reshape(-1, sphere.width)
    return Nudged(np.repeat(points, readers, axis=0), np.repeat(far, readers, axis=0), places, flat)


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """One order that explains the answers best: which head sees which, ``(heads, heads)``, and the error of each entry."""

    causal: bool
    theta: Floats
    error: Floats
    residual: float


def _solved(sphere: Sphere, model: Attention, told: Nudged, visible: list[Floats], causal: bool, like: Any) -> _Solved:
    """Least squares over the order and what MLPs add, least length where answers leave something open."""
    heads = model.heads
    design, right = equations(sphere, model, told, visible, causal, like)
    xp = array_namespace(design)
    solved, inverse = least_squares(design, right[:, None])
    gap = float(xp.linalg.vector_norm(design @ solved - right[:, None]))
    free = max(1, int((told.readers == 0).sum()) - design.shape[1])
    error = gap / np.sqrt(free) * on_host(xp.sqrt(xp.abs(xp.linalg.diagonal(inverse)[: heads * heads])))
    size = max(float(xp.linalg.vector_norm(right)), 1e-300)
    shape = heads, heads
    return _Solved(causal, on_host(solved[: heads * heads, 0]).reshape(shape), error.reshape(shape), gap / size)


def contexts(heads: int, visible: int, width: int, readers: int = 1) -> int:
    """Contexts that one order takes: its entries and, per head, what it can see of the MLPs before it."""
    return int(1.4 * heads * (visible + heads) / max(1, readers * (width - support(width)))) + 2


def find_order(
    limit: Limit, sphere: Sphere, model: Attention, settings: Settings, rng: np.random.Generator, inside: NDArray[np.int_]
) -> Order:
    """Find the layer of every head from ``2 * contexts(...)`` questions; tokens are zero but for ``inside``."""
    heads = model.heads
    p = sphere.sparse(inside, rng)
    visible = _visible(sphere, model, p, settings, limit.like)
    readers = 1 if limit.sight is None else STACK.context_readers
    count = contexts(heads, max(block.shape[1] for block in visible), sphere.width, readers)
    told = nudge(limit, sphere, np.tile(p, (count, 1)), settings, rng, inside, readers)
    if np.abs(told.moved[told.readers == 0]).max() <= settings.quiet:  # no head sees what another one made of the key
        return Order(np.zeros(heads, dtype=int), None, 0.0, 0.0)
    for again in range(STACK.more + 1):
        found = min(
            (_solved(sphere, model, told, visible, causal, limit.like) for causal in (False, True)), key=lambda one: one.residual
        )
        off = np.abs(found.theta - np.round(found.theta))
        if (
            again == STACK.more
            or (off <= np.maximum(settings.theta, STACK.clear * found.error)).all() == (off <= settings.theta).all()
        ):
            break  # all entries are whole, or one is plainly not
        told = told.and_also(nudge(limit, sphere, np.tile(p, (len(told.points) // readers, 1)), settings, rng, inside, readers))
    residual, causal, rounded, worst = found.residual, found.causal, np.round(found.theta), float(off.max())
    evidence = {"order_off": worst, "order_residual": residual}
    if residual > settings.order:
        raise NotInFamilyError(
            f"One key at finite scale changes the answers in a way that no order of the {heads} heads in pre-norm layers explains "
            f"(misfit {residual:.1e}). The heads found are right for very long tokens only.",
            evidence=evidence,
        )
    if worst > settings.theta:
        raise NotIdentifiableError(
            f"The heads are no strict order of layers: an entry of the order lies {worst:.2g} from zero and one. Two layers "
            "share their weights (tied layers), so that their heads appear as one with the values of both.",
            evidence=evidence,
            signs=(Sign.DIAGNOSED,),
        )
    sums = rounded.sum(0)
    layers = np.unique(sums, return_inverse=True)[1]
    if not np.array_equal(rounded, (layers[:, None] < layers[None]).astype(float)):
        raise NotInFamilyError(
            "What each head sees of the others is no order of layers; the blocks are not in series.", evidence=evidence
        )
    return Order(layers, causal, worst, residual)


def mlp_values(oracle: Oracle, stack: Stack, points: Floats, *, rng: np.random.Generator, causal: bool = False) -> Floats:
    """For every layer but the first, what constants and MLPs of the layers before it add at ``points``, ``(layers - 1, n, width)``.

    Only the part tangential to a point can be seen, and of that what the heads of the layer react to; the rest is zero. Good to
    about 1e-7 of its size. Price: about ``2 * (1.6 * layers + 3)`` questions a point.

    Args:
        oracle: the target, with float64 answers.
        stack: its heads, as recovered.
        points: ``(n, width)``; they are normalised first.
        rng: draws the contexts.
        causal: later tokens are hidden from earlier ones.
    """
    sphere, settings, model, last = Sphere(stack.width, stack.norm), EXACT, stack.limit(), len(stack.layers) - 1
    layers = np.repeat(np.arange(last + 1), [layer.heads for layer in stack.layers])
    tokens = normalised(np.asarray(points, dtype=np.float64), stack.norm, 0.0)
    limit = Limit(oracle, settings.scale)
    count = int(1.6 * last * (sphere.dimension - 1) / max(1, sphere.width - support(sphere.width))) + 3
    told = nudge(limit, sphere, np.repeat(tokens, count, axis=0), settings, rng)
    theta = (layers[:, None] < layers[None]).astype(float).ravel()
    found = np.zeros((last, len(tokens), stack.width))
    for i, p in enumerate(tokens):
        tangential = np.asarray(sphere.complement(p[None]))
        design, moved = equations(sphere, model, told.some(count * i, count), [tangential.T] * model.heads, causal)
        blocks = design[:, model.heads**2 :].reshape(len(design), model.heads, -1)
        joined = np.concatenate([blocks[:, layers == layer].sum(1) for layer in range(1, last + 1)], axis=1)
        left = moved - design[:, : model.heads**2] @ theta
        found[:, i] = lstsq(joined, left, cond=1e-11, lapack_driver="gelsy")[0].reshape(last, -1) @ tangential
    return found


def _visible(sphere: Sphere, model: Attention, p: Floats, settings: Settings, like: Any) -> list[Floats]:
    """Per head an orthonormal basis ``(width, n)`` of the changes of ``p`` that its values or scores react to."""
    assert model.V is not None
    found, tangential = [], sphere.complement(p[None])
    for W, V, c in zip(model.W, model.V, model.c, strict=True):
        blocks = [block / max(float(np.linalg.norm(block)), 1e-300) for block in (V, np.concatenate([W, c[:, None]], axis=1))]
        there = alike(tangential @ np.concatenate(blocks, axis=1), like)
        squares, vectors = (on_host(x) for x in array_namespace(there).linalg.eigh(there @ there.T))
        found.append(tangential.T @ vectors[:, squares > settings.cliff**2 * squares[-1]])
    return found


def equations(
    sphere: Sphere, model: Attention, told: Nudged, visible: list[Floats], causal: bool, like: Any = None
) -> tuple[Floats, Floats]:
    """Linear equations in the order ``(heads, heads)``, then per head in the visible part of what MLPs add; right-hand sides.

    The contexts of ``told`` are all around one point. Equations of outputs that are not clean are zero.
    """
    assert model.V is not None
    p, heads, count = told.points[0], model.heads, len(told.readers)
    later = np.arange(told.tokens.shape[1])
    hidden, unseen = (np.where(causal & (later > place), -np.inf, 0.0) for place in (STACK.context, told.places[:, None, None]))
    W, V, c, tokens_, p_, readers = (alike(x, like) for x in (model.W, model.V, model.c, told.tokens, p, told.readers))
    hidden_, unseen_ = alike(hidden, like), alike(unseen, like)
    xp = array_namespace(W)
    away_from = alike(sphere.complement(p[None]), like)
    own = (W @ p_) + c
    seen = _softmax(own @ xp.permute_dims(tokens_, (0, 2, 1)) + hidden_) @ tokens_  # (n, heads, width)
    outputs = xp.permute_dims(xp.permute_dims(seen, (1, 0, 2)) @ V, (1, 0, 2)) @ away_from.T @ away_from
    asked = xp.permute_dims(readers @ xp.permute_dims(W, (0, 2, 1)) + c[:, None], (1, 0, 2))
    weights = _softmax(asked @ xp.permute_dims(tokens_, (0, 2, 1)) + unseen_)
    share = weights[:, :, STACK.context]
    mixed = xp.permute_dims(xp.permute_dims(p_ - weights @ tokens_, (1, 0, 2)) @ V, (1, 0, 2))
    clean = alike((told.readers == 0).astype(np.float64), like)

    def effect(h: int, changes: Floats) -> Floats:
        """What changes ``(n, k, width)`` of the key do to the answers through head ``h``: ``(n, width, k)``."""
        through = (changes @ asked[:, h, :, None]) * mixed[:, h, None]
        return xp.permute_dims(share[:, h, None, None] * (changes @ V[h] + through) * clean[:, None], (0, 2, 1))  # type: ignore[no-any-return]

    order = xp.stack([effect(h, outputs) for h in range(heads)], axis=3)  # (n, width, g, h)
    rest = [effect(h, alike(np.tile(visible[h].T, (count, 1, 1)), like)) for h in range(heads)]
    design = xp.concat([xp.reshape(order, (count, len(p), heads * heads)), *rest], axis=2)
    return xp.reshape(design, (count * len(p), -1)), xp.reshape(alike(told.moved, like) * clean, (-1,))


def _softmax(scores: Floats) -> Floats:
    xp = array_namespace(scores)
    shares = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return shares / xp.sum(shares, axis=-1, keepdims=True)  # type: ignore[no-any-return]
