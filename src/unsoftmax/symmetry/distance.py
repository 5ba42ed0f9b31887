"""How far apart two models are, symmetries aside. For tests, benchmarks and reports, never for learners."""

from __future__ import annotations

import numpy as np
import scipy

from unsoftmax.models import FFN, Attention, Decoder, Floats, GatedFFN, Model, Stack, Transformer
from unsoftmax.symmetry.canonical import oriented
from unsoftmax.symmetry.gates import gates_apart

AT = (0, 1, 2, 3, 5, 8, 13, 20, 40, 70, 100)  # distances at which scores of decoders are compared


def distance(a: Model, b: Model) -> float:
    """Largest relative Frobenius error over the parameter blocks of two canonical forms, under the best order of heads or neurons.

    Blocks are W, V, c of every head and b; of a network, its matrices and biases. An error is relative to the larger norm of the
    two blocks, absolute where either is all zeros. Absent c, b or skip are zeros; V is left out where either model has none.
    Stacks are compared layer by layer, heads alone: MLPs and the constants b beside them are not. Of decoders values, scores at
    distances of 0 to 100, the unembedding and differences of learned positions are.
    Different kinds, activations, shapes or numbers of heads or neurons are infinitely far apart.

    >>> W = [[[1.0, 0.0], [0.0, 2.0]], [[0.0, 1.0], [0.0, 0.0]]]
    >>> distance(Attention(W, [[1.0, 0.0], [0.0, 1.0]]), Attention(W[::-1], [[0.0, 1.0], [1.0, 0.0]]))
    0.0
    """
    if type(a) is not type(b):
        return np.inf
    first, second = oriented(a), oriented(b)
    if isinstance(first, Attention) and isinstance(second, Attention):
        return _heads_apart(first, second)
    if isinstance(first, FFN) and isinstance(second, FFN):
        return _networks_apart(first, second)
    if isinstance(first, Stack) and isinstance(second, Stack):
        return _stacks_apart(first, second)
    if isinstance(first, GatedFFN) and isinstance(second, GatedFFN):
        return _networks_apart(first, second)
    if isinstance(first, Decoder) and isinstance(second, Decoder):
        return _decoders_apart(first, second)
    assert isinstance(first, Transformer)  # the last kind
    assert isinstance(second, Transformer)  # both are of one kind
    if first.residual != second.residual:
        return np.inf
    return max(_heads_apart(first.attention, second.attention), _networks_apart(first.ffn, second.ffn))


def _stacks_apart(a: Stack, b: Stack) -> float:
    if a.norm != b.norm or len(a.layers) != len(b.layers):
        return np.inf
    plain = [[Attention(layer.W, layer.V, layer.c) for layer in stack.layers] for stack in (a, b)]
    return max(_heads_apart(one, other) for one, other in zip(*plain, strict=True))


def _decoders_apart(a: Decoder, b: Decoder) -> float:
    """Values, and scores at distances up to 100, layer by layer; the unembedding, without its mean row where either has lost it."""
    shapes = [[(len(layer.heads), layer.groups, layer.width) for layer in model.layers] for model in (a, b)]
    if shapes[0] != shapes[1] or a.outputs != b.outputs or (a.norm, a.base is None) != (b.norm, b.base is None):
        return np.inf
    tables = [m.unembedding - m.unembedding.mean(axis=0) if a.log or b.log else m.unembedding for m in (a, b)]
    flat = np.eye(a.width) - (1 / a.width if a.norm == "layer" else 0.0)  # no norm sees what all coordinates share
    worst = block_error(*(table @ flat for table in tables))
    if a.positions is not None and b.positions is not None:
        length = min(len(a.positions), len(b.positions))
        worst = max(worst, block_error(*((m[:length] - m[0]) @ flat for m in (a.positions, b.positions))))
    for one, other in zip(a.layers, b.layers, strict=True):
        blocks = [np.stack([layer.V @ flat, *(layer.scores(n) for n in AT)], axis=1) for layer in (one, other)]
        pairs = np.array([[max(map(block_error, x, y)) for y in blocks[1]] for x in blocks[0]])
        pairs = np.maximum(pairs, [[block_error(x, y) for y in other.c] for x in one.c])
        worst = max(worst, float(pairs[scipy.optimize.linear_sum_assignment(pairs)].max()))
    return worst


def block_error(a: Floats, b: Floats) -> float:
    """Relative Frobenius error between two blocks; absolute where either is all zeros."""
    scale = max(np.linalg.norm(a), np.linalg.norm(b)) if np.any(a) and np.any(b) else 1.0
    return float(np.linalg.norm(a - b) / scale)


def _heads_apart(a: Attention, b: Attention) -> float:
    if a.W.shape != b.W.shape or (a.V is not None and b.V is not None and _flat(a.V).shape != _flat(b.V).shape):
        return np.inf
    pairs = np.array([[_head_error(a, i, b, j) for j in range(b.heads)] for i in range(a.heads)])
    rows, columns = scipy.optimize.linear_sum_assignment(pairs)
    constant = 0.0 if a.V is None or b.V is None else block_error(np.ravel(a.b), np.ravel(b.b))
    return max(float(pairs[rows, columns].max()), constant)


def _head_error(a: Attention, i: int, b: Attention, j: int) -> float:
    errors = [block_error(a.W[i], b.W[j]), block_error(a.c[i], b.c[j])]
    if a.V is not None and b.V is not None:
        errors.append(block_error(_flat(a.V)[i], _flat(b.V)[j]))
    return max(errors)


def _flat(V: Floats) -> Floats:
    """Values as ``(heads, width, outputs)``; a scalar answer is one output."""
    return V if V.ndim == 3 else V[:, :, None]


def _networks_apart(a: FFN | GatedFFN, b: FFN | GatedFFN) -> float:
    if isinstance(a, GatedFFN) or isinstance(b, GatedFFN):
        pairs = gates_apart(a, b) if isinstance(a, GatedFFN) and isinstance(b, GatedFFN) else ()
        return max((block_error(*pair) for pair in pairs), default=np.inf)
    shapes = [w.shape for w in a.weights], [w.shape for w in b.weights]
    affine = len(a.weights) == 1  # nothing bends then
    if shapes[0] != shapes[1] or (a.activation != b.activation and not affine):
        return np.inf
    weights, biases = list(b.weights), list(b.biases)
    for i in range(len(weights) - 1):  # bring the neurons of each hidden layer into a's order before looking at the next
        mine = np.concatenate([a.weights[i], a.biases[i][:, None]], axis=1)
        other = np.concatenate([weights[i], biases[i][:, None]], axis=1)
        order = scipy.optimize.linear_sum_assignment(np.linalg.norm(mine[:, None] - other[None], axis=2))[1]
        weights[i], biases[i], weights[i + 1] = weights[i][order], biases[i][order], weights[i + 1][:, order]
    errors = [block_error(x, y) for x, y in zip((*a.weights, *a.biases), (*weights, *biases), strict=True)]
    bridges = [np.zeros((n.outputs, n.width)) if n.skip is None else n.skip for n in (a, b)]
    return max(*errors, block_error(*bridges))
