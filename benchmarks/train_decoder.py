"""Train a small Llama-like decoder on text at hand, as a real trained target for ``benchmarks/decoders.py trained FILE``.

    python benchmarks/train_decoder.py OUT.safetensors [--text FILE ...] [--layers 4] [--steps 4000] [--device cuda]

Characters (bytes below 128) are the tokens; without ``--text`` the pages and sources of this project are the text. The file holds a
``us.Decoder`` with its MLPs and the embeddings, in float32: 0.2 to 0.3 million parameters. Minutes on a GPU. Prints the loss on
held-out text in bits per character and a sample: look at it before you trust the file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn

VOCABULARY = 128
HERE = Path(__file__).resolve().parent.parent


def corpus(files: list[str]) -> torch.Tensor:
    """All text as one row of tokens."""
    paths = [Path(name) for name in files] or sorted([*HERE.glob("docs/**/*.md"), *HERE.glob("src/**/*.py"), *HERE.glob("*.md")])
    text = "\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in paths)
    return torch.tensor([byte for byte in text.encode() if byte < VOCABULARY], dtype=torch.long)


def rms(x: torch.Tensor, gain: torch.Tensor, epsilon: float) -> torch.Tensor:
    """RMSNorm."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * gain


def turned(x: torch.Tensor, base: float) -> torch.Tensor:
    """Rotary positions on ``(batch, heads, length, rank)``."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2], device=x.device)[:, None] * base ** (-torch.arange(half, device=x.device) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], dim=-1)


class Block(nn.Module):
    """One layer: grouped attention and a gated MLP."""

    def __init__(self, width: int, heads: int, groups: int, rank: int, hidden: int) -> None:
        super().__init__()
        self.shape = heads, groups, rank
        self.gains = nn.Parameter(torch.ones(2, width))
        self.query, self.key, self.value = (nn.Linear(width, n * rank, bias=False) for n in (heads, groups, groups))
        self.out = nn.Linear(heads * rank, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, h: torch.Tensor, base: float, epsilon: float) -> torch.Tensor:
        heads, groups, rank = self.shape
        batch, length, _ = h.shape
        seen = rms(h, self.gains[0], epsilon)

        def split(layer: nn.Linear, count: int) -> torch.Tensor:
            rows: torch.Tensor = layer(seen)
            return rows.view(batch, length, count, rank).transpose(1, 2)

        query, key = turned(split(self.query, heads), base), turned(split(self.key, groups), base)
        key, value = (a.repeat_interleave(heads // groups, dim=1) for a in (key, split(self.value, groups)))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        h = h + self.out(mixed.transpose(1, 2).reshape(batch, length, heads * rank))
        seen = rms(h, self.gains[1], epsilon)
        added: torch.Tensor = self.down(nn.functional.silu(self.gate(seen)) * self.up(seen))
        return h + added


class Llama(nn.Module):
    """Embedding, blocks, final norm, tied unembedding."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__()
        self.base, self.epsilon = 10000.0, 1e-5
        self.embedding = nn.Embedding(VOCABULARY, given.width)
        sizes = given.width, given.heads, given.groups, given.rank, given.hidden
        self.blocks = nn.ModuleList(Block(*sizes) for _ in range(given.layers))
        self.gain = nn.Parameter(torch.ones(given.width))
        nn.init.normal_(self.embedding.weight, std=given.width**-0.5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.embedding(ids)
        for block in self.blocks:
            h = block(h, self.base, self.epsilon)
        return rms(h, self.gain, self.epsilon) @ self.embedding.weight.T

    def tensors(self) -> dict[str, np.ndarray]:
        """The blocks of a ``us.Decoder``, gains folded in, and the embeddings."""

        def plain(weight: torch.Tensor) -> np.ndarray:
            return np.ascontiguousarray(weight.detach().cpu().numpy(), dtype=np.float32)

        table = plain(self.embedding.weight)
        found = {"unembedding": table * plain(self.gain), "embeddings": table}
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            heads, groups, rank = block.shape
            first, second = plain(block.gains)
            for name, layer, count in (("query", block.query, heads), ("key", block.key, groups), ("value", block.value, groups)):
                found[f"layers.{i}.{name}"] = (plain(layer.weight) * first).reshape(count, rank, -1)
            out = plain(block.out.weight).reshape(-1, heads, rank)
            found[f"layers.{i}.out"] = np.ascontiguousarray(out.transpose(1, 0, 2))
            found |= {f"layers.{i}.mlp.{n}": plain(getattr(block, n).weight) * second for n in ("gate", "up")}
            found[f"layers.{i}.mlp.down"] = plain(block.down.weight)
        return found


def sample(model: Llama, start: str, count: int, device: str) -> str:
    """Text that the model goes on with."""
    ids = torch.tensor([list(start.encode())], device=device)
    for _ in range(count):
        logits = model(ids[:, -256:])[:, -1] / 0.7
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], dim=1)
    return bytes(ids[0].tolist()).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--text", nargs="*", default=[])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    sizes: dict[str, Any] = {"layers": 4, "heads": 8, "groups": 4, "width": 64, "rank": 8, "hidden": 172}
    for name, value in {**sizes, "steps": 4000, "batch": 64, "length": 256, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    text = corpus(given.text).to(given.device)
    held = len(text) // 20
    train, test = text[:-held], text[-held:]
    model = Llama(given).to(given.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=given.steps, pct_start=0.05)

    def loss(row: torch.Tensor) -> torch.Tensor:
        at = torch.randint(len(row) - given.length - 1, (given.batch, 1), device=given.device)
        ids = row[at + torch.arange(given.length + 1, device=given.device)]
        return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    for step in range(given.steps):
        optimiser.zero_grad()
        value = loss(train)
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % max(1, given.steps // 20) == 0:
            print(f"step {step}: {value.item() / np.log(2):.3f} bits per character", flush=True)
    with torch.no_grad():
        bits = float(np.mean([loss(test).item() for _ in range(8)]) / np.log(2))
        print(f"held out: {bits:.3f} bits per character\n{sample(model, 'The answer ', 300, given.device)}")
    metadata = {"format": "unsoftmax", "kind": "decoder", "base": repr(model.base), "epsilon": repr(model.epsilon), "log": "0"}
    save_file(model.tensors(), given.out, metadata={**metadata, "bits": f"{bits:.4f}"})


if __name__ == "__main__":
    main()
