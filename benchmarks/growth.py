"""How questions, time, memory and journal grow with the width, the rank, the number of heads and of outputs.

    python benchmarks/growth.py [--quick] [--json FILE] [--figure docs/images/growth.svg] [--axis width rank heads outputs]

Every point is a whole ``us.recover`` in a process of its own. "learner" is CPU time without the target's own; memory is the peak of
the process beyond what it held before; the journal is written in a second run. Slopes are least squares on logarithms, over
the points from the second on (the first is mostly the fixed dozen of questions).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from log_plots import Panel, figure

import unsoftmax as us

AXES: dict[str, tuple[str, list[dict[str, int]], list[dict[str, int]]]] = {  # title, sizes, sizes of a quick run
    "width": (
        "one head of full rank, scalar answers",
        [{"width": d} for d in (32, 64, 128, 256, 512, 1024)],
        [{"width": d} for d in (32, 64, 128, 256)],
    ),
    "rank": (
        "one head, scalar answers, rank not told",
        [{"width": 256, "rank": r} for r in (2, 4, 8, 16, 32, 64)],
        [{"width": 64, "rank": r} for r in (2, 4, 8)],
    ),
    "outputs": (
        "one head of full rank, vector answers",
        [{"width": 128, "outputs": m} for m in (2, 4, 8, 16, 32, 64)],
        [{"width": 32, "outputs": m} for m in (2, 8, 32)],
    ),
    "heads": (
        "several heads of low rank, vector answers",
        [{"width": 64, "rank": 4, "heads": h, "outputs": 64} for h in (2, 4, 8, 12)],
        [{"width": 32, "rank": 4, "heads": h, "outputs": 32} for h in (2, 4)],
    ),
    "scalar heads": (
        "several heads of full rank, scalar answers",
        [{"width": 8, "heads": h} for h in (2, 3, 4, 5)],
        [{"width": 4, "heads": h} for h in (2, 3)],
    ),
}
NOTHING = us.Attention.single(np.eye(3), np.ones(3))


def target(width: int, rank: int | None = None, heads: int = 1, outputs: int | None = None, seed: int = 0) -> us.Attention:
    rng = np.random.default_rng([seed, width, rank or 0, heads, outputs or 0])
    W = rng.normal(size=(heads, width, width)) / np.sqrt(width)
    if rank is not None:
        W = rng.normal(size=(heads, width, rank)) @ rng.normal(size=(heads, rank, width)) / np.sqrt(width * rank)
    return us.Attention(W, rng.normal(size=(heads, width) if outputs is None else (heads, width, outputs)) / np.sqrt(heads))


def measure(sizes: dict[str, int], seed: int) -> dict[str, Any]:
    """One recovery with the target's time taken apart, then one with a journal."""
    truth = target(**sizes, seed=seed)
    us.recover(NOTHING)
    us.recover(target(4, heads=2), seed=seed)  # imports are not part of the price
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answering = 0.0

    def timed(sequences: np.ndarray) -> np.ndarray:
        nonlocal answering
        started = time.process_time()
        answers = truth(sequences)
        answering += time.process_time() - started
        return answers

    started = time.process_time()
    recovery = us.recover(timed, width=truth.width, seed=seed, on_failure="return")
    total = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    record = {
        **sizes,
        "seed": seed,
        "status": recovery.status.name,
        "error": us.distance(recovery.model, truth) if recovery.model is not None else None,
        "queries": recovery.queries,
        "parameters": parameters(**sizes),
        "learner": total - answering,
        "target": answering,
        "memory": max(peak - before, 0) / 1024,
    }
    if recovery.queries <= 300_000:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "journal.sqlite"
            us.recover(truth, seed=seed, journal=path, on_failure="return")
            record["journal"] = path.stat().st_size / 2**20
    return record


def parameters(width: int, rank: int | None = None, heads: int = 1, outputs: int = 1) -> int:
    """How many numbers describe the heads: no exact scheme asks for fewer."""
    r = width if rank is None else rank
    return heads * (r * (2 * width - r) + width * outputs)


def slope(points: list[tuple[float, float]]) -> float:
    """Exponent of the power law through the points."""
    logs = np.log(np.array([p for p in points if p[1] > 0]))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]) if len(logs) > 1 else float("nan")


