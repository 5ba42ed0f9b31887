"""Every benchmark with one command: ``make bench``, or ``make bench-quick`` for a part of it in less than five minutes.

    python benchmarks/bench.py [--quick] [--only NAME …] [--workers 2]

Each script runs in a process of its own with a limit in seconds. What it prints, how it ended, when, on which machine and with
which versions goes to ``benchmarks/results/bench.json``; ``bench.md`` beside it is written from that file, one table first.
``--only`` renews some jobs and keeps the others. Jobs whose time is measured by the clock, or beside a target's, run alone, after
the others; rivals are given processor time, and run side by side. Exits 1 if any job failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # for the jobs: more would make processor time mean less
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("numpy", "scipy", "torch", "cvxpy", "clarabel", "scs", "adversarial-robustness-toolbox", "onnxruntime", "mlserver")


@dataclass(frozen=True)
class Job:
    """A script with its arguments; ``quick`` are those of a quick run, None leaves it out."""

    name: str
    full: str
    quick: str | None
    limit: int
    alone: bool = False


JOBS = (
    Job("one head", "one_head.py --seeds 2 --first 82000", "one_head.py --quick --first 82000", 300),
    Job("scalar heads, sizes", "scalar_heads.py --quick --part sizes --seed 82000", None, 300),
    Job("scalar heads, special", "scalar_heads.py --quick --part special --seed 82000", None, 300),
    Job("vector heads, shapes", "trained_layer.py --quick --part shapes", None, 300),
    Job("networks", "networks.py --quick --first-seed 82000", "networks.py --quick --part ffn --first-seed 82000", 300),
    Job("behind any network", "behind_network.py --quick --first-seed 82000", None, 300),
    Job("trained Transformer", "trained_transformer.py --quick --seed 82", "trained_transformer.py --quick --seed 82", 300),
    Job("noise", "noise.py --quick --seed 82000", "noise.py --quick --bars 2 --seed 82000", 400),
    Job(
        "special access",
        "special_access.py --quick --first-seed 82000",
        "special_access.py --quick --part tokens --first-seed 82000",
        300,
    ),
    Job("from examples", "from_examples.py --quick --bars 1 --seed 82000", None, 300),
    Job("diagnose", "diagnose.py --quick --seed 82000", None, 300),
    Job("faults", "faults.py --part drift mixed journals --share 0.1 --first 82000", None, 300),
    Job("rivals, width 8 and 16", "rivals --part plain --widths 8 16", "rivals --quick --part plain", 600),
    Job("rivals, width 32", "rivals --part plain --widths 32", None, 900),
    Job("rivals, width 64", "rivals --part plain --widths 64 --seeds 2", None, 1200),
    Job("rivals, awkward heads", "rivals --part hard --seeds 2", "rivals --quick --part hard --seeds 1", 600),
    Job("rivals, low rank", "rivals --part low-rank", "rivals --quick --part low-rank", 900),
    Job("rivals, ReLU networks", "rivals --part networks --seeds 10", "rivals --quick --part networks", 300),
    Job("growth", "growth.py --figure docs/images/growth.svg", "growth.py --quick", 900, alone=True),
    Job("start", "start.py", "start.py", 60, alone=True),
    Job("cost, width 512", "cost.py --width 512", "cost.py --width 256", 300, alone=True),
    Job("journal", "cost.py --width 256 --price-of-journal 12", "cost.py --width 64 --price-of-journal 2", 120, alone=True),
    Job("over HTTP", "over_http.py --quick", None, 300, alone=True),
)


def machine() -> dict[str, Any]:
    """Where and with what: processor, cores, system, versions, commit."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else None
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    versions = {}
    for name in ("unsoftmax", *PACKAGES):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": cpu[1] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": versions,
        "commit": commit.stdout.strip() or "unknown",
    }


def run(job: Job, arguments: str, about: dict[str, Any]) -> dict[str, Any]:
    """One job to its end or its limit, with everything that it started."""
    print(f"… {job.name}", file=sys.stderr, flush=True)
    command = [sys.executable, f"benchmarks/{arguments.split()[0]}", *arguments.split()[1:]]
    started, stamp = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            printed, complaints = process.communicate(timeout=job.limit)
            outcome = "passed" if process.returncode == 0 else f"failed ({process.returncode})"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, complaints = process.communicate()
            outcome = "over its limit"
    seconds = time.perf_counter() - started
    print(f"  {job.name}: {outcome}, {seconds:.0f} s", file=sys.stderr, flush=True)
    return {
        "name": job.name,
        "command": f"python benchmarks/{arguments}",
        "outcome": outcome,
        "seconds": round(seconds, 1),
        "limit": job.limit,
        "when": stamp,
        "machine": about,
        "printed": printed,
        "complaints": "" if outcome == "passed" else complaints[-2000:],
    }


def page(records: list[dict[str, Any]]) -> str:
    """The table of all jobs, then what each printed."""
    failed = [r for r in records if r["outcome"] != "passed"]
    lines = ["# Benchmarks, as they ran", "", f"{len(records)} jobs, {len(failed)} not passed. Written by `make bench`.", ""]
    for about in {json.dumps({k: v for k, v in r["machine"].items() if k != "commit"}): r["machine"] for r in records}.values():
        versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        lines.append(
            f"Machine: {about['processor']}, {about['cores']} cores, {about['threads']} thread(s); {about['system']}; {versions}."
        )
    lines += ["", "| job | command | outcome | wall s | limit s | when | commit |", "|---|---|---|---|---|---|---|"]
    for r in records:
        cells = [r["name"], f"`{r['command']}`", r["outcome"], r["seconds"], r["limit"], r["when"], r["machine"]["commit"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for r in records:
        lines += ["", f"## {r['name']}", "", f"`{r['command']}`", "", r["printed"].strip() or "(nothing printed)"]
        if r["complaints"]:
            lines += ["", "```", r["complaints"].strip(), "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=[job.name for job in JOBS], metavar="NAME", help="renew these jobs")
    parser.add_argument(
        "--workers", type=int, default=min(2, os.cpu_count() or 1), help="jobs side by side where time does not matter"
    )
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    store = RESULTS / ("quick.json" if options.quick else "bench.json")
    known = {r["name"]: r for r in json.loads(store.read_text())} if store.exists() and options.only else {}
    about = machine()
    arguments = {job.name: job.quick if options.quick else job.full for job in JOBS}
    chosen = [job for job in JOBS if arguments[job.name] is not None and (options.only is None or job.name in options.only)]

    def done(record: dict[str, Any]) -> None:
        """Keep what was measured so far, whatever happens next."""
        known[record["name"]] = record
        ordered = [known[job.name] for job in JOBS if job.name in known]
        store.write_text(json.dumps(ordered, indent=1) + "\n")
        store.with_suffix(".md").write_text(page(ordered))

    longest_first = sorted((job for job in chosen if not job.alone), key=lambda job: -job.limit)
    with ThreadPoolExecutor(options.workers) as pool:
        for record in pool.map(lambda job: run(job, arguments[job.name] or "", about), longest_first):
            done(record)
    for job in chosen:
        if job.alone:
            done(run(job, arguments[job.name] or "", about))
    failures = [name for name, record in known.items() if record["outcome"] != "passed"]
    told = f": {', '.join(failures)}" if failures else ""
    print(f"{len(known)} jobs, {len(failures)} not passed{told}; see {store.with_suffix('.md').relative_to(ROOT)}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
