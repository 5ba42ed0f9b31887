"""A wide hunt for wrong verdicts on many cores: thousands of random targets of each kind, what was said of them and what was true.

    PYTHONPATH=src python benchmarks/hunt.py heads outside coverage --seconds 200 --jobs 16 --first-seed 1000 --out hunt.json
    HUNT_EFFECTS="-10 -3" PYTHONPATH=src python benchmarks/hunt.py outside strangers unseen --jobs 1     faint foreign bodies

Each kind draws target number i from seed i, so a row can be run again by itself: ``--first-seed 1234 --runs 1``. A success is false
where its error on natural sequences exceeds three times the stated tolerance, or W lies off by more than ten of its bars.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hostile as fifth
import numpy as np
import truth
import unseen as third

import unsoftmax as us

Row = dict[str, Any]
EFFECTS = [float(power) for power in os.environ.get("HUNT_EFFECTS", "-9 0").split()]  # powers of ten of a foreign body's strength


def heads(seed: int) -> Row:
    """Random heads of every kind: c and b up to a thousand, several heads, several outputs, every position."""
    rng = np.random.default_rng([9, seed])
    width, count, outputs = int(rng.integers(2, 20)), int(rng.choice([1, 1, 1, 2, 3])), int(rng.choice([0, 0, 2, 3, 5]))
    every, causal = rng.random() < 0.25 and outputs > 0, bool(rng.random() < 0.5)
    head = us.Attention(
        rng.normal(size=(count, width, width)) * 10 ** rng.uniform(-2, 2) / np.sqrt(width),
        rng.normal(size=(count, width, outputs) if outputs else (count, width)),
        rng.normal(size=(count, width)) * 10 ** rng.uniform(-2, 3) if rng.random() < 0.4 else None,
        rng.normal(size=(outputs,) if outputs else ()) * 10 ** rng.uniform(-1, 3) if rng.random() < 0.3 else None,
    )
    target = (lambda X: head(X, "all", causal=causal)) if every else head
    found = us.recover(target, width=width, seed=seed, on_failure="return")
    row: Row = {
        "what": f"H{count} m{outputs}{' every position' if every else ''}",
        **told(found),
        **diagnosed(found, target, width),
    }
    if found.status.success:
        X = rng.normal(size=(300, 12, width))
        answers = head(X)
        row["natural"] = float((np.abs(found.model(X) - answers).max(axis=0) / answers.std(axis=0)).max())
        row["distance"] = float(us.distance(found.model, head))
        row["false"] = row["natural"] > 3 * found.facts["tolerance"]
    return row


def outside(seed: int) -> Row:
    """A head with a foreign body, effects from 1e-9 to 1."""
    return ladder(seed, 5, truth.KINDS, truth.outside)


def strangers(seed: int) -> Row:
    """The same with foreign bodies of other kinds."""
    return ladder(seed, 10, truth.STRANGERS, truth.stranger)


def unseen(seed: int) -> Row:
    """The same with foreign bodies that nothing was tuned on."""
    return ladder(seed, 12, tuple(third.BODIES), third.unseen)


def hostile(seed: int) -> Row:
    """The same with foreign bodies of one who wants it to fail: memories, rare tokens, single lengths."""
    return ladder(seed, 13, tuple(fifth.BODIES), fifth.hostile)


def ordinary(seed: int) -> Row:
    """Heads as users have them: limits of batches and lengths, tensors, scales, special matrices. They should succeed."""
    rng = np.random.default_rng([14, seed])
    name = list(fifth.ORDINARY)[seed % len(fifth.ORDINARY)]
    width, model, target = fifth.ordinary(name, rng)
    found = us.recover(target, width=width, seed=seed, on_failure="return")
    reason = truth.false_success(found, model, model, rng)
    row: Row = {"what": name, "false": reason is not None, "why": reason, **told(found), **diagnosed(found, target, width)}
    return row | (shares(found, model) if found.status.success and found.bounds is not None else {})


def ladder(seed: int, table: int, kinds: tuple[str, ...], draw: Callable[..., truth.Drawn]) -> Row:
    rng = np.random.default_rng([table, seed])
    kind, effect = kinds[seed % len(kinds)], float(10.0 ** rng.uniform(*EFFECTS))
    width, model, target = draw(kind, effect, rng)
    found = us.recover(target, width=width, seed=seed, on_failure="return", budget=20_000)
    reason = truth.false_success(found, model, target, rng)
    row = {"what": kind, "effect": effect, "false": reason is not None, "why": reason, **told(found)}
    return row | diagnosed(found, target, width)


def diagnosed(found: us.Recovery, target: Any, width: int, max_norm: float | None = None) -> Row:
    """What the other command says: what is recovered is no stranger, and what is of no family is not inside."""
    diagnosis = us.diagnose(target, width=width, max_norm=max_norm)
    stranger = not diagnosis.inside and "inconclusive" not in diagnosis.family
    contradicts = stranger if found.status.success else diagnosis.inside and found.status is us.Status.NOT_IN_FAMILY
    return {"diagnosis": diagnosis.family, "contradicts": contradicts}


def coverage(seed: int) -> Row:
    """Shares of parameters within their bars."""
    return within_bars(seed, 6, truth.CLASSES, truth.covered)


def half(seed: int) -> Row:
    """The same in half precision, cast and computed."""
    return within_bars(seed, 11, truth.HALF_CLASSES, truth.short)


def products(seed: int) -> Row:
    """The same where values are products and constants sums, as modules compute them."""
    return within_bars(seed, 15, truth.PRODUCTS, truth.product)


def within_bars(seed: int, table: int, classes: tuple[str, ...], draw: Callable[..., Any]) -> Row:
    rng = np.random.default_rng([table, seed])
    name = classes[seed % len(classes)]
    width, layer, target, limits = draw(name, rng)
    found = us.recover(target, width=width, seed=seed, on_failure="return", **limits)  # type: ignore[arg-type]
    row: Row = {"what": name, **told(found), **diagnosed(found, target, width, limits.get("max_norm"))}
    if found.status.success and found.bounds is not None:
        row |= shares(found, layer)
        reason = truth.false_success(found, layer, target, rng)
        row |= {"false": reason is not None, "why": reason}
    return row


def shares(found: us.Recovery, layer: us.Attention) -> Row:
    """Share of each block's numbers within their bars."""
    row: Row = {}
    for block in "WVcb":
        bars, true = getattr(found.bounds, block, None), getattr(layer, block)
        if bars is not None and np.any(true):
            row[block] = float(np.mean(np.abs(getattr(found.model, block) - true) <= np.asarray(bars)))
    return row


