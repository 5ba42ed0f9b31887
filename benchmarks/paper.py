"""Redraw the figures of docs/theory/papers.md: ``python benchmarks/paper.py [--quick]`` writes docs/images/paper/*.svg.

Each figure holds what a theorem claims against what a run of today's code asks or reaches. About a minute; a few seconds with
--quick, which draws the same figures from fewer points into a temporary folder.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from log_plots import Panel, figure

import unsoftmax as us
from unsoftmax.demo import demo_model, demo_oracle

FOLDER = Path(__file__).parent.parent / "docs" / "images" / "paper"


def one_head(quick):
    widths = (4, 8) if quick else (4, 8, 12, 16, 24, 32, 48)
    asked = [(d, us.recover(demo_model("attention", width=d, seed=d)).queries) for d in widths]
    return Panel("width d", "queries").points("asked", asked).line("d² + d", [(d, d * d + d) for d in widths])


def low_rank(quick):
    d, ranks = (8, (1, 2)) if quick else (32, (1, 2, 3, 4, 6, 8, 12, 16))
    asked = [(r, us.recover(demo_model("attention", width=d, rank=r, seed=r)).queries) for r in ranks]
    fixed = [(r, us.plan(f"demo:attention,width={d}", rank=r, adaptive=False).queries) for r in ranks]
    panel = Panel(f"rank r, width {d}", "queries").points("adaptive, rank unknown", asked).points("fixed beforehand", fixed)
    return panel.line("d + r(2d - r)", [(r, d + r * (2 * d - r)) for r in ranks])


def transformer(quick):
    widths = (3,) if quick else (3, 4, 6, 8)
    asked = []
    for d in widths:
        target = demo_oracle("transformer", width=d, hidden=2 * d, seed=d)
        found = us.recover(target, family="transformer")
        asked.append((found.facts["parameters"], found.queries))
    widest = [(p, p) for p, _ in asked]
    return Panel("free parameters", "queries").points("asked, family told", asked).line("parameters", widest)


def noise(quick):
    budgets = (1500,) if quick else (1500, 5000, 15000, 50000)
    head = demo_model("attention", width=4, seed=3)
    reached = []
    for budget in budgets:
        target = us.oracles.Noisy(us.oracles.CallableOracle(head), 0.02, seed=budget)
        found = us.recover(target, max_norm=4.0, budget=budget, on_failure="return")
        if found.model is not None:
            reached.append((found.queries, us.distance(found.model, head)))
    first = reached[0]
    halving = [(q, first[1] * np.sqrt(first[0] / q)) for q, _ in reached]
    return Panel("queries, noise 0.02, norm limit 4", "error of W and V").points("reached", reached).line("1/√queries", halving)


def heads(quick):
    counts = (2,) if quick else (1, 2, 3, 4, 6)
    asked, parameters = [], []
    for count in counts:
        found = us.recover(demo_oracle("attention", width=8, heads=count, outputs=8, seed=count))
        asked.append((count, found.queries))
        parameters.append((count, found.facts["parameters"] / 8))
    return Panel("heads, width 8, 8 numbers an answer", "queries").points("asked", asked).line("parameters per number", parameters)


def examples(quick):
    counts = (40,) if quick else (20, 40, 80, 160, 320)
    rng = np.random.default_rng(5)
    layer = us.Attention(W=rng.normal(size=(1, 4, 4)) / 2, V=rng.normal(size=(1, 4, 4)))
    reached = []
    for count in counts:
        X = rng.normal(size=(count, 4, 4))
        found = us.learn_from_examples(X, layer(X, "all") + 1e-3 * rng.normal(size=(count, 4, 4)), seed=1, on_failure="return")
        if found.model is not None:
            reached.append((count, us.distance(found.model, layer)))
    first = reached[0]
    return (
        Panel("examples of 4 tokens, noise 0.001", "error of W and V")
        .points("reached", reached)
        .line("1/√examples", [(n, first[1] * np.sqrt(first[0] / n)) for n, _ in reached])
    )


FIGURES = {
    "one-head": one_head,
    "low-rank": low_rank,
    "transformer": transformer,
    "noise": noise,
    "heads": heads,
    "examples": examples,
}


def main(folder: Path, quick: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, measure in FIGURES.items():
        path = folder / f"{name}.svg"
        path.write_text(figure(name.replace("-", " "), [measure(quick)]), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    main(Path(tempfile.mkdtemp()) if quick else FOLDER, quick)
