"""Derivatives of the answers in the parameters, and the rank decisions that rest on them."""

from __future__ import annotations

import numpy as np

from unsoftmax.models import FFN, Attention, Floats, GatedFFN, Transformer, softmax
from unsoftmax.models.activations import activation_named
from unsoftmax.symmetry.gates import gated_jacobian, gated_slopes


def attention_jacobian(model: Attention, sequences: Floats) -> tuple[Floats, Floats]:
    """Answers ``(batch, outputs)`` and their derivatives ``(batch, outputs, parameters)`` in W, V, then c and b where present.

    With weights a, ``dy/dV_h = sum_i a_i x_i`` and ``dy/dW_h = Cov_a(X) V_h outer x_N``. Blocks are ordered W (all heads), V, c, b.
    """
    assert model.V is not None  # callers check: a model without values has no answers
    heads, width = model.heads, model.width
    V = model.V.reshape(heads, width, -1)
    batch, outputs = len(sequences), V.shape[2]
    last = sequences[:, -1]
    answers = np.zeros((batch, outputs)) + model.b
    blocks: dict[str, list[Floats]] = {"W": [], "V": [], "c": []}
    for W, values, c in zip(model.W, V, model.c, strict=True):
        weights = softmax(((last @ W.T + c)[:, None] @ sequences.transpose(0, 2, 1))[:, 0])
        mean = (weights[:, None] @ sequences)[:, 0]
        centred = sequences - mean[:, None]
        # Cov_a(X) V_h, from centred tokens: no cancellation when one weight is close to 1
        pull = (centred * weights[:, :, None]).transpose(0, 2, 1) @ (centred @ values)
        answers += mean @ values
        pull = pull.transpose(0, 2, 1)
        blocks["W"].append((pull[..., None] * last[:, None, None]).reshape(batch, outputs, -1))
        blocks["V"].append(np.einsum("nd,op->nodp", mean, np.eye(outputs)).reshape(batch, outputs, -1))
        blocks["c"].append(pull)
    columns = blocks["W"] + blocks["V"] + (blocks["c"] if model.has_c else [])
    if model.has_b:
        columns.append(np.broadcast_to(np.eye(outputs), (batch, outputs, outputs)))
    return answers, np.concatenate(columns, axis=2)


def network_jacobian(network: FFN, points: Floats) -> tuple[Floats, Floats]:
    """Derivatives of a network's answers in its parameters ``(batch, outputs, parameters)``, and in the points."""
    hidden = [points]
    slopes: list[Floats] = []
    phi = activation_named(network.activation)
    for i, (layer, shift) in enumerate(zip(network.weights, network.biases, strict=True)):
        reached = hidden[-1] @ layer.T + shift
        slopes.append(phi.slope(reached) if i < len(network.weights) - 1 else np.ones_like(reached))
        hidden.append(phi.value(reached))
    batch, outputs = len(points), network.outputs
    back = np.broadcast_to(np.eye(outputs), (batch, outputs, outputs)).copy()
    columns: list[Floats] = []
    if network.skip is not None:
        columns.append(np.einsum("nop,nd->nopd", back, points).reshape(batch, outputs, -1))
    for i in reversed(range(len(network.weights))):
        back = back * slopes[i][:, None]
        columns.append(back)
        columns.append((back[..., None] * hidden[i][:, None, None]).reshape(batch, outputs, -1))
        back = back @ network.weights[i]
    return np.concatenate(columns[::-1], axis=2), back if network.skip is None else back + network.skip


def transformer_jacobian(model: Transformer, sequences: Floats) -> Floats:
    """Derivatives ``(batch, outputs, parameters)``: the network's, then the attention's by the chain rule."""
    context, inner = attention_jacobian(model.attention, sequences)
    points = context + sequences[:, -1] if model.residual else context
    network = model.ffn
    if isinstance(network, GatedFFN):
        own = gated_jacobian(network, points).reshape(len(points), network.outputs, -1)
        return np.concatenate([own, gated_slopes(network, points) @ inner], axis=2)
    own, slope = network_jacobian(network, points)
    return np.concatenate([own, slope @ inner], axis=2)


def numerical_nullity(rows: Floats) -> tuple[int, float]:
    """Nullity of ``rows (equations, parameters)`` and the condition number of the rest, after scaling the columns.

    Columns of zeros count whole. The scaled matrix is exact to rounding, so that true zeros come out below ``size * 2**-52`` times
    the largest singular value; the threshold stands a factor of 16 above.
    """
    sizes = np.linalg.norm(rows, axis=0)
    live = sizes > 0.0
    if not live.any():
        return rows.shape[1], 1.0
    singular = np.linalg.svd(rows[:, live] / sizes[live], compute_uv=False)
    threshold = 16.0 * np.finfo(float).eps * np.sqrt(max(rows.shape)) * singular[0]
    rank = int(np.sum(singular > threshold))
    return rows.shape[1] - rank, float(singular[0] / singular[rank - 1])
