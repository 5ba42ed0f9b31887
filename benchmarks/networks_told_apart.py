"""Targets with networks of all kinds through ``us.diagnose`` and ``us.recover``: what they are said to be, and what comes back.

    python benchmarks/networks_told_apart.py [--seeds 20] [--first-seed 850000] [--kinds deep]

Widths 3 to 40 (log-uniform), 3 to 60 hidden units a layer, 1 to 6 outputs (at least as many as the width for "wide" kinds), one
hidden layer or (deep) two or three; weights normal, uniform, heavy-tailed or sparse; W of any rank, half of the heads with a query
bias. "Right" means that the function (or W and c, where the network is not learned) agrees with the target to 1e-8, or to the error
of W that the result itself states; "wrong" is a success beyond that. Prints a Markdown table and every refusal; returns 1 if
anything was wrong.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from itertools import pairwise
from time import process_time
from typing import Any

import numpy as np
from second_zoo import ACTIVATIONS

import unsoftmax as us
from unsoftmax.models import FFN, Attention, Transformer

KINDS = [
    "network",
    "network, no biases",
    "network, deep",
    "Transformer",
    "Transformer, no biases",
    "Transformer, residual",
    "Transformer, wide",
    "Transformer, deep",
    "Transformer, deep, residual",
    "Transformer, deep, residual, wide",
    "smooth",
    "smooth, deep",
    "smooth, residual, wide",
]
LIMIT = 1e-8


def entries(rng: np.random.Generator, law: str, *shape: int) -> Any:
    """Random numbers of unit variance."""
    if law == "uniform":
        return rng.uniform(-(3**0.5), 3**0.5, size=shape)
    if law == "heavy":
        return rng.standard_t(4, size=shape) / 2**0.5
    if law == "sparse":
        return rng.normal(size=shape) * (rng.random(shape) < 0.6) / 0.6**0.5
    return rng.normal(size=shape)


def draw(kind: str, seed: int) -> tuple[Any, int, Attention | None]:
    """The target, its width and its head."""
    rng = np.random.default_rng([seed, *kind.encode()])
    d = round(3 * (40 / 3) ** rng.random())
    law = str(rng.choice(["normal", "uniform", "heavy", "sparse"][: 4 if d >= 8 else 3]))
    p = d + int(rng.integers(3)) if "wide" in kind else 1 if rng.random() < 0.5 else int(rng.integers(2, 7))
    depth = int(rng.integers(2, 4)) if "deep" in kind else 1
    fewest = d if kind == "smooth, residual, wide" else 3  # fewer hidden units than the width lose directions
    sizes = [d, *(int(rng.integers(fewest, min(2 * d + 8, 61))) for _ in range(depth)), p]
    weights = [1.3 * entries(rng, law, b, a) / np.sqrt(a) for a, b in pairwise(sizes)]
    biases = [(0.0 if "no biases" in kind else 0.7) * rng.normal(size=b) for b in sizes[1:]]
    if kind.startswith("network"):
        network = FFN(weights, biases)
        return (lambda X: network(X[:, -1])), d, None
    rank = d if rng.random() < 0.6 else int(rng.integers(1, d + 1))
    gain = 2.0 ** rng.uniform(-1.5, 1.5) / np.sqrt(d)
    W = gain * entries(rng, law, d, rank) @ entries(rng, law, d, rank).T / np.sqrt(rank)
    c = 2.5 * rng.normal(size=d) / np.sqrt(d) if rng.random() < 0.5 else None
    head = Attention(W[None], entries(rng, law, 1, d, d) / np.sqrt(d), None if c is None else c[None])
    if kind.startswith("Transformer"):
        return Transformer(head, FFN(weights, biases), residual="residual" in kind), d, head
    act = ACTIVATIONS[str(rng.choice(["gelu", "tanh", "silu", "softplus", "sigmoid"]))]

    def smooth(X: Any) -> Any:
        z = head(X) + ("residual" in kind) * X[:, -1]
        for i, (layer, bias) in enumerate(zip(weights, biases, strict=True)):
            z = (act(z) if i else z) @ layer.T + bias
        return z if p > 1 else z[:, 0]

    return smooth, d, head


def error_of(model: Any, target: Any, d: int, head: Attention | None, seed: int) -> float:
    """Distance of W and c where the network was not learned; else the largest error of the function over its spread."""
    if isinstance(model, Attention):
        return us.distance(Attention(model.W, None, model.c), Attention(head.W, None, head.c)) if head else np.inf
    rng, worst = np.random.default_rng([seed, 1]), 0.0
    for length in (1,) if isinstance(model, FFN) else (2, 8, 32):
        X = rng.normal(size=(400, length, d))
        truth = target(X)
        worst = max(worst, float(np.abs((model(X[:, 0]) if isinstance(model, FFN) else model(X)) - truth).max() / truth.std()))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=850_000)
    parser.add_argument("--kinds", default="", help="only kinds whose name holds this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"Seeds from {options.first_seed}.\n")
    print("| kind | diagnosed as | recovered as | right | refused | wrong | worst error | slowest |")
    print("|---|---|---|---|---|---|---|---|")
    bad, refusals = 0, []
    for kind in (kind for kind in KINDS if options.kinds in kind):
        told: Counter[str] = Counter()
        back: Counter[str] = Counter()
        errors, seconds, wrong = [], [], 0
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            target, d, head = draw(kind, seed)
            told[us.diagnose(target, width=d, seed=seed).family] += 1
            start = process_time()
            found = us.recover(target, width=d, seed=seed, on_failure="return")
            seconds.append(process_time() - start)
            if found.status.success:
                back[found.facts["family"]] += 1
                errors.append(error_of(found.model, target, d, head, seed))
                wrong += not errors[-1] <= max(LIMIT, found.facts["evidence"].get("entry_error", 0.0))
            else:
                refusals.append(f"- {kind}, seed {seed}, d {d}, {found.facts['queries']['total']} queries: {found.message[:150]}")
        bad += wrong
        names = [", ".join(f"{name} {n}" for name, n in counts.most_common()) for counts in (told, back)]
        cells = [kind, *names, len(errors) - wrong, options.seeds - len(errors), wrong, f"{max(errors, default=0):.1e}"]
        print("|", " | ".join(map(str, cells)), f"| {max(seconds):.1f} s |", flush=True)
    print("\nRefused:", *refusals, sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
