"""Several heads behind scalar answers: sizes, special heads, heads almost alike, and certified-and-wrong runs.

Run ``python benchmarks/scalar_heads.py`` (about half an hour) or with ``--quick`` (about two minutes); prints Markdown tables and
counts failures. Everything goes through ``us.recover``: the number of heads is found, calibration and sentinels are counted.
Targets use seeds ``[20_000 + part, run]`` (``--seed`` in place of 20,000), runs the seed ``run``; fresh sequences come from the
operating system. ``--minutes`` limits the certified part.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np

import unsoftmax as us
from unsoftmax.models import Attention
from unsoftmax.proof.certificate import certificate
from unsoftmax.results import Recovery
from unsoftmax.symmetry import canonical, distance

CASES = ["generic", "equal W", "V = 0", "parallel V", "W2 = 1.7 W1", "W2 = -W1", "W = 0", "V2 = -V1"]


def layer(
    rng: np.random.Generator,
    width: int,
    heads: int,
    case: str = "generic",
    *,
    c: bool = False,
    b: bool = False,
    outputs: int | None = None,
) -> Attention:
    """Gaussian heads, the second made special as ``case`` says.

    ``gap X`` moves W2 by X of W1's norm from W1, ``strength X`` makes W2 X times as large.
    """
    answer = () if outputs is None else (outputs,)
    W, V = rng.normal(size=(heads, width, width)) / np.sqrt(width), rng.normal(size=(heads, width, *answer))
    bias = rng.normal(size=(heads, width))
    if case == "equal W":
        W[1], bias[1] = W[0], bias[0]
    elif case == "V = 0":
        V[1] = 0.0
    elif case == "parallel V":
        V[1] = 0.7 * V[0]
    elif case == "V2 = -V1":
        V[1] = -V[0]
    elif case == "W2 = 1.7 W1":
        W[1], bias[1] = 1.7 * W[0], 1.7 * bias[0]
    elif case == "W2 = -W1":
        W[1], bias[1] = -W[0], -bias[0]
    elif case == "W = 0":
        W[1], bias[1] = 0.0, 0.0
    elif case.startswith("strength"):
        W[1] *= float(case.split()[1])
    elif case.startswith("gap"):
        away = rng.normal(size=(width, width))
        W[1] = W[0] + float(case.split()[1]) * np.linalg.norm(W[0]) / np.linalg.norm(away) * away
        bias[1] = bias[0]
    return Attention(W, V, bias if c else None, rng.normal(size=answer) if b else None)


def run(model: Attention, seed: int) -> tuple[Recovery, float]:
    """Recover through the public API; the result and the CPU seconds."""
    start = time.process_time()
    recovery = us.recover(model, seed=seed, on_failure="return")
    return recovery, time.process_time() - start


def sizes(quick: bool, seed: int) -> int:
    """Bar 1: generic heads of several sizes."""
    print("| width, heads | within 1e-10 | distance median / max | queries median / max | × parameters | 4Hd²-2H+1 | s |")
    print("|---|---|---|---|---|---|---|")
    failures = 0
    for part, (width, heads, runs) in enumerate([(8, 2, 20), (8, 4, 20), (8, 6, 20), (16, 2, 20), (16, 4, 20), (16, 8, 5)]):
        runs = max(2, runs // 5) if quick else runs
        results = []
        for i in range(runs):
            model = layer(np.random.default_rng([seed + part, i]), width, heads)
            found, seconds = run(model, i)
            results.append((distance(found.model, model) if found.status is us.Status.EXACT else np.inf, found.queries, seconds))
        errors, asked, seconds_ = (np.array(column) for column in zip(*results, strict=True))
        good = int(np.sum(errors < (1e-12 if (width, heads) == (8, 6) else 1e-10)))
        failures += runs - good
        median = np.median(asked)
        told = f"{np.median(errors):.0e} / {errors.max():.0e} | {median:.0f} / {asked.max():.0f}"
        published, parameters = 4 * heads * width**2 - 2 * heads + 1, heads * (width**2 + width)
        print(
            f"| {width}, {heads} | {good}/{runs} | {told} | {median / parameters:.2f} | {published} | {seconds_.mean():.2f} |",
            flush=True,
        )
    return failures


def special(quick: bool, seed: int, outputs: int | None = None, chosen: slice = slice(None)) -> int:
    """Bar 6: special heads, more heads than the width, heads almost alike."""
    print(f"\n{'scalar answers' if outputs is None else f'answers of {outputs} numbers'}")
    print("\n| case | width, heads | right | refused | wrong | largest distance | queries median | refusals |")
    print("|---|---|---|---|---|---|---|---|")
    rows = [(case, 6, 3, c) for case in CASES for c in (False, True)]
    rows += [
        ("generic", width, heads, c) for width, heads in ((4, 5), (3, 4), (3, 5), (2, 3), (2, 4), (2, 5)) for c in (False, True)
    ]
    rows += [(f"gap {gap}", 6, 3, c) for gap in ("1e-2", "1e-3", "1e-4", "1e-5", "1e-7", "1e-9") for c in (False, True)]
    rows += [("V2 = -V1", 6, 2, c) for c in (False, True)]  # the sum of all values is zero
    rows += [(f"strength {factor}", 6, 3, c) for factor in ("1e-5", "1e-3", "1e3", "1e5") for c in (False, True)]
    failures = 0
    for part, (case, width, heads, c) in list(enumerate(rows, start=100 if outputs is None else 200))[chosen]:
        runs = 4 if quick else 20
        right, wrong, asked, largest = 0, 0, [], 0.0
        refusals: Counter[str] = Counter()
        for i in range(runs):
            model = layer(np.random.default_rng([seed + part, i]), width, heads, case, c=c, b=c, outputs=outputs)
            found, _ = run(model, i)
            asked.append(found.queries)
            if not found.status.success:
                refusals[found.status.name] += 1
                continue
            gap = distance(found.model, model)
            largest = max(largest, gap)
            right += gap < 1e-7
            wrong += gap >= 1e-7
        failures += wrong + (0 if case.startswith(("gap", "strength")) else runs - right - wrong)
        counts = f"{right}/{runs} | {runs - right - wrong} | {wrong}"
        told = ", ".join(f"{name} {count}" for name, count in sorted(refusals.items()))
        print(
            f"| {case}{' (c, b)' if c else ''} | {width}, {heads} | {counts} | {largest:.0e} | {np.median(asked):.0f} | {told} |",
            flush=True,
        )
    return failures


def certified(minutes: float, runs: int, first: int = 0) -> int:
    """Bar 7: small mixed runs; a success with the wrong number of heads or wrong parameters is a failure."""
    counts: Counter[str] = Counter()
    worst, beyond = 0.0, 0
    deadline = time.perf_counter() + 60.0 * minutes
    done = 0
    for i in range(first, first + runs):
        if time.perf_counter() > deadline:
            break
        done += 1
        rng = np.random.default_rng([21_000, i])
        width, heads = int(rng.integers(4, 7)), int(rng.integers(1, 6))
        case = "generic" if heads == 1 else str(rng.choice([*CASES, "gap 1e-2", "gap 1e-3", "gap 1e-5", "gap 1e-7"]))
        c, b = (bool(flag) for flag in rng.integers(0, 2, size=2))
        model = layer(rng, width, heads, case, c=c, b=b)
        try:
            recovery, _ = run(model, i)
        except Exception as error:  # neither a success nor a refusal: a failure of this project, counted as such
            counts["crashed"] += 1
            print(f"CRASHED: run {i}, {case}, width {width}, {heads} heads, c={c}, b={b}: {error}", flush=True)
            continue
        if not recovery.status.success:
            counts[f"refused ({'almost alike' if case.startswith('gap') else 'not almost alike'}: {recovery.status.name})"] += 1
            continue
        found = recovery.model
        gap = distance(found, model)
        right = found.heads == canonical(model).heads and gap < 1e-6
        counts["certified and right" if right else "certified and WRONG"] += 1
        worst = max(worst, gap if np.isfinite(gap) else 0.0)
        beyond += gap > 10.0 * (certificate(found, held_out=recovery.check.relative_error).estimated_error or 1.0)
        if not right:
            print(f"WRONG: run {i}, {case}, width {width}, {heads} heads, c={c}, b={b}, distance {gap:.1e}, found {found.heads}")
    print(f"\n{done} small runs from number {first} (width 4-6, 1-5 heads, mixed cases, biases and constants in half of them):\n")
    for name, count in sorted(counts.items()):
        print(f"- {name}: {count}")
    print(f"- largest distance of a certified run: {worst:.1e}; more than 10 times the estimate: {beyond}", flush=True)
    return counts["certified and WRONG"] + counts["crashed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", choices=["sizes", "special", "vector", "certified"], help="only this part")
    parser.add_argument("--minutes", type=float, default=None, help="minutes for the certified part (default 8, quick 0.5)")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first small run, to split the certified part")
    parser.add_argument("--seed", type=int, default=20_000, help="first seed of the targets of the parts sizes, special and vector")
    parser.add_argument("--rows", type=int, nargs=2, metavar=("FIRST", "END"), help="only these rows of special and vector")
    options = parser.parse_args()
    chosen = slice(*options.rows) if options.rows else slice(None)
    minutes = options.minutes if options.minutes is not None else (0.5 if options.quick else 8.0)
    failures = 0
    if options.part in (None, "sizes"):
        failures += sizes(options.quick, options.seed)
    if options.part in (None, "special"):
        failures += special(options.quick, options.seed, chosen=chosen)
    if options.part in (None, "vector"):
        failures += special(options.quick, options.seed, outputs=6, chosen=chosen)
    if options.part in (None, "certified"):
        failures += certified(minutes, options.runs, options.first)
    print(f"\nfailures: {failures}")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
