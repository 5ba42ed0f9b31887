"""What each row of README's table costs to learn: queries without the check, means over fresh seeds.

    PYTHONPATH=src python benchmarks/prices.py [--seeds 12] [--first-seed 700] [--rows heads]

It uses nothing but ``us.recover`` and the built-in targets, so that it runs with older code as well: PYTHONPATH=OLD/src.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

import unsoftmax as us
from unsoftmax.demo import demo_model, demo_oracle

ROWS = {
    **{f"one head, d {d}": ("attention", {"width": d}) for d in (4, 8, 16)},
    **{f"one head, rank {r}, d {d}": ("attention", {"width": d, "rank": r}) for d, r in ((16, 2), (32, 4))},
    **{f"one head, c and b, d {d}": ("attention", {"width": d, "bias": 1}) for d in (4, 8)},
    **{f"one head, {m} outputs, d 8": ("attention", {"width": 8, "outputs": m}) for m in (3, 8)},
    **{f"{h} scalar heads, d {d}": ("attention", {"width": d, "heads": h}) for h, d in ((2, 5), (3, 6), (4, 6))},
    **{
        f"{h} heads, {d} outputs, d {d}": ("attention", {"width": d, "heads": h, "outputs": d}) for h, d in ((3, 6), (4, 8), (8, 8))
    },
    "4 heads of rank 4, 16 outputs, d 16": ("attention", {"width": 16, "heads": 4, "outputs": 16, "rank": 4}),
    "4 heads, every position, d 8": ("attention", {"width": 8, "heads": 4, "outputs": 8, "positions": 1}),
    **{f"Transformer, {p} neurons, d {d}": ("transformer", {"width": d, "hidden": p}) for d, p in ((4, 6), (6, 8), (8, 16))},
    "Transformer, residual, 8 neurons, d 5": ("transformer", {"width": 5, "hidden": 8, "residual": 1}),
    **{f"ReLU network, {p} neurons, d {d}": ("ffn", {"width": d, "hidden": p}) for d, p in ((4, 6), (8, 12))},
}
BEHIND = "one head behind tanh, d 5"


def behind_tanh(seed):
    rng, d = np.random.default_rng(seed), 5
    layer = demo_model("attention", width=d, outputs=d, bias=1, seed=seed)
    first, last = rng.normal(size=(2 * d, d)) / np.sqrt(d), rng.normal(size=(1, 2 * d)) / np.sqrt(2 * d)
    return us.oracles.CallableOracle(lambda X: np.tanh(layer(X) @ first.T) @ last.T, width=d)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first-seed", type=int, default=700)
    parser.add_argument("--rows", default="", help="only rows whose name holds this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    print("| target | recovered | mean | median | least to most |\n|---|---|---|---|---|")
    for name in [name for name in (*ROWS, BEHIND) if options.rows in name]:
        asked = []
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            target = behind_tanh(seed) if name == BEHIND else demo_oracle(ROWS[name][0], **ROWS[name][1], seed=seed)
            found = us.recover(target, seed=seed, entropy=1, on_failure="return")
            asked += [found.queries] if found.status.success else []
        spread = f"{np.mean(asked):.0f} | {np.median(asked):.0f} | {min(asked)} to {max(asked)}" if asked else "| |"
        print(f"| {name} | {len(asked)} of {options.seeds} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
