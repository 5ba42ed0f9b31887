"""What can be known about a model from its answers: dimensions, symmetries in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.brevity import Brief
from unsoftmax.models import FFN, Attention, Floats, GatedFFN, Model, Stack, Transformer
from unsoftmax.models.activations import activation_named
from unsoftmax.symmetry.gates import SENTENCES, gated_jacobian
from unsoftmax.symmetry.heads import score_groups
from unsoftmax.symmetry.jacobian import network_jacobian, numerical_nullity, transformer_jacobian

LARGEST_JACOBIAN = 1500  # parameters; its singular values take a few seconds there and grow with the cube


@dataclass(frozen=True, slots=True, repr=False)
class Identifiability(Brief):
    """What the answers determine.

    Attributes:
        parameters: numbers in W and V, and in c and b where the model has them; for a network all its numbers.
        nullity: directions in parameter space along which no answer changes to first order.
        dimension: ``parameters - nullity``, the rank of the answers' Jacobian.
        symmetries: sentences: what can be changed without changing any answer.
    """

    parameters: int
    nullity: int
    dimension: int
    symmetries: tuple[str, ...]


def identifiability(model: Model, *, max_length: int | None = None) -> Identifiability:
    """Count what answers to sequences of up to ``max_length`` tokens (None: any length) can tell about ``model``.

    For attention the count is exact, by the theorem of docs/many-heads.md: heads with different (W, c) do not disturb each other,
    so the null directions are those inside each group of heads with equal (W, c). For ``max_length=2`` the groups are those of
    equal ±(W, c), and for 1 only ``sum_h V_h`` and b show. For networks it is the numerical nullity of the Jacobian.

    >>> W = [[1.0, 0.0], [0.0, 2.0]]
    >>> found = identifiability(Attention(W=[W, W], V=[[1.0, 0.0], [0.0, 1.0]]))
    >>> found.nullity, found.dimension  # V_1 + D, V_2 - D: two; and two more to first order only
    (4, 8)
    """
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length is {max_length}; a sequence has at least one token.")
    if isinstance(model, Attention):
        return _of_heads(model, max_length)
    if isinstance(model, Stack):
        return _of_stack(model, max_length)
    if isinstance(model, GatedFFN):
        return _of_gates(model)
    if not isinstance(model, FFN | Transformer):
        raise ValueError(f"What can be known of a {type(model).__name__} is not worked out here; see its own page in the docs.")
    return _of_network(model, max_length)


def _of_heads(model: Attention, max_length: int | None) -> Identifiability:
    heads, width, biased = model.heads, model.width, int(model.has_c)
    sentences = ["Permutation: the order of the heads is not visible."] if heads > 1 else []
    sentences.append("Factors: of W = Wk^T Wq and V = Wv^T Wo^T only the products are visible.")
    values = model.values
    if values is None:
        parameters = heads * width * (width + biased)
        return Identifiability(parameters, 0, parameters, tuple(sentences))
    outputs = values.shape[2]
    parameters = heads * width * (width + outputs + biased) + outputs * model.has_b
    if max_length == 1:
        known = width * outputs + outputs * model.has_b
        sentences.append("One token: every weight is 1, so only the sum of all V (and b) is visible, nothing of W and c.")
        return Identifiability(parameters, parameters - known, known, tuple(sentences))
    groups, signs = score_groups(model.scores, model.c, mirrored=max_length == 2)
    nullity = 0
    for group in groups:
        alone = len(group) == 1
        flat = width * (not values.shows(group[0])) if alone else first_order_freedom(values.some(group).whole())
        nullity += flat * (width + biased)
        sentences += _group_sentences(model, group, flat, signs, paired=max_length == 2)
    constraints = len(groups)
    if max_length == 2:  # sums of V over each ± group with signs, and the sum of all V unless the former imply it
        zero = [not signs[group[0]] for group in groups]
        mixed = [len(set(signs[group])) > 1 for group in groups]
        constraints += -sum(zero) + int(any(zero) or any(mixed))
        sentences.append(
            "At most two tokens: a head (W, c, V) gives the same answers as the two heads (-W, -c, -V) and (0, 0, 2V)."
        )
    nullity += (heads - constraints) * width * outputs
    return Identifiability(parameters, nullity, parameters - nullity, tuple(dict.fromkeys(sentences)))


def _of_stack(model: Stack, max_length: int | None) -> Identifiability:
    """Heads as those of one layer on the normalised tokens; MLPs, where they are known, for neurons in general position."""
    heads, flat = model.limit(), model.norm == "layer"
    assert heads.V is not None
    basis = np.linalg.svd(np.ones((1, model.width)))[2][1:] if flat else np.eye(model.width)
    seen = _of_heads(Attention(basis @ heads.W @ basis.T, basis @ heads.V, heads.c @ basis.T), max_length)
    parameters = heads.W.size + heads.V.size + heads.c.size
    known, sentences = seen.dimension, list(seen.symmetries)
    sentences.append("Gains and biases of the norms are part of W, c and V.")
    if flat:
        sentences.append("Normalised tokens have mean zero: nothing of W, c or V along the all-ones vector is visible.")
    if model.mlps is None:
        sentences.append("MLPs, constants b and epsilon are not held by this model.")
    for layer, mlp in zip(model.layers, model.mlps or (), strict=bool(model.mlps)):
        count, relu = len(mlp.first), mlp.activation == "relu"
        numbers = mlp.first.size + mlp.first_bias.size + mlp.second.size + mlp.second_bias.size + np.ravel(layer.b).size
        parameters += numbers
        known += numbers - count * (relu + flat)
    if model.mlps is not None:
        parameters, known = parameters + 1, known + 1 - flat * (2 * len(model.mlps) - 1)  # with epsilon
        if flat:
            sentences.append("Constants of all attentions and MLPs along the all-ones vector: only their sum is visible.")
        sentences.append("Neurons: their order, and of ReLU ones the scale of each, are not visible. Counted for general position.")
    return Identifiability(parameters, parameters - known, known, tuple(sentences))


def first_order_freedom(V: Floats) -> int:
    """Dimension of the z_h with ``sum_h (z_h V_ho^T + V_ho z_h^T) = 0`` for every output o; V is ``(heads, width, outputs)``.

    Heads that share (W, c) show their scores only through ``sum_h z_h^T S V_h`` for symmetric S (covariances of tokens), so each
    such family of z_h, times any row vector, changes the W_h without changing an answer to first order. Matrices ``S = a a^T``
    with random a span the symmetric ones, which keeps the system small for wide layers.
    """
    heads, width, outputs = V.shape
    rng = np.random.default_rng(0)  # fixed: a count must not change from call to call
    tokens, mixtures = rng.normal(size=(4 * heads * width, width)), rng.normal(size=(4 * heads * width, outputs))
    seen = np.einsum("nd,hdo,no->nh", tokens, V, mixtures, optimize=True)
    nullity, _ = numerical_nullity((seen[:, :, None] * tokens[:, None]).reshape(len(tokens), -1))
    return nullity


def _group_sentences(model: Attention, group: list[int], flat: int, signs: Floats, *, paired: bool) -> list[str]:
    names = ", ".join(str(h) for h in group)
    share = "W and c" if model.has_c else "W"
    if len(group) == 1:
        return (
            []
            if model.values is None or model.values.shows(group[0])
            else [f"Head {names} has V = 0: its {share} is not visible at all."]
        )
    same = len({float(signs[h]) for h in group}) == 1
    sentences = []
    if same:
        sentences.append(
            f"Heads {names} share their {share}: only the sum of their V is visible; V_1 + D and V_2 - D answer alike."
        )
    elif paired:
        sentences.append(f"Heads {names} have opposite {share}: two tokens cannot tell which of them carries which value.")
    if flat:
        sentences.append(
            f"Heads {names}: to first order, {share} can move along {flat * (model.width + model.has_c)} more directions; "
            "where no V is zero this is a touching point, not a family of equal models."
        )
    return sentences


def _of_network(model: FFN | Transformer, max_length: int | None) -> Identifiability:
    network = model if isinstance(model, FFN) else model.ffn
    parameters = sum(block.size for block in network.blocks.values())
    sentences, scales = _of_neurons(network)
    if isinstance(model, Transformer):
        attention = model.attention
        assert attention.V is not None  # the constructor checked it
        parameters += attention.W.size + attention.V.size + attention.c.size * attention.has_c + attention.b.size * attention.has_b
        if not model.residual:
            sentences.append("Values: only the product of V and the network's first layer is visible; V = identity is canonical.")
        if attention.has_b:
            sentences.append("The attention's constant b and the network's first bias show only in combination.")
    if parameters > LARGEST_JACOBIAN:
        nullity = scales
        if isinstance(model, Transformer):
            nullity += (0 if model.residual else model.width**2) + model.attention.b.size * model.attention.has_b
        sentences.append("Counted for neurons in general position: the network is too large for a numerical Jacobian.")
    else:
        rows = _network_rows(model, max_length, 3 * parameters // network.outputs + 64)
        nullity, _ = numerical_nullity(rows.reshape(-1, parameters))
    return Identifiability(parameters, nullity, parameters - nullity, tuple(sentences))


def _of_neurons(network: FFN | GatedFFN) -> tuple[list[str], int]:
    """What the answers do not tell of neurons, and how many scales are among it."""
    if isinstance(network, GatedFFN):
        return list(SENTENCES), network.neurons
    phi = activation_named(network.activation)
    if phi.degree:
        power = "s" if phi.degree == 1 else f"s^{phi.degree}"
        words = (
            f"Neurons: their order, and the scale of each (a neuron times s, what it feeds divided by {power}), are not visible."
        )
        return [words], sum(len(layer) for layer in network.weights[:-1])
    sentences = ["Neurons: their order is not visible; the scale of each is."]
    if len(network.weights) == 2 and phi.even:
        sentences.append("A neuron turned round differs by a linear skip only: with a skip, its side is not visible.")
    return sentences, 0


def _of_gates(model: GatedFFN) -> Identifiability:
    parameters = sum(block.size for block in model.blocks.values())
    if parameters > LARGEST_JACOBIAN:
        counted = "Counted for gates in general position: the network is too large for a numerical Jacobian."
        return Identifiability(parameters, parameters - model.freedom, model.freedom, (*SENTENCES, counted))
    rng = np.random.default_rng(0)  # fixed: a count must not change from call to call
    points = np.concatenate([scale * rng.normal(size=(parameters + 32, model.width)) for scale in (0.3, 1.0, 5.0)])
    nullity, _ = numerical_nullity(gated_jacobian(model, points))
    return Identifiability(parameters, nullity, parameters - nullity, SENTENCES)


def _network_rows(model: FFN | Transformer, max_length: int | None, count: int) -> Floats:
    """The Jacobian at about ``count`` random points or sequences, at three scales so that hyperplanes near and far are crossed."""
    rng = np.random.default_rng(0)  # fixed: a count must not change from call to call
    lengths = [1] if isinstance(model, FFN) else sorted({1, min(2, max_length or 2), min(5, max_length or 5)})
    pieces = []
    for scale in (0.3, 1.0, 5.0):
        for length in lengths:
            X = scale * rng.normal(size=(count // (3 * len(lengths)) + 1, length, model.width))
            pieces.append(network_jacobian(model, X[:, 0])[0] if isinstance(model, FFN) else transformer_jacobian(model, X))
    return np.concatenate(pieces)