def panel(records: dict[str, Any], name: str, *what: str) -> Panel:
    """Measured series against the size that grows, with its slope, beside what was there to be learned."""
    axis = name.split()[-1]
    rows = records[name]
    drawn = Panel(f"{axis}: {AXES[name][0]}", "questions" if what == ("queries",) else "CPU seconds")
    for key in what:
        points = [(row[axis], max(row[key], 1e-4)) for row in rows]
        drawn.points(f"{'questions' if key == 'queries' else key}: slope {records[f'{name} slopes'][key]:.2f}", points)
    if what == ("queries",):
        drawn.line("parameters / outputs", [(row[axis], row["parameters"] / row.get("outputs", 1)) for row in rows])
    return drawn


def limits(seed: int) -> list[dict[str, Any]]:
    """Where float64 stops: how the error grows as singular values spread, answers carry a constant, or scores grow."""
    d, rows = 32, []
    for name, exponents in (
        ("singular values over 10^k", (4, 8, 12, 16)),
        ("constant 10^k beside v", (3, 6, 9)),
        ("W times 10^k", (-40, -30, 30, 100)),
        ("query bias 10^k beside W", (3, 6, 9)),
    ):
        for k in exponents:
            rng = np.random.default_rng([seed, k + 1000])
            W, v = rng.normal(size=(d, d)) / np.sqrt(d), rng.normal(size=d)
            if name.startswith("singular"):
                U, _, Vt = np.linalg.svd(W)
                W = U * 10.0 ** -np.linspace(0, k, d) @ Vt
            truth = us.Attention.single(
                W * 10.0**k if name.startswith("W") else W,
                v,
                c=10.0**k * rng.normal(size=d) if name.startswith("query") else None,
                b=10.0**k if name.startswith("constant") else 0.0,
            )
            found = us.recover(truth, seed=seed, on_failure="return")
            error = float(np.linalg.norm(found.model.W - truth.W) / np.linalg.norm(truth.W)) if found.model is not None else None
            rows.append(
                {
                    "head": name.replace("10^k", f"10^{k}"),
                    "status": found.status.name,
                    "rank": found.facts.get("rank"),
                    "error": error,
                }
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--axis", nargs="+", choices=list(AXES), default=list(AXES))
    parser.add_argument("--seed", type=int, default=6000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    failures, records = 0, {}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in options.axis:
            title, full, quick = AXES[name]
            print(f"\n{name}: {title}; seed {options.seed}\n")
            print("| width | rank | heads | outputs | asked | parameters | error | learner s | target s | memory MB | journal MB |")
            print("|---|---|---|---|---|---|---|---|---|---|---|")
            rows = records[name] = []
            for sizes in quick if options.quick else full:
                r = pool.apply(measure, (sizes, options.seed))
                rows.append(r)
                failures += r["status"] != "EXACT"
                error = "-" if r["error"] is None else f"{r['error']:.1e}"
                journal = f"{r['journal']:.1f}" if "journal" in r else "-"
                cells = [sizes.get(k, v) for k, v in (("width", 0), ("rank", "full"), ("heads", 1), ("outputs", "scalar"))]
                cells += [
                    r["queries"],
                    r["parameters"],
                    error,
                    f"{r['learner']:.3f}",
                    f"{r['target']:.3f}",
                    f"{r['memory']:.0f}",
                    journal,
                ]
                print("|", " | ".join(map(str, cells)), "|", flush=True)
            axis = name.split()[-1]
            later = rows[1:] if len(rows) > 2 else rows
            slopes = {
                k: slope([(r[axis], r[k]) for r in later if k in r]) for k in ("queries", "learner", "target", "memory", "journal")
            }
            records[f"{name} slopes"] = slopes
            print("\nslopes in " + axis + ": " + ", ".join(f"{k} {v:.2f}" for k, v in slopes.items()))
    print("\nWhere float64 stops, width 32:\n\n| head | status | rank found | error of W |\n|---|---|---|---|")
    for row in records.setdefault("float64", limits(options.seed)):
        print(
            f"| {row['head']} | {row['status']} | {row['rank']} | {'-' if row['error'] is None else format(row['error'], '.1e')} |"
        )
    if options.figure is not None:
        pictures = [
            panel(records, "width", "queries"),
            panel(records, "width", "learner", "target"),
            panel(records, "rank", "queries"),
        ]
        options.figure.write_text(figure("Growth of questions and of time", [*pictures, panel(records, "heads", "queries")]))
    if options.json is not None:
        options.json.write_text(json.dumps(records, indent=1) + "\n")
    print(f"\nfailures: {failures}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
