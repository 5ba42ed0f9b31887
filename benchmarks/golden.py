"""Golden transcripts: what ``recover`` and ``diagnose`` ask and say of 200 small targets, kept and compared bit by bit.

python benchmarks/golden.py record golden.json              # before a change
python benchmarks/golden.py compare golden.json             # after it: one line per target that changed, then a summary
python benchmarks/golden.py compare golden.json --strict    # exits 1 unless everything is identical
python benchmarks/golden.py compare golden.json --only zoo  # targets whose name holds this

Seeds and the entropy of the held-out check are fixed, and all arithmetic runs on one thread, so that on one machine two records of
the same code differ in their seconds only. The words of a verdict are kept and counted, but do not break identity. Another machine,
NumPy or BLAS may round otherwise: record there first.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import platform
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden_targets import Case, cases

import unsoftmax as us
from unsoftmax.oracles import Wrapper, as_oracle

SEED, ENTROPY = 11, 2026
FAR = 1e-6  # a model further than this from the truth is wrong, where answers are exact
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
Entry = dict[str, Any]


class Transcript(Wrapper):
    """Keeps a digest of every sequence asked, in order; ``told`` says afterwards what the last call was for."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.asked: list[tuple[str, bytes]] = []
        self._open: list[bytes] = []

    def __call__(self, sequences: Any, /) -> Any:
        """Digest, then ask."""
        for row in np.ascontiguousarray(sequences, dtype=np.float64):
            self._open.append(hashlib.sha256(str(row.shape).encode() + row.tobytes()).digest())
        return self.inner(sequences)

    def told(self, phase: str, count: int) -> None:
        """The meter's word on the sequences since the last one; those that were never answered stay without."""
        self.asked += [(phase, digest) for digest in self._open]
        self._open = []

    def digest(self, phases: set[str]) -> str:
        """The digest of what was asked in these phases; how sequences were put into calls does not matter."""
        return short(b"".join(digest for phase, digest in self.closed() if phase in phases))

    def closed(self) -> list[tuple[str, bytes]]:
        """Everything asked, unanswered questions under the phase "unanswered"."""
        return self.asked + [("unanswered", digest) for digest in self._open]


def short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def bits(model: Any) -> str | None:
    """A digest of the parameters in canonical form; parts that are absent or zero as a number do not count."""
    if model is None:
        return None
    known = isinstance(model, us.Attention | us.FFN | us.Transformer)
    return short(b"".join(_blocks(us.canonical(model) if known else model)))


def _blocks(part: Any, name: str = "") -> list[bytes]:
    if dataclasses.is_dataclass(part):
        fields = sorted(field.name for field in dataclasses.fields(part))
        return [block for field in fields for block in _blocks(getattr(part, field), f"{name}.{field}")]
    if isinstance(part, tuple | list):
        return [block for i, each in enumerate(part) for block in _blocks(each, f"{name}[{i}]")]
    if isinstance(part, np.ndarray):
        return [f"{name} {part.shape}".encode(), np.ascontiguousarray(part, dtype=np.float64).tobytes()]
    return [f"{name} {part!r}".encode()] if part else []


def recovered(case: Case) -> Entry:
    """What ``recover`` did with a target."""
    transcript = Transcript(as_oracle(case.make(), case.width))
    start = time.process_time()
    try:
        found = us.recover(transcript, on_failure="return", seed=SEED, entropy=ENTROPY, on_progress=transcript.told, **case.options)
    except Exception as error:  # a crash is a finding
        everything = {phase for phase, _ in transcript.closed()}
        return {
            "status": f"CRASH {type(error).__name__}",
            "probes": transcript.digest(everything),
            "queries": len(transcript.closed()),
            "seconds": time.process_time() - start,
        }
    seconds = time.process_time() - start
    phases = {name: told["queries"] for name, told in found.facts["phases"].items()}
    near = None if case.truth is None or found.model is None else us.distance(found.model, case.truth)
    return {
        "status": found.status.name,
        "family": found.facts["family"],
        "queries": found.queries,
        "phases": phases,
        "check": 0 if found.check is None else found.check.sequences,
        "probes": transcript.digest(set(phases) | {"unanswered"}),
        "check probes": transcript.digest({phase for phase, _ in transcript.asked} - set(phases)),
        "model": bits(found.model),
        "distance": near if near is None or np.isfinite(near) else "inf",
        "message": found.message,
        "seconds": seconds,
    }


def diagnosed(case: Case) -> Entry:
    """What ``diagnose`` said about a target."""
    transcript = Transcript(as_oracle(case.make(), case.width))
    start = time.process_time()
    try:
        told = us.diagnose(transcript, seed=SEED, max_norm=case.options.get("max_norm"))
        said: Entry = {"family": told.family, "inside": told.inside, "heads": told.heads, "queries": told.queries}
    except Exception as error:  # a target that takes known tokens only, or one that fails
        said = {"family": f"CRASH {type(error).__name__}", "inside": False, "queries": len(transcript.closed())}
    return {**said, "probes": transcript.digest({"unanswered"}), "seconds": time.process_time() - start}


def run(only: str) -> dict[str, Entry]:
    """All targets, by name."""
    entries = {}
    for case in cases():
        if only in case.name:
            recovery, diagnosis = recovered(case), diagnosed(case)
            entries[case.name] = {"outside": case.outside, "recover": recovery, "diagnose": diagnosis}
    slow = sorted(entries, key=lambda name: -seconds(entries[name]))[:8]
    total = sum(seconds(entry) for entry in entries.values())
    print(f"{len(entries)} targets in {total:.0f} s; " + ", ".join(f"{name} {seconds(entries[name]):.1f}" for name in slow))
    return entries


