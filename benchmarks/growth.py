"""How questions, time, memory and journal grow with the width, the rank, the heads, the outputs and the neurons, family by family.

    python benchmarks/growth.py [--quick] [--seeds 3] [--json FILE] [--figure docs/images/growth.svg] [--axis width rank heads …]

Every point is a whole ``us.recover`` in a process of its own. "bound" is the number of parameters over that of outputs: no exact
scheme asks for fewer. "learner" is CPU time without the target's own; memory is the peak of the process beyond what it held before;
the journal is written in a second run of the first seed. Bands run from the least to the largest of all seeds. Slopes are least
squares on logarithms of the medians, over the points from the second on (the first is mostly the fixed dozen of questions).
"Largest error" is the distance from the true parameters; of the built-in targets of later families, whose parameters stay hidden
here too, it is the held-out relative error.
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

Sizes = dict[str, int | str]  # "demo" names a built-in target, whose settings the others are
AXES: dict[str, tuple[str, list[Sizes], list[Sizes]]] = {  # title, sizes, sizes of a quick run
    "width": (
        "one head of full rank, scalar answers",
        [{"width": d} for d in (32, 64, 128, 256, 512)],
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
    "layer width": (
        "eight heads of rank width / 8, vector answers",
        [{"width": d, "rank": d // 8, "heads": 8, "outputs": d} for d in (32, 64, 128, 256)],
        [{"width": d, "rank": d // 8, "heads": 8, "outputs": d} for d in (32, 64)],
    ),
    "scalar heads": (
        "several heads of full rank, scalar answers",
        [{"width": 8, "heads": h} for h in (2, 3, 4, 5)],
        [{"width": 4, "heads": h} for h in (2, 3)],
    ),
    "neurons": (
        "ReLU networks of width 16, scalar answers",
        [{"width": 16, "neurons": m} for m in (4, 8, 16, 32, 64)],
        [{"width": 8, "neurons": m} for m in (4, 8, 16)],
    ),
    "network width": (
        "ReLU networks of 16 neurons, scalar answers",
        [{"width": d, "neurons": 16} for d in (4, 8, 16, 32, 64)],
        [{"width": d, "neurons": 8} for d in (4, 8, 16)],
    ),
    "everywhere, heads": (
        "heads of rank 8, at every position",
        [{"demo": "attention,rank=8,outputs=64,positions=1", "width": 64, "heads": h} for h in (1, 2, 4, 8)],
        [{"demo": "attention,rank=4,outputs=16,positions=1", "width": 16, "heads": h} for h in (1, 2)],
    ),
    "Transformer hidden": (
        "one-head ReLU Transformers of width 8",
        [{"demo": "transformer", "width": 8, "hidden": m} for m in (4, 8, 16, 32)],
        [{"demo": "transformer", "width": 4, "hidden": m} for m in (4, 8)],
    ),
    "GELU hidden": (
        "GELU networks of width 8",
        [{"demo": "ffn,activation=2", "width": 8, "hidden": m} for m in (4, 8, 16, 32)],
        [{"demo": "ffn,activation=2", "width": 4, "hidden": m} for m in (4, 8)],
    ),
    "GELU Transformer hidden": (
        "one-head GELU Transformers of width 8",
        [{"demo": "transformer,activation=2", "width": 8, "hidden": m} for m in (4, 8, 16, 32)],
        [{"demo": "transformer,activation=2", "width": 4, "hidden": m} for m in (4, 8)],
    ),
    "gated hidden": (
        "SwiGLU networks of width 8",
        [{"demo": "gated-ffn", "width": 8, "hidden": m} for m in (4, 8, 16)],
        [{"demo": "gated-ffn", "width": 4, "hidden": m} for m in (4, 8)],
    ),
    "squared hidden": (
        "squared ReLU networks of width 8",
        [{"demo": "squared-ffn", "width": 8, "hidden": m} for m in (4, 8, 16, 32)],
        [{"demo": "squared-ffn", "width": 4, "hidden": m} for m in (4, 8)],
    ),
    "stack layers": (
        "pre-norm stacks, four heads a layer",
        [{"demo": "stack,heads=4,rank=8", "width": 32, "layers": n} for n in (1, 2, 3, 4)],
        [{"demo": "stack,heads=2,rank=4", "width": 16, "layers": n} for n in (1, 2)],
    ),
    "stack width": (
        "pre-norm stacks, two layers",
        [{"demo": f"stack,layers=2,heads=4,rank={d // 4}", "width": d} for d in (32, 48, 64)],
        [{"demo": f"stack,layers=1,heads=2,rank={d // 4}", "width": d} for d in (16, 24)],
    ),
    "everywhere, stack width": (
        "the same, at every position",
        [{"demo": f"stack,layers=2,heads=4,rank={d // 4},positions=1", "width": d} for d in (32, 48, 64)],
        [{"demo": f"stack,layers=1,heads=2,rank={d // 4},positions=1", "width": d} for d in (16, 24)],
    ),
    "decoder layers": (
        "Llama-like decoders (per parameter)",
        [{"demo": "decoder", "width": 32, "layers": n} for n in (1, 2, 3)],
        [{"demo": "decoder,rank=4", "width": 16, "layers": n} for n in (1,)],
    ),
    "labels width": (
        "one head that says yes or no (questions per parameter)",
        [{"demo": "labels", "width": d} for d in (4, 8, 16, 32)],
        [{"demo": "labels", "width": d} for d in (4, 8)],
    ),
}
ONE_BY_ONE = ("labels", "decoder")  # their answers hold no numbers, or only where they differ: questions are told per parameter
LARGE = 512  # width from which on one seed is run


def target(
    width: int, rank: int | None = None, heads: int = 1, outputs: int | None = None, neurons: int = 0, seed: int = 0
) -> us.Attention | us.FFN:
    rng = np.random.default_rng([seed, width, rank or 0, heads, outputs or 0, neurons])
    if neurons:
        weights = [rng.normal(size=(neurons, width)) / np.sqrt(width), rng.normal(size=(1, neurons)) / np.sqrt(neurons)]
        return us.FFN(weights, [rng.normal(size=neurons), rng.normal(size=1)])
    W = rng.normal(size=(heads, width, width)) / np.sqrt(width)
    V = rng.normal(size=(heads, width) if outputs is None else (heads, width, outputs)) / np.sqrt(heads)
    if rank is not None:
        W = rng.normal(size=(heads, width, rank)) @ rng.normal(size=(heads, rank, width)) / np.sqrt(width * rank)
        if heads > 1 and outputs is not None:
            V = rng.normal(size=(heads, width, rank)) @ rng.normal(size=(heads, rank, outputs)) / np.sqrt(width * rank)
    return us.Attention(W, V)


def opened(sizes: Sizes, seed: int) -> tuple[Any, us.Attention | us.FFN | None, dict[str, Any]]:
    """A target, what it is (None for a built-in one), and what ``us.recover`` is told."""
    if "demo" in sizes:
        settings = ",".join(f"{name}={value}" for name, value in {**sizes, "seed": seed}.items() if name != "demo")
        told = {"family": "ffn"} if sizes["demo"] == "ffn" else {}
        return us.open(f"demo:{sizes['demo']},{settings}"), None, told
    truth = target(**sizes, seed=seed)
    return truth.respond, truth, {"family": "ffn"} if "neurons" in sizes else {}


def measure(sizes: Sizes, seed: int, journal: bool) -> dict[str, Any]:
    """One recovery with the target's time taken apart, then one with a journal."""
    asked, truth, told = opened(sizes, seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answering = 0.0

    def timed(sequences: np.ndarray) -> np.ndarray:
        nonlocal answering
        started = time.process_time()
        answers = asked(sequences)
        answering += time.process_time() - started
        return answers

    options = {"width": sizes["width"], "seed": seed, "on_failure": "return", **told}
    started = time.process_time()
    recovery = us.recover(timed, **options)
    total = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    known = recovery.model is not None
    if truth is not None:
        error, least = us.distance(recovery.model, truth) if known else None, bound(**sizes)
    else:
        error = recovery.check.relative_error if recovery.check else None
        numbers = 1 if sizes["demo"].startswith(ONE_BY_ONE) else recovery.facts["outputs"]
        least = recovery.facts["parameters"] / numbers if known else float("nan")
    record = {
        **sizes,
        "seed": seed,
        "status": recovery.status.name,
        "error": error,
        "queries": recovery.queries,
        "bound": least,
        "learner": total - answering,
        "target": answering,
        "memory": max(peak - before, 0) / 1024,
    }
    if journal and recovery.queries <= 300_000:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "journal.sqlite"
            us.recover(timed, **options, journal=path)
            record["journal"] = path.stat().st_size / 2**20
    return record


def bound(width: int, rank: int | None = None, heads: int = 1, outputs: int = 1, neurons: int = 0) -> float:
    """How many numbers describe the target, over those of an answer."""
    if neurons:
        return neurons * (width + 2) + 1
    r = width if rank is None else rank
    values = r * (width + outputs - r) if rank is not None and heads > 1 and outputs > 1 else width * outputs
    return heads * (r * (2 * width - r) + values) / outputs


def slope(points: list[tuple[float, float]]) -> float:
    """Exponent of the power law through the points."""
    logs = np.log(np.array([p for p in points if p[1] > 0]))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]) if len(logs) > 1 else float("nan")


