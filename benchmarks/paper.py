"""Redraw the figures of docs/theory/papers.md: ``python benchmarks/paper.py [--quick]`` writes docs/images/paper/*.svg.

Each figure holds what a theorem claims against what runs of today's code ask or reach: the median of five seeds, and a band from
the best to the worst. A few minutes; a few seconds with --quick, which draws the same figures from fewer points into a temporary
folder.
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
    asked = [(d, [us.recover(demo_model("attention", width=d, seed=s)).queries for s in seeds(quick)]) for d in widths]
    return Panel("width d", "queries").runs("asked", asked).line("d² + d", [(d, d * d + d) for d in widths])


def low_rank(quick):
    d, ranks = (8, (1, 2)) if quick else (32, (1, 2, 3, 4, 6, 8, 12, 16))
    asked = [(r, [us.recover(demo_model("attention", width=d, rank=r, seed=s)).queries for s in seeds(quick)]) for r in ranks]
    fixed = [(r, us.plan(f"demo:attention,width={d}", rank=r, adaptive=False).queries) for r in ranks]
    panel = Panel(f"rank r, width {d}", "queries").runs("adaptive, rank unknown", asked).points("fixed beforehand", fixed)
    return panel.line("d + r(2d - r)", [(r, d + r * (2 * d - r)) for r in ranks])


def transformer(quick):
    asked = []
    for d in (3,) if quick else (3, 4, 6, 8):
        targets = [demo_oracle("transformer", width=d, hidden=2 * d, seed=s) for s in seeds(quick)]
        found = [us.recover(target, family="transformer") for target in targets]
        asked.append((found[0].facts["parameters"], [one.queries for one in found]))
    return Panel("free parameters", "queries").runs("asked, family told", asked).line("parameters", [(p, p) for p, _ in asked])


def noise(quick):
    """The accuracy that is wished for decides how many queries are asked."""
    head = demo_model("attention", width=4, seed=3)
    reached = []
    for accuracy in (0.002,) if quick else (0.002, 0.001, 0.0005, 0.00025):
        runs = []
        for seed in seeds(quick):
            target = us.oracles.Noisy(us.oracles.CallableOracle(head), 0.02, seed=seed)
            runs.append(us.recover(target, max_norm=4.0, accuracy=accuracy, seed=seed))
        asked = int(np.median([run.queries for run in runs]))
        reached.append((asked, [float(np.sqrt(np.mean((run.model.W - head.W) ** 2))) for run in runs]))
    panel = Panel("queries, noise 0.02, norm limit 4", "rms error of W").runs("reached", reached)
    return panel.line("1/√queries", halving(reached))


def heads(quick):
    asked, parameters = [], []
    for count in (2,) if quick else (1, 2, 3, 4, 6):
        targets = [demo_oracle("attention", width=8, heads=count, outputs=8, seed=s) for s in seeds(quick)]
        found = [us.recover(target) for target in targets]
        asked.append((count, [one.queries for one in found]))
        parameters.append((count, found[0].facts["parameters"] / 8))
    return Panel("heads, width 8, 8 numbers an answer", "queries").runs("asked", asked).line("parameters per number", parameters)


def examples(quick):
    rng = np.random.default_rng(5)
    layer = us.Attention(W=rng.normal(size=(1, 4, 4)) / 2, V=rng.normal(size=(1, 4, 4)))
    reached = []
    for count in (40,) if quick else (20, 40, 80, 160, 320):
        runs = []
        for seed in seeds(quick):
            X = rng.normal(size=(count, 4, 4))
            runs.append(us.learn_from_examples(X, layer(X, "all") + 1e-3 * rng.normal(size=(count, 4, 4)), seed=seed))
        reached.append((count, [us.distance(run.model, layer) for run in runs]))
    panel = Panel("examples of 4 tokens, noise 0.001", "error of W and V").runs("reached", reached)
    return panel.line("1/√examples", halving(reached))


def seeds(quick):
    """Runs of each point: the median is drawn, and a band from the best to the worst."""
    return range(2 if quick else 5)


def halving(reached):
    """What errors would be that fall as the root, from the first median on."""
    first = np.median(reached[0][1])
    return [(x, first * np.sqrt(reached[0][0] / x)) for x, _ in reached]


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
