"""Noisy, rounded, bounded and lying answers, measured: ``python benchmarks/noise.py [--quick] [--figure docs/noise.svg]``.

Heads have W ~ N(0, 1/width) and v ~ N(0, 1); tokens are no longer than R = 1.5 width^(1/4). Errors are rms per entry of W.
Seeds start at ``--seed`` (default 50,000).
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from log_plots import Panel, figure

import unsoftmax as us
from unsoftmax.errors import RefusalError
from unsoftmax.learners.noisy import CertifiedHeadLearner, NoisyHeadLearner
from unsoftmax.learners.noisy.fit import Head, _inverse, fit, normal_equations, unpacked
from unsoftmax.learners.noisy.probes import Probes, ask_pairs, ask_tokens, joined
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.oracles.base import Wrapper
from unsoftmax.oracles.noise import Cast, LowPrecision, Noisy, Rounded
from unsoftmax.results import Floor


def drawn_head(seed, width, rank=None):
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(width, width)) / np.sqrt(width)
    if rank is not None:
        W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width))
        W *= np.sqrt(width) / np.linalg.norm(W)
    return Attention.single(W, rng.normal(size=width))


def limit(width):
    return 1.5 * width**0.25


def rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


class Recorded(Wrapper):
    """Keeps the questions, to compute the information in them."""

    def __init__(self, inner):
        super().__init__(inner)
        self.asked = []

    def __call__(self, X, /):
        last, none = X[:, -1].copy(), np.zeros(len(X))
        if X.shape[1] == 1:
            self.asked.append(Probes(np.zeros_like(last), none, none, last, none))
        else:
            plus = (np.einsum("bnd,bd->bn", X[:, :-1], X[:, 0]) > 0).sum(axis=1).astype(float)
            self.asked.append(Probes(X[:, 0].copy(), plus, X.shape[1] - 1 - plus, last, none))
        return self.inner(X)

    def first(self, queries):
        """The first so many questions."""
        counts = np.cumsum([len(part) for part in self.asked])
        return joined(self.asked[: int(np.searchsorted(counts, queries, side="right"))])


def truth(head):
    return Head(W=head.W[0], v=head.V[0], c=np.zeros(head.width), with_c=False, with_b=False)


def low_rank_bound(head, probes, rank):
    """The same on the set of matrices of this rank."""
    at = truth(head).of_rank(rank)
    matrix, _ = normal_equations(at, probes, np.ones(len(probes)))
    return rms(unpacked(at, _inverse(at, matrix), 1.0, 1.0, 1).W)


def information_bound(head, probes):
    """Cramér-Rao bound on the rms error of W, for noise 1."""
    matrix, _ = normal_equations(truth(head), probes, np.ones(len(probes)))
    return float(np.sqrt(np.trace(np.linalg.inv(matrix)[: head.width**2, : head.width**2]))) / head.width


def random_pairs(rng, count, width, singles):
    tokens = rng.normal(size=(2, count, width))
    tokens *= limit(width) / np.linalg.norm(tokens, axis=-1, keepdims=True)
    on = (np.arange(count) >= singles).astype(float)
    return Probes(tokens[0] * on[:, None], on, 0 * on, tokens[1], 0 * on)


def gaussian(args):
    print("\n### 1. Gaussian noise, 6 (d² + d) queries, through `recover`\n")
    print("| d | noise | heads | rms / noise | rms / Cramér-Rao | random pairs / ours | coverage of 95% | refusals |")
    print("|---|---|---|---|---|---|---|---|")
    plan = {8: 12, 16: 4, 32: 1} if args.quick else {8: 50, 16: 50, 32: 12}
    for width, heads in plan.items():
        for noise in (1e-4, 1e-3, 1e-2):
            errors, bounds, ratios, inside, refused = [], [], [], [], 0
            for seed in range(args.seed, args.seed + heads):
                head = drawn_head(seed, width)
                oracle = Recorded(Noisy(CallableOracle(head), noise, seed=seed))
                found = us.recover(oracle, max_norm=limit(width), seed=seed, on_failure="return")
                if not found.status.success:
                    refused += 1
                    continue
                probes = oracle.first(found.queries)  # those of the held-out check are not part of the design
                errors.append(rms(found.model.W - head.W) / noise)
                bounds.append(information_bound(head, probes))
                rival = random_pairs(np.random.default_rng(seed), len(probes), width, int(probes.single.sum()))
                ratios.append(information_bound(head, rival) / bounds[-1])
                inside.append(np.mean(np.abs(found.model.W - head.W) <= found.bounds.W))
            print(
                f"| {width} | {noise:g} | {heads} | {rms(errors):.4f} | {rms(errors) / rms(bounds):.3f} | "
                f"{np.median(ratios):.1f} (min {min(ratios):.1f}) | {np.mean(inside):.3f} | {refused} |"
            )


def rounding(args):
    print("\n### 2. Rounding to k decimals, d = 8, |x| <= R\n")
    print("| k | heads | queries / (d² + d) | rms / 10^-k, median (max) | coverage of 95% | refusals |")
    print("|---|---|---|---|---|---|")
    heads = 3 if args.quick else 20
    for k in (2, 5, 8) if args.quick else range(1, 9):
        errors, inside, refused = [], [], 0
        for seed in range(args.seed, args.seed + heads):
            head = drawn_head(seed, 8)
            learner = NoisyHeadLearner(max_norm=limit(8), floor=Floor("rounded", absolute=0.5 * 10.0**-k, step=10.0**-k))
            try:
                found = learner.run(Rounded(CallableOracle(head), decimals=k), rng=np.random.default_rng(seed))
            except RefusalError:
                refused += 1
                continue
            errors.append(rms(found.model.W - head.W) * 10.0**k)
            inside.append(np.mean(np.abs(found.model.W - head.W) <= found.bounds.W))
        print(f"| {k} | {heads} | 6 | {np.median(errors):.4f} ({max(errors):.4f}) | {np.mean(inside):.3f} | {refused} |")
    print(
        "\nAll digits from one decimal (`accuracy=2e-11`):\n\n| seed | queries / (d² + d) | rms error | CPU s |\n|---|---|---|---|"
    )
    for seed in range(args.seed, args.seed + (1 if args.quick else 6)):
        head = drawn_head(seed, 8)
        oracle = Metered(Rounded(CallableOracle(head), decimals=1))
        learner = NoisyHeadLearner(
            max_norm=limit(8), floor=Floor("rounded", absolute=0.05, step=0.1), accuracy=2e-11, queries=60 * 72
        )
        start = time.process_time()
        found = learner.run(oracle, rng=np.random.default_rng(seed))
        print(f"| {seed} | {oracle.spent / 72:.1f} | {rms(found.model.W - head.W):.1e} | {time.process_time() - start:.1f} |")


LIES = ("uniform", "rounding", "hash sign", "constant bias", "neighbouring head", "neighbouring entry", "worst direction")


def liar(head, tolerance, kind, rng, direction=None):
    width = head.width
    entry = np.zeros((width, width))
    entry[rng.integers(width), rng.integers(width)] = rng.choice([-1.0, 1.0])
    near = {
        "neighbouring head": (0.3 * tolerance * rng.normal(size=(width, width)), 0.3 * tolerance * rng.normal(size=width)),
        "neighbouring entry": (0.5 * tolerance * entry, np.zeros(width)),
        "worst direction": (1e-6 * (entry if direction is None else direction), np.zeros(width)),
    }.get(kind)
    other = None if near is None else Attention.single(head.W[0] + near[0], head.V[0] + near[1])

    def answer(X):
        y = head(X)
        if kind == "uniform":
            return y + rng.uniform(-tolerance, tolerance, len(y))
        if kind == "rounding":
            return np.round(y / (2 * tolerance)) * 2 * tolerance
        if kind == "hash sign":
            return y + tolerance * np.array([1 - 2 * (hashlib.md5(x.tobytes()).digest()[0] & 1) for x in X])
        if kind == "constant bias":
            return y + tolerance
        if kind == "worst direction":
            return y + tolerance * np.sign(other(X) - y)
        return y + np.clip(other(X) - y, -tolerance, tolerance)

    return CallableOracle(answer, width=width)


def certified(args):
    print("\n### 3. Certified intervals, |error| <= tau, adversarial, through `recover`\n")
    runs = 140 if args.quick else 1050
    rows = {kind: [] for kind in LIES}
    missed = refused = 0
    for run in range(runs):
        rng = np.random.default_rng(args.seed + run)
        kind = LIES[run % len(LIES)]
        width = int(rng.choice([4, 8, 16], p=[0.4, 0.4, 0.2]))
        head, tolerance = drawn_head(args.seed + run, width), 10.0 ** -int(rng.integers(2, 7))
        # the worst of several directions is found by trying them: the liar sees how far each would lead astray
        directions = [rng.normal(size=(width, width)) for _ in range(4)] if kind == "worst direction" else [None]
        worst = None
        for direction in directions:
            oracle = Metered(liar(head, tolerance, kind, rng, direction))
            found = us.recover(oracle, tolerance=tolerance, max_norm=limit(width), seed=run, on_failure="return")
            if not found.status.success:
                refused += 1
                continue
            W, v = np.abs(found.model.W - head.W), np.abs(found.model.V - head.V)
            missed += bool((W > found.bounds.W).any() or (v > found.bounds.V).any())
            share = float((W / found.bounds.W).max())
            if worst is None or share > worst[0]:
                ratio = np.median(2 * found.bounds.W) / W.max()
                worst = (
                    share,
                    ratio,
                    np.median(found.bounds.W) / found.facts["evidence"]["half_width_floor"],
                    found.queries / (width**2 + width),
                )
        if worst is not None:
            rows[kind].append(worst)
    print("| adversary | runs | largest error / half-width | median width / worst error | half-width / floor | queries |")
    print("|---|---|---|---|---|---|")
    for kind, values in rows.items():
        largest = np.max([share for share, *_ in values])
        ratio, excess, price = np.median(np.array(values)[:, 1:], axis=0)
        print(f"| {kind} | {len(values)} | {largest:.3f} | {ratio:.2f} | {excess:.2f} | {price:.2f} (d² + d) |")
    print(f"\nRuns with the truth outside any interval of W or v: {missed} of {runs}; refused: {refused}.")


def low_rank(args):
    print("\n### 4. Low rank under noise: three times the dimension in queries, rank not told\n")
    print(
        "| d, r | noise | heads | rank right | rms / noise, median | rms / Cramér-Rao of rank r, median (max) "
        "| random pairs / ours, median (min) | coverage | refusals |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for width, rank in ((64, 2),) if args.quick else ((32, 1), (32, 2), (64, 2), (64, 4)):
        dimension = width + rank * (2 * width - rank)
        for noise in (1e-3,) if args.quick else (1e-4, 1e-2):
            errors, ratios, right, inside, refused, bounds = [], [], 0, [], 0, []
            heads = 3 if args.quick else 10
            for seed in range(args.seed, args.seed + heads):
                head = drawn_head(seed, width, rank)
                oracle = Recorded(Noisy(CallableOracle(head), noise, seed=seed))
                try:
                    learner = NoisyHeadLearner(max_norm=limit(width), queries=3 * dimension)
                    found = learner.run(oracle, rng=np.random.default_rng(seed))
                except RefusalError as refusal:
                    print(refusal, file=sys.stderr)
                    refused += 1
                    continue
                right += found.evidence["rank"] == rank
                plan = random_pairs(np.random.default_rng(seed), 3 * dimension, width, width)
                rival_oracle = Noisy(CallableOracle(head), noise, seed=seed + 1)
                singles = ask_tokens(rival_oracle, plan.last[:width])
                pairs = ask_pairs(rival_oracle, plan.keys[width:], plan.plus[width:], plan.minus[width:], plan.last[width:])
                rival = fit(truth(head).of_rank(rank), joined([singles, pairs]))  # started at the truth
                errors.append(rms(found.model.W - head.W) / noise)
                bounds.append(errors[-1] / low_rank_bound(head, joined(oracle.asked), rank))
                ratios.append(rms(rival.W - head.W[0]) / noise / errors[-1])
                inside.append(np.mean(np.abs(found.model.W - head.W) <= found.bounds.W))
            print(
                f"| {width}, {rank} | {noise:g} | {heads} | {right} | {np.median(errors):.4f} | {np.median(bounds):.2f} "
                f"({max(bounds):.2f}) | {np.median(ratios):.1f} ({min(ratios):.1f}) | {np.mean(inside):.3f} | {refused} |"
            )


def precision(args):
    print("\n### 5. Low precision, d = 8\n")
    print("| answers | heads | rms error | entries of W inside the bounds | kind | refusals |")
    print("|---|---|---|---|---|---|")
    half = 2.0**-11 * (1 + 2.0**-10)
    cases = {
        "computed in float32": (lambda h: LowPrecision(h, "float32"), NoisyHeadLearner(max_norm=limit(8), floor=Floor("float32"))),
        "computed in float16": (lambda h: LowPrecision(h, "float16"), NoisyHeadLearner(max_norm=limit(8), floor=Floor("float16"))),
        "computed in float16, no limit": (lambda h: LowPrecision(h, "float16"), NoisyHeadLearner(floor=Floor("float16"))),
        "cast to float16": (lambda h: Cast(CallableOracle(h)), NoisyHeadLearner(max_norm=limit(8), floor=Floor("float16"))),
        "cast to float16, certified": (
            lambda h: Cast(CallableOracle(h)),
            CertifiedHeadLearner(tolerance=2.0**-25, relative=half, max_norm=limit(8)),
        ),
    }
    heads = 5 if args.quick else 30
    for name, (make, learner) in cases.items():
        errors, inside, kinds, refused = [], [], set(), 0
        for seed in range(args.seed, args.seed + heads):
            head = drawn_head(seed, 8)
            try:
                found = learner.run(make(head), rng=np.random.default_rng(seed))
            except RefusalError:
                refused += 1
                continue
            errors.append(rms(found.model.W - head.W))
            inside.append(np.mean(np.abs(found.model.W - head.W) <= found.bounds.W))
            kinds.add(found.bounds.kind)
        print(f"| {name} | {heads} | {rms(errors):.2e} | {np.mean(inside):.3f} | {', '.join(kinds)} | {refused} |")


def budgets(args):
    print("\n### 7. Noise beyond the budget: the number that a refusal names, tried\n")
    print("| d | noise | heads | recovered at once | refused, then recovered with the budget named | named / asked, median (max) |")
    print("|---|---|---|---|---|---|")
    heads = 4 if args.quick else 12
    for width in (4, 8, 16):
        for noise in (0.2, 0.7, 2.5):
            at_once, refused, then, ratios = 0, 0, 0, []
            for seed in range(args.seed, args.seed + heads):
                head = drawn_head(seed, width)
                options = {"max_norm": limit(width), "seed": seed, "on_failure": "return"}
                first = us.recover(Noisy(CallableOracle(head), noise, seed=seed), budget=6 * (width**2 + width) + 320, **options)
                at_once += first.status.success
                if first.status is us.Status.TOO_NOISY:
                    refused += 1
                    named = first.facts["evidence"]["queries"]
                    again = us.recover(Noisy(CallableOracle(head), noise, seed=seed + 1), budget=named, **options)
                    then += again.status.success
                    ratios.append(named / again.facts["queries"]["total"])
            spread = f"{np.median(ratios):.1f} ({max(ratios):.1f})" if ratios else ""
            print(f"| {width} | {noise:g} | {heads} | {at_once} | {then} of {refused} | {spread} |", flush=True)


def strangers(args):
    print("\n### 8. What is not one head, under noise: must be refused\n")
    print("| target | noise | runs | taken for one head | NOT_IN_FAMILY | TOO_NOISY |")
    print("|---|---|---|---|---|---|")
    runs = 2 if args.quick else 8
    for name in ("two heads", "a second head half as strong", "three heads", "tanh behind", "positions"):
        for noise in (0.1, 0.5, 2.0):
            outcomes = []
            for seed in range(args.seed, args.seed + runs):
                width = (4, 8)[seed % 2]
                budget = int(max(6 * (width**2 + width) + 320, 1500 * noise**2 * width / 4))
                oracle = Noisy(CallableOracle(stranger(name, seed, width), width=width), noise, seed=seed)
                found = us.recover(oracle, max_norm=limit(width), budget=budget, seed=seed, on_failure="return")
                outcomes.append(found.status)
            wrong = sum(status.success for status in outcomes)
            counts = [outcomes.count(status) for status in (us.Status.NOT_IN_FAMILY, us.Status.TOO_NOISY)]
            print(f"| {name} | {noise:g} | {runs} | {wrong} | {counts[0]} | {counts[1]} |", flush=True)


def stranger(name, seed, width):
    rng = np.random.default_rng(seed)
    W, v = rng.normal(size=(3, width, width)) / np.sqrt(width), rng.normal(size=(3, width))
    one = Attention.single(W[0], v[0])
    if name == "tanh behind":
        return lambda X: 3 * np.tanh(one(X))
    if name == "positions":
        return lambda X: one(X * np.where(np.arange(X.shape[1]) % 2, 1.0, 0.6)[None, :, None])
    if name == "three heads":
        return Attention(W, v)
    weak = 0.5 * np.linalg.norm(v[0]) / np.linalg.norm(v[1]) if "half" in name else 1.0
    return Attention(W[:2], np.stack([v[0], weak * v[1]]))


def growth(args):
    print("\n### 6. The error falls with the root of the queries (d = 8, noise 1e-3)\n")
    print("| queries / (d² + d) | heads | rms / noise | times the root of the queries |")
    print("|---|---|---|---|")
    heads = 2 if args.quick else 8
    by_queries, by_edges = [], []
    for factor in (3, 10, 30, 100) if args.quick else (5, 10, 20, 50, 100, 200, 500, 1000):
        errors = []
        for seed in range(args.seed, args.seed + heads):
            head = drawn_head(seed, 8)
            learner = NoisyHeadLearner(max_norm=limit(8), queries=factor * 72)
            found = learner.run(Noisy(CallableOracle(head), 1e-3, seed=seed), rng=np.random.default_rng(seed))
            errors.append(rms(found.model.W - head.W) / 1e-3)
        by_queries.append((factor, rms(errors)))
        print(f"| {factor} | {heads} | {rms(errors):.5f} | {rms(errors) * np.sqrt(factor):.4f} |")
    for factor in (3, 4, 6, 9, 12, 18):
        head = drawn_head(args.seed, 8)
        learner = NoisyHeadLearner(max_norm=limit(8), queries=factor * 72, floor=Floor("rounded", absolute=5e-4, step=1e-3))
        found = learner.run(Rounded(CallableOracle(head), decimals=3), rng=np.random.default_rng(args.seed))
        by_edges.append((factor, rms(found.model.W - head.W) / 1e-3))
    by_tolerance = []
    for tolerance in 10.0 ** -np.arange(1, 8):
        head = drawn_head(args.seed, 8)
        learner = CertifiedHeadLearner(tolerance=tolerance, max_norm=limit(8))
        found = learner.run(liar(head, tolerance, "uniform", np.random.default_rng(1)), rng=np.random.default_rng(1))
        by_tolerance.append((tolerance, float(np.median(found.bounds.W)), rms(found.model.W - head.W)))
    by_norm = []
    for norm in 0.4 * 2.0 ** (np.arange(9) / 2):
        errors = []
        for seed in range(args.seed, args.seed + 3):
            head = drawn_head(seed, 8)
            learner = NoisyHeadLearner(max_norm=norm)
            found = learner.run(Noisy(CallableOracle(head), 1e-4, seed=seed), rng=np.random.default_rng(seed))
            errors.append(rms(found.model.W - head.W) / 1e-4)
        by_norm.append((norm, rms(errors)))
    if args.figure:
        first = by_queries[0]
        panels = [
            Panel("queries per parameter", "rms error of W / noise (or step)")
            .points("Gaussian noise", by_queries)
            .line("1/√queries", [(x, first[1] * np.sqrt(first[0] / x)) for x, _ in by_queries])
            .points("rounded, cut at edges", by_edges),
            Panel("tolerance", "half-width of W")
            .points("certified half-width", [(t, h) for t, h, _ in by_tolerance])
            .points("error of the midpoint", [(t, e) for t, _, e in by_tolerance]),
            Panel("longest token", "rms error of W / noise")
            .points("6 queries per parameter", by_norm)
            .line("1/R³", [(x, by_norm[0][1] * (by_norm[0][0] / x) ** 3) for x, _ in by_norm]),
        ]
        Path(args.figure).write_text(
            figure("One head, d = 8: error against queries, tolerance and token length", panels), encoding="utf-8"
        )
        print(f"\nFigure written to {args.figure}.")


def long_tokens(args):
    print("\n### 9. Limits far beyond what suits the scores: heads with biases, widths 1 to 8, through `recover`\n")
    print(
        "| limit | answers | heads | recovered | largest error of W, median | coverage of 95% | queries / (d + 1)², median (max) |"
    )
    print("|---|---|---|---|---|---|---|")
    answers = {
        "2 decimals": lambda head, seed: Rounded(CallableOracle(head), decimals=2),
        "4 decimals": lambda head, seed: Rounded(CallableOracle(head), decimals=4),
        "noise 1e-3": lambda head, seed: Noisy(CallableOracle(head), 1e-3, seed=seed),
        "cast to float16": lambda head, seed: Cast(CallableOracle(head)),
        "cast to bfloat16": lambda head, seed: Cast(CallableOracle(head), "bfloat16"),
        "computed in float16": lambda head, seed: LowPrecision(head, "float16"),
        "computed in float32": lambda head, seed: LowPrecision(head, "float32"),
    }
    widths, heads = (1, 2, 3, 4, 5, 8), 1 if args.quick else 6
    for norm in (1.0, 4.0, 16.0, 64.0):
        for name, make in answers.items():
            errors, inside, prices = [], [], []
            for width in widths:
                for seed in range(args.seed, args.seed + heads):
                    rng = np.random.default_rng(seed)
                    W, v, c = rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=width), rng.normal(size=width)
                    head = Attention.single(W, v, c=c, b=float(rng.normal()))
                    found = us.recover(make(head, seed), max_norm=norm, seed=seed, on_failure="return")
                    if not found.status.success:
                        continue
                    errors.append(float(np.abs(found.model.W - head.W).max()))
                    inside.append(np.mean(np.abs(found.model.W - head.W) <= found.bounds.W))
                    prices.append(found.queries / (width + 1) ** 2)
            print(
                f"| {norm:g} | {name} | {heads * len(widths)} | {len(errors)} | {np.median(errors):.1e} | {np.mean(inside):.3f} | "
                f"{np.median(prices):.1f} ({max(prices):.1f}) |",
                flush=True,
            )


def low_rank_recovered(args):
    print("\n### 10. Low rank under noise through `us.recover`: a budget of three times the dimension, check included\n")
    print("| d, r | noise | heads | rank right | rms / Cramér-Rao of rank r: median (max) | coverage | refusals |")
    print("|---|---|---|---|---|---|---|")
    width, rank = 64, 2
    for noise in (1e-3, 1e-2):
        bounds, inside, right, refused, heads = [], [], 0, 0, 3 if args.quick else 10
        for seed in range(args.seed, args.seed + heads):
            head = drawn_head(seed, width, rank)
            oracle = Recorded(Noisy(CallableOracle(head), noise, seed=seed))
            budget = 3 * (width + rank * (2 * width - rank))
            found = us.recover(oracle, max_norm=limit(width), budget=budget, seed=seed, on_failure="return")
            if not found.status.success:
                print(found.status.name, found.message, file=sys.stderr)
                refused += 1
                continue
            right += found.facts["rank"] == rank
            asked = joined(oracle.asked)[: found.queries]  # the check learns nothing
            bounds.append(rms(found.model.W - head.W) / noise / low_rank_bound(head, asked, rank))
            inside.append(np.mean(np.abs(found.model.W - head.W) <= found.bounds.W))
        told = f"{np.median(bounds):.2f} ({max(bounds):.2f}) | {np.mean(inside):.3f}" if bounds else "- | -"
        print(f"| {width}, {rank} | {noise:g} | {heads} | {right} | {told} | {refused} |", flush=True)


BARS = {
    "0": low_rank_recovered,
    "1": gaussian,
    "2": rounding,
    "3": certified,
    "4": low_rank,
    "5": precision,
    "6": growth,
    "7": budgets,
    "8": strangers,
    "9": long_tokens,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few heads, a minute or two")
    parser.add_argument("--bars", default="1234567890", help="which tables, e.g. 13")
    parser.add_argument("--seed", type=int, default=50_000)
    parser.add_argument("--figure", help="write the figure of table 6 here")
    args = parser.parse_args()
    for bar in args.bars:
        start = time.process_time()
        BARS[bar](args)
        print(f"\n({time.process_time() - start:.0f} s CPU, seeds from {args.seed})")


if __name__ == "__main__":
    main()
