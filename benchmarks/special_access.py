"""Probes fixed beforehand, tokens only, weights on a grid: the bars, over seeds that no setting was tuned on.

Run ``python benchmarks/special_access.py [--quick] [--first-seed N]``; prints Markdown tables and exits 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

from unsoftmax.errors import RefusalError
from unsoftmax.learners.grid import GridLearner
from unsoftmax.learners.non_adaptive import NonAdaptiveLearner
from unsoftmax.learners.tokens import TokensLearner
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.oracles.tokens import Tokens


def phase_transition(seeds: range, quick: bool) -> int:
    """Success against probes per parameter; no refusal may hide behind a wrong result, and no wrong result may pass."""
    factors = (1.2, 1.5, 1.8, 2.2, 3.0)
    print("\n## Probes fixed beforehand\n\nSuccesses (error of W at most 1e-10) against queries / (d + r(2d - r)).\n")
    print("| solver | d | r | " + " | ".join(f"{factor:g}" for factor in factors) + " | wrong | worst error | CPU s |")
    print("|---|---|---|" + "---|" * (len(factors) + 3))
    missed = 0
    cases = [("factored", d, r) for d in (16, 32, 64) for r in (1, 2, 4)] + [
        ("nuclear", 16, 1),
        ("nuclear", 16, 2),
        ("nuclear", 32, 1),
    ]
    for method, width, rank in cases[: 4 if quick else None]:
        counts, wrong, worst, seconds = [], 0, 0.0, 0.0
        for factor in factors:
            good = 0
            for seed in seeds:
                rng = np.random.default_rng([seed, width, rank])
                W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width)) / np.sqrt(width * rank)
                oracle = CallableOracle(Attention.single(W=W, v=rng.normal(size=width)))
                start = time.process_time()
                try:
                    found = NonAdaptiveLearner(rank=rank, oversampling=factor, method=method).run(oracle, rng=rng).model  # type: ignore[arg-type]
                except RefusalError:
                    continue
                finally:
                    seconds = max(seconds, time.process_time() - start)
                error = float(np.linalg.norm(found.W[0] - W) / np.linalg.norm(W))  # type: ignore[union-attr]
                good += error <= 1e-10
                wrong += error > 1e-10
                worst = max(worst, error)
            counts.append(good)
        bar = counts[factors.index(3.0 if rank == 1 else 2.2)]
        missed += method == "factored" and (bar < len(seeds) or wrong > 0)
        row = " | ".join(f"{count}/{len(seeds)}" for count in counts)
        print(f"| {method} | {width} | {rank} | {row} | {wrong} | {worst:.0e} | {seconds:.2f} |", flush=True)
    return missed


def tokens(seeds: range, quick: bool) -> int:
    """Predictions on fresh token sequences, and queries per parameter."""
    print("\n## Tokens only\n\nError on 500 fresh sequences of 6 tokens, relative to the standard deviation of the answers.\n")
    print("| d | vocabulary | r | score deviation | recovered | worst error | queries / dimension, most | W left open | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    missed = 0
    cases = [(64, 1000, rank, deviation, 1e-9) for deviation in (1.0, 3.0) for rank in (1, 4, 64)] + [
        (64, 1000, 64, 10.0, 1e-8),
        (32, 20, 32, 1.0, 1e-10),
        (32, 20, 32, 3.0, 1e-10),
    ]
    for width, vocabulary, rank, deviation, bar in cases:
        errors, ratios, left, start = [], [], set(), time.process_time()
        for seed in seeds[: 2 if quick else None]:
            rng = np.random.default_rng([seed, width, rank])
            table = rng.normal(size=(vocabulary, width))
            W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width))
            W *= deviation / (table @ W @ table.T).std()
            head = Attention.single(W=W, v=rng.normal(size=width))
            oracle = Metered(Tokens(lambda ids, head=head, table=table: head(table[ids]), table))  # type: ignore[misc]
            try:
                learned = TokensLearner().run(oracle, rng=rng)
            except RefusalError:
                continue
            fresh = table[rng.integers(vocabulary, size=(500, 6))]
            answers = head(fresh)
            errors.append(float(np.abs(learned.model(fresh) - answers).max() / answers.std()))
            dimension = width + rank * (2 * width - rank) if vocabulary > width else vocabulary**2
            ratios.append(oracle.spent / dimension)
            left.add(learned.evidence["unidentifiable"])
        good = sum(error <= bar for error in errors)
        asked = len(seeds[: 2 if quick else None])
        missed += good < asked or (max(ratios) > (1.1 if deviation == 1.0 else 1.7) and deviation <= 3)
        print(
            f"| {width} | {vocabulary} | {rank} | {deviation:g} | {good} of {asked} | {max(errors):.0e} | {max(ratios):.3f} | "
            f"{', '.join(map(str, sorted(left)))} | {(time.process_time() - start) / asked:.2f} |",
            flush=True,
        )
    return missed


def grids(seeds: range) -> int:
    """Wrong entries, queries, and whether a wrong step is refused."""
    print("\n## Weights on a grid\n\nd = 32, W and v whole multiples of a random step each; d^2 + d = 1056.\n")
    print(
        "| weights | heads | wrong entries of W and v | queries, median | most | most with `auto` | "
        "a step for each row, `auto`: median, most | wrong step refused |"
    )
    print("|---|---|---|---|---|---|---|---|")
    missed = 0
    for name, largest, bar in (("int8", 128, 200), ("int4", 8, 120), ("ternary", 1, 60)):
        prices: list[int] = []
        auto: list[int] = []
        rows: list[int] = []
        wrong = refused = 0
        for seed in seeds:
            rng = np.random.default_rng([seed, largest])
            step, value_step = rng.uniform(1e-3, 1, size=2)
            W = rng.integers(-largest, largest + 1, size=(32, 32)) * step
            head = Attention.single(W=W, v=rng.integers(-largest, largest + 1, size=32) * value_step)
            for grid, bill in ((float(step), prices), ("auto", auto)):
                oracle = Metered(CallableOracle(head))
                found = GridLearner(grid=grid).run(oracle, rng=np.random.default_rng(seed)).model
                bill.append(oracle.spent)
                gaps = np.abs(found.W[0] - W) / step, np.abs(found.V[0] - head.V[0]) / value_step  # type: ignore[union-attr, index]
                exact = 0.0 if grid != "auto" else 1e-9  # an unknown step has its last bit open
                wrong += int((gaps[0] > exact).sum()) + int((gaps[1] > 0).sum())
            steps = step * np.exp(rng.uniform(0, np.log(10), size=32))
            uneven = Attention.single(W=W / step * steps[:, None], v=rng.normal(size=32))
            oracle = Metered(CallableOracle(uneven))
            found = GridLearner(grid="auto").run(oracle, rng=np.random.default_rng(seed)).model
            rows.append(oracle.spent)
            wrong += int((np.abs(found.W[0] - uneven.W[0]) / steps[:, None] > 1e-9).sum())  # type: ignore[union-attr]
            try:
                GridLearner(grid=float(step) * 1.01).run(CallableOracle(head), rng=np.random.default_rng(seed))
            except RefusalError:
                refused += 1
        missed += wrong > 0 or max(prices) > bar or refused < len(seeds) or max(auto + rows) > 420
        told = f"{np.median(prices):g} | {max(prices)} | {max(auto)} | {np.median(rows):g}, {max(rows)}"
        print(f"| {name} | {len(seeds)} | {wrong} | {told} | {refused} |", flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few seeds and cases")
    parser.add_argument("--first-seed", type=int, default=7000)
    parser.add_argument("--part", choices=("fixed", "tokens", "grid"), help="one table only")
    options = parser.parse_args()
    first, quick = options.first_seed, options.quick
    print(f"Seeds from {first} on.")
    parts: dict[str, Callable[[], int]] = {
        "fixed": lambda: phase_transition(range(first, first + (3 if quick else 10)), quick),
        "tokens": lambda: tokens(range(first, first + 10), quick),
        "grid": lambda: grids(range(first, first + (5 if quick else 20))),
    }
    missed = sum(table() for name, table in parts.items() if options.part in (None, name))
    print(f"\nBars missed: {missed}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
