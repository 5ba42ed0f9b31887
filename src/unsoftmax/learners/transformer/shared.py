"""What the learners of Transformers have in common, whatever network stands behind the attention."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.transformer.model import Kind, Mixture, Sequences
from unsoftmax.models import FFN, Attention, Floats, GatedFFN, Transformer


def token_sizes(W: Floats, length: float) -> Floats:
    """Lengths per entry of tokens to ask: scores of order 1, the network's own length, and tokens of unit variance.

    Long ones see a saturated attention, right for any W of its signs.
    """
    usual = np.sqrt(len(W))
    scale = 1 / np.sqrt(max(float(np.linalg.norm(W, 2)), 1e-300))
    return np.asarray(np.array([*np.clip([scale, length], length / 16, 4 * length), usual, usual / 3]) / usual)


def ask_random(
    sequences: Sequences, sizes: Floats, count: int, rng: np.random.Generator, *, keep: bool
) -> list[tuple[Floats, Floats]]:
    """Ask ``count`` random sequences of each of several lengths."""
    asked = []
    for tokens in (2, 3, 5, 8):
        X = rng.normal(size=(count, tokens, sequences.oracle.width)) * np.resize(sizes, count)[:, None, None]
        X = sequences.shorten(X)
        asked.append((X, sequences.ask(X, keep=keep)))
    return asked


def attention_rows(
    model: Mixture[Kind], X: Floats, weights: Floats, left: Floats | None, *, bias: bool, values: bool
) -> list[Floats]:
    """Weighted derivatives ``(outputs * n, parameters)`` of the answers to ``X`` in W, ``c`` and ``mix``.

    A W of low rank, with column space ``left (width, rank)``, is moved along matrices of that rank only.
    """
    attention, moved, seen = model.parts(X)
    gradients = model.network.gradients(seen)
    outputs, last = gradients.shape[1], X[:, -1]
    away = X - last[:, None] - moved[:, None]
    pull = np.einsum("now,wv->nov", gradients, model.mix)
    keys = np.einsum("nl,nlw,nlv,nov->now", attention, X, away, pull, optimize=True)

    def weighted(derivative: Floats) -> Floats:
        return np.asarray((derivative * weights[:, None, None]).transpose(1, 0, 2).reshape(outputs * len(X), -1))

    blocks = []
    if left is None:
        blocks.append(weighted(np.einsum("now,nv->nowv", keys, last).reshape(len(X), outputs, -1)))
    else:
        right = left.T @ model.W
        blocks.append(weighted(np.einsum("now,nr->nowr", keys, last @ right.T).reshape(len(X), outputs, -1)))
        blocks.append(weighted(np.einsum("nor,nv->norv", keys @ left, last).reshape(len(X), outputs, -1)))
    if bias:
        blocks.append(weighted(keys))
    if values:
        blocks.append(weighted(np.einsum("now,nv->nowv", gradients, moved).reshape(len(X), outputs, -1)))
    return blocks


def public_transformer(network: FFN | GatedFFN, model: Mixture[Kind], *, bias: bool, residual: bool) -> Transformer:
    """The public model: V is the identity without residual, ``(1 - mix)^-1 mix`` with it."""
    width = len(model.W)
    V = np.eye(width)
    if residual:
        own = np.eye(width) - model.mix
        V = np.asarray(np.linalg.solve(own, model.mix).T)
        network = network.behind(own, np.zeros(width))
    return Transformer(Attention(model.W[None], V[None], model.c[None] if bias else None), network, residual=residual)


def ambiguity(neurons: str, residual: bool) -> str:
    """What cannot be known, given what cannot be known of the neurons."""
    common = f"{neurons}; of queries and keys only their product W, and c, can be known"
    if residual:
        return common + "; V is known as far as the neurons' weights span the space of tokens"
    return common + "; the value matrix and the first layer of the network only as their product (here V is the identity)"
