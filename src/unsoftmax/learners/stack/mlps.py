"""The MLPs of a stack whose heads are known, where they are small: all of them, and with them the whole function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.neurons import Look, Neurons, find_neurons, looked, sum_of_mlps
from unsoftmax.learners.stack.order import Order
from unsoftmax.learners.stack.settings import STACK, Settings
from unsoftmax.learners.stack.smooth_mlps import find_smooth
from unsoftmax.learners.stack.sphere import Sphere
from unsoftmax.learners.stack.whole import facing, first_guess, fitted, layers_of
from unsoftmax.models import Attention, Floats
from unsoftmax.models.activations import RELU
from unsoftmax.models.stack import Stack


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A whole stack, or the reason why its MLPs are not known.

    Attributes:
        stack: with MLPs, constants and epsilon; None where they were not reached.
        misfit: largest error on fresh answers of natural size, over what the layers add to the last token.
        neurons: that bend somewhere, in all layers together.
        notes: sentences for the report.
    """

    stack: Stack | None = None
    misfit: float | None = None
    neurons: int | None = None
    notes: tuple[str, ...] = ("MLPs were not learned.",)


def read_mlps(
    limit: Limit,
    sphere: Sphere,
    heads: Attention,
    stack: Stack,
    order: Order,
    settings: Settings,
    rng: np.random.Generator,
    most: float,
    left: int | None,
) -> Reading:
    """Learn the MLPs of all layers and the constants beside them, where they are small and that takes ``most`` questions.

    On very long tokens all MLPs see the same normalised token, so that they are one network: great circles show its neurons where
    they are ReLUs, a student learns smooth ones; one key at finite scale shows the layer of each, and answers at natural sizes the
    constants, epsilon, and all of it to rounding.
    """
    value, allowed = sum_of_mlps(limit, heads), most if left is None else min(most, left / 2)
    look = looked(value, sphere, rng)
    if look.sharp:
        neurons = _corners(limit, sphere, value, look, rng, allowed)
    else:
        neurons = _smooth(limit, sphere, heads, order, rng, allowed)
    if isinstance(neurons, str):
        return Reading(notes=(f"MLPs were not learned: {neurons}.",))
    return _whole(limit, sphere, heads, stack, order, settings, rng, neurons)


def _corners(
    limit: Limit, sphere: Sphere, value: Callable[[Floats], Floats], look: Look, rng: np.random.Generator, allowed: float
) -> Neurons | str:
    """ReLU neurons, where they take no more than the questions ``allowed``; or why not."""
    start, price = limit.questions, 0.0

    def affordable(circles: int) -> bool:
        """By the first circle; later ones may take twice what it foretold, more is no sum of neurons."""
        nonlocal price
        price = price or 2.0 * (circles + 1) * (limit.questions - start)
        return price <= allowed and limit.questions - start <= 2 * price

    neurons = find_neurons(value, look, sphere, rng, affordable)
    if price > allowed:
        return f"they are ReLU networks, and it would take about {price:.0f} questions"
    return "no sum of ReLU neurons explains them" if neurons is None else neurons


def _smooth(
    limit: Limit, sphere: Sphere, heads: Attention, order: Order, rng: np.random.Generator, allowed: float
) -> Neurons | str:
    """Smooth neurons, where a student of moderate width explains their sum; or why not."""
    neurons, widest = find_smooth(sum_of_mlps(limit, heads, STACK.farther), sphere, int(order.layers.max()) + 1, rng, allowed)
    if neurons is not None:
        return neurons
    words = f"{widest} GELU or SiLU neurons do not explain them" if widest else "smooth ones are learned at small widths alone"
    return f"they are not made of ReLUs, or of very many; {words}"


def _whole(
    limit: Limit,
    sphere: Sphere,
    heads: Attention,
    stack: Stack,
    order: Order,
    settings: Settings,
    rng: np.random.Generator,
    neurons: Neurons,
) -> Reading:
    """Put neurons into their layers, and fit everything to answers of natural size."""
    count, kind = len(neurons.into), _called(neurons.phi.name)
    neurons = facing(neurons, sphere)
    if (order.layers.any() or neurons.phi is not RELU) and np.abs(neurons.linear).max() > 0:
        return Reading(
            notes=(f"MLPs were not learned: what {count} {kind} neurons leave is linear, and cannot be told by layers.",)
        )
    placed = layers_of(limit, sphere, heads, order, neurons, settings, rng)
    if placed is None:
        return Reading(notes=(f"MLPs were not learned: {count} {kind} neurons were found, but not the layer of each.",))
    whole = fitted(lambda tokens: limit.raw(tokens, 1.0), first_guess(stack, neurons, *placed, sphere), rng, bool(order.causal))
    if whole.misfit > STACK.known:
        return Reading(
            notes=(f"MLPs were not learned: {count} {kind} neurons leave {whole.misfit:.1e} of answers of natural size.",),
        )
    counts = ", ".join(map(str, np.bincount(placed[0], minlength=len(stack.layers))))
    words = f"MLPs are {kind} networks of {counts} neurons, epsilon is {whole.stack.epsilon:.3g}; the whole function is known."
    return Reading(whole.stack, whole.misfit, count, (words,))


def _called(name: str) -> str:
    """What people call an activation."""
    return {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "gelu_tanh": "tanh-GELU"}[name]
