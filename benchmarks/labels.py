"""Heads that say nothing but yes or no: errors, labels per parameter and rounds of calls, against the bars we hold ourselves to.

    python benchmarks/labels.py [--seeds N] [--first SEED] [--part NAME ...]

Parts: heads, accuracy, rank, flipped, classes, strangers, figure. Heads have W, c and v drawn at random; the threshold is 0 or not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax.errors import RefusalError
from unsoftmax.learners.labels import LabelsLearner
from unsoftmax.learners.labels.bill import bits
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.results import Learned

FIGURE = Path(__file__).parent.parent / "docs" / "labels.svg"


def drawn_classes(width: int, classes: int, seed: int) -> Attention:
    """A head with values of several classes, none of which gets less than 2% of normal tokens."""
    rng = np.random.default_rng(seed)
    while True:
        W, V = rng.normal(size=(1, width, width)) / np.sqrt(width), rng.normal(size=(1, width, classes))
        head = Attention(W, V, 0.3 * rng.normal(size=(1, width)), 0.3 * rng.normal(size=classes))
        told = np.argmax(head(rng.normal(size=(2000, 1, width))), axis=1)
        if np.bincount(told, minlength=classes).min() >= 40:
            return head


def drawn_head(width: int, seed: int, *, threshold: float, rank: int | None = None, bias: float = 0.3) -> Attention:
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(width, width)) / np.sqrt(width)
    if rank is not None:
        W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width)) / np.sqrt(rank * width)
    return Attention.single(W, rng.normal(size=width), bias * rng.normal(size=width), -threshold)


def learned(head: Attention, learner: LabelsLearner, seed: int, flip: float = 0.0) -> tuple[Learned, int, int]:
    """What was learned, the labels asked and the calls made."""
    noise = np.random.default_rng([seed, 1])

    def target(X: Floats) -> Any:
        told = head(X)
        if told.ndim == 2:
            return np.argmax(told, axis=1)
        yes = told > 0
        return yes ^ (noise.random(len(yes)) < flip) if flip else yes

    meter = Metered(CallableOracle(target, width=head.width))
    found = learner.run(meter, rng=np.random.default_rng(seed))
    return found, meter.spent, sum(count.calls for count in meter.phases.values())


def errors(found: Learned, head: Attention) -> tuple[float, float, float]:
    """Relative errors of W, c (absolute where there is none) and v over the threshold (or over its own length)."""
    model = found.model
    assert isinstance(model, Attention)
    assert model.V is not None
    assert head.V is not None
    v = head.V[0] - head.V[0].mean(axis=1, keepdims=True) if head.V.ndim == 3 else head.V[0]
    v = v / (np.linalg.norm(v) if head.V.ndim == 3 or not head.b else abs(float(head.b)))

    def apart(a: Floats, b: Floats) -> float:
        return float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0))

    return apart(model.W, head.W), apart(model.c, head.c), apart(model.V[0], v)


def row(name: str, heads: list[tuple[int, Attention]], learner: LabelsLearner, *, per: int, bar: float, flip: float = 0.0) -> None:
    """One line: worst errors, most labels per parameter and most calls over some heads."""
    worst, most, calls, right, covered, started = np.zeros(3), 0.0, 0, 0, [], time.perf_counter()
    for seed, head in heads:
        try:
            found, labels, called = learned(head, learner, seed, flip)
        except RefusalError as error:
            print(f"    {name}, seed {seed}: {type(error).__name__}: {str(error)[:120]}")
            continue
        if found.model.V is not None and head.V is not None and found.model.V.shape != head.V.shape:  # a rare class never showed
            print(f"    {name}, seed {seed}: {found.model.V.shape[-1]} classes of {head.V.shape[-1]}")
            continue
        right += 1
        worst = np.maximum(worst, errors(found, head))
        most, calls = max(most, labels / per), max(calls, called)
        covered.append(_covered(found, head))
    seconds = (time.perf_counter() - started) / len(heads)
    print(
        f"| {name} | {right}/{len(heads)} | {worst[0]:.1e} | {worst[1]:.1e} | {worst[2]:.1e} | {most:.1f} | {bar:g} | {calls} "
        f"| {np.mean(covered):.3f} | {seconds:.1f} |",
        flush=True,
    )


def _covered(found: Learned, head: Attention) -> float:
    assert isinstance(found.model, Attention)
    assert found.bounds is not None
    return float(np.mean(np.abs(found.model.W - head.W) <= found.bounds.W))


def heads_part(seeds: list[int], widths: tuple[int, ...] = (4, 8, 16, 32, 64)) -> None:
    for width in widths:
        for threshold in (0.0, 0.5):
            some = [(seed, drawn_head(width, seed, threshold=threshold)) for seed in seeds]
            row(f"d = {width}, threshold {threshold:g}", some, LabelsLearner(), per=width**2 + 2 * width, bar=60)


def accuracy_part(seeds: list[int]) -> None:
    for width in (8, 16, 32):
        some = [(seed, drawn_head(width, seed, threshold=0.5)) for seed in seeds]
        row(f"accuracy 1e-3, d = {width}", some, LabelsLearner(accuracy=1e-3), per=width**2 + 2 * width, bar=21)


def rank_part(seeds: list[int]) -> None:
    for bias, parameters in ((0.0, 2 * 62 + 32), (0.3, 2 * 62 + 64)):
        some = [(seed, drawn_head(32, seed, threshold=0.5, rank=2, bias=bias)) for seed in seeds]
        row(f"rank 2 of 32, c {'present' if bias else 'absent'}", some, LabelsLearner(), per=parameters, bar=65)


def classes_part(seeds: list[int]) -> None:
    for width in (4, 8, 16):
        for classes in (3, 4, 6):
            some = [(seed, drawn_classes(width, classes, seed)) for seed in seeds]
            parameters = width**2 + width + (classes - 1) * (width + 1)
            row(f"{classes} classes, d = {width}", some, LabelsLearner(), per=parameters, bar=np.inf)


def flipped_part(seeds: list[int]) -> None:
    for flip in (0.02, 0.05, 0.15):
        some = [(seed, drawn_head(8, seed, threshold=0.5)) for seed in seeds]
        row(f"{flip:.0%} flipped, d = 8", some, LabelsLearner(), per=80, bar=np.inf, flip=flip)


def strangers(width: int, seed: int) -> dict[str, Callable[[Floats], Any]]:
    """Targets outside the family, as labels."""
    rng = np.random.default_rng(seed)
    one, other = (drawn_head(width, seed + 7 * k, threshold=0.3) for k in range(2))
    two = Attention(np.concatenate([one.W, other.W]), np.concatenate([one.V, other.V]), np.concatenate([one.c, other.c]), -0.3)
    inner, bias, outer = rng.normal(size=(16, width)), rng.normal(size=16), rng.normal(size=16)
    places = 0.3 * rng.normal(size=(4096, width))
    asked = {"moving": 0, "stepping": 0}

    def moving(X: Floats) -> Any:
        asked["moving"] += len(X)
        return one(X) > 1e-6 * asked["moving"]

    def stepping(X: Floats) -> Any:
        asked["stepping"] += len(X)
        return one(X) > 0.01 * (asked["stepping"] > 800)

    def transformer(X: Floats) -> Any:
        mixed = Attention(one.W, np.eye(width)[None], one.c)(X)
        return np.maximum(mixed @ inner.T + bias, 0) @ outer > 1.0

    return {
        "two heads": lambda X: two(X) > 0,
        "a ReLU network": lambda X: np.maximum(X[:, -1] @ inner.T + bias, 0) @ outer > 1.0,
        "a Transformer": transformer,
        "positions": lambda X: one(X + places[: X.shape[1]]) > 0,
        "scores over the root of the length": lambda X: Attention(one.W / np.sqrt(X.shape[1]), one.V, one.c, one.b)(X) > 0,
        "a residual path": lambda X: one(X) + X[:, -1] @ inner[0] > 0,
        "a threshold that moves by 1e-6 a label": moving,
        "a threshold that moves by 0.01 once": stepping,
        "30% flipped": lambda X: (one(X) > 0) ^ (rng.random(len(X)) < 0.3),
    }


def strangers_part(seeds: list[int]) -> None:
    tally: dict[str, list[str]] = {}
    for seed in seeds:
        width = (4, 6, 8, 12)[seed % 4]
        for name, target in strangers(width, seed).items():
            meter = Metered(CallableOracle(target, width=width))
            try:
                LabelsLearner().run(meter, rng=np.random.default_rng(seed))
                told = "RECOVERED"
            except RefusalError as error:
                told = error.status_name
            tally.setdefault(name, []).append(f"{told} {meter.spent}")
    for name, endings in tally.items():
        kinds = sorted({ending.split()[0] for ending in endings})
        most = max(int(ending.split()[1]) for ending in endings)
        print(f"| {name} | {len(endings)} | {', '.join(kinds)} | {most} |", flush=True)


def figure_part(seeds: list[int]) -> None:
    """Error against labels per parameter for several accuracies, and the bound."""
    series: dict[str, list[tuple[float, float]]] = {}
    for width in (8, 16, 32):
        points = []
        for accuracy in 10.0 ** -np.arange(2.0, 13.0):
            runs = [(drawn_head(width, seed, threshold=0.5), seed) for seed in seeds[:3]]
            results = [(learned(head, LabelsLearner(accuracy=float(accuracy)), seed), head) for head, seed in runs]
            error = float(np.median([errors(found[0], head)[0] for found, head in results]))
            points.append((float(np.median([found[1] for found, _ in results])) / (width**2 + 2 * width), error))
        series[f"d = {width}"] = points
    bound = [(bits(10.0**-k), 10.0**-k) for k in range(2, 14)]
    series["one bit a label"] = bound
    FIGURE.write_text(drawing(series))
    for name, points in series.items():
        print(name, "; ".join(f"{x:.1f}: {y:.1e}" for x, y in points), flush=True)


COLOURS = ("#1f5fa8", "#c4572b", "#3b8f4e", "#555")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 460, 330, 64, 46, 34
DECADES, MOST = 14, 52  # of the axes: errors from 1 to 1e-14, labels per parameter from 0 on


def drawing(series: dict[str, list[tuple[float, float]]]) -> str:
    """Errors, on a logarithmic axis, against labels per parameter; the last series, the bound, is dashed."""

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + x / MOST * (WIDTH - LEFT - 12)
        return across, TOP + min(-np.log10(y), DECADES) / DECADES * (HEIGHT - TOP - BOTTOM)

    def words(x: float, y: float, told: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{told}</text>'

    parts = []
    for k in range(0, DECADES + 1, 2):
        left, y = at(0, 10.0**-k)
        parts.append(
            f'<path d="M{left:.1f} {y:.1f}H{WIDTH - 12}" stroke="#ddd"/>{words(left - 6, y + 4, f"1e-{k}" if k else "1", "end")}'
        )
    for x in range(0, MOST, 10):
        across, low = at(x, 10.0**-DECADES)
        parts.append(f'<path d="M{across:.1f} {TOP}V{low}" stroke="#ddd"/>{words(across, low + 16, str(x))}')
    for index, (name, points) in enumerate(series.items()):
        colour, last = COLOURS[index], index == len(series) - 1
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        dash = ' stroke-dasharray="5 4"' if last else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
        parts += [] if last else [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (at(*p) for p in points)]
        legend = TOP + 14 + 16 * index
        parts.append(f'<path d="M{WIDTH - 170} {legend}h24" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(words(WIDTH - 140, legend + 4, name, "start"))
    parts.append(words((LEFT + WIDTH) / 2, HEIGHT - 8, "labels per parameter"))
    title = "Relative error of W from labels alone"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="11" role="img" aria-label="{title}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
        f"{words(WIDTH / 2, 20, title)}{''.join(parts)}</svg>\n"
    )


PARTS = {
    "heads": heads_part,
    "accuracy": accuracy_part,
    "rank": rank_part,
    "flipped": flipped_part,
    "classes": classes_part,
    "strangers": strangers_part,
    "figure": figure_part,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=520000)
    parser.add_argument("--part", nargs="*", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args()
    print("| target | recovered | worst error of W | of c | of v | most labels per parameter | bar | most calls | coverage | s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for part in options.part:
        PARTS[part](list(range(options.first, options.first + options.seeds)))


if __name__ == "__main__":
    main()