def honest(seed: int) -> Row:
    """Targets as PyTorch users have them, jitter, small budgets under noise: they should succeed."""
    rng = np.random.default_rng([4, seed])
    names = list(truth.HONEST)
    name = names[seed % len(names)]
    width, model, target = truth.HONEST[name](rng)
    limits: dict[str, Any] = {"budget": 6 * (width**2 + width) + 64, "max_norm": 4.0} if "noise" in name else {}
    found = us.recover(target, width=width, seed=seed, on_failure="return", **limits)
    reason = truth.false_success(found, model, target, rng) if "noise" not in name and found.model is not None else None
    row: Row = {"what": name, "false": reason is not None, "why": reason, **told(found)}
    row |= diagnosed(found, target, width, limits.get("max_norm"))
    return row | (shares(found, model) if found.status.success and model is not None else {})


def labels(seed: int) -> Row:
    """One head behind a threshold."""
    rng = np.random.default_rng([7, seed])
    width = int(rng.choice([4, 6, 8, 12, 16, 24]))
    rank = min(int(rng.choice([1, 2, 3, width, width])), width)
    W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width)) / np.sqrt(width * rank) * rng.choice([0.5, 1, 2])
    c = rng.normal(size=width) * rng.choice([0, 0.3, 1.0])
    head, limit = us.Attention.single(W, rng.normal(size=width), c=c if c.any() else None), rng.choice([0.0, 0.5, -0.3])
    found = us.recover(lambda X: head(X) > limit, width=width, seed=seed, on_failure="return")
    row: Row = {"what": f"d{width} r{rank}", **told(found)}
    if found.status.success:
        row["distance"] = float(np.linalg.norm(found.model.W[0] - W) / np.linalg.norm(W))
        row["false"] = row["distance"] > 1e-6
        row["price"] = found.queries / (rank * (2 * width - rank) + width + (width if c.any() else 0))
        if found.bounds is not None and found.bounds.W is not None:
            row["W"] = float(np.mean(np.abs(found.model.W - W) <= found.bounds.W))
    return row


