"""What the learner costs beside the target's own evaluation of the same calls, and how much memory the process takes.

    python benchmarks/cost.py [--width 512] [--targets 1 2 3] [--large-calls] [--journal] [--price-of-journal 12]

One process, CPU time of both sides measured in the same run. Three ways to write the same head in NumPy, from the fastest that
we know to the most common; the ratio depends on how fast the target is. With a journal, questions go out in calls of up to 4,096
sequences, each a transaction on disk; ``--large-calls`` asks in such calls without a journal. ``--price-of-journal`` runs both ways
in turn, in one process, and prints the median of their ratios.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

import unsoftmax as us
from unsoftmax.oracles import CallableOracle


def targets(W, v):
    def soft(s):
        a = np.exp(s - s.max(axis=1, keepdims=True))
        return a / a.sum(axis=1, keepdims=True)

    def one_product(X):
        return np.einsum("bn,bn->b", soft(np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T)), X @ v)

    return {
        "one matrix product for the batch": one_product,
        "us.Attention": us.Attention.single(W, v),
        "all tokens through W": lambda X: np.einsum("bn,bn->b", soft(np.einsum("bnd,bd->bn", X @ W, X[:, -1])), X @ v),
    }


def journal_price(d, repeats):
    """Seconds with a journal against seconds without, of pairs of runs with one seed: CPU time and by the clock."""
    rng = np.random.default_rng(0)
    target = targets(rng.normal(size=(d, d)) / np.sqrt(d), rng.normal(size=d))["one matrix product for the batch"]

    def run(journal):
        with tempfile.TemporaryDirectory() as folder:
            began = np.array([time.process_time(), time.perf_counter()])
            us.recover(CallableOracle(target, d), seed=3, journal=Path(folder) / "journal.sqlite" if journal else None)
            return [time.process_time(), time.perf_counter()] - began

    run(False), run(True)
    cpu, clock = np.median([run(True) / run(False) for _ in range(repeats)], axis=0)
    print(f"d = {d}, {repeats} pairs: with a journal {cpu:.3f} of the CPU time, {clock:.3f} by the clock")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--targets", type=int, nargs="+", default=[1, 2, 3], help="from the fastest to the most common")
    parser.add_argument("--large-calls", action="store_true", help="ask in calls as large as those of a journal")
    parser.add_argument("--journal", action="store_true")
    parser.add_argument("--price-of-journal", type=int, metavar="PAIRS", help="runs with and without a journal, in turn")
    options = parser.parse_args()
    d = options.width
    if options.price_of_journal:
        journal_price(d, options.price_of_journal)
        return
    rng = np.random.default_rng(0)
    W, v = rng.normal(size=(d, d)) / np.sqrt(d), rng.normal(size=d)
    us.recover(us.Attention.single(np.eye(3), np.ones(3)))  # imports are not part of the price
    print(f"d = {d}\n\n| target | queries beyond d^2 + d | error of W | total s | target s | ratio | peak MB |")
    print("|---|---|---|---|---|---|---|")
    for name, function in [list(targets(W, v).items())[number - 1] for number in options.targets]:
        spent = 0.0

        def target(X, function=function):
            nonlocal spent
            started = time.process_time()
            answers = function(X)
            spent += time.process_time() - started
            return answers

        with tempfile.TemporaryDirectory() as folder:
            started = time.process_time()
            oracle = CallableOracle(target, d)
            oracle.cheap_calls = not options.large_calls
            recovery = us.recover(oracle, journal=Path(folder) / "journal.sqlite" if options.journal else None)
            total = time.process_time() - started
        error = np.linalg.norm(recovery.model.W[0] - W) / np.linalg.norm(W)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        extra = recovery.queries - d * d - d
        print(f"| {name} | {extra} | {error:.1e} | {total:.2f} | {spent:.2f} | {total / spent:.3f} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
