"""Bars of the exact head: accuracy and queries over seeds that nothing was tuned on.

    python benchmarks/one_head.py [--quick] [--seeds N] [--first SEED]

Prints a Markdown table: worst relative Frobenius error and most queries beyond the parameter count, per kind of head.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np

import unsoftmax as us


def gauss(rng, d, r=None):
    return rng.normal(size=(d, d)) / np.sqrt(d) if r is None else rng.normal(size=(d, r)) @ rng.normal(size=(r, d)) / np.sqrt(d * r)


def spread(rng, low, high, shape):
    return 10 ** rng.uniform(low, high, size=shape) * rng.choice([-1, 1], size=shape)


def range_of(rng, d, r):
    return np.linalg.qr(rng.normal(size=(d, r)))[0]


def decaying(rng, d, r):
    sizes = np.logspace(0, -6, r) if r > 1 else np.ones(1)
    return (range_of(rng, d, r) * sizes) @ range_of(rng, d, r).T


def inside(rng, d, r):
    A = range_of(rng, d, r)
    return A @ rng.normal(size=(r, d)), A @ rng.normal(size=r)


def outside(rng, d, r):
    A = range_of(rng, d, r)
    v = rng.normal(size=d)
    return A @ rng.normal(size=(r, d)), v - A @ (A.T @ v)


def one_value(rng, d):
    v = np.zeros(d)
    v[rng.integers(d)] = rng.normal() + 2
    return v


def cases(quick):
    """name -> (builder of (W, v, c, b), allowed queries, allowed error of W)."""
    normal = lambda rng, d: rng.normal(size=d)  # noqa: E731
    found = {}
    for d in (8, 64) if quick else (8, 64, 256):
        full = d * d + d
        found[f"full rank, d = {d}"] = (lambda rng, d=d: (gauss(rng, d), normal(rng, d), None, 0.0), full + 32, 1e-14, {})
        found[f"full rank told, d = {d}"] = (
            lambda rng, d=d: (gauss(rng, d), normal(rng, d), None, 0.0),
            full + 16,
            1e-14,
            {"rank": d},
        )
        found[f"biases c and b, d = {d}"] = (
            lambda rng, d=d: (gauss(rng, d), normal(rng, d), normal(rng, d), rng.normal()),
            full + 32 + 2 * d + 16,
            1e-12,
            {},
        )
    d, hard = 64, 1.2 * (64 * 64 + 64) + 64
    found |= {
        "entries about 10": (lambda rng: (10 * rng.normal(size=(d, d)), normal(rng, d), None, 0.0), hard, 1e-13, {}),
        "entries about 100": (lambda rng: (100 * rng.normal(size=(d, d)), normal(rng, d), None, 0.0), hard, 1e-13, {}),
        "entries about 1e-5": (lambda rng: (1e-5 * rng.normal(size=(d, d)), normal(rng, d), None, 0.0), hard, 1e-13, {}),
        "log-uniform 1e-6..1e3": (lambda rng: (spread(rng, -6, 3, (d, d)), normal(rng, d), None, 0.0), hard, 1e-13, {}),
        "rows and columns over 8 decades": (
            lambda rng: (
                spread(rng, -4, 4, (d, 1)) * rng.normal(size=(d, d)) * spread(rng, -4, 4, (1, d)),
                normal(rng, d),
                None,
                0.0,
            ),
            hard,
            1e-13,
            {},
        ),
        "W = 0": (lambda rng: (np.zeros((d, d)), normal(rng, d), None, 0.0), hard, 1e-13, {}),
        "rank 1": (lambda rng: (np.outer(normal(rng, d), normal(rng, d)), normal(rng, d), None, 0.0), hard, 1e-13, {}),
        "one nonzero value": (lambda rng: (gauss(rng, d), one_value(rng, d), None, 0.0), hard, 1e-13, {}),
        "values 1e-12..1": (lambda rng: (gauss(rng, d), spread(rng, -12, 0, d), None, 0.0), hard, 1e-13, {}),
    }
    D = 64 if quick else 256
    for r in (1, 4, 16):
        allowed = 1.03 * (D + r * (2 * D - r)) + 64
        found[f"rank {r}, d = {D}"] = (lambda rng, r=r: (gauss(rng, D, r), normal(rng, D), None, 0.0), allowed, 1e-11, {})
        found[f"rank {r}, v in the range"] = (lambda rng, r=r: (*inside(rng, D, r), None, 0.0), allowed, 1e-11, {})
        found[f"rank {r}, v orthogonal to it"] = (lambda rng, r=r: (*outside(rng, D, r), None, 0.0), allowed, 1e-11, {})
        found[f"rank {r}, singular values to 1e-6"] = (
            lambda rng, r=r: (decaying(rng, D, r), normal(rng, D), None, 0.0),
            allowed,
            1e-11,
            {},
        )
    for d_, error in ((32, 1e-10), (64, 1e-8)):
        for m in (1, 4, 16, d_):
            found[f"{m} outputs, d = {d_}"] = (
                lambda rng, d_=d_, m=m: (gauss(rng, d_), rng.normal(size=(d_, m)), None, 0.0),
                d_ + d_ * -(-d_ // m) + 32,
                error,
                {},
            )
    return found


def everywhere(seeds, quick):
    """Heads that answer every position with as many numbers as the width; queries with everything before the check in them."""
    print("\n| every position: width, query bias, causal | EXACT | distance | queries (median, most) |\n|---|---|---|---|")
    missed = 0
    for width in (20,) if quick else (8, 20, 32, 64):
        for bias, causal in ((0.0, False), (0.3, False), (0.3, True)):
            asked, apart, exact = [], [], 0
            for seed in seeds:
                rng = np.random.default_rng(seed)
                optional = {"c": bias * rng.normal(size=(1, width)), "b": rng.normal(size=width)} if bias else {}
                W = rng.normal(size=(1, width, width)) / np.sqrt(width)
                head = us.Attention(W, rng.normal(size=(1, width, width)), **optional)
                target = partial(head, positions="all", causal=causal)
                recovery = us.recover(target, width=width, seed=seed + 1, on_failure="return")
                exact += recovery.status is us.Status.EXACT
                asked.append(recovery.queries)
                apart.append(us.distance(recovery.model, head))
            missed += exact < len(asked) or np.median(asked) > 12
            row = f"{exact}/{len(asked)} | {max(apart):.1e} | {np.median(asked):.0f}, {max(asked)} |"
            print(f"| {width}, {bias or 'none'}, {'yes' if causal else 'no'} | {row}", flush=True)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--first", type=int, default=9000)
    options = parser.parse_args()
    seeds = options.seeds or (3 if options.quick else 10)
    print(f"Seeds {options.first} to {options.first + seeds - 1}, NumPy {np.__version__}, unsoftmax {us.__version__}.\n")
    print("| head | EXACT | worst error of W | of v | bar | most queries | bar | s |\n|---|---|---|---|---|---|---|---|")
    missed = 0
    for name, (build, allowed, error, settings) in cases(options.quick).items():
        started, worst, worst_v, most, exact = time.process_time(), 0.0, 0.0, 0, 0
        for seed in range(options.first, options.first + seeds):
            W, v, c, b = build(np.random.default_rng(seed))
            truth = us.Attention.single(W, v, c, b)
            recovery = us.recover(truth, seed=seed, on_failure="return", **settings)
            exact += recovery.status is us.Status.EXACT
            size = np.linalg.norm(W) or 1.0
            worst = max(worst, float(np.linalg.norm(recovery.model.W[0] - W)) / size)
            worst_v = max(worst_v, float(np.linalg.norm(recovery.model.V - truth.V) / np.linalg.norm(v)))
            most = max(most, recovery.queries)
        good = exact == seeds and worst <= error and most <= allowed
        missed += not good
        print(
            f"| {name} | {exact}/{seeds} | {worst:.1e} | {worst_v:.1e} | {error:.0e} | {most:,} | {int(allowed):,} "
            f"| {(time.process_time() - started) / seeds:.2f} |" + ("" if good else " **missed** |"),
            flush=True,
        )
    missed += everywhere(range(options.first, options.first + seeds), options.quick)
    print(f"\n{missed} bars missed.")


if __name__ == "__main__":
    main()
