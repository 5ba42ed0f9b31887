"""One representative for all models with the same function."""

from __future__ import annotations

from typing import overload

import numpy as np

from unsoftmax.models import FFN, Attention, Floats, GatedFFN, Model, Transformer
from unsoftmax.symmetry.gates import canonical_gates
from unsoftmax.symmetry.heads import ROUNDING, canonical_heads
from unsoftmax.symmetry.neurons import canonical_network


@overload
def canonical(model: Attention, *, tolerance: float = ...) -> Attention: ...
@overload
def canonical(model: FFN, *, tolerance: float = ...) -> FFN: ...
@overload
def canonical(model: Transformer, *, tolerance: float = ...) -> Transformer: ...
@overload
def canonical(model: Model, *, tolerance: float = ...) -> Model: ...
def canonical(model: Model, *, tolerance: float = ROUNDING) -> Model:
    """The model with every symmetry used up: same answers, fixed order, nothing superfluous.

    - Attention: heads with equal ``(W, c)`` merged, heads with ``V = 0`` dropped, largest V first.
    - FFN: neurons of unit length (ReLU), idle ones folded away, one per hyperplane, largest outgoing weights first.
    - GatedFFN: output weights of unit length, gates that nothing sees dropped, strongest first.
    - Transformer: the attention's ``b`` folded into the network; without residual ``V`` too, so that it becomes the identity;
      with residual the part of ``V`` that the network cannot see is removed.

    Args:
        model: any model.
        tolerance: relative difference below which two heads or neurons count as equal.

    >>> W = [[1.0, 0.0], [0.0, 2.0]]
    >>> canonical(Attention(W=[W, W], V=[[1.0, 0.0], [0.0, 1.0]])).V
    array([[1., 1.]])
    """
    if isinstance(model, Attention):
        return canonical_heads(model, tolerance=tolerance)
    if isinstance(model, Transformer):
        return canonical_transformer(model, tolerance=tolerance)
    if isinstance(model, GatedFFN):
        return canonical_gates(model)
    return canonical_network(model, tolerance=tolerance) if isinstance(model, FFN) else model


def oriented(model: Model) -> Model:
    """The canonical form with every neuron turned to one side, so that equal functions have equal parameters."""
    if isinstance(model, FFN):
        return canonical_network(model, orient=True)
    if isinstance(model, Transformer):
        return canonical_transformer(model, orient=True)
    return canonical(model)


def canonical_transformer(model: Transformer, *, tolerance: float = ROUNDING, orient: bool = False) -> Transformer:
    """Fold the attention's V and b into the network as far as the answers do not tell them apart."""
    attention, network = model.attention, model.ffn
    assert attention.V is not None  # the constructor checked it
    V, total = attention.V, attention.V.sum(axis=0)
    if model.residual:
        network = network.behind(np.eye(model.width), attention.b)
        V = V @ _visible(network)
    elif len(V) == 1:  # x -> network(V^T x) is all that the answers show of V
        network, V = network.behind(total.T, attention.b), np.eye(model.width)[None]
    elif np.linalg.matrix_rank(total) == model.width:  # of several heads, V up to a common factor
        network, V = network.behind(total.T, attention.b), V @ np.linalg.inv(total)
    else:
        network = network.behind(np.eye(model.width), attention.b)
    folded: FFN | GatedFFN
    if isinstance(network, GatedFFN):
        folded = canonical_gates(network)
        constant = not folded.up.any() and folded.skip is None
    else:
        folded = canonical_network(network, tolerance=tolerance, orient=orient)
        constant = len(folded.weights) == 1 and not folded.weights[0].any()
    W = np.zeros_like(attention.W) if constant else attention.W
    c = np.zeros_like(attention.c) if constant else attention.c
    heads = Attention(W, V, c if attention.has_c else None)
    if len(W) > 1 and not constant:
        heads = canonical_heads(heads, tolerance=tolerance)
    return Transformer(heads, folded, residual=model.residual)


def _visible(network: FFN | GatedFFN) -> Floats:
    """The projector on the directions that the network's first layer and skip react to; the identity if that is all."""
    first = [network.gate, network.up] if isinstance(network, GatedFFN) else [network.weights[0]]
    rows = np.concatenate(first if network.skip is None else [*first, network.skip])
    _, singular, right = np.linalg.svd(rows, full_matrices=False)
    rank = int(np.sum(singular > max(rows.shape) * np.finfo(float).eps * singular[0]))
    return np.eye(rows.shape[1]) if rank == rows.shape[1] else right[:rank].T @ right[:rank]
