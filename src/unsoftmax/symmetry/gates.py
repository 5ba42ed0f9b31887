"""The canonical form, the distance and the count of what can be known of gated networks."""

from __future__ import annotations

import numpy as np
import scipy

from unsoftmax.models import Floats, GatedFFN
from unsoftmax.models.activations import activation_named

SENTENCES = (
    "Gates: their order is not visible.",
    "A factor per gate, shared between what it lets through and its output weights, is not visible.",
)


def canonical_gates(network: GatedFFN) -> GatedFFN:
    """Output weights of length one with their largest number positive, gates that nothing sees dropped, strongest first."""
    lengths = np.linalg.norm(network.down, axis=0)
    through = np.linalg.norm(network.up, axis=1) + (0.0 if network.up_bias is None else np.abs(network.up_bias))
    live = (lengths > 0) & (through > 0)
    if not live.any():  # a constant, or a linear map: one idle gate stands for none
        live = np.arange(len(lengths)) == 0
    down = network.down[:, live]
    lengths = np.where(lengths[live] > 0, lengths[live], 1.0)
    factor = lengths * np.where(down[np.argmax(np.abs(down), axis=0), np.arange(down.shape[1])] < 0, -1.0, 1.0)
    up = network.up[live] * factor[:, None]
    order = np.argsort(-np.linalg.norm(network.gate[live], axis=1) * np.linalg.norm(up, axis=1), kind="stable")
    return GatedFFN(
        network.gate[live][order],
        up[order],
        (down / factor)[:, order],
        None if network.gate_bias is None else network.gate_bias[live][order],
        None if network.up_bias is None else (network.up_bias[live] * factor)[order],
        network.down_bias,
        network.skip,
        network.activation,
    )


def gates_apart(a: GatedFFN, b: GatedFFN) -> tuple[tuple[Floats, Floats], ...]:
    """The blocks of two canonical networks side by side, gates in one order; none where they are of different kinds."""
    if a.gate.shape != b.gate.shape or a.down.shape != b.down.shape or a.activation != b.activation:
        return ()
    mine, other = (np.concatenate([n.gate, n.up], axis=1) for n in (a, b))
    order = scipy.optimize.linear_sum_assignment(np.linalg.norm(mine[:, None] - other[None], axis=2))[1]
    zeros = {
        "gate_bias": len(a.gate),
        "up_bias": len(a.gate),
        "down_bias": len(a.down),
        "skip": a.down.shape[:1] + a.gate.shape[1:],
    }
    pairs = [(a.gate, b.gate[order]), (a.up, b.up[order]), (a.down, b.down[:, order])]
    for name, shape in zeros.items():
        first, second = (np.zeros(shape) if getattr(n, name) is None else getattr(n, name) for n in (a, b))
        pairs.append((first, second[order] if name in ("gate_bias", "up_bias") else second))
    return tuple(pairs)


def gated_slopes(network: GatedFFN, points: Floats) -> Floats:
    """Derivatives of the answers in the points, ``(batch, outputs, width)``."""
    phi = activation_named(network.activation)
    before = points @ network.gate.T + (0.0 if network.gate_bias is None else network.gate_bias)
    offered = points @ network.up.T + (0.0 if network.up_bias is None else network.up_bias)
    slopes = np.einsum("nj,oj,jw->now", phi.slope(before) * offered, network.down, network.gate)
    slopes += np.einsum("nj,oj,jw->now", phi.value(before), network.down, network.up)
    return np.asarray(slopes if network.skip is None else slopes + network.skip)


def gated_jacobian(network: GatedFFN, points: Floats) -> Floats:
    """Derivatives of the answers in all parameters ``(batch * outputs, parameters)``, block by block."""
    phi = activation_named(network.activation)
    before = points @ network.gate.T + (0.0 if network.gate_bias is None else network.gate_bias)
    offered = points @ network.up.T + (0.0 if network.up_bias is None else network.up_bias)
    gates = phi.value(before)
    identity = np.eye(network.outputs)
    pull = {
        "gate": np.einsum("nj,oj->noj", phi.slope(before) * offered, network.down),
        "up": np.einsum("nj,oj->noj", gates, network.down),
    }
    count = len(points) * network.outputs
    columns = [np.einsum("noj,nw->nojw", pull[name], points).reshape(count, -1) for name in ("gate", "up")]
    columns.append(np.einsum("nj,op->nopj", gates * offered, identity).reshape(count, -1))
    columns += [pull[name].reshape(count, -1) for name in ("gate", "up") if getattr(network, f"{name}_bias") is not None]
    if network.down_bias is not None:
        columns.append(np.tile(identity, (len(points), 1)))
    if network.skip is not None:
        columns.append(np.einsum("nw,op->nopw", points, identity).reshape(count, -1))
    return np.concatenate(columns, axis=1)
