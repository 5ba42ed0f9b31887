"""Diagnose the zoo of tests/zoo.py at random sizes: who is taken for what, at which price.

python benchmarks/diagnose.py                  # 10 per inside kind, 4 per outside kind, three precisions
python benchmarks/diagnose.py --quick          # 2 and 1, float64 only
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from time import process_time

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.zoo import INSIDE, OUTSIDE, exhibit

from unsoftmax.checks.diagnosis import diagnose_oracle
from unsoftmax.oracles import CallableOracle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--inside", type=int, default=10, help="targets per inside kind")
    parser.add_argument("--outside", type=int, default=4, help="targets per outside kind")
    parser.add_argument("--seed", type=int, default=10_000, help="first seed")
    parser.add_argument("--answers", nargs="*", default=["float64", "float32", "6 decimals"])
    options = parser.parse_args()
    if options.quick:
        options.inside, options.outside, options.answers = 2, 1, ["float64"]
    false_inside = 0
    for answers in options.answers:
        false_inside += confusion(answers, options)
    print(f"outside targets called inside, in all: {false_inside}")
    return 1 if false_inside else 0


def confusion(answers: str, options: argparse.Namespace) -> int:
    print(f"\n### {answers}, seeds from {options.seed}\n")
    print("| kind | right | heads right | verdicts | queries - 4d | CPU s |")
    print("|---|---|---|---|---|---|")
    right = total = false_inside = dear = named = outsiders = 0
    for name in [*INSIDE, *OUTSIDE]:
        count = options.inside if name in INSIDE else options.outside
        if not count:
            continue
        verdicts: Counter[str] = Counter()
        prices, good, counted, heads_right, heads_known = [], 0, 0, 0, 0
        start = process_time()
        for seed in range(options.seed, options.seed + count):
            shown = exhibit(name, seed, answers=answers)
            result = diagnose_oracle(CallableOracle(shown.target, width=shown.width), rng=np.random.default_rng(seed))
            counted += 1
            fits = result.family == shown.family if shown.inside else not result.inside
            good += fits
            false_inside += result.inside and not shown.inside
            if shown.heads is not None and fits:
                heads_known += 1
                heads_right += result.heads == shown.heads
            if not shown.inside:
                outsiders += 1
                named += shown.word.lower() in (result.family + result.reason).lower()
            verdicts[result.family] += 1
            prices.append(result.queries - 4 * shown.width)
            dear += result.queries > 200 + 4 * shown.width
        right, total = right + good, total + counted
        words = ", ".join(f"{verdict} {n}" for verdict, n in verdicts.most_common())
        heads = f"{heads_right}/{heads_known}" if heads_known else ""
        seconds = (process_time() - start) / counted
        print(f"| {name} | {good}/{counted} | {heads} | {words} | {min(prices)}..{max(prices)} | {seconds:.2f} |", flush=True)
    print(
        f"\n{answers}: right {right}/{total} ({100 * right / total:.1f}%), outside called inside {false_inside}, "
        f"outside named as expected {named}/{outsiders}, over 200 + 4d {dear}"
    )
    return false_inside


if __name__ == "__main__":
    sys.exit(main())
