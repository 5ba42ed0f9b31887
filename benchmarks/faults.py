"""Faults in bulk: chaos, kills, drift. Counts of what happened, and a failure for every dishonest end.

    python benchmarks/faults.py [--quick] [--first SEED]

Chaos: whole runs over HTTP through a seeded proxy that resets, truncates, stalls, lies and refuses; resumed from the journal until
they end. Kills: `kill -9` at random moments of a run on the command line, then resumed; the parameters must come out bit-identical.
Drift: weights swapped after a random number of questions, two replicas in turn, an honest float32 target with batch-dependent bits.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "faults"))
import test_chaos as chaos
import test_kill as kill

import unsoftmax as us
from servers import scripted

WIDTH = 16


def chaos_run(seed: int) -> str:
    """One run through the proxy; the exit, or what was wrong with it."""
    model = chaos.head(seed)
    with chaos.behind_chaos(model, seed) as (proxy, server, url), tempfile.TemporaryDirectory() as folder:
        for _ in range(chaos.TRIES):
            recovery = chaos.attempt(url, Path(folder) / "journal.sqlite", seed)
            if recovery.status is not us.Status.TARGET_FAILED:
                break
    if recovery.status is us.Status.TARGET_FAILED:
        return "TARGET_FAILED, resumable"
    if recovery.status is not us.Status.EXACT or us.distance(recovery.model, model) > 1e-9:
        return f"FAILURE: {recovery.status.name}"
    used = recovery.facts["queries"]["total"]
    if proxy.history.answered != used or server.asked != used + proxy.history.lost:
        return "FAILURE: an answer was lost or asked for again"
    return "EXACT, every answer used once"


def kill_run(seed: int, expected: bytes) -> str:
    """One run that is killed once or twice and resumed."""
    rng = np.random.default_rng(seed)
    server = kill.Holding(kill.head(), kill.WIDTH)
    with scripted(server) as root, tempfile.TemporaryDirectory() as folder:
        for after in rng.integers(0, 150, size=rng.integers(1, 3)):
            kill.interrupt(root, Path(folder), signal.SIGKILL, int(after), server)
        done = kill.finish(root, Path(folder))
        if done.returncode != 0:
            return f"FAILURE: exit {done.returncode}"
        return "same bits" if kill.parameters(Path(folder)) == expected else "FAILURE: other parameters"


def head(seed: int) -> us.Attention:
    rng = np.random.default_rng(seed)
    return us.Attention.single(W=rng.normal(size=(WIDTH, WIDTH)) / 4, v=rng.normal(size=WIDTH))


def drift_run(seed: int, kind: str) -> str:
    """One run against a target that changes, or against an honest one in float32."""
    before, behind, state = head(2 * seed), head(2 * seed + 1), {"asked": 0, "calls": 0}
    after = int(np.random.default_rng(seed).integers(2, WIDTH * WIDTH + WIDTH))

    def swapped(X: Any) -> Any:
        old = min(max(0, after - state["asked"]), len(X))
        state["asked"] += len(X)
        return np.concatenate([before(X[:old]) if old else np.zeros(0), behind(X[old:]) if old < len(X) else np.zeros(0)])

    def robin(X: Any) -> Any:
        state["calls"] += 1
        return (before, behind)[state["calls"] % 2](X)

    def single(X: Any) -> Any:
        x = X.astype(np.float32)
        scores = np.einsum("bij,bj->bi", x, x[:, -1] @ before.W[0].T.astype(np.float32))
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return ((weights[:, None] @ x)[:, 0] @ before.V[0].astype(np.float32)).astype(np.float64)

    target = {"swapped": swapped, "replicas": robin, "float32": single}[kind]
    with np.errstate(all="ignore"):
        status = us.recover(target, width=WIDTH, seed=seed, on_failure="return").status
    honest = kind == "float32"
    dishonest = status.success != honest or (honest and status is us.Status.DRIFTING)
    return f"FAILURE: {status.name}" if dishonest else status.name


def tell(what: str, seeds: range, run: Callable[[int], str]) -> int:
    """Run all seeds and print one row; return the number of failures."""
    ends = Counter(run(seed) for seed in seeds)
    listed = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    failures = sum(count for end, count in ends.items() if end.startswith("FAILURE"))
    print(f"| {what} | {seeds.start}–{seeds.stop - 1} | {listed} | {failures} |", flush=True)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--first", type=int, default=1000)
    options = parser.parse_args()
    part = 10 if options.quick else 1

    def seeds(count: int) -> range:
        return range(options.first, options.first + count // part)

    print("| what | seeds | ends | failures |\n|---|---|---|---|")
    failures = 0
    for kind in ("swapped", "replicas", "float32"):
        failures += tell(kind, seeds(50), lambda seed, kind=kind: drift_run(seed, kind))
    failures += tell("chaos proxy", seeds(200), chaos_run)
    with scripted(kill.OpenInference(kill.head(), kill.WIDTH)) as root, tempfile.TemporaryDirectory() as folder:
        assert kill.finish(root, Path(folder)).returncode == 0
        expected = kill.parameters(Path(folder))
    failures += tell("kill -9", seeds(100), lambda seed: kill_run(seed, expected))
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
