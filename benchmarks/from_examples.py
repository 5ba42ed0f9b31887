"""Learning from recorded examples, measured: `python benchmarks/from_examples.py [--quick] [--bars 1,2,...] [--seed N]`.

Prints one Markdown table per bar. rho = equations per unknown = N k / (2 m d). Times are CPU seconds of one thread
unless OMP_NUM_THREADS allows more. "wrong" counts successes that were announced but are not the layer: it must be 0.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from unsoftmax.learners.from_examples import learn_from_examples
from unsoftmax.learners.from_examples.sculpting import sculpt
from unsoftmax.models import Attention, Floats
from unsoftmax.results import Recovery, Status
from unsoftmax.symmetry import distance


def layer(rng: np.random.Generator, heads: int, width: int, size: float = 2.0) -> Attention:
    W = rng.normal(size=(heads, width, width))
    W *= size / np.linalg.norm(W, axis=(1, 2), keepdims=True)
    return Attention(W, rng.normal(size=(heads, width, width)) / np.sqrt(width))


def tokens(rng: np.random.Generator, kind: str, *shape: int) -> Floats:
    return rng.choice([-1.0, 1.0], size=shape) if kind == "Boolean" else rng.normal(size=shape)


def fresh_error(model: Attention, truth: Attention, X: Floats, causal: bool = False) -> float:
    answers = truth(X, "all", causal=causal)
    return float(np.linalg.norm(model(X, "all", causal=causal) - answers) / np.linalg.norm(answers))


def timed(X: Floats, Y: Floats, **options: object) -> tuple[Recovery, float]:
    start = time.process_time()
    found = learn_from_examples(X, Y, on_failure="return", **options)  # type: ignore[arg-type]
    return found, time.process_time() - start


def row(*cells: object) -> None:
    print("| " + " | ".join(str(c) for c in cells) + " |", flush=True)


def header(title: str, *names: str) -> None:
    print(f"\n### {title}\n")
    row(*names)
    row(*("---" for _ in names))


def exact(seeds: range, quick: bool) -> None:
    header(
        "Bar 1: exact answers, head count unknown",
        "d",
        "rho",
        "solved",
        "refused",
        "wrong",
        "worst test",
        "worst heads",
        "CPU s median / max",
    )
    for width in (8, 16):
        for rho in (8.0, 4.0):
            outcomes = []
            for heads in (1, 2, 3, 4):
                for length in (4, 8, 16):
                    for seed in seeds:
                        rng = np.random.default_rng([seed, width, int(rho), heads, length])
                        number, kind = int(np.ceil(rho * 2 * heads * width / length)), ("Boolean", "Gaussian")[seed % 2]
                        truth, X = layer(rng, heads, width), tokens(rng, kind, number, length, width)
                        found, spent = timed(X, truth(X, "all"), seed=seed)
                        good = found.status is Status.EXACT and distance(found.model, truth) <= 1e-8  # type: ignore[arg-type]
                        errors = (np.inf, np.inf)
                        if good:
                            fresh = tokens(rng, kind, 100, length, width)
                            errors = fresh_error(found.model, truth, fresh), distance(found.model, truth)  # type: ignore[arg-type]
                        outcomes.append((good, found.status.success and not good, *errors, spent))
            right = [o for o in outcomes if o[0]]
            times = [o[4] for o in outcomes]
            wrong = sum(o[1] for o in outcomes)
            refused = len(outcomes) - len(right) - wrong
            row(
                width, rho, f"{len(right)} of {len(outcomes)}", refused, wrong, f"{max(o[2] for o in right):.0e}",
                f"{max(o[3] for o in right):.0e}", f"{np.median(times):.2f} / {max(times):.2f}",
            )  # fmt: skip
    for seed in list(seeds)[: 1 if quick else 5]:
        rng = np.random.default_rng([seed, 32])
        truth, X = layer(rng, 8, 32), tokens(rng, "Boolean", 256, 16, 32)
        found, spent = timed(X, truth(X, "all"), seed=seed)
        error = distance(found.model, truth)  # type: ignore[arg-type]
        row(32, 8.0, f"m=8, seed {seed}: {found.status.name}", "", "", "", f"{error:.0e}", f"{spent:.1f}")


def few(seeds: range, quick: bool) -> None:
    """Fewer examples than comfortable: recovered or refused, never wrong."""
    header("Few examples, d = 8, head count unknown", "rho", "solved", "refused", "wrong", "CPU s median / max")
    for rho in (3.0,) if quick else (3.0, 2.5, 2.0):
        solved, wrong, times = 0, 0, []
        for seed in seeds:
            for heads in (1, 2, 3, 4):
                for length in (4, 8, 16):
                    rng = np.random.default_rng([seed, 8, int(10 * rho), heads, length])
                    kind = ("Boolean", "Gaussian")[(seed + heads + length // 4) % 2]
                    truth = layer(rng, heads, 8)
                    X = tokens(rng, kind, int(np.ceil(rho * 2 * heads * 8 / length)), length, 8)
                    found, spent = timed(X, truth(X, "all"), seed=seed)
                    good = found.status is Status.EXACT and distance(found.model, truth) <= 1e-8  # type: ignore[arg-type]
                    solved, wrong = solved + good, wrong + (found.status.success and not good)
                    times.append(spent)
        row(
            rho, f"{solved} of {len(times)}", len(times) - solved - wrong, wrong, f"{np.median(times):.1f} / {max(times):.1f}"
        )  # fmt: skip


def speed(seeds: range, quick: bool) -> None:
    header("Bar 2: time", "d", "m", "k", "N", "heads given", "status", "heads error", "CPU s", "wall s")
    sizes = [(16, 4, 8, 128), (64, 8, 16, 384), (128, 4, 16, 384)]
    for width, heads, length, number in sizes[: 1 if quick else 3]:
        for given in (heads, None):
            rng = np.random.default_rng([seeds[0], width, 2])
            truth, X = layer(rng, heads, width), tokens(rng, "Boolean", number, length, width)
            wall = time.perf_counter()
            found, spent = timed(X, truth(X, "all"), heads=given)
            wall = time.perf_counter() - wall
            error = distance(found.model, truth)  # type: ignore[arg-type]
            row(width, heads, length, number, given or "no", found.status.name, f"{error:.0e}", f"{spent:.2f}", f"{wall:.2f}")


def noise(seeds: range, quick: bool) -> None:
    header(
        "Bars 3 and 5: noise", "sigma", "m", "rho", "heads right", "worst test error / that of the fit started at the truth",
        "coverage of the 95% intervals", "CPU s median",
    )  # fmt: skip
    for sigma in (1e-3, 1e-2, 1e-1):
        for heads in (1, 2, 3, 4):
            right, ratios, inside, times = 0, [], [], []
            for seed in seeds:
                rng = np.random.default_rng([seed, heads, int(1e6 * sigma)])
                truth, X = layer(rng, heads, 8), tokens(rng, "Gaussian", 16 * heads, 8, 8)
                answers = truth(X, "all")
                Y = answers + sigma * rng.normal(size=answers.shape)
                found, spent = timed(X, Y, seed=seed)
                times.append(spent)
                if not found.status.success or found.model.heads != heads:  # type: ignore[union-attr]
                    continue
                right += 1
                fresh = tokens(rng, "Gaussian", 300, 8, 8)
                ratios.append(fresh_error(found.model, truth, fresh) / fresh_error(_from_truth(X, Y, truth, seed), truth, fresh))  # type: ignore[arg-type]
                inside.append(_covered(found, truth))
            row(
                f"{sigma:.0e}",
                heads,
                8,
                f"{right} of {len(seeds)}",
                f"{max(ratios, default=np.nan):.3f}",
                f"{np.mean(inside):.1%}",
                f"{np.median(times):.2f}",
            )


def _from_truth(X: Floats, Y: Floats, truth: Attention, seed: int) -> Attention:
    """The same fit on the same share of the examples, started at the truth."""
    from unsoftmax.learners.from_examples.data import Extras, frame_of, hold_out, read_examples
    from unsoftmax.learners.from_examples.fit import Effort, fit_from

    rng = np.random.default_rng(seed)
    examples = read_examples(X, Y)
    held, frame = hold_out(examples, rng), frame_of(examples)
    problem = frame.problem(examples, examples.counts & ~held, Extras())
    back = np.linalg.pinv(frame.query_map), np.linalg.pinv(frame.key_map)
    theta = np.einsum("qa,hba,kb->qhk", back[0], truth.W, back[1]).reshape(truth.width, -1)
    point = fit_from(problem, theta, Effort(goal=0.0, stall=1e-6, damping=1e-3, inner=200), rng).point
    return frame.to_model(point.theta, point.values, Extras(), scalar=False)[0]


def _covered(found: Recovery, truth: Attention) -> float:
    model, bounds = found.model, found.bounds
    assert isinstance(model, Attention)
    assert model.V is not None
    assert truth.V is not None
    assert bounds is not None
    assert bounds.V is not None
    order = [int(np.argmin([np.abs(W - other).max() for other in truth.W])) for W in model.W]
    hits = [np.abs(model.W - truth.W[order]) <= bounds.W, np.abs(model.V - truth.V[order]) <= bounds.V]
    return float(np.mean(np.concatenate([h.ravel() for h in hits])))


def awkward_cases() -> dict[str, Callable[[np.random.Generator], tuple[Attention, Floats, Floats, dict[str, object]]]]:
    def ill(rng: np.random.Generator, spread: float, stretched: bool) -> tuple[Attention, Floats, Floats, dict[str, object]]:
        mix = np.linalg.qr(rng.normal(size=(8, 8)))[0] / np.geomspace(1.0, spread, 8)
        truth, X = layer(rng, 2, 8, 2.0 if stretched else 4.0), rng.normal(size=(64, 8, 8)) @ mix
        if stretched:
            back = np.linalg.inv(mix)
            assert truth.V is not None
            truth = Attention(back @ truth.W @ back.T, back @ truth.V)
        return truth, X, truth(X, "all"), {}

    def zipf(rng: np.random.Generator, width: int, heads: int, number: int) -> tuple[Attention, Floats, Floats, dict[str, object]]:
        size = width * 3 // 2
        share = 1.0 / np.arange(1, size + 1)
        X = rng.normal(size=(size, width))[rng.choice(size, size=(number, 8), p=share / share.sum())]
        truth = layer(rng, heads, width)
        return truth, X, truth(X, "all"), {}

    def plain(rng: np.random.Generator, change: str) -> tuple[Attention, Floats, Floats, dict[str, object]]:
        truth, X = layer(rng, 2, 8), tokens(rng, "Boolean", 64, 8, 8)
        if change == "saturated":
            truth, X = layer(rng, 2, 8, 32.0), tokens(rng, "Boolean", 256, 8, 8)
        if change == "rank one":
            truth = Attention(np.einsum("hi,hj->hij", *rng.normal(size=(2, 2, 8))) / 4, truth.V)
        if change == "cancelling":
            truth = Attention(truth.W, np.stack([truth.V[0], -truth.V[0]]))  # type: ignore[index]
        if change == "causal":
            return truth, X, truth(X, "all", causal=True), {"causal": True}
        Y = truth(X, "all")
        return truth, X, Y.astype(np.float16) if change == "float16" else Y, {}

    return {
        "token spread 1e4, stretched layer": lambda rng: ill(rng, 1e4, True),
        "token spread 1e4, plain layer": lambda rng: ill(rng, 1e4, False),
        "Zipf vocabulary 1.5 d, d=8 m=2": lambda rng: zipf(rng, 8, 2, 64),
        "Zipf vocabulary 1.5 d, d=16 m=4": lambda rng: zipf(rng, 16, 4, 256),
        "saturated, |Theta| = 32": lambda rng: plain(rng, "saturated"),
        "rank-one W": lambda rng: plain(rng, "rank one"),
        "cancelling V": lambda rng: plain(rng, "cancelling"),
        "causal": lambda rng: plain(rng, "causal"),
        "float16 answers": lambda rng: plain(rng, "float16"),
    }


def awkward(seeds: range, quick: bool) -> None:
    header("Bar 4: awkward data", "data", "recovered", "refused", "wrong", "worst test error", "worst heads error", "CPU s median")
    for name, make in awkward_cases().items():
        tests, errors, times, wrong = [], [], [], 0
        for seed in list(seeds)[: 2 if quick else 10]:
            truth, X, Y, options = make(np.random.default_rng([seed, len(name)]))
            found, spent = timed(X, Y, seed=seed, **options)
            times.append(spent)
            if found.status.success:
                tests.append(fresh_error(found.model, truth, X, bool(options.get("causal"))))  # type: ignore[arg-type]
                errors.append(distance(found.model, truth))  # type: ignore[arg-type]
                wrong += errors[-1] > (1e-6 if found.status is Status.EXACT else 1e-2)
        row(
            name, f"{len(tests) - wrong} of {len(times)}", len(times) - len(tests), wrong, f"{max(tests, default=np.nan):.0e}",
            f"{max(errors, default=np.nan):.0e}", f"{np.median(times):.2f}",
        )  # fmt: skip


def phases(seeds: range, quick: bool) -> None:
    header(
        "Bar 6: the six phases, unpolished",
        "m",
        "k",
        "|Theta|",
        "N",
        "test error per seed",
        "body along / across the heads' difference",
        "CPU s median",
    )
    for heads, length, size, number in ((1, 3, 2, 4000), (1, 3, 4, 4000), (2, 2, 2, 40_000), (2, 3, 2, 40_000))[
        : 2 if quick else 4
    ]:
        errors, shapes, times = [], [], []
        for seed in list(seeds)[:5]:
            rng = np.random.default_rng([seed, heads, length, size])
            truth, X = layer(rng, heads, 8, size), tokens(rng, "Boolean", number, length, 8)
            start = time.process_time()
            found = sculpt(X, truth(X, "all"), heads=heads)
            times.append(time.process_time() - start)
            errors.append(fresh_error(found.model, truth, tokens(rng, "Boolean", 1000, length, 8)))
            if found.span is not None:
                shapes.append(f"{found.span.extents[0]:.2f}/{np.median(found.span.elsewhere):.3f}")
        row(heads, length, size, number, " ".join(f"{e:.0e}" for e in errors), " ".join(shapes) or "-", f"{np.median(times):.1f}")


def adam(X: Floats, Y: Floats, heads: int, steps: int) -> Attention:
    """The usual rival: Adam in float32 PyTorch on all examples at once, cosine schedule, no tricks of ours."""
    import torch

    torch.manual_seed(0)
    width, outputs = X.shape[2], Y.shape[2]
    inputs, answers = torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)
    scores = torch.nn.Parameter(0.5 * torch.randn(heads, width, width) / width)
    values = torch.nn.Parameter(torch.randn(heads, width, outputs) / width**0.5)
    optimiser = torch.optim.Adam([scores, values], lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        patterns = torch.softmax(torch.einsum("njq,hqk,nak->nhja", inputs, scores, inputs), dim=-1)
        loss = ((torch.einsum("nhja,nad,hdo->njo", patterns, inputs, values) - answers) ** 2).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return Attention(scores.detach().double().numpy().transpose(0, 2, 1), values.detach().double().numpy())


def rivals(seeds: range, quick: bool) -> None:
    header(
        "Bar 7: Adam on the same examples",
        "data",
        "Adam: test error",
        "Adam: CPU s",
        "ours: test error",
        "ours: CPU s (head count unknown)",
    )
    cases: list[tuple[str, Callable[[np.random.Generator], tuple[Attention, Floats, Floats, dict[str, object]]]]] = []
    for heads, width, length, number in ((2, 8, 8, 32), (4, 8, 8, 64), (4, 16, 8, 128), (4, 32, 8, 256), (8, 32, 16, 192)):

        def make(
            rng: np.random.Generator, heads: int = heads, width: int = width, length: int = length, number: int = number
        ) -> tuple[Attention, Floats, Floats, dict[str, object]]:
            truth, X = layer(rng, heads, width), tokens(rng, "Boolean", number, length, width)
            return truth, X, truth(X, "all"), {}

        cases.append((f"m={heads} d={width} k={length} N={number}", make))
    named = awkward_cases()
    cases += [(name, named[name]) for name in list(named)[:1] + list(named)[2:3] + list(named)[4:5]]
    for name, build in cases[:2] if quick else cases:
        rng = np.random.default_rng([seeds[0], 7])
        truth, X, Y, _ = build(rng)
        start = time.process_time()
        rival = adam(X, Y, truth.heads, 300 if quick else 3000)
        spent = time.process_time() - start
        found, ours = timed(X, Y)
        fresh = X if "d=" not in name else tokens(rng, "Boolean", 100, X.shape[1], X.shape[2])
        own = fresh_error(found.model, truth, fresh) if found.status.success else np.nan  # type: ignore[arg-type]
        row(name, f"{fresh_error(rival, truth, fresh):.0e}", f"{spent:.1f}", f"{own:.0e}", f"{ours:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes in place of half an hour")
    parser.add_argument("--bars", default="1,few,2,3,4,6,7", help="which tables to print")
    parser.add_argument("--seed", type=int, default=1000, help="first seed")
    parser.add_argument("--seeds", type=int, default=None, help="seeds per cell")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + (options.seeds or (1 if options.quick else 5)))
    tables = {"1": exact, "few": few, "2": speed, "3": noise, "4": awkward, "6": phases, "7": rivals}
    print(f"Seeds {seeds.start} to {seeds.stop - 1}.")
    for bar in options.bars.split(","):
        tables[bar](seeds, options.quick)


if __name__ == "__main__":
    main()
