"""Faults in bulk: counts of what happened, and a failure for every dishonest end.

    python benchmarks/faults.py [--part drift network kills pauses mixed journals calls] [--share 0.1] [--first SEED]

drift     weights swapped after a random number of questions, two replicas in turn, an honest float32 target whose last bits vary
network   runs through a proxy that resets, truncates, stalls, lies, refuses, asks twice and lets replies overtake each other, until
          1,000 questions met a fault
kills     `kill -9` at random moments, until 500 hit a run; the run is resumed
pauses    all at once: faults, kills, and SIGSTOP for a while
mixed     one reply of somebody else's, at a random place
journals  1,000 damaged journals, opened, repaired where that is refused, and played
calls     a kill, a full disk (ENOSPC) and a failing one (EIO) at every system call that makes a journal or writes to it (by strace)

In network, kills and pauses every sequence has an identity, and the whole history is checked: the parameters come out bit-identical
to those of a calm run; every answer that they need was delivered, and none was asked for again after that (but those in flight at a
kill, and the few that confirm replayed ones); nothing else was asked. Each process must end within two minutes and 512 MB, without
a traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "faults"))
import test_journal_damage as damage

import unsoftmax as us
from chaos_proxy import FAULTS, ChaosProxy, History
from servers import MODEL, OpenInference, scripted
from system_calls import disturbed, faulty_calls
from unsoftmax.errors import JournalError
from unsoftmax.oracles.http import HttpOracle
from unsoftmax.oracles.journal_repair import repair
from unsoftmax.oracles.retry import Patience

HASTE = Patience(attempts=5, total=60.0, first_pause=0.005, longest_pause=0.01, longest_wait=1.0)
SECONDS, MEGABYTES = 120, 512
TRIES = 40
IN_FLIGHT, NUMBERS = 2, 160  # requests under way, and numbers in each
DISORDER = {**FAULTS, "duplicated": 3, "overtaken": 3}


def head(seed: int, width: int = 4) -> us.Attention:
    rng = np.random.default_rng(seed)
    return us.Attention.single(W=rng.normal(size=(width, width)) / 2, v=rng.normal(size=width))


def one_by_one(model: us.Attention) -> Callable[[Any], Any]:
    """Answers that do not depend on the batch, so that two histories can be compared bit by bit."""
    return lambda X: np.concatenate([model(x[None]) for x in X])


# --- processes ----------------------------------------------------------------------------------------------------------------


@contextmanager
def served(seed: int, rate: float, wrong: int | None = None) -> Iterator[tuple[str, Callable[[], History]]]:
    """A server behind a proxy in a process of its own; yields its address, and what tells (and ends) its history.

    ``wrong``: the number of the request that gets another model's answers.
    """
    told, tell = os.pipe()
    ended, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(end)
            server = OpenInference(one_by_one(head(seed)), 4, advertise=False, binary=bool(seed % 2))
            if wrong is not None:
                right, other = server.model, one_by_one(head(seed + 1))
                server.fault = lambda post: setattr(server, "model", other if post == wrong else right)
            with scripted(server) as root:
                proxy = ChaosProxy(int(root.rsplit(":", 1)[1]), seed, rate=rate, faults=DISORDER)
                with proxy.running() as address:
                    os.write(tell, f"{address}/v2/models/{MODEL}\n".encode())
                    os.read(ended, 1)
            with os.fdopen(tell, "wb") as out:
                pickle.dump(proxy.history, out)
        finally:
            os._exit(0)
    os.close(tell)
    os.close(ended)
    with os.fdopen(told, "rb") as lines:
        url = lines.readline().decode().strip()

        def history() -> History:
            os.write(end, b"x")
            return pickle.load(lines)

        try:
            yield url, history
        finally:
            os.close(end)
            os.waitpid(child, 0)


@dataclass
class Client:
    """Attempts to recover one target, each in a process of its own."""

    url: str
    folder: Path
    seed: int
    kills: int = 0
    pauses: int = 0
    confirmed: int = 0
    told: dict[str, Any] = field(default_factory=dict)

    def attempt(self, kill_after: float | None = None, pause_after: float | None = None) -> str | None:
        """One process: None when it ended by itself and told so; else what was wrong with it. A kill is no wrong."""
        note = self.folder / "told.json"
        note.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._recover(note)
        began, killed = time.monotonic(), False
        while True:
            pid, status, usage = os.wait4(child, os.WNOHANG)
            if pid:
                break
            passed = time.monotonic() - began
            if pause_after is not None and passed > pause_after:
                os.kill(child, signal.SIGSTOP)
                time.sleep(0.3)
                os.kill(child, signal.SIGCONT)
                self.pauses, pause_after = self.pauses + 1, None
            if kill_after is not None and passed > kill_after and not killed:
                os.kill(child, signal.SIGKILL)
                self.kills, killed = self.kills + 1, True
            if passed > SECONDS:
                os.kill(child, signal.SIGKILL)
                os.wait4(child, 0)
                return "FAILURE: not bounded in time"
            time.sleep(0.01)
        if usage.ru_maxrss > MEGABYTES * 1024:
            return f"FAILURE: {usage.ru_maxrss / 1024:.0f} MB"
        if os.waitstatus_to_exitcode(status) == -signal.SIGKILL and killed:
            return None
        if not note.exists():
            return f"FAILURE: ended with {os.waitstatus_to_exitcode(status)}"
        self.told = json.loads(note.read_text())
        self.confirmed += self.told.get("confirmed", 0)
        return f"FAILURE: {self.told['traceback']}" if "traceback" in self.told else None

    def _recover(self, note: Path) -> None:
        try:
            with HttpOracle(self.url, patience=HASTE, timeout=30.0, request_numbers=NUMBERS, in_flight=IN_FLIGHT) as oracle:
                journal = self.folder / "journal.sqlite"
                found = us.recover(oracle, journal=journal, seed=self.seed, entropy=self.seed, on_failure="return")
            bits = b"" if found.model is None else b"".join(block.tobytes() for _, block in sorted(found.model.blocks.items()))
            told = {
                "status": found.status.name,
                "bits": bits.hex(),
                "confirmed": found.facts["journal"]["confirmed"],
                "message": found.message[:100],
                "error": us.distance(found.model, head(self.seed)) if found.status.success else None,
            }
        except BaseException:
            told = {"traceback": traceback.format_exc()[-600:]}
        half = note.with_suffix(".half")
        half.write_text(json.dumps(told))
        half.rename(note)
        os._exit(0)

    @property
    def ended(self) -> bool:
        return self.told.get("status", "TARGET_FAILED") != "TARGET_FAILED"


def calm(seed: int) -> tuple[Counter[str], str, float]:
    """The questions, the parameters and the seconds of a run that nothing disturbs."""
    with served(seed, 0.0) as (url, history), tempfile.TemporaryDirectory() as folder:
        client, began = Client(url, Path(folder), seed), time.monotonic()
        wrong = client.attempt()
        assert wrong is None, wrong
        assert client.told["status"] == "EXACT", client.told
        return history().delivered, client.told["bits"], time.monotonic() - began


def history_run(seed: int, met: Counter[str], *, rate: float, kills: int = 0, pauses: bool = False) -> str:
    """One run with faults, checked against the calm one with the same seed; ``met`` counts what it met."""
    needed, bits, seconds = calm(seed)
    rng = np.random.default_rng(seed)
    with served(seed, rate) as (url, history), tempfile.TemporaryDirectory() as folder:
        client, attempts = Client(url, Path(folder), seed), 0
        while attempts < TRIES and not client.ended:
            attempts += 1
            moments = seconds * rng.random(2)
            wrong = client.attempt(moments[0] if client.kills < kills else None, moments[1] if pauses else None)
            if wrong is not None:
                return wrong
        seen = history()
    met["faults"] += sum(count for fault, count in seen.requests.items() if fault != "none")
    met["kills"] += client.kills
    met["pauses"] += client.pauses
    met["questions"] += sum(seen.sequences.values())
    if not client.ended:
        return "TARGET_FAILED, resumable"
    if client.told["status"] != "EXACT" or client.told["error"] > 1e-9:
        return f"FAILURE: {client.told['status']} {client.told['message']}"
    if client.told["bits"] != bits:
        return "FAILURE: other parameters than those of the calm run"
    if needed - seen.delivered:
        return "FAILURE: an answer was used that was never delivered"
    extra = seen.delivered - needed
    if set(extra) - set(needed):
        return "FAILURE: something else was asked"
    in_flight = client.kills * IN_FLIGHT * NUMBERS // 4 + 64 * client.kills  # and what a killed attempt had confirmed
    if extra.total() > client.confirmed + in_flight:
        return f"FAILURE: {extra.total()} answers were asked for again, {client.confirmed} of them to confirm"
    return "EXACT, the same bits, nothing lost"


def mixed_run(seed: int) -> str:
    """One reply of another model at a random place: noticed, and gone in the next run."""
    place = int(np.random.default_rng(seed).integers(1, 60))
    with served(seed, 0.0, wrong=place) as (url, _), tempfile.TemporaryDirectory() as folder:
        client, ends = Client(url, Path(folder), seed), []
        for _ in range(3):
            wrong = client.attempt()
            if wrong is not None:
                return wrong
            ends.append(client.told["status"])
            if client.told["error"] is not None and client.told["error"] > 1e-9:
                return "FAILURE: a wrong model"
            if ends[-1] == "EXACT":
                break
    words = ", then ".join(ends)
    return words if ends[-1] == "EXACT" and len(ends) <= 2 else f"FAILURE: {words}"


# --- journals -----------------------------------------------------------------------------------------------------------------


def damaged_run(seed: int, whole: bytes, folder: Path) -> str:
    path = folder / f"{seed}.sqlite"
    path.write_bytes(damage.damaged(whole, np.random.default_rng(seed)))
    try:
        for mended in (False, True):
            try:
                if mended:
                    repair(path)
                answers, _ = damage.play(path)
                return ("repaired" if mended else "harmless") if damage.right(answers) else "FAILURE: a damaged answer was used"
            except JournalError:
                pass
        return "refused, not even its notes are readable"
    except Exception as error:
        return f"FAILURE: {type(error).__name__} {error}"
    finally:
        for file in folder.glob(f"{seed}.sqlite*"):
            file.unlink()


# --- targets that change ------------------------------------------------------------------------------------------------------


def drift_run(seed: int, kind: str, width: int = 16) -> str:
    """One run against a target that changes, or against an honest one in float32."""
    before, behind, state = head(2 * seed, width), head(2 * seed + 1, width), {"asked": 0, "calls": 0}
    after = int(np.random.default_rng(seed).integers(2, width * width + width))

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
        status = us.recover(target, width=width, seed=seed, on_failure="return").status
    honest = kind == "float32"
    dishonest = status.success != honest or (honest and status is us.Status.DRIFTING)
    return f"FAILURE: {status.name}" if dishonest else status.name


# --- tables -------------------------------------------------------------------------------------------------------------------


class Table:
    """Rows of ends, counted; and how many of them were failures."""

    def __init__(self, first: int, share: float) -> None:
        self.first, self.share, self.failures = first, share, 0
        print("| what | met | ends | failures |\n|---|---|---|---|", flush=True)

    def seeds(self, count: int) -> range:
        return range(self.first, self.first + max(1, round(count * self.share)))

    def row(self, what: str, met: str, ends: Counter[str]) -> None:
        listed = ", ".join(f"{count} {end}" for end, count in ends.most_common())
        wrong = sum(count for end, count in ends.items() if end.startswith("FAILURE"))
        self.failures += wrong
        print(f"| {what} | {met} | {listed} | {wrong} |", flush=True)

    def until(self, what: str, kind: str, count: int, **options: Any) -> None:
        """Run seeds until so many faults of a kind were met."""
        met: Counter[str] = Counter()
        ends: Counter[str] = Counter()
        seed = self.first
        while met[kind] < count * self.share:
            ends[history_run(seed, met, **options)] += 1
            seed += 1
            if seed % 10 == 0:
                print(f"{what}: {dict(met)} {dict(ends)}", file=sys.stderr, flush=True)
        words = ", ".join(f"{met[name]} {name}" for name in ("questions", "faults", "kills", "pauses"))
        self.row(what, f"{words} in {seed - self.first} runs", ends)


def drift(table: Table) -> None:
    for kind in ("swapped", "replicas", "float32"):
        seeds = table.seeds(50)
        table.row(kind, f"seeds {seeds.start}–{seeds.stop - 1}", Counter(drift_run(seed, kind) for seed in seeds))


def mixed(table: Table) -> None:
    seeds = table.seeds(50)
    table.row("a reply of others", f"seeds {seeds.start}–{seeds.stop - 1}", Counter(map(mixed_run, seeds)))


def journals(table: Table) -> None:
    with tempfile.TemporaryDirectory() as top:
        path = Path(top) / "whole.sqlite"
        damage.play(path)
        whole, seeds = path.read_bytes(), table.seeds(1000)
        ends = Counter(damaged_run(seed, whole, Path(top)) for seed in seeds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if peak > MEGABYTES:
        ends[f"FAILURE: {peak:.0f} MB"] += 1
    table.row("damaged journals", f"seeds {seeds.start}–{seeds.stop - 1}, {peak:.0f} MB at most", ends)


def every_call(table: Table) -> None:
    for fault, places in faulty_calls(damage.play).items():
        chosen = places[:: max(1, round(1 / table.share))]
        ends = Counter(call_run(place, fault) for place in chosen)
        table.row(f"{fault} at a system call", f"{len(chosen)} calls", ends)


def call_run(place: tuple[str, int], fault: str) -> str:
    """One fault at one system call: the process ends by itself, and the journal that it leaves goes on."""
    with tempfile.TemporaryDirectory() as top:
        path = Path(top) / "journal.sqlite"
        code = disturbed(damage.play, path, place, fault)
        if code not in (0, 1, -signal.SIGKILL):
            return f"FAILURE: {place} ended with {code}"
        try:
            answers, _ = damage.play(path)
        except Exception as error:
            return f"FAILURE: {place}: {error}"
        ends = {0: "went on", 1: "refused, then went on", -signal.SIGKILL: "killed, then went on"}
        return ends[code] if damage.right(answers) else f"FAILURE: {place}: wrong answers"


PARTS: dict[str, Callable[[Table], None]] = {
    "drift": drift,
    "network": lambda table: table.until("network faults", "faults", 1000, rate=0.15),
    "kills": lambda table: table.until("kill -9", "kills", 500, rate=0.0, kills=4),
    "pauses": lambda table: table.until("faults, kills and pauses", "pauses", 200, rate=0.1, kills=2, pauses=True),
    "mixed": mixed,
    "journals": journals,
    "calls": every_call,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--share", type=float, default=1.0, help="of the numbers above")
    parser.add_argument("--first", type=int, default=1000)
    options = parser.parse_args()
    table = Table(options.first, options.share)
    for part in options.part:
        with suppress(KeyboardInterrupt):
            PARTS[part](table)
    sys.exit(table.failures > 0)


if __name__ == "__main__":
    main()
