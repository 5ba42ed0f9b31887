"""One process against two Dask workers: the same audit, the same table, and how long each takes.

``audit_cluster.py [--width 16] [--seed 0] [--budget 100000]``; both the clock and processor seconds are told, since the clock also
measures whatever else runs on the machine. The share of processor seconds is the busiest worker over the one process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from distributed import Client

from unsoftmax.audits import run_audit
from unsoftmax.demo import demo_oracle


def start(note: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", *words, "--scheduler-file", str(note), "--no-dashboard"]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def timed(action):
    wall, processor = time.perf_counter(), time.process_time()
    return action(), time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("--width", 16), ("--seed", 0), ("--budget", 100_000)):
        parser.add_argument(name, type=int, default=default)
    chosen = parser.parse_args()
    audit = partial(run_audit, partial(demo_oracle, "attention", width=chosen.width, seed=chosen.seed), budget=chosen.budget)
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "scheduler.json"
        scheduler = start(note, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0")
        workers = start(note, "distributed.cli.dask_worker", "--nworkers", "2", "--nthreads", "1")
        try:
            while not note.exists() or not note.read_text().rstrip().endswith("}"):  # it is written in parts
                time.sleep(0.1)
            address = json.loads(note.read_text())["address"]
            with Client(address) as client:
                client.wait_for_workers(2)
                one, wall, processor = timed(partial(audit, workers=1))
                before = client.run(time.process_time)
                two, wall_two, _ = timed(partial(audit, scheduler=address))
                after = client.run(time.process_time)
        finally:
            for process in (workers, scheduler):
                process.terminate()
                process.wait()
    busy = sorted(after[name] - before[name] for name in after)
    same = all((a.status, a.queries) == (b.status, b.queries) for a, b in zip(one.cells, two.cells, strict=True))
    print("| | clock, s | processor, s |\n| --- | --- | --- |")
    print(f"| one process | {wall:.1f} | {processor:.1f} |")
    print(f"| two Dask workers | {wall_two:.1f} | {busy[0]:.1f} and {busy[1]:.1f} |")
    print(f"| share | {wall_two / wall:.2f} | {busy[1] / processor:.2f} |")
    print(f"\n{len(one.cells)} rows, the same table: {same}")
    for cell in one.cells:
        print(f"  {cell.defence.name}: {cell.status}, {cell.queries} queries, {cell.seconds:.2f} s")


if __name__ == "__main__":
    main()
