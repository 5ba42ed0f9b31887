"""Attention weights as PyTorch, BERT and GPT-2 lay them out, folded into W, V, c, b and back.

With Linear weights ``(out, in)`` and ``r`` coordinates per head: ``W_h = Wk_h^T Wq_h / sqrt(r)``, ``c_h = Wk_h^T bq_h / sqrt(r)``,
``V_h = Wv_h^T Wo_h^T``, ``b = sum_h Wo_h bv_h + bo``. The key bias cancels in the softmax and leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unsoftmax.errors import MissingExtraError
from unsoftmax.models.attention import Attention
from unsoftmax.models.base import Floats

LAYOUTS = ("mha", "bert", "gpt2")
MARKS = {
    "mha": ("in_proj_weight", "q_proj_weight"),
    "gpt2": ("c_attn.weight",),
    "bert": ("self.query.weight", "query.weight"),
}


def attention_from_torch(module: Any, *, layout: str = "auto", heads: int | None = None) -> Attention:
    """Fold a torch attention module, or its state dict, into W, V, c, b.

    Args:
        module: ``nn.MultiheadAttention``, a BERT attention block, a GPT-2 attention block, a module from ``attention_to_torch``,
            or a mapping of names to tensors or arrays (prefixes before the layout's own names are ignored).
        layout: "mha", "bert", "gpt2", or "auto" to tell by the names.
        heads: number of heads; needed for a bare state dict, read off a module.

    Raises:
        ValueError: unknown layout, several layers in one state dict, or a number of heads that does not fit.
    """
    if isinstance(module, Attention):
        return module
    if not isinstance(module, Mapping) and hasattr(module, "attention"):  # what attention_to_torch returns
        return Attention.from_torch(module.attention)
    state = {name: as_array(value) for name, value in (module if isinstance(module, Mapping) else module.state_dict()).items()}
    layout = recognised_layout(state) if layout == "auto" else layout
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; it must be 'auto' or one of {', '.join(LAYOUTS)}.")
    state = without_prefix(state, layout)
    heads = told_heads(module) if heads is None else heads
    if heads is None:
        raise ValueError("The number of heads cannot be read from these weights. Pass `heads=`.")
    return fold(*{"mha": from_mha, "bert": from_bert, "gpt2": from_gpt2}[layout](state), heads=heads)


def as_array(value: Any) -> Floats:
    """A tensor or array as float64."""
    value = value.detach().cpu().double().numpy() if hasattr(value, "detach") else value
    return np.asarray(value, dtype=np.float64)


def recognised_layout(state: Mapping[str, Floats]) -> str:
    """The layout whose names occur."""
    for layout, marks in MARKS.items():
        if any(name == mark or name.endswith("." + mark) for name in state for mark in marks):
            return layout
    raise ValueError(
        f"None of the known layouts ({', '.join(LAYOUTS)}) fits these names: {', '.join(list(state)[:6])} …. "
        "Pass the attention block alone, or fold the weights into `Attention(W, V, c, b)` yourself."
    )


def without_prefix(state: Mapping[str, Floats], layout: str) -> dict[str, Floats]:
    """Names from the layout's own on; one layer only."""
    prefixes = {name[: -len(mark)] for name in state for mark in MARKS[layout] if name == mark or name.endswith("." + mark)}
    prefixes = {prefix.removesuffix("self.") for prefix in prefixes} if layout == "bert" else prefixes
    if len(prefixes) != 1:
        raise ValueError(
            f"The weights hold {len(prefixes)} attention layers of layout {layout!r}; pass one: {sorted(prefixes)[:4]}."
        )
    prefix = prefixes.pop()
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def told_heads(module: Any) -> int | None:
    """The number of heads that a module, or a part of it, tells."""
    parts = [module, *(module.modules() if hasattr(module, "modules") else [])]
    for part in parts:
        for name in ("num_heads", "num_attention_heads", "n_head"):
            if isinstance(getattr(part, name, None), int):
                return int(getattr(part, name))
    return None


Projections = tuple[tuple[Floats, Floats], tuple[Floats, Floats], tuple[Floats, Floats], tuple[Floats, Floats]]
"""Weight ``(out, in)`` and bias of query, key, value and output."""


def from_mha(state: Mapping[str, Floats]) -> Projections:
    """``nn.MultiheadAttention`` with one width for queries, keys and values."""
    if any(name in state for name in ("bias_k", "bias_v")):
        raise ValueError("add_bias_kv appends a learned token to every sequence; such a layer is outside this model family.")
    if "in_proj_weight" in state:
        weights = np.split(state["in_proj_weight"], 3)
    else:
        weights = [state[f"{letter}_proj_weight"] for letter in "qkv"]
    width = weights[0].shape[0]
    biases = np.split(state.get("in_proj_bias", np.zeros(3 * width)), 3)
    out = state["out_proj.weight"]
    return (
        (weights[0], biases[0]),
        (weights[1], biases[1]),
        (weights[2], biases[2]),
        (out, state.get("out_proj.bias", np.zeros(len(out)))),
    )


def from_bert(state: Mapping[str, Floats]) -> Projections:
    """BERT: ``self.query``, ``self.key``, ``self.value``, ``output.dense``; without the output block its matrix is the identity."""

    def linear(*names: str) -> tuple[Floats, Floats] | None:
        for name in names:
            if f"{name}.weight" in state:
                weight = state[f"{name}.weight"]
                return weight, state.get(f"{name}.bias", np.zeros(len(weight)))
        return None

    found = [linear(f"self.{name}", name) for name in ("query", "key", "value")]
    query, key, value = (pair for pair in found if pair is not None)
    return query, key, value, linear("output.dense", "dense") or (np.eye(len(value[0])), np.zeros(len(value[0])))


def from_gpt2(state: Mapping[str, Floats]) -> Projections:
    """GPT-2: one matrix ``c_attn`` and ``c_proj``, both stored as ``(in, out)``."""
    weights = np.split(state["c_attn.weight"].T, 3)
    biases = np.split(state.get("c_attn.bias", np.zeros(3 * len(weights[0]))), 3)
    out = state["c_proj.weight"].T
    query, key, value = zip(weights, biases, strict=True)
    return query, key, value, (out, state.get("c_proj.bias", np.zeros(len(out))))


def fold(
    query: tuple[Floats, Floats],
    key: tuple[Floats, Floats],
    value: tuple[Floats, Floats],
    output: tuple[Floats, Floats],
    *,
    heads: int,
) -> Attention:
    """Fold projections into W, V, c, b."""
    inner = len(query[0])
    if heads < 1 or inner % heads or key[0].shape != query[0].shape or value[0].shape != query[0].shape:
        raise ValueError(f"{heads} heads do not divide the {inner} rows of the projections, or keys and values have other shapes.")
    rank = inner // heads

    def by_head(matrix: Floats) -> Floats:
        return matrix.reshape(heads, rank, *matrix.shape[1:])

    wk, scale = by_head(key[0]), 1 / np.sqrt(rank)
    W = np.einsum("hrd,hre->hde", wk, by_head(query[0]), optimize=True) * scale
    c = np.einsum("hrd,hr->hd", wk, by_head(query[1])) * scale
    V = np.einsum("hrd,mhr->hdm", by_head(value[0]), output[0].reshape(len(output[0]), heads, rank), optimize=True)
    b = output[0] @ value[1] + output[1]
    optional = {name: array for name, array in (("c", c), ("b", b)) if array.any()}
    return Attention(W=W, V=V, **optional)


def attention_to_torch(model: Attention) -> Any:
    """A ``torch.nn.Module`` in float64 with the same answers; ``positions`` and ``causal`` as in ``Attention``."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch") from None
    if model.V is None:
        raise ValueError("This model holds W and c only (V is None): the values were not learned, so it cannot answer.")

    class TorchAttention(torch.nn.Module):
        """Scores ``x_i·W[h]·x_N + c[h]·x_i``, answers ``b + sum_h sum_i softmax(s)_i V[h]^T x_i``."""

        def __init__(self) -> None:
            super().__init__()
            for name in ("W", "V", "c", "b"):
                self.register_parameter(name, torch.nn.Parameter(torch.tensor(np.array(getattr(model, name)))))
            self.width = model.width

        @property
        def attention(self) -> Attention:
            """The parameters as they stand, as a model of this package."""
            arrays = {name: as_array(getattr(self, name)) for name in ("W", "V", "c", "b")}
            kept = {name: arrays[name] for name in ("c", "b") if arrays[name].any() or getattr(model, f"has_{name}")}
            return Attention(W=arrays["W"], V=arrays["V"], **kept)

        def forward(self, sequences: Any, positions: str = "last", causal: bool = False) -> Any:
            """Map ``(batch, length, width)`` to the answers."""
            queries = sequences if positions == "all" else sequences[:, -1:]
            scores = torch.einsum("bid,hde,bje->bhji", sequences, self.W, queries)
            scores = scores + torch.einsum("bid,hd->bhi", sequences, self.c)[:, :, None]
            if causal and positions == "all":
                length = sequences.shape[1]
                scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
            mixed = torch.einsum("bhji,bid->bhjd", scores.softmax(-1), sequences)
            answers = self.b + torch.einsum("bhjd,hd...->bj...", mixed, self.V)  # type: ignore[operator]  # a parameter
            return answers if positions == "all" else answers[:, 0]

    return TorchAttention()


def to_state_dict(model: Attention, layout: str = "mha", *, rank: int | None = None) -> dict[str, Floats]:
    """Weights in a layout of the trade, as float64 arrays; folding them again gives back the model.

    Queries, keys and values are not unique: here each ``W_h`` is split by its singular values. All heads get the same number of
    coordinates, the largest rank that occurs (the width divided by the heads at least); the key bias is zero. A block of "mha" or
    "gpt2" loads these only where that number times the heads is the width.

    Args:
        model: with vector answers.
        layout: "mha", "gpt2" or "bert".
        rank: coordinates per head; None finds the fewest that hold the model to 1e-9. A smaller number cuts off what answers of
            low precision have left beyond the true rank.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; it must be one of {', '.join(LAYOUTS)}.")
    if model.V is None or model.V.ndim == 2:
        raise ValueError("Only a model with vector answers (V of shape (heads, width, outputs)) has a layout of the trade.")
    if rank is not None and rank < 1:
        raise ValueError(f"rank is {rank}; every head needs at least one coordinate.")
    rank = inner_rank(model) if rank is None else rank
    wq, wk, wv, wo, bq = [], [], [], [], []
    for W, V, c in zip(model.W, model.V, model.c, strict=True):
        left, spread, right = np.linalg.svd(
            np.concatenate([W, c[:, None]], axis=1)
        )  # c joins: it must lie in the range of the keys
        root = np.sqrt(spread[:rank] * np.sqrt(rank))
        wk.append(padded(left[:, : len(root)].T * root[:, None], rank))
        wq.append(padded(right[: len(root), :-1] * root[:, None], rank))
        bq.append(padded(right[: len(root), -1:] * root[:, None], rank)[:, 0])
        inner, spread, outer = np.linalg.svd(V, full_matrices=False)
        root = np.sqrt(spread[:rank])
        wv.append(padded(inner[:, : len(root)].T * root[:, None], rank))
        wo.append(padded(outer[: len(root)] * root[:, None], rank))
    query, key, value, output, bias = (np.concatenate(part) for part in (wq, wk, wv, wo, bq))
    output, zero = output.T, np.zeros(len(bias))
    if layout == "bert":
        named = {"query": (query, bias), "key": (key, zero), "value": (value, zero)}
        state = {
            f"self.{name}.{kind}": array
            for name, pair in named.items()
            for kind, array in zip(("weight", "bias"), pair, strict=True)
        }
        return {**state, "output.dense.weight": output, "output.dense.bias": np.array(model.b)}
    joined, biases = np.concatenate([query, key, value]), np.concatenate([bias, zero, zero])
    if layout == "gpt2":
        return {"c_attn.weight": joined.T, "c_attn.bias": biases, "c_proj.weight": output.T, "c_proj.bias": np.array(model.b)}
    return {"in_proj_weight": joined, "in_proj_bias": biases, "out_proj.weight": output, "out_proj.bias": np.array(model.b)}


def inner_rank(model: Attention) -> int:
    """Coordinates per head that hold every W (with its c) and every V; the width divided by the heads where that suffices."""
    assert model.V is not None
    blocks = [*np.concatenate([model.W, model.c[:, :, None]], axis=2), *model.V]
    slack = 1e-9  # relative; recovered weights carry errors well below this
    needed = max(int(np.linalg.matrix_rank(block, tol=slack * float(np.linalg.norm(block, 2)))) for block in blocks)
    usual = model.width // model.heads if model.width % model.heads == 0 else 0
    return max(needed, usual, 1)


def padded(rows: Floats, count: int) -> Floats:
    """Rows filled up with zeros."""
    return np.concatenate([rows, np.zeros((count - len(rows), rows.shape[1]))])
