"""Train a small one-layer Transformer with PyTorch, then recover it from its float64 answers.

    python benchmarks/trained_transformer.py [--quick] [--seed N] [--activation relu|gelu|silu]

The task is made here: each sequence holds points of a noisy plane wave; the last token asks for the value that the wave has at
another place. The layer is softmax attention (query bias, value matrix, residual or not) and a network with biases, trained by
Adam. Prints a Markdown table: loss before and after training, queries, error on fresh sequences of the task, relative error of W.
Needs the extra `torch`.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from unsoftmax.errors import RefusalError
from unsoftmax.learners.smooth import SmoothTransformerLearner
from unsoftmax.learners.transformer import TransformerLearner
from unsoftmax.oracles import CallableOracle, Metered

WIDTH, NEURONS, TOKENS = 10, 24, 12
BENDS = {"relu": torch.nn.ReLU, "gelu": torch.nn.GELU, "silu": torch.nn.SiLU}


class Layer(torch.nn.Module):
    """Attention with query bias, then a network, at the last position."""

    def __init__(self, residual: bool, activation: str = "relu") -> None:
        super().__init__()
        self.residual = residual
        self.query, self.key = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.value = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.network = torch.nn.Sequential(torch.nn.Linear(WIDTH, NEURONS), BENDS[activation](), torch.nn.Linear(NEURONS, 1))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Answers ``(batch,)`` to ``(batch, length, width)``."""
        scores = torch.einsum("nlw,nw->nl", self.key(X), self.query(X[:, -1])) / WIDTH**0.5
        mixed = torch.einsum("nl,nlw->nw", scores.softmax(dim=1), self.value(X))
        return self.network(mixed + X[:, -1] if self.residual else mixed)[:, 0]


def task(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences ``(count, TOKENS, WIDTH)`` of places on a wave with its value there, and the value at the last token's place."""
    places = torch.randn(count, TOKENS, WIDTH - 2, generator=generator, dtype=torch.float64)
    direction = torch.randn(count, 1, WIDTH - 2, generator=generator, dtype=torch.float64) / (WIDTH - 2) ** 0.5
    values = torch.sin(2 * (places * direction).sum(dim=2, keepdim=True))
    goals = values[:, -1, 0].clone()
    seen = values + 0.05 * torch.randn(values.shape, generator=generator, dtype=torch.float64)
    seen[:, -1] = 0
    asks = torch.zeros_like(seen)
    asks[:, -1] = 1
    return torch.cat([places, seen, asks], dim=2), goals + places[:, -1, 0].abs()


def train(residual: bool, steps: int, seed: int, activation: str = "relu") -> tuple[Layer, float, float]:
    """The trained layer in float64, and its loss before and after."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    layer = Layer(residual, activation).double()
    optimiser = torch.optim.Adam(layer.parameters(), lr=3e-3)
    held_out = task(2000, generator)
    losses = []
    for step in range(steps + 1):
        if step in (0, steps):
            with torch.no_grad():
                losses.append(float(((layer(held_out[0]) - held_out[1]) ** 2).mean()))
        X, goals = task(256, generator)
        loss = ((layer(X) - goals) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return layer.eval(), losses[0], losses[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 steps instead of 3000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--activation", choices=sorted(BENDS), default="relu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"width {WIDTH}, {NEURONS} neurons, {TOKENS} tokens, seed {options.seed}\n")
    print("| layer | loss before | after | P | queries | neurons | largest error / spread | W | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for residual in (False, True):
        layer, before, after = train(residual, 200 if options.quick else 3000, options.seed, options.activation)

        def answer(X: np.ndarray, layer: Layer = layer) -> np.ndarray:
            with torch.no_grad():
                return layer(torch.from_numpy(np.ascontiguousarray(X))).numpy()

        oracle = Metered(CallableOracle(answer, width=WIDTH))
        parameters = NEURONS * (WIDTH + 2) + 1 + WIDTH**2 * (1 + residual) + WIDTH
        start = time.process_time()
        name = "residual" if residual else "plain"
        learner = TransformerLearner() if options.activation == "relu" else SmoothTransformerLearner()
        try:
            found = learner.run(oracle, rng=np.random.default_rng(options.seed))
        except RefusalError as refusal:
            print(f"| {name} | {before:.3f} | {after:.3f} | {parameters} | {oracle.spent} | | refused: {refusal} | |")
            continue
        seconds = time.process_time() - start
        X = task(2000, torch.Generator().manual_seed(options.seed + 1))[0].numpy()
        truth = answer(X)
        error = np.abs(found.model(X) - truth).max() / truth.std()
        with torch.no_grad():
            W = (layer.key.weight.T @ layer.query.weight).numpy() / WIDTH**0.5
        scores = np.linalg.norm(found.model.attention.W[0] - W) / np.linalg.norm(W)
        neurons, errors = found.evidence["neurons"], f"{error:.1e} | {scores:.1e}"
        print(f"| {name} | {before:.3f} | {after:.3f} | {parameters} | {oracle.spent} | {neurons} | {errors} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
