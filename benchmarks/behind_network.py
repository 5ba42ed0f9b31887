"""Attention behind an unknown network: error of W and queries per entry, over seeds that no setting was tuned on.

Run ``python benchmarks/behind_network.py [--quick] [--first-seed N]``; prints a Markdown table and exits 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import erf

from unsoftmax.errors import RefusalError
from unsoftmax.learners.behind_network import BehindNetworkLearner, mixed_tokens
from unsoftmax.models import Floats, softmax
from unsoftmax.oracles import CallableOracle, Metered

ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "gelu": lambda z: 0.5 * z * (1 + erf(z / np.sqrt(2))),
    "tanh": np.tanh,
    "relu": lambda z: np.maximum(z, 0),
}


class Target:
    """One head, then ``layers`` dense layers of random weights; ``flat`` leading directions never reach the network."""

    def __init__(
        self,
        width: int,
        seed: int,
        *,
        act: str = "gelu",
        layers: int = 3,
        outputs: int = 1,
        rank: int | None = None,
        bias: bool = False,
        residual: bool = False,
        flat: int = 0,
    ) -> None:
        rng = np.random.default_rng([seed, width])
        sizes = [width] + [4 * width] * (layers - 1) + [outputs]
        self.layers = [(rng.normal(size=(m, n)) / np.sqrt(n), 0.5 * rng.normal(size=m)) for n, m in itertools.pairwise(sizes)]
        self.V = rng.normal(size=(width, width)) / np.sqrt(width)
        self.V[:, :flat] = 0.0
        inner = width if rank is None else rank
        self.W = rng.normal(size=(width, inner)) @ rng.normal(size=(inner, width)) / np.sqrt(width * inner)
        self.c = rng.normal(size=width) * bias
        self.act, self.residual, self.width = ACTIVATIONS[act], residual, width

    def __call__(self, X: Floats) -> Floats:
        scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ self.W.T + self.c)
        hidden: Floats = np.einsum("bn,bnd->bd", softmax(scores), X) @ self.V.T + self.residual * X[:, -1]
        for index, (matrix, shift) in enumerate(self.layers):
            hidden = (self.act(hidden) if index else hidden) @ matrix.T + shift
        return hidden[:, 0] if hidden.shape[1] == 1 else hidden


CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("GELU, 3 layers", 12, {}),
    ("GELU, 3 layers", 24, {}),
    ("GELU, 3 layers", 32, {}),
    ("tanh", 16, {"act": "tanh"}),
    ("ReLU", 16, {"act": "relu"}),
    ("GELU, 10 outputs", 16, {"outputs": 10}),
    ("GELU, query bias", 16, {"bias": True}),
    ("GELU, rank 3 (unknown)", 16, {"rank": 3}),
    ("GELU, 5 flat directions", 16, {"flat": 5}),
    ("GELU, 6 layers", 16, {"layers": 6}),
    ("GELU, residual, 16 outputs", 16, {"outputs": 16, "residual": True}),
    ("tanh, residual, 32 outputs", 16, {"act": "tanh", "outputs": 32, "residual": True}),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 seeds a case instead of 20")
    parser.add_argument("--first-seed", type=int, default=7000)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + (3 if options.quick else 20))
    print(f"Seeds {seeds.start} to {seeds.stop - 1}. Error of W: relative Frobenius norm.\n")
    print(
        "| network | width | recovered | error of W, median | worst | queries per entry, median | most | held out, worst | CPU s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    missed = 0
    for name, width, settings in CASES:
        errors, prices, checks = [], [], []
        start = time.process_time()
        for seed in seeds:
            target = Target(width, seed, **settings)
            oracle = Metered(CallableOracle(target))
            try:
                learned = BehindNetworkLearner().run(oracle, rng=np.random.default_rng(seed))
            except RefusalError:
                continue
            prices.append(oracle.spent / width**2)
            errors.append(float(np.linalg.norm(learned.model.W[0] - target.W) / np.linalg.norm(target.W)))  # type: ignore[union-attr]
            X = np.random.default_rng(seed + 1).normal(size=(64, 6, width))
            told, alone = target(X), target(mixed_tokens(learned, X)[:, None])
            checks.append(float(np.abs(told - alone).max() / told.std()))
        seconds = (time.process_time() - start) / len(seeds)
        good = sum(error <= 1e-9 for error in errors)
        missed += (good < len(seeds) or float(np.median(prices)) > 16) and not settings.get("residual")
        print(
            f"| {name} | {width} | {good} of {len(seeds)} | {np.median(errors):.1e} | {max(errors):.1e} | "
            f"{np.median(prices):.1f} | {max(prices):.1f} | {max(checks):.1e} | {seconds:.2f} |",
            flush=True,
        )
    print(f"\nBars missed: {missed}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
