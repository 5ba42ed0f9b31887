"""unsoftmax and its rivals on the same targets, with the same number of questions.

    python benchmarks/rivals [--quick] [--part plain hard low-rank networks] [--first-seed N] [--json FILE]

Rivals see a metered oracle and nothing else. Budgets: d^2 + d + 32 questions (parameters and 32) and four times that; for rank r
the same with d + r(2d - r) + 64. Every rival has the same CPU seconds at each width (``SECONDS``); who stops early starts again.
Errors are the larger of the relative Frobenius errors of W and v. "solved" means below 1e-8, "failed" above 1e-2. Needs the extra
``bench``.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from art_extraction import compare
from game import Rival, Score, head, play, unsoftmax
from nuclear_norm import nuclear_norm
from one_hot import one_hot
from students import adam, lbfgs, levenberg_marquardt

SECONDS = {8: 5.0, 16: 10.0, 32: 20.0, 64: 40.0}
SOLVED, FAILED = 1e-8, 1e-2
STUDENTS: dict[str, Rival] = {
    "LM student": levenberg_marquardt,
    "L-BFGS student": lbfgs,
    "Adam student": adam,
}
PARTS = ("plain", "hard", "low-rank", "networks")


def played(
    rivals: dict[str, Rival], kind: str, width: int, budgets: tuple[int, ...], seeds: range, rank: int | None = None
) -> list[Score]:
    """Every rival on every head; the warnings of rivals that divide by zero are not ours to print."""
    scores = []
    for seed in seeds:
        truth = head(kind, width, seed, rank)
        for budget in budgets:
            for name, rival in {"unsoftmax": unsoftmax, **rivals}.items():
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    scores.append(play(name, rival, kind, truth, budget, SECONDS[width], seed, width if rank is None else rank))
    return scores


def grouped(scores: list[Score]) -> dict[tuple[str, int, int, int], dict[str, list[Score]]]:
    """By target and budget, then by rival."""
    groups: dict[tuple[str, int, int, int], dict[str, list[Score]]] = {}
    for score in scores:
        group = groups.setdefault((score.kind, score.width, score.rank, score.budget), {})
        group.setdefault(score.rival, []).append(score)
    return groups


def number(value: float | None) -> str:
    return "no model" if value is None or not np.isfinite(value) else f"{value:.1e}"


def table(scores: list[Score]) -> None:
    print("| head | width | rank | allowed | method | asked | median error | worst error | solved | CPU s (median) |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (kind, width, rank, budget), group in grouped(scores).items():
        for name, runs in group.items():
            errors = sorted(run.error for run in runs)
            solved = sum(error < SOLVED for error in errors)
            cells = [kind, width, rank, budget, name, max(run.queries for run in runs), number(median(errors)), number(errors[-1])]
            print(
                "|",
                " | ".join(map(str, [*cells, f"{solved}/{len(runs)}", f"{median(r.seconds for r in runs):.3f}"])),
                "|",
                flush=True,
            )


def verdict(scores: list[Score]) -> int:
    """In words: where rivals failed, where one did not, and how much faster ours is; 1 if ours missed its own bar."""
    missed = 0
    print()
    for (kind, width, rank, budget), group in grouped(scores).items():
        ours = group.pop("unsoftmax")
        worst, seconds = max(run.error for run in ours), median(run.seconds for run in ours)
        missed += not worst < 1e-13
        rivals = {name: (median(run.error for run in runs), median(run.seconds for run in runs)) for name, runs in group.items()}
        alive = {name: got for name, got in rivals.items() if got[0] <= FAILED}
        line = f"- {kind}, width {width}, rank {rank}, {budget} questions: ours {worst:.1e} (worst) in {seconds:.3f} s; "
        if not alive:
            print(line + "every rival failed.")
            continue
        best = min(alive, key=lambda name: alive[name][0])
        quickest = min(alive, key=lambda name: alive[name][1])
        error, spent = alive[best]
        line += f"not failed: {', '.join(sorted(alive))}; most accurate {best} ({error:.1e}, {spent / seconds:.2g} times our time)"
        print(line + f", quickest {quickest} ({alive[quickest][0]:.1e}, {alive[quickest][1] / seconds:.2g} times).")
    return missed


def networks(sizes: list[tuple[int, int, int]], seeds: range) -> list[dict[str, Any]]:
    records = compare(sizes, seeds)
    print("| target | method | runs | solved | median error | questions (most) | CPU s (median) | what it said |")
    print("|---|---|---|---|---|---|---|---|")
    for key in dict.fromkeys((r["target"], r["rival"]) for r in records):
        runs = [r for r in records if (r["target"], r["rival"]) == key]
        errors = [np.inf if r["error"] is None else r["error"] for r in runs]
        said = "; ".join(sorted({r["said"] for r in runs if r["said"]})) or "-"
        solved = sum(error < 1e-5 for error in errors)  # ART ends at 1e-7 at best
        cells = [*key, len(runs), solved, number(median(errors)), max(r["queries"] for r in runs)]
        print("|", " | ".join(map(str, [*cells, f"{median(r['seconds'] for r in runs):.2f}", said])), "|", flush=True)
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="widths 8 and 16, two seeds, a fifth of the time")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--widths", nargs="+", type=int, default=None)
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--first-seed", type=int, default=5000)
    parser.add_argument("--json", type=Path, help="write every run here")
    options = parser.parse_args()
    count = options.seeds or (2 if options.quick else 3)
    seeds = range(options.first_seed, options.first_seed + count)
    widths = options.widths or ([8, 16] if options.quick else [8, 16, 32, 64])
    if options.quick:
        SECONDS.update({width: seconds / 5 for width, seconds in SECONDS.items()})
    print(f"seeds {seeds.start} to {seeds.stop - 1}; CPU seconds allowed per run: {SECONDS}\n")
    played({}, "plain", 8, (1000,), seeds[:1])  # imports are not part of the price
    scores: list[Score] = []
    records: list[dict[str, Any]] = []
    for d in widths:
        if "plain" in options.part:
            scores += played({"one-hot": one_hot, **STUDENTS}, "plain", d, (d * d + d + 32, 4 * (d * d + d + 32)), seeds)
    if "hard" in options.part:
        for kind in ("loud", "sparse values", "uneven"):
            scores += played({"one-hot": one_hot, **STUDENTS}, kind, 16, (16 * 16 + 16 + 32, 4 * (16 * 16 + 16 + 32)), seeds)
    if "low-rank" in options.part:
        for d in widths:
            r = {8: 1, 16: 2, 32: 2, 64: 4}[d]
            base = d + r * (2 * d - r) + 64
            scores += played({"nuclear norm": nuclear_norm}, "low rank", d, (base, 4 * base), seeds, rank=r)
    missed = 0
    if scores:
        table(scores)
        missed = verdict(scores)
    if "networks" in options.part:
        print()
        records = networks([(20, 4, 10)] if options.quick else [(8, 4, 10), (20, 4, 10), (20, 10, 2)], seeds)
    if options.json is not None:
        options.json.write_text(json.dumps([*(score.record() for score in scores), *records], indent=1) + "\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
