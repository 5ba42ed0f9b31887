"""How well networks with smooth activations, gated ones, squared ReLU and Transformers that end in them are recovered.

    python benchmarks/smooth.py [--part NAME] [--seeds N] [--first-seed N] [--jobs N]

with parts networks, large, transformers, heads, gated, gated-transformers, hard, alike, refused, squared and squared-hard.
Targets are random (B/sqrt d, b, A/sqrt m, W/sqrt d and V/sqrt d Gaussian). P counts parameters: m(d+1+p)+p for the network, d^2 for
W, d for the query bias, d^2 for a residual; m(2d-1+p)+p for a gated network and 2m more for its biases (which a gated Transformer
with a query bias has). The error is the largest
deviation on fresh points 2*N(0, I) (networks) or on sequences of 2, 8 and 32 tokens N(0, I) (Transformers), over the standard
deviation of the answers. A run counts as right if nothing was refused, the activation, the number of neurons (and residual, query
bias) are right and the error is below the bar. Prints Markdown tables; times are CPU seconds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402 - after the threads are set

from unsoftmax.errors import RefusalError  # noqa: E402
from unsoftmax.learners.gated import GatedNetworkLearner, GatedTransformerLearner  # noqa: E402
from unsoftmax.learners.smooth import SmoothNetworkLearner, SmoothTransformerLearner  # noqa: E402
from unsoftmax.learners.squared import SquaredNetworkLearner  # noqa: E402
from unsoftmax.models import FFN, Attention, GatedFFN, Transformer  # noqa: E402
from unsoftmax.models.activations import activation_named  # noqa: E402
from unsoftmax.oracles import CallableOracle, Metered  # noqa: E402
from unsoftmax.symmetry import distance  # noqa: E402

FIRST_SEED = 71_000
LEARNERS = {"relu2": SquaredNetworkLearner}  # of activations that are not smooth
SIZES = [(4, 8, 1), (8, 16, 1), (8, 32, 1), (16, 32, 1), (8, 16, 4), (16, 32, 4)]
KINDS = ["gelu", "gelu_tanh", "silu", "softplus"]
HARD = [
    "biases x 0",
    "biases x 10",
    "biases x 100",
    "weights x 0.05",
    "weights x 20",
    "row norms 1e-2..1e2",
    "output weights 1e-3..1",
    "linear skip",
    "rank d/2",
    "rows parallel to 1e-2",
    "rows parallel to 1e-4",
    "duplicate neurons",
    "same direction, other bias",
    "same direction, other length",
    "opposite direction",
]


def network(d, m, p, kind, rng):
    weights = [rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=(p, m)) / np.sqrt(m)]
    return FFN(weights, [rng.normal(size=m), rng.normal(size=p)], activation=kind)


def transformer(d, m, p, kind, bias, residual, rng, gates=False):
    W, V = rng.normal(size=(2, 1, d, d)) / np.sqrt(d)
    c = rng.normal(size=(1, d)) / np.sqrt(d)
    behind = gated(d, m, p, kind, bias, rng) if gates else network(d, m, p, kind, rng)
    return Transformer(Attention(W, V, c if bias else None), behind, residual=residual)


def gated(d, m, p, kind, biased, rng):
    gate, up = rng.normal(size=(2, m, d)) / np.sqrt(d)
    biases = rng.normal(size=(2, m)) if biased else (None, None)
    return GatedFFN(gate, up, rng.normal(size=(p, m)) / np.sqrt(m), *biases, rng.normal(size=p), activation=kind)


def hard(name, kind, rng, d=8, m=16):
    """A hard target and the number of neurons that can be told apart in it."""
    target = network(d, m, 1, kind, rng)
    (B, A), (b, c), skip = (np.array(w) for w in target.weights), (np.array(x) for x in target.biases), None
    if name.startswith("biases x"):
        b = b * float(name.split()[-1])
    elif name.startswith("weights x"):
        B = B * float(name.split()[-1])
    elif name.startswith("row norms"):
        B = B * 10 ** rng.uniform(-2, 2, size=(m, 1))
    elif name.startswith("output weights"):
        A = A * 10 ** rng.uniform(-3, 0, size=m)
    elif name == "linear skip":
        skip = rng.normal(size=(1, d))
    elif name == "rank d/2":
        B = B @ rng.normal(size=(d, d // 2)) @ rng.normal(size=(d // 2, d)) / d
    elif name.startswith("rows parallel to"):
        B[1] = B[0] + float(name.split()[-1]) * rng.normal(size=d) / np.sqrt(d)
    elif name == "duplicate neurons":
        B[1], b[1], m = B[0], b[0], m - 1
    elif name == "same direction, other bias":
        B[1] = B[0]
    elif name == "same direction, other length":
        B[1] = B[0] * rng.uniform(1.5, 3)
    elif name == "opposite direction":
        B[1] = -B[0]
    return FFN([B, A], [b, c], skip, activation=kind), m


def error_on(found, target, seed, tokens=(1,)):
    rng, worst = np.random.default_rng(seed + 1), 0.0
    for count in tokens:
        X = rng.normal(size=(4000 if count == 1 else 400, count, target.width)) * (2 if count == 1 else 1)
        alone = not isinstance(target, Transformer)
        truth, guess = (model(X[:, 0]) if alone else model(X) for model in (target, found))
        worst = max(worst, float(np.abs(guess - truth).max() / truth.std()))
    return worst


def attempt(learner, target, answer, seed):
    """What was learned (None if refused), queries, seconds, the refusal."""
    oracle = Metered(CallableOracle(answer, width=target.width))
    start = time.process_time()
    try:
        found, refusal = learner.run(oracle, rng=np.random.default_rng(seed)), None
    except RefusalError as problem:
        found, refusal = None, f"{type(problem).__name__}: {problem}"
    return found, oracle.spent, time.process_time() - start, refusal


def run_network(case, seed):
    d, m, p, kind = case
    target = network(d, m, p, kind, np.random.default_rng(seed))
    found, queries, seconds, refusal = attempt(LEARNERS.get(kind, SmoothNetworkLearner)(), target, lambda X: target(X[:, 0]), seed)
    result = {"queries": queries / (m * (d + 1 + p) + p), "seconds": seconds, "refusal": refusal}
    if found is not None:
        told = found.evidence["activation"] == kind and found.evidence["neurons"] == m
        result |= {"error": error_on(found.model, target, seed), "told": told}
    return result


def run_transformer(case, seed, gates=False):
    d, m, p, kind, bias, residual = case
    target = transformer(d, m, p, kind, bias, residual, np.random.default_rng(seed), gates)
    learner = GatedTransformerLearner() if gates else SmoothTransformerLearner()
    found, queries, seconds, refusal = attempt(learner, target, target, seed)
    alone = m * (2 * d - 1 + p + 2 * bias) if gates else m * (d + 1 + p)
    parameters = alone + p + d * d * (1 + residual) + d * bias
    result = {"queries": queries / parameters, "seconds": seconds, "refusal": refusal}
    if found is not None:
        facts = found.evidence
        told = (facts["activation"], facts["neurons"], facts["query_bias"], facts["residual"]) == (kind, m, bias, residual)
        W, truth = found.model.attention.W, target.attention.W
        result |= {"error": error_on(found.model, target, seed, (2, 8, 32)), "told": told}
        result["W"] = float(np.linalg.norm(W - truth) / np.linalg.norm(truth))
    return result


def run_gated_transformer(case, seed):
    return run_transformer(case, seed, gates=True)


def run_gated(case, seed):
    d, m, p, kind, biased = case
    target = gated(d, m, p, kind, biased, np.random.default_rng(seed))
    found, queries, seconds, refusal = attempt(GatedNetworkLearner(), target, target.respond, seed)
    result = {"queries": queries / (m * (2 * d - 1 + p + 2 * biased) + p), "seconds": seconds, "refusal": refusal}
    if found is not None:
        told = found.evidence["activation"] == kind and found.evidence["neurons"] == m
        told = told and (found.model.gate_bias is not None, found.model.up_bias is not None) == (biased, biased)
        result |= {"error": error_on(found.model, target, seed), "told": told and found.model.skip is None}
    return result


def run_hard(case, seed):
    name, kind = case
    target, neurons = hard(name, kind, np.random.default_rng(seed))
    found, queries, seconds, refusal = attempt(LEARNERS.get(kind, SmoothNetworkLearner)(), target, lambda X: target(X[:, 0]), seed)
    result = {"queries": queries / 161, "seconds": seconds, "refusal": refusal}
    if found is not None:
        told = found.evidence["activation"] == kind and found.evidence["neurons"] == neurons
        result |= {"error": error_on(found.model, target, seed), "told": told}
    return result


def alike(name, kind, p, rng, d=8, m=16):
    """A network two of whose neurons differ by 1e-3 to 1 in bias, length or both; output weights 1e-3 to 1e3 to one."""
    target = network(d, m, p, kind, rng)
    (B, A), (b, c) = (np.array(w) for w in target.weights), (np.array(x) for x in target.biases)
    apart, ratio, sign = 10 ** rng.uniform(-3, 0), 10 ** rng.uniform(-3, 3) * rng.choice([-1, 1]), rng.choice([-1, 1])
    B[1], b[1] = B[0], b[0]
    if name in ("length", "both"):
        B[1] *= 1 + apart
    if name in ("bias", "both"):
        b[1] += sign * apart
    if name == "opposite":
        B[1], b[1] = -B[0], -b[0] + sign * apart
    A[:, 1] *= np.linalg.norm(A[:, 0]) / np.linalg.norm(A[:, 1])
    A[:, 1 if abs(ratio) < 1 else 0] *= ratio if abs(ratio) < 1 else 1 / ratio
    return FFN([B, A], [b, c], activation=kind)


def run_alike(case, seed):
    name, kind, p = case
    target = alike(name, kind, p, np.random.default_rng(seed))
    found, queries, seconds, refusal = attempt(SmoothNetworkLearner(), target, lambda X: target(X[:, 0]), seed)
    result = {"queries": queries / (16 * (9 + p) + p), "seconds": seconds, "refusal": refusal}
    if found is not None:
        told = found.evidence["activation"] == kind and found.evidence["neurons"] == 16
        result |= {"error": error_on(found.model, target, seed), "told": told}
    return result


def run_heads(case, seed):
    d, m, p, heads, kind = case
    rng = np.random.default_rng(seed)
    W, V = rng.normal(size=(2, heads, d, d)) / np.sqrt(d)
    target = Transformer(Attention(W, V), network(d, m, p, kind, rng))
    found, queries, seconds, refusal = attempt(SmoothTransformerLearner(), target, target, seed)
    parameters = (m * (d + 1 + p) + p + heads * 2 * d * d - d * d) / p
    result = {"queries": queries / parameters, "seconds": seconds, "refusal": refusal}
    if found is not None:
        told = found.evidence.get("heads") == heads and found.evidence["neurons"] == m
        result |= {"error": error_on(found.model, target, seed, (2, 8, 32)), "told": told}
        result["W"] = distance(found.model, target)
    return result


def outside(name, rng, d=8, m=16):
    """A function of points that is none of the networks learned here."""
    target = network(d, m, 1, "gelu", rng)
    (B, A), (b, c) = target.weights, target.biases
    gelu, elu = (activation_named(kind).value for kind in ("gelu", "elu"))
    C = rng.normal(size=(m, m)) / np.sqrt(m)
    functions = {
        "two hidden layers": lambda z: gelu(gelu(z) @ C.T),
        "rational activation": lambda z: z * (1 + z / (1 + np.abs(z))) / 2,
        "another GELU constant": lambda z: z * (1 + np.tanh(0.8 * (z + 0.06 * z**3))) / 2,
        "half GELU, half ELU": lambda z: np.concatenate([gelu(z[:, ::2]), elu(z[:, 1::2])], axis=1),
        "tanh": np.tanh,
        "sign": np.sign,
        "leaky ReLU": lambda z: np.maximum(z, 0.1 * z),
    }
    if name == "LayerNorm in front":
        return lambda x: target((x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5))
    return lambda x: functions[name](x @ B.T + b) @ A[0] + c[0]


OUTSIDE = [
    "two hidden layers",
    "LayerNorm in front",
    "rational activation",
    "another GELU constant",
    "half GELU, half ELU",
    "tanh",
    "sign",
    "leaky ReLU",
]


def run_refused(case, seed):
    function = outside(case[0], np.random.default_rng(seed))
    start = time.process_time()
    oracle = Metered(CallableOracle(lambda X: function(X[:, 0]), width=8))
    try:
        SmoothNetworkLearner().run(oracle, rng=np.random.default_rng(seed))
        refusal = None
    except RefusalError as problem:
        refusal = f"{type(problem).__name__}: {problem}"
    told = refusal is not None and not refusal.startswith("TargetError")
    return {"queries": oracle.spent / 161, "seconds": time.process_time() - start, "refusal": None, "told": told, "error": 0.0}


RUNS = {
    "refused": run_refused,
    "networks": run_network,
    "large": run_network,
    "transformers": run_transformer,
    "gated-transformers": run_gated_transformer,
    "hard": run_hard,
    "alike": run_alike,
    "heads": run_heads,
    "gated": run_gated,
    "squared": run_network,
    "squared-hard": run_hard,
}


def cases(part):
    """Cases with the number of seeds, the largest error and the most queries per parameter that the bar allows."""
    if part == "networks":
        most = {(8, 16, 1): 2.2, (16, 32, 1): 1.9, (8, 16, 4): 1.2}
        return [((*size, kind), 10, 1e-11, most.get(size, np.inf)) for size in SIZES for kind in KINDS]
    if part == "squared":
        return [((*size, "relu2"), 10, 1e-9, np.inf) for size in SIZES]
    if part == "squared-hard":
        return [((name, "relu2"), 10, 1e-9, np.inf) for name in HARD]
    if part == "large":
        return [((32, 64, p, "gelu"), 10, 1e-9, np.inf) for p in (1, 8)]
    if part == "transformers":
        kinds = [(kind, c, r) for kind in ("gelu", "silu") for c in (False, True) for r in (False, True)]
        small = [((8, 16, 1, *k), 10, 1e-11, 2.8 if k[2] else 2.1) for k in kinds]
        return small + [((16, 32, 1, *k), 5, 1e-11, np.inf) for k in kinds]
    if part == "gated-transformers":
        kinds = [(kind, c, r) for kind in ("silu", "gelu") for c in (False, True) for r in (False, True)]
        return [((d, m, p, *k), 5, 1e-11, np.inf) for d, m, p in ((8, 16, 1), (8, 16, 8), (16, 32, 1)) for k in kinds]
    if part == "gated":
        kinds = [(kind, biased) for kind in ("silu", "gelu") for biased in (False, True)]
        return [((d, m, p, *k), 10, 1e-10, 2.8) for d, m in ((8, 16), (16, 32)) for p in (1, 4) for k in kinds]
    if part == "alike":
        names = ("bias", "length", "opposite", "both")
        return [((name, kind, p), 10, 1e-11, np.inf) for p in (1, 4) for name in names for kind in [*KINDS, "mish"]]
    if part == "heads":  # several before one network; queries over numbers to be known per output
        sizes = ((4, 16, 8, 2), (6, 24, 12, 2), (6, 24, 12, 3), (8, 32, 16, 3))
        return [((*size, kind), 10, 1e-9, np.inf) for size in sizes for kind in ("gelu", "silu")]
    if part == "refused":  # right: refused, and not by blaming the target
        return [((name,), 10, np.inf, np.inf) for name in OUTSIDE]
    return [((name, kind), 10, 1e-9, np.inf) for name in HARD for kind in KINDS]


def one(job):
    part, case, seed = job
    return part, case, seed, RUNS[part](case, seed)


def table(part, seeds, first, jobs):
    wanted = cases(part)
    work = [(part, case, first + k) for case, count, _, _ in wanted for k in range(min(count, seeds or count))]
    results = defaultdict(dict)
    with ProcessPoolExecutor(jobs) as pool:
        for _, case, seed, result in pool.map(one, work):
            results[case][seed] = result
            if result["refusal"]:
                print(f"<!-- {case} seed {seed}: {result['refusal'][:300]} -->", flush=True)
            elif not result["told"]:
                print(f"<!-- {case} seed {seed}: activation, neurons, bias or residual wrong -->", flush=True)
    print(f"\n| {part} | right | error median / largest | W largest | queries / P median / most (bar) | CPU s |")
    print("|---|---|---|---|---|---|")
    for case, _, bar, most in wanted:
        runs = list(results[case].values())
        done = [run for run in runs if not run["refusal"]]
        right = sum(run["told"] and run["error"] <= bar for run in done)
        errors = [run["error"] for run in done] or [np.nan]
        queries = [run["queries"] for run in runs]
        scores = f"{max(run['W'] for run in done):.1e}" if done and "W" in done[0] else ""
        seconds = np.median([run["seconds"] for run in runs])
        allowed = f" ({most})" if np.isfinite(most) else ""
        print(
            f"| {', '.join(map(str, case))} | {right} of {len(runs)} | {np.median(errors):.1e} / {max(errors):.1e} | {scores} "
            f"| {np.median(queries):.2f} / {max(queries):.2f}{allowed} | {seconds:.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=sorted(RUNS), action="append")
    parser.add_argument("--seeds", type=int, help="fewer seeds than the bars ask for")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    for part in options.part or RUNS:
        table(part, options.seeds, options.first_seed, options.jobs)


if __name__ == "__main__":
    main()
