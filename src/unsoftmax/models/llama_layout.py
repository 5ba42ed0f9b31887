"""Rotary decoders as Llama checkpoints lay them out, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax.errors import FileFormatError
from unsoftmax.models.base import Floats
from unsoftmax.models.decoder import Decoder
from unsoftmax.models.decoder_layers import DecoderLayer, GatedMLP
from unsoftmax.models.state_dicts import config_of, names_in, tensors_in
from unsoftmax.models.torch_layouts import as_array

PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}


def is_llama(path: str | Path) -> bool:
    """Whether a safetensors file, or those of a folder, hold the layers of a Llama."""
    return any(name.endswith(".self_attn.q_proj.weight") for name in names_in(path))


def read_llama(path: str | Path, *, heads: int | None = None) -> Decoder:
    """Fold the Llama in a safetensors file or folder; the configuration beside it tells heads, rotary base and epsilon.

    Raises:
        FileFormatError: it has what a plain Llama has not: other tensors, other rotations, another activation.
        ValueError: the number of heads is not known.
    """
    config, state = config_of(Path(path)), tensors_in(Path(path))
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    turning = str(rope.get("rope_type", rope.get("type", "default")))
    layer = r"(?:self_attn\.[qkvo]_proj|mlp\.(?:gate|up|down)_proj|(?:input|post_attention)_layernorm)"
    known = rf"lm_head\.weight|model\.(?:embed_tokens|norm)\.weight|model\.layers\.\d+\.{layer}\.weight"
    strange = [name for name in state if not re.fullmatch(known, name)]
    if strange:
        raise FileFormatError(f"{path} holds {', '.join(strange[:3])}, which a plain Llama has not; it is not read as one.")
    if turning != "default" or config.get("hidden_act", "silu") != "silu" or config.get("sliding_window"):
        raise FileFormatError(
            f"{path} has rotations {turning!r}, activation {config.get('hidden_act', 'silu')!r} and window "
            f"{config.get('sliding_window')}; only Llamas with default rotations, silu and no window are read."
        )
    heads = config.get("num_attention_heads") if heads is None else heads
    if heads is None:
        raise ValueError(f"{path} does not tell how many heads its layers have. Pass --heads (`heads=`).")
    base = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    try:
        return from_llama(state, heads=heads, base=float(base), epsilon=float(config.get("rms_norm_eps", 1e-6)))
    except KeyError as error:
        raise FileFormatError(f"{path} lacks the tensor {error}.") from error


def to_llama(decoder: Decoder) -> dict[str, Floats]:
    """The state dict of a ``LlamaForCausalLM``; all gains are one, because they are part of the matrices behind them.

    Queries, keys, values and outputs are one valid choice of what answers leave open. MLPs are left out where they are not known.

    Raises:
        ValueError: the decoder has learned positions or biases.
    """
    state = {"lm_head.weight": decoder.unembedding, "model.norm.weight": np.ones(decoder.width)}
    for i, layer in enumerate(decoder.layers):
        if not isinstance(layer, DecoderLayer):
            raise ValueError("Only decoders with rotary positions and no biases have the layout of a Llama.")
        at = f"model.layers.{i}."
        for name, projection in PROJECTIONS.items():
            block = getattr(layer, name)
            rows = block.transpose(1, 0, 2).reshape(layer.width, -1) if name == "out" else block.reshape(-1, layer.width)
            state[f"{at}self_attn.{projection}.weight"] = rows
        state[f"{at}input_layernorm.weight"] = state[f"{at}post_attention_layernorm.weight"] = np.ones(decoder.width)
        for name, block in decoder.mlps[i].blocks.items() if decoder.mlps is not None else ():
            state[f"{at}mlp.{name}_proj.weight"] = block
    return state


def from_llama(state: Mapping[str, Any], *, heads: int, base: float = 10000.0, epsilon: float = 1e-6) -> Decoder:
    """Fold the state dict of a ``LlamaForCausalLM`` with ``heads`` query heads a layer into a decoder."""
    arrays = {name: as_array(value) for name, value in state.items()}
    final = arrays["model.norm.weight"]
    table = arrays.get("lm_head.weight", arrays.get("model.embed_tokens.weight"))
    if table is None:
        raise ValueError("These weights have neither `lm_head.weight` nor `model.embed_tokens.weight`.")
    layers: list[DecoderLayer] = []
    mlps: list[GatedMLP] = []
    while f"model.layers.{len(layers)}.self_attn.q_proj.weight" in arrays:
        at = f"model.layers.{len(layers)}."
        query, key, value, out = (arrays[f"{at}self_attn.{projection}.weight"] for projection in PROJECTIONS.values())
        width, rank = query.shape[1], query.shape[0] // heads
        gain, behind = arrays[f"{at}input_layernorm.weight"], arrays[f"{at}post_attention_layernorm.weight"]
        query, key, value = ((block * gain).reshape(-1, rank, width) for block in (query, key, value))
        layers.append(DecoderLayer(query, key, value, out.reshape(width, heads, rank).transpose(1, 0, 2), base))
        if f"{at}mlp.gate_proj.weight" in arrays:
            gate, up, down = (arrays[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
            mlps.append(GatedMLP(gate * behind, up * behind, down))
    return Decoder(layers, table * final, epsilon, mlps or None)