def panel(records: dict[str, Any], what: str, *names: str) -> Panel:
    """One quantity of some families against the size that grows: medians, and bands over the seeds."""
    shown = {"of bound": "questions / bound", "of target": "time / target's time", "memory": "memory, MB"}
    axes = sorted({name.split()[-1] for name in names})
    drawn = Panel(" or ".join(axes), shown[what])
    for name in names:
        axis = name.split()[-1]
        runs: dict[int, list[float]] = {}
        for row in records[name]:
            ratios = {"of bound": row["queries"] / row["bound"], "of target": 1 + row["learner"] / max(row["target"], 1e-4)}
            runs.setdefault(row[axis], []).append(max(ratios.get(what, row["memory"]), 0.1))
        drawn.runs(AXES[name][0], sorted(runs.items()))
    return drawn


def medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Of each number over the seeds that have it."""
    names = ("queries", "learner", "target", "memory", "journal")
    return {
        name: float(np.median([row[name] for row in rows if name in row])) for name in names if any(name in row for row in rows)
    }


def cells(rows: list[dict[str, Any]], middle: dict[str, float]) -> list[str]:
    """A line of the table after the sizes."""
    asked, errors = [row["queries"] for row in rows], [row["error"] for row in rows if row["error"] is not None]
    spread = f"{middle['queries']:.0f}" if len(set(asked)) == 1 else f"{middle['queries']:.0f} ({min(asked)} to {max(asked)})"
    return [
        spread,
        f"{middle['queries'] / rows[0]['bound']:.2f}",
        f"{max(errors):.1e}" if errors else "-",
        f"{middle['learner']:.3f}",
        f"{middle['target']:.3f}",
        f"{middle['memory']:.0f}",
        f"{middle['journal']:.1f}" if "journal" in middle else "-",
    ]


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
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    failures, records = 0, {}
    smalls: list[Sizes] = [
        {"width": 3},
        {"width": 4, "heads": 2},
        {"width": 4, "heads": 2, "outputs": 4},
        {"width": 3, "neurons": 2},
    ]
    for small in [*smalls, *(AXES[name][2][0] for name in options.axis if "demo" in AXES[name][2][0])]:
        measure(small, options.seed, journal=False)  # imports are not part of the price, and processes are copies of this one
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for name in options.axis:
            title, full, quick = AXES[name]
            print(f"\n{name}: {title}; seeds from {options.seed}, medians (least to most)\n")
            shown = [size for size in full[0] if size != "demo"]
            print(f"| {' | '.join(shown)} | asked | of the bound | largest error | learner s | target s | memory MB | journal MB |")
            print("|" + "---|" * (len(shown) + 7))
            axis = name.split()[-1]
            records[name], middles = [], []
            for sizes in quick if options.quick else full:
                seeds = 1 if options.quick or sizes["width"] >= LARGE else options.seeds
                rows = [pool.apply(measure, (sizes, options.seed + i, i == 0)) for i in range(seeds)]
                records[name] += rows
                failures += sum(row["status"] not in ("EXACT", "WITHIN_TOLERANCE") for row in rows)
                middles.append(middle := {axis: sizes[axis], **medians(rows)})
                print("|", " | ".join([*(str(sizes[size]) for size in shown), *cells(rows, middle)]), "|", flush=True)
            later = middles[1:] if len(middles) > 2 else middles
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
            panel(records, "of bound", "width", "layer width", "network width"),
            panel(records, "of bound", "heads", "scalar heads", "everywhere, heads"),
            panel(records, "of bound", "rank", "outputs", "neurons"),
            panel(records, "of bound", "Transformer hidden", "GELU hidden", "GELU Transformer hidden", "gated hidden"),
            panel(records, "of bound", "stack layers", "decoder layers"),
            panel(records, "of bound", "stack width", "everywhere, stack width"),
            panel(records, "of target", "width", "layer width", "network width"),
            panel(records, "of target", "heads", "scalar heads", "neurons"),
            panel(records, "of target", "Transformer hidden", "GELU hidden", "GELU Transformer hidden", "gated hidden"),
            panel(records, "memory", "width", "layer width", "network width"),
            panel(records, "memory", "heads", "everywhere, heads"),
            panel(records, "memory", "stack width", "everywhere, stack width"),
        ]
        options.figure.write_text(figure("Questions over the bound, time over the target's, memory", pictures, columns=3))
    if options.json is not None:
        options.json.write_text(json.dumps(records, indent=1) + "\n")
    print(f"\nfailures: {failures}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
