"""A second model, visibly different, with the same answers: the proof that something cannot be known."""

from __future__ import annotations

import numpy as np

from unsoftmax.models import FFN, Attention, GatedFFN, Model, Stack, Transformer
from unsoftmax.models.activations import activation_named
from unsoftmax.models.matrices import Matrices
from unsoftmax.models.stack import MLP
from unsoftmax.symmetry.heads import merged, score_groups


def witness(model: Model, *, max_length: int | None = None) -> Model | None:
    """A different model with the same answers on all sequences (of up to ``max_length`` tokens), or None if there is none.

    Reordering heads or neurons does not count as different. Attention: values shared out anew between heads with equal (W, c),
    other scores for a head with ``V = 0``; for ``max_length=2`` a head (W, c, V) becomes (-W, -c, -V) and (0, 0, 2V), for 1 any
    other scores do. A ReLU network always has one: neurons of another scale; a smooth one of
    one hidden layer, a neuron turned round beside a linear skip; a gated one, other factors per gate; a Transformer without
    residual, another V; a stack, scores along what its norms take away, or ReLU neurons of another scale.

    >>> witness(Attention.single(W=[[1.0]], v=[1.0])) is None
    True
    >>> two = witness(Attention.single(W=[[1.0]], v=[1.0]), max_length=2)
    >>> two.W.ravel(), two.V.ravel()
    (array([-1.,  0.]), array([-1.,  2.]))
    """
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length is {max_length}; a sequence has at least one token.")
    if isinstance(model, Attention):
        return _other_heads(model, max_length)
    if isinstance(model, FFN):
        return _other_network(model)
    if isinstance(model, Stack):
        return _other_stack(model)
    if isinstance(model, GatedFFN):
        return _other_gates(model)
    return _other_transformer(model) if isinstance(model, Transformer) else None


def _other_stack(model: Stack) -> Stack | None:
    """After a LayerNorm, scores along the all-ones vector, which no token has; else ReLU neurons of another scale."""
    layers, mlps = list(model.layers), None if model.mlps is None else list(model.mlps)
    if model.norm == "layer":
        first = layers[0]
        shift = np.random.default_rng(0).normal(size=model.width) * np.abs(first.W).max()  # fixed: one witness per model
        layers[0] = Attention(first.W + shift, first.V, first.c, first.b)
    elif mlps is not None and mlps[0].activation == "relu":
        mlps[0] = MLP(2 * mlps[0].first, 2 * mlps[0].first_bias, mlps[0].second / 2, mlps[0].second_bias, "relu")
    else:
        return None
    return Stack(layers, model.norm, model.epsilon, mlps)


def _other_heads(model: Attention, max_length: int | None) -> Attention | None:
    if model.V is None:
        return None
    W, V, c = model.W.copy(), model.V.copy(), model.c.copy()
    change = np.random.default_rng(0)  # fixed: the same model gets the same witness
    groups, _ = score_groups(model.scores, c)
    empty = [h for h in range(model.heads) if not V[h].any()]
    twins = [group[:2] for group in groups if len(group) > 1]
    if twins:
        first, second = twins[0]
        shift = change.normal(size=V[first].shape) * max(np.abs(V[[first, second]]).max(), np.finfo(float).tiny)
        V[first], V[second] = V[first] + shift, V[second] - shift
    elif empty or max_length == 1:
        h = empty[0] if empty else 0
        W[h] = W[h] + change.normal(size=W[h].shape) * (np.abs(W).max() or 1.0)
    elif max_length == 2:
        h = int(np.argmax(np.linalg.norm(W, axis=(1, 2)) + np.linalg.norm(c, axis=1)))
        if not W[h].any() and not c[h].any():
            return None  # all scores vanish: the mirrored pair would be the head itself
        W = np.concatenate([W, np.zeros_like(W[:1])])
        V = np.concatenate([V, 2.0 * V[h : h + 1]])
        c = np.concatenate([c, np.zeros_like(c[:1])])
        W[h], V[h], c[h] = -W[h], -V[h], -c[h]
        scores, values, c = merged(
            Matrices(W), Matrices(V.reshape(*V.shape[:2], -1)), c, tolerance=0.0
        )  # one of zeros may be there
        return model.with_(scores, values, c if model.has_c else None)
    else:
        return None
    return Attention(W, V, c if model.has_c else None, model.b if model.has_b else None)


def _other_network(network: FFN) -> FFN | None:
    if len(network.weights) == 1:
        return None
    weights, biases = list(network.weights), list(network.biases)
    degree = activation_named(network.activation).degree
    if not degree:
        return _turned_round(network)
    scale = 2.0 ** (1 + np.arange(len(weights[0])) % 3)  # powers of two: the answers stay equal to the last bit
    weights[0], biases[0], weights[1] = weights[0] * scale[:, None], biases[0] * scale, weights[1] / scale**degree
    return FFN(weights, biases, network.skip, network.activation)


def _other_gates(network: GatedFFN) -> GatedFFN:
    """Every gate lets through more, and its output weights are smaller for it."""
    scale = 2.0 ** (1 + np.arange(len(network.gate)) % 3)  # powers of two: the answers stay equal to the last bit
    lift = None if network.up_bias is None else network.up_bias * scale
    up, down = network.up * scale[:, None], network.down / scale
    return GatedFFN(network.gate, up, down, network.gate_bias, lift, network.down_bias, network.skip, network.activation)


def _turned_round(network: FFN) -> FFN | None:
    """A smooth network of one hidden layer with its first neuron the other way round: ``phi(z) = phi(-z) + z``; else None."""
    if len(network.weights) > 2 or not activation_named(network.activation).even:
        return None
    (first, last), (shift, constant) = network.weights, network.biases
    sign = np.where(np.arange(len(first)) == 0, -1.0, 1.0)
    skip = np.outer(last[:, 0], first[0]) + (0.0 if network.skip is None else network.skip)
    return FFN([first * sign[:, None], last], [shift * sign, constant + last[:, 0] * shift[0]], skip, network.activation)


def _other_transformer(model: Transformer) -> Transformer | None:
    attention, known = model.attention, model.ffn
    network = _other_gates(known) if isinstance(known, GatedFFN) else _other_network(known) or known
    if model.residual:
        return None if network is model.ffn else Transformer(attention, network, residual=True)
    assert attention.V is not None  # the constructor checked it
    stretch = 2.0 ** (1 + np.arange(model.width) % 3)
    values = Attention(
        attention.W,
        attention.V * stretch,
        attention.c if attention.has_c else None,
        attention.b * stretch if attention.has_b else None,
    )
    return Transformer(values, network.behind(np.diag(1 / stretch), np.zeros(model.width)))