def seconds(entry: Entry) -> float:
    return float(entry["recover"]["seconds"] + entry["diagnose"]["seconds"])


def right(entry: Entry) -> bool:
    """Recovered exactly, and rightly so as far as the truth is known."""
    found = entry["recover"]
    return found["status"] == "EXACT" and not entry["outside"] and not _far(found)


def wrong(entry: Entry) -> bool:
    """A success that is none: far from the truth, or of an outsider."""
    found = entry["recover"]
    return (found["status"] == "EXACT" and _far(found)) or (found["status"] in ("EXACT", "WITHIN_TOLERANCE") and entry["outside"])


def _far(found: Entry) -> bool:
    return found.get("distance") == "inf" or (found.get("distance") or 0.0) > FAR


def changes(old: Entry, new: Entry, tallies: Counter[str]) -> list[str]:
    """What differs between two entries of one target, in words; counted in ``tallies``."""
    said = []
    for which in ("recover", "diagnose"):
        before, after = old[which], new[which]
        part = []
        for name in ("status", "family", "inside", "heads"):
            if before.get(name) != after.get(name):
                part.append(f"{name} {before.get(name)} -> {after.get(name)}")
        if before.get("status") != after.get("status"):
            tallies["status changed"] += 1
        delta = after["queries"] - before["queries"]
        if delta:
            part.append(f"queries {before['queries']} {delta:+d}")
            tallies[f"{'fewer' if delta < 0 else 'more'} queries to {which}"] += 1
        if before.get("phases") != after.get("phases"):
            part.append(f"phases {_phases(before.get('phases') or {}, after.get('phases') or {})}")
        if before.get("check") != after.get("check"):
            part.append(f"check {before.get('check')} -> {after.get('check')}")
        for name in ("probes", "check probes"):
            if before.get(name) != after.get(name):
                part.append(name)
        if before.get("model") != after.get("model"):
            part.append(f"model bits (distance {_number(before)} -> {_number(after)})")
        if before.get("message") != after.get("message") and before.get("status") == after.get("status"):
            tallies["other words"] += 1
        if part:
            said.append(f"{which}: {', '.join(part)}")
    if right(old) and not right(new):
        tallies["right EXACT lost"] += 1
        said.append("RIGHT EXACT LOST")
    if wrong(new) and not wrong(old):
        said.append("WRONG SUCCESS")
    tallies["wrong success"] += wrong(new)
    tallies["identical"] += not said
    return said


def _phases(before: dict[str, int], after: dict[str, int]) -> str:
    names = [*before, *(name for name in after if name not in before)]
    moved = [f"{name} {before.get(name, 0)}->{after.get(name, 0)}" for name in names if before.get(name) != after.get(name)]
    return "(" + ("; ".join(moved) or "in another order") + ")"


def _number(found: Entry) -> str:
    near = found.get("distance")
    return f"{near:.1e}" if isinstance(near, float) else str(near)


def compare(kept: dict[str, Entry], entries: dict[str, Entry], only: str) -> bool:
    """Print what changed; whether nothing did."""
    tallies: Counter[str] = Counter()
    for name, entry in entries.items():
        said = changes(kept[name], entry, tallies) if name in kept else ["not in the file"]
        if said:
            print(f"{name} | " + " | ".join(said))
    missing = [name for name in kept if name not in entries and only in name]
    for name in missing:
        print(f"{name} | in the file only")
    before = sum(wrong(entry) for name, entry in kept.items() if only in name)
    listed = ("fewer queries to recover", "more queries to recover", "fewer queries to diagnose", "more queries to diagnose")
    print(f"\n{len(entries)} targets, {tallies['identical']} identical")
    for name in (*listed, "status changed", "right EXACT lost", "wrong success", "other words"):
        print(f"  {name}: {tallies[name]}" + (f" (before: {before})" if name == "wrong success" else ""))
    for which in ("recover", "diagnose"):
        sums = [sum(side[name][which]["queries"] for name in entries if name in kept) for side in (kept, entries)]
        print(f"  queries to {which}, all targets: {sums[0]} -> {sums[1]}")
    return tallies["identical"] == len(entries) and not missing


def surroundings() -> dict[str, str]:
    """What the bits may depend on besides the code."""
    return {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__, "machine": platform.machine()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--strict", action="store_true", help="exit 1 unless everything is identical")
    parser.add_argument("--only", default="", metavar="TEXT", help="only targets whose name holds this")
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):  # more threads sum in another order
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})  # BLAS looks only when it is loaded
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    kept = json.loads(options.file.read_text()) if options.command == "compare" else None
    entries = run(options.only)
    if kept is None:
        options.file.write_text(json.dumps({"made with": surroundings(), "targets": entries}, indent=1) + "\n")
        statuses = Counter(entry["recover"]["status"] for entry in entries.values())
        print(", ".join(f"{count} {status}" for status, count in statuses.most_common()))
        for name in (name for name, entry in entries.items() if wrong(entry)):
            print(f"wrong success: {name}, {entries[name]['recover']['status']}, distance {_number(entries[name]['recover'])}")
        return 0
    if kept["made with"] != surroundings():
        print(f"The file was made with {kept['made with']}, this is {surroundings()}: bits may differ for that alone.")
    return int(not compare(kept["targets"], entries, options.only) and options.strict)


if __name__ == "__main__":
    sys.exit(main())
