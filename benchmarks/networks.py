"""How well ReLU networks and one-layer Transformers are recovered: accuracy, queries per parameter, time, and awkward networks.

    python benchmarks/networks.py [--quick] [--part ffn|rivals|vector|transformer|heavy|degenerate|rounded|large] [--first-seed N]

Targets are random (B/sqrt d, b, A/sqrt m, W/sqrt d and V/sqrt d Gaussian). P counts parameters: m(d+1+p)+p for the network,
d^2 or r(2d-r) for W, d for the query bias, d^2 for a residual. The error is the largest deviation on fresh points 2*N(0, I)
(networks) or on sequences of 2, 8 and 32 tokens N(0, I) (Transformers), relative to the standard deviation of the answers.
Prints Markdown tables; times are CPU seconds.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from unsoftmax.errors import RefusalError
from unsoftmax.learners.ffn import FFNLearner
from unsoftmax.learners.transformer import TransformerLearner
from unsoftmax.models import FFN, Attention, Transformer
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.results import Floor

FIRST_SEED = 41_000


def network(d, m, p, rng):
    weights = [rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=(p, m)) / np.sqrt(m)]
    return FFN(weights, [rng.normal(size=m), rng.normal(size=p)])


def transformer(d, m, p, rng, variant):
    W = rng.normal(size=(d, 4)) @ rng.normal(size=(4, d)) / 2 if "rank 4" in variant else rng.normal(size=(d, d))
    V = rng.normal(size=(1, d, d)) / np.sqrt(d)
    c = rng.normal(size=(1, d)) / np.sqrt(d)
    attention = Attention(W[None] / np.sqrt(d), V, c) if "query bias" in variant else Attention(W[None] / np.sqrt(d), V)
    return Transformer(attention, network(d, m, p, rng), residual="residual" in variant)


def awkward(kind, rng, d=16, m=24):
    B, A, b, skip = rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=(1, m)) / np.sqrt(m), rng.normal(size=m), None
    if kind == "duplicate neurons":
        B[1], b[1] = B[0], b[0]
    elif kind == "opposite neurons":
        B[1], b[1] = -B[0], -b[0]
    elif kind == "relu(z) - relu(-z)":
        B[1], b[1], A[0, 1] = -B[0], -b[0], -A[0, 0]
    elif kind == "dead neurons":
        B[0], B[1], b[1] = 0, 0, -1
    elif kind == "linear skip":
        skip = rng.normal(size=(1, d))
    elif kind == "rank-deficient":
        B = B @ rng.normal(size=(d, d // 2)) @ rng.normal(size=(d // 2, d)) / d
    elif kind == "one output weight x 1e-8":
        A[0, 0] *= 1e-8
    elif kind == "output weights x 1e-8":
        A *= 1e-8
    elif kind == "biases +-200 (a third)":
        b = np.where(rng.random(m) < 1 / 3, 200 * np.sign(b), b)
    elif kind == "biases +-200 (all)":
        b = 200 * np.sign(b)
    elif kind == "through the origin":
        b = 0 * b
    elif kind == "biases x 100":
        b = 100 * b
    return FFN([B, A], [b, rng.normal(size=1)], skip)


def heavy_tailed(rng):
    """A small Transformer of any shape: scores from faint to saturated, zero or of rank one, biases of several sizes."""
    d, m, p = (int(rng.integers(low, high)) for low, high in ((2, 8), (3, 16), (1, 4)))
    weights, biases = [rng.normal(size=(m, d)), rng.normal(size=(p, m))], [rng.normal(size=m) * 10.0 ** rng.integers(-1, 2)]
    W = rng.normal(size=(d, d)) * 10.0 ** rng.uniform(-2, 1.3)
    W = W[:, :1] @ W[:1] if rng.random() < 0.3 else W
    W = 0 * W if rng.random() < 0.1 else W
    V = rng.normal(size=(1, d, d))
    V = V[:, :, :1] * V[:, :1] if rng.random() < 0.2 else V
    residual, bias = bool(rng.random() < 0.5), rng.random() < 0.5
    attention = Attention(W[None], V, rng.normal(size=(1, d)) if bias else None)
    return Transformer(attention, FFN(weights, [*biases, rng.normal(size=p)]), residual=residual)


AWKWARD = [
    "duplicate neurons",
    "opposite neurons",
    "relu(z) - relu(-z)",
    "dead neurons",
    "linear skip",
    "rank-deficient",
    "one output weight x 1e-8",
    "output weights x 1e-8",
    "biases +-200 (a third)",
    "biases +-200 (all)",
    "through the origin",
    "biases x 100",
]


def attempt(learner, target, answer, seed, tokens):
    """One recovery: error, queries, neurons and seconds; None if refused."""
    oracle = Metered(CallableOracle(answer, width=target.width))
    start = time.process_time()
    try:
        found = learner.run(oracle, rng=np.random.default_rng(seed))
    except RefusalError as refusal:
        print(f"<!-- seed {seed} refused after {oracle.spent} queries: {refusal} -->")
        return None
    seconds = time.process_time() - start
    rng = np.random.default_rng(seed + 1)
    worst = 0.0
    for count in tokens:
        X = rng.normal(size=(4000 if count == 1 else 400, count, target.width)) * (2 if count == 1 else 1)
        truth = target(X[:, 0]) if isinstance(target, FFN) else target(X)
        guess = found.model(X[:, 0]) if isinstance(target, FFN) else found.model(X)
        worst = max(worst, float(np.abs(guess - truth).max() / truth.std()))
    return worst, oracle.spent, found.evidence["neurons"], seconds


def row(name, runs, seeds, parameters, neurons, limit):
    """One line of a table."""
    good = np.array([run for run in runs if run is not None], dtype=float).reshape(-1, 4)
    wrong = int((good[:, 0] > limit).sum())
    if len(good) == 0:
        print(f"| {name} | {seeds} | 0 | {len(runs)} | 0 | | | | | |")
        return
    queries, errors = good[:, 1], good[:, 0]
    cells = [name, seeds, len(good) - wrong, len(runs) - len(good), wrong, f"{np.median(queries):.0f}"]
    cells.append(f"{np.median(queries) / parameters:.2f}P ({queries.max() / parameters:.2f}P)")
    cells.append(f"{np.median(errors):.1e} / {errors.max():.1e}")
    cells += [int((good[:, 2] == neurons).sum()), f"{good[:, 3].max():.1f} s"]
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def table(title):
    print(f"\n### {title}\n")
    print("| target | seeds | right | refused | wrong | queries | per P, median (max) | error, median / max | m exact | slowest |")
    print("|---|---|---|---|---|---|---|---|---|---|")


def networks(cases, first_seed, learner=None, limit=1e-10, answer=lambda target: lambda X: target(X[:, 0])):
    for d, m, p, seeds in cases:
        runs = []
        for seed in range(first_seed, first_seed + seeds):
            target = network(d, m, p, np.random.default_rng(seed))
            runs.append(attempt(learner or FFNLearner(), target, answer(target), seed, (1,)))
        row(f"{d}-{m}-{p}", runs, seeds, m * (d + 1 + p) + p, m, limit)


def transformers(cases, first_seed):
    for d, m, p, variant, seeds in cases:
        runs = []
        for seed in range(first_seed, first_seed + seeds):
            target = transformer(d, m, p, np.random.default_rng(seed), variant)
            runs.append(attempt(TransformerLearner(), target, target, seed, (2, 8, 32)))
        scores = 4 * (2 * d - 4) if "rank 4" in variant else d * d
        parameters = m * (d + 1 + p) + p + scores + d * ("query bias" in variant) + d * d * ("residual" in variant)
        row(f"d={d} m={m} p={p} {variant}", runs, seeds, parameters, m, 1e-9)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few seeds of the small sizes")
    parser.add_argument("--part", choices=["ffn", "rivals", "vector", "transformer", "heavy", "degenerate", "rounded", "large"])
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    options = parser.parse_args()
    quick, first = options.quick, options.first_seed

    def wanted(part):
        return options.part == part or (options.part is None and part != "large")

    print(f"Seeds from {first}.")
    if wanted("ffn"):
        table("ReLU networks, scalar answers (right: error <= 1e-10)")
        networks([(8, 16, 1, 5), (16, 32, 1, 3)] if quick else [(8, 16, 1, 50), (16, 32, 1, 50), (32, 64, 1, 20)], first)
    if wanted("rivals"):
        table("The rivals' networks (right: error <= 1e-10)")
        networks([(d, m, 1, 2 if quick else 10) for d, m in ((20, 10), (32, 16), (10, 20))], first)
    if wanted("vector"):
        table("Vector answers (right: error <= 1e-10)")
        networks([(16, 32, 4, 3)] if quick else [(16, 32, 4, 20), (32, 64, 8, 10)], first)
    if wanted("transformer"):
        table("One-layer Transformers (right: error <= 1e-9)")
        small = [(8, 16, 1, variant, 3 if quick else 50) for variant in ("plain", "residual")]
        others = [(16, 32, 1, v, 10) for v in ("residual", "rank 4", "query bias", "residual, query bias")]
        large = [(16, 32, 1, "plain", 50), *others, (16, 32, 4, "plain", 5), (32, 64, 1, "plain", 3)]
        transformers(small if quick else [*small, *large], first)
    if wanted("heavy"):
        table("Heavy-tailed Transformers of all small shapes (right: error <= 1e-7; P = 1)")
        runs = []
        for seed in range(first, first + (10 if quick else 80)):
            target = heavy_tailed(np.random.default_rng(seed))
            runs.append(attempt(TransformerLearner(), target, target, seed, (2, 8, 32)))
        row("any", runs, len(runs), 1, 0, 1e-7)
    if wanted("degenerate"):
        table("Awkward networks, d=16, m=24 (right: error <= 1e-8; all weights tiny: 1e-6)")
        for kind in AWKWARD:
            runs = []
            for seed in range(first, first + (2 if quick else 10)):
                target = awkward(kind, np.random.default_rng(seed))
                runs.append(attempt(FFNLearner(), target, lambda X, t=target: t(X[:, 0]), seed, (1,)))
            row(kind, runs, len(runs), 24 * 18 + 1, 24, 1e-6 if kind == "output weights x 1e-8" else 1e-8)
    if wanted("rounded"):
        table("Answers rounded to 8 decimals, tokens up to 1000 long (right: error <= 1e-6)")
        learner = FFNLearner(floor=Floor(kind="rounded", absolute=0.5e-8, step=1e-8), max_norm=1000.0)
        cases = [(16, 32, 1, 2 if quick else 10)]
        networks(cases, first, learner, 1e-6, lambda target: lambda X: np.round(target(X[:, 0]), 8))
    if wanted("large"):
        table("A large network (right: error <= 1e-10)")
        networks([(64, 128, 1, 1)], first, limit=1e-10)


if __name__ == "__main__":
    main()
