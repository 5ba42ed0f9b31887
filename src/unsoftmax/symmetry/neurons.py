"""The canonical form of networks: none of their neurons idle, each once, in a fixed order; of unit length where that is free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models import FFN, Floats
from unsoftmax.models.activations import Activation, activation_named
from unsoftmax.symmetry.heads import ROUNDING


@dataclass(eq=False)
class Layer:
    """One hidden layer ``outgoing @ phi(incoming @ x + shift)`` and what it hands on beside it: ``linear @ x + constant``."""

    phi: Activation
    incoming: Floats
    shift: Floats
    outgoing: Floats
    linear: Floats
    constant: Floats

    def keep(self, rows: NDArray[Any]) -> None:
        """Keep the neurons that ``rows`` (a mask or an order) names."""
        self.incoming, self.shift, self.outgoing = self.incoming[rows], self.shift[rows], self.outgoing[:, rows]


def canonical_network(network: FFN, *, tolerance: float = ROUNDING, orient: bool = False) -> FFN:
    """Scale every neuron to ``|incoming row| = 1``, fold idle ones away, merge duplicates, sort.

    With one hidden layer, neurons ``relu(z)`` and ``relu(-z)`` of the same hyperplane merge too: ``relu(-z) = relu(z) - z``
    leaves a linear part in ``skip``; so it is for GELU, SiLU and softplus. A smooth neuron keeps its length, which shows.
    A neuron can be turned round that way at any time, so where there is a skip
    (or ``orient`` asks for it) all neurons are turned to one side; without one they stay as they are.
    Merging across the layers of a deeper network is not attempted.
    """
    if len(network.weights) == 1:
        return FFN([network.weights[0] if network.skip is None else network.weights[0] + network.skip], network.biases)
    phi = activation_named(network.activation)
    skip = np.zeros((network.outputs, network.width)) if network.skip is None else network.skip.copy()
    weights, biases = list(network.weights), list(network.biases)
    shallow = len(weights) == 2
    for i in range(len(weights) - 1):
        linear = skip if shallow else np.zeros((weights[i + 1].shape[0], weights[i].shape[1]))
        layer = Layer(phi, weights[i], biases[i], weights[i + 1], linear, biases[i + 1])
        _scale(layer)
        _merge(layer, tolerance, opposite=shallow and phi.even)
        if shallow and phi.even and (orient or layer.linear.any()):
            _turn(layer)
            _zero_rounding(layer, network, tolerance)
        _sort(layer)
        weights[i], biases[i], weights[i + 1], biases[i + 1] = layer.incoming, layer.shift, layer.outgoing, layer.constant
        if shallow:
            skip = layer.linear
    if weights[-1].shape[1] == 0:  # no neuron left before the last layer: the network is linear
        return FFN([skip], [biases[-1]])
    return FFN(weights, biases, skip if skip.any() else None, network.activation)


def _scale(layer: Layer) -> None:
    """Unit incoming rows where scale does not show; neurons that see nothing are constants, those that nothing sees are dropped."""
    length = np.linalg.norm(layer.incoming, axis=1)
    blind = length == 0.0
    layer.constant = layer.constant + layer.outgoing[:, blind] @ layer.phi.value(layer.shift[blind])
    length = np.where(blind | (layer.phi.degree == 0), 1.0, length)
    layer.incoming = layer.incoming / length[:, None]
    layer.shift = layer.shift / length
    layer.outgoing = layer.outgoing * length**layer.phi.degree
    layer.keep(~blind & (layer.outgoing != 0.0).any(axis=0))


def _merge(layer: Layer, tolerance: float, *, opposite: bool) -> None:
    """One neuron per hyperplane (and side, unless ``opposite``); values that cancel leave no neuron."""
    size = np.linalg.norm(layer.outgoing, axis=0)
    planes = np.concatenate([layer.incoming, layer.shift[:, None]], axis=1)
    kept: list[int] = []
    outgoing = layer.outgoing.copy()
    for i in range(len(planes)):
        for j in kept:
            reach = tolerance * max(float(np.linalg.norm(layer.incoming[j])), abs(layer.shift[j]))
            if np.linalg.norm(planes[i] - planes[j]) <= reach:
                outgoing[:, j] += outgoing[:, i]
                break
            if opposite and np.linalg.norm(planes[i] + planes[j]) <= reach:
                layer.linear = layer.linear - np.outer(outgoing[:, i], layer.incoming[j])
                layer.constant = layer.constant - outgoing[:, i] * layer.shift[j]
                outgoing[:, j] += outgoing[:, i]
                break
        else:
            kept.append(i)
    layer.outgoing = outgoing
    threshold = tolerance * (size.max() if len(size) else 0.0)
    layer.keep(np.array([j for j in kept if np.linalg.norm(outgoing[:, j]) > threshold], dtype=np.intp))


def _turn(layer: Layer) -> None:
    """Turn every neuron to the side of one fixed generic direction: ``phi(z) = phi(-z) + z``."""
    direction = np.cos(1.0 + np.arange(layer.incoming.shape[1]) ** 2)  # generic, so that no likely row is orthogonal to it
    away = layer.incoming @ direction < 0.0
    layer.linear = layer.linear + layer.outgoing[:, away] @ layer.incoming[away]
    layer.constant = layer.constant + layer.outgoing[:, away] @ layer.shift[away]
    sign = np.where(away, -1.0, 1.0)
    layer.incoming = layer.incoming * sign[:, None]
    layer.shift = layer.shift * sign


def _zero_rounding(layer: Layer, network: FFN, tolerance: float) -> None:
    """Sums that cancelled leave rounding; a skip of rounding only is no skip."""
    terms = np.abs(network.weights[1]) @ np.abs(network.weights[0])
    if np.abs(layer.linear).max() <= tolerance * (terms.max() + (0.0 if network.skip is None else np.abs(network.skip).max())):
        layer.linear = np.zeros_like(layer.linear)


def _sort(layer: Layer) -> None:
    layer.keep(np.lexsort((layer.shift, -layer.incoming[:, 0], -np.linalg.norm(layer.outgoing, axis=0))))
