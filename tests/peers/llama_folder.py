"""A small Llama folder with weights from a seed, for servers and tests: ``python tests/peers/llama_folder.py FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WIDTH, HEADS, INNER, WORDS, LAYERS = 64, 2, 96, 128, 2  # vLLM's attention on a CPU wants heads of 32 or more


def write_folder(
    folder: Path,
    *,
    layers: int = LAYERS,
    seed: int = 0,
    width: int = WIDTH,
    words: int = WORDS,
    head: int | None = None,
    **settings: object,
) -> Path:
    """Write ``config.json`` and ``model.safetensors``; the same numbers on every machine. ``head`` is the size of a head."""
    rng = np.random.default_rng(seed)
    inner = width * INNER // WIDTH
    head = width // HEADS if head is None else head

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.normal(size=(rows, columns)) / np.sqrt(columns)).astype(np.float32)

    state = {"model.embed_tokens.weight": 0.1 * matrix(words, width), "model.norm.weight": np.ones(width, np.float32)}
    for i in range(layers):
        at = f"model.layers.{i}"
        state |= {
            f"{at}.self_attn.q_proj.weight": matrix(HEADS * head, width),
            f"{at}.self_attn.k_proj.weight": matrix(head, width),
            f"{at}.self_attn.v_proj.weight": matrix(head, width),
            f"{at}.self_attn.o_proj.weight": matrix(width, HEADS * head),
            f"{at}.mlp.gate_proj.weight": matrix(inner, width),
            f"{at}.mlp.up_proj.weight": matrix(inner, width),
            f"{at}.mlp.down_proj.weight": matrix(width, inner),
            f"{at}.input_layernorm.weight": np.ones(width, np.float32),
            f"{at}.post_attention_layernorm.weight": np.ones(width, np.float32),
        }
    state["lm_head.weight"] = matrix(words, width)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_size": width,
        "head_dim": head,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "vocab_size": words,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **settings,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


if __name__ == "__main__":
    write_folder(Path(sys.argv[1]))
