"""How long a start takes and how much the core occupies.

    python benchmarks/start.py [--runs N]

Wall seconds of whole processes (interpreter included), best and median; bytes of the core's packages as pip recorded them, without
extras. Exits 1 beyond 0.3 s for the import, 0.4 s for ``--help`` (medians) or 300 MB.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from statistics import median


def seconds(command: list[str], runs: int) -> list[float]:
    """Wall time of each run, the first (which warms the disk) not counted."""
    found = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        found.append(time.perf_counter() - started)
    return sorted(found[1:])


def packages(name: str, seen: set[str]) -> set[str]:
    """A distribution and everything that it needs without extras."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name in seen:
        return seen
    try:
        needs = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # needed only on other systems or versions
        return seen
    seen.add(name)
    for need in needs:
        if "extra ==" not in need:
            packages(re.split(r"[^A-Za-z0-9._-]", need)[0], seen)
    return seen


def megabytes(names: set[str]) -> float:
    """Size on disk of all recorded files."""
    found = 0
    for name in names:
        files = [Path(str(file.locate())) for file in metadata.files(name) or []]
        found += sum(file.stat().st_size for file in files if file.is_file())
    return found / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    missed = 0
    print("| what | best | median | bar |\n|---|---|---|---|")
    for what, arguments, bar in (
        ("import unsoftmax", ["-c", "import unsoftmax"], 0.3),
        ("unsoftmax --help", ["-m", "unsoftmax", "--help"], 0.4),
    ):
        times = seconds([sys.executable, *arguments], options.runs)
        missed += median(times) > bar
        print(f"| {what} | {times[0]:.3f} s | {median(times):.3f} s | {bar} s |")
    core = packages("unsoftmax", set())
    size = megabytes(core)
    missed += size > 300
    print(f"| core install, {len(core)} packages | | {size:.0f} MB | 300 MB |")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