def strange_labels(seed: int) -> Row:
    """Labels of what is not one head: none may be recovered."""
    rng = np.random.default_rng([8, seed])
    width, kind = int(rng.choice([4, 6, 8])), str(rng.choice(["two heads", "network", "positions", "cap"]))
    two = us.Attention(rng.normal(size=(2, width, width)) / np.sqrt(width) * 1.5, rng.normal(size=(2, width)))
    one = us.Attention.single(two.W[0], two.V[0])
    table, A = rng.normal(size=(300, width)) * rng.choice([0.01, 0.1, 1]), rng.normal(size=(width, 8))

    def answer(X: np.ndarray) -> np.ndarray:
        if kind == "two heads":
            return two(X)
        if kind == "network":
            return np.maximum(X.mean(axis=1) @ A, 0) @ np.arange(-4, 4.0)
        if kind == "positions":
            return one(X + table[: X.shape[1]])
        scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ one.W[0].T)
        return np.einsum("bn,bnd->bd", truth.softmax(3 * np.tanh(scores / 3)), X) @ one.V[0]

    found = us.recover(lambda X: answer(X) > 0.1, width=width, seed=seed, on_failure="return", budget=60_000)
    return {"what": kind, "false": found.status.success, **told(found)}


KINDS: dict[str, Callable[[int], Row]] = {
    f.__name__: f
    for f in (heads, outside, strangers, unseen, hostile, ordinary, coverage, half, products, honest, labels, strange_labels)
}


def told(found: us.Recovery) -> Row:
    message = "" if found.status.success else found.message[:200]
    return {"status": found.status.name, "queries": found.queries, "tolerance": found.facts.get("tolerance"), "message": message}


def run(name: str, seed: int) -> Row:
    started = time.perf_counter()
    try:
        row = KINDS[name](seed)
    except Exception:
        row = {"what": "", "status": "CRASH", "message": traceback.format_exc()[-1500:]}
    return {"kind": name, "seed": seed, "seconds": round(time.perf_counter() - started, 3), **row}


def drawn(each: tuple[str, int]) -> Row:
    return run(*each)


def summary(rows: list[Row]) -> None:
    for kind in sorted({row["kind"] for row in rows}):
        mine = [row for row in rows if row["kind"] == kind]
        wrong = [row for row in mine if row.get("false")]
        against = [row for row in mine if row.get("contradicts")]
        recovered = sum(row["status"] in ("EXACT", "WITHIN_TOLERANCE") for row in against)
        print(f"{kind}: {len(mine)} runs, {len(wrong)} false, {dict(Counter(row['status'] for row in mine))}")
        successes = sum(row["status"] in ("EXACT", "WITHIN_TOLERANCE") for row in mine)
        print(
            f"  {successes} recovered; contradictions: {recovered} recovered and called strangers, "
            f"{len(against) - recovered} refused and called inside"
        )
        for what in sorted({row["what"] for row in mine}):
            some = [row for row in mine if row["what"] == what]
            shares = {block: [row[block] for row in some if block in row] for block in "WVcb"}
            bars = ", ".join(f"{block} {np.mean(s):.3f}" for block, s in shares.items() if s)
            print(f"  {what:32s} {dict(Counter(row['status'] for row in some))} {bars}")
        for row in wrong:
            print("  FALSE", row)
        for row in against:
            print("  CONTRADICTS", row)
        for row in [row for row in mine if row["status"] == "CRASH"]:
            print("  CRASH", row["seed"], row["message"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=list(KINDS))
    parser.add_argument("--runs", type=int, default=4000, help="targets of each kind at most")
    parser.add_argument("--seconds", type=float, default=120.0, help="what is still at work then is stopped, and named")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", help="a JSON file of all rows")
    options = parser.parse_args()
    end, rows = time.monotonic() + options.seconds, []
    seeds = range(options.first_seed, options.first_seed + options.runs)
    wanted = [(kind, seed) for seed in seeds for kind in options.kinds]
    with multiprocessing.Pool(options.jobs) as pool:  # whose end stops what is still at work
        coming = pool.imap_unordered(drawn, wanted)
        with suppress(StopIteration, multiprocessing.TimeoutError):
            while True:
                rows.append(coming.next(max(0.0, end - time.monotonic())))
    ended = {(row["kind"], row["seed"]) for row in rows}
    if options.out:
        with open(options.out, "w") as file:
            json.dump(rows, file)
    summary(rows)
    seconds = sum(row["seconds"] for row in rows)
    print(f"{len(rows)} runs, {sum(bool(row.get('false')) for row in rows)} false; {seconds:.0f} core seconds, {options.jobs} jobs")
    print("at work when the time was up:", [each for each in wanted[: len(rows) + options.jobs] if each not in ended])
