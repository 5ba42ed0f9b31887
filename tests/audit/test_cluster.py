"""A real Dask scheduler and two real workers on this machine, one of which is killed midway."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from distributed import Client

from audit_tables import assert_same_table
from unsoftmax.audits import Defence, run_audit, sweep
from unsoftmax.cli import run
from unsoftmax.demo import demo_oracle
from unsoftmax.oracles.base import Wrapper

TABLE = (
    Defence(name="none"),
    Defence(name="4 decimals", decimals=4),
    Defence(name="norm 4", max_norm=4.0),
    Defence(name="noise 0.01", noise=0.01),
    Defence(name="quota 16", quota=16),
)
PAUSE = 0.02  # seconds for each call: time enough to be killed in the midst of it


class Logged(Wrapper):
    """A slow target that writes down how many sequences every call asks."""

    identity = "one and the same"

    def __init__(self, log: Path, pause: float = PAUSE) -> None:
        super().__init__(demo_oracle("attention", width=5, seed=3))
        self.log, self.pause = log, pause

    def __call__(self, sequences):
        with self.log.open("a") as file:
            file.write(f"{os.getpid()} {len(sequences)}\n")
        time.sleep(self.pause)
        return self.inner(sequences)


def asked(log):
    """(process, sequences) of every call so far."""
    whole, _, _ = log.read_text().rpartition("\n") if log.exists() else ("", "", "")  # the last line may be half written
    return [tuple(map(int, line.split())) for line in whole.splitlines()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The address of a scheduler with two workers of one thread, and their processes."""
    here = Path(__file__).parent
    places = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])  # this file, and what it imports
    note = tmp_path_factory.mktemp("dask") / "scheduler.json"
    processes = []

    def start(*words):
        command = [sys.executable, "-m", *words, "--no-dashboard"]
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": places}, stderr=subprocess.DEVNULL)
        processes.append(process)
        return process

    try:
        start("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(note))
        wait_for(lambda: written(note))
        address = written(note)["address"]
        workers = [start("distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny") for _ in range(2)]
        with Client(address) as client:
            client.wait_for_workers(2, timeout=300)
        yield address, workers
    finally:
        for process in processes:
            process.kill()
            process.wait()


def written(note):
    """The JSON in a file that another process writes; None while it is missing, empty or half there."""
    try:
        return json.loads(note.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def wait_for(condition):
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.05)
    raise TimeoutError("nothing came of it in 300 seconds")


def test_a_killed_worker_costs_no_answer_and_the_table_is_the_same(cluster, tmp_path):
    address, workers = cluster
    log, folder = tmp_path / "log", tmp_path / "cells"
    ours = {worker.pid for worker in workers}
    over = threading.Event()

    def midway():
        return len({pid for pid, _ in asked(log)} & ours) == 2 and sum(n for _, n in asked(log)) > 250

    def kill_one():
        wait_for(lambda: midway() or over.is_set())
        workers[0].kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        found = run_audit(partial(Logged, log), defences=TABLE, scheduler=address, folder=folder, budget=2000, seed=0)
    finally:
        over.set()
        killer.join()
    assert workers[0].wait() == -9
    alone = run_audit(partial(Logged, tmp_path / "other", 0.0), defences=TABLE, workers=1, budget=2000, seed=0)
    assert_same_table(found, alone)
    lost = 0
    for journal in folder.glob("*.sqlite"):
        with sqlite3.connect(journal) as db:
            lost += db.execute("SELECT SUM(lost) FROM calls").fetchone()[0] or 0
        db.close()
    # once as it stands, a few of them twice, and once behind the norm limit, which honest tokens exceed
    honest = 2 * found.facts["honest_questions"] + found.facts["honest_asked_twice"]
    paid = honest + sum(cell.total_queries + cell.confirmed for cell in found.cells)
    # what was under way at the kill is counted as lost, whether it had left by then or not
    assert paid <= sum(n for _, n in asked(log)) <= paid + lost


def test_the_command_line_takes_an_address(cluster, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep, "standard_defences", lambda *_: TABLE[:2])
    words = ["audit", "demo:attention,width=3", "--scheduler", cluster[0], "--out", str(tmp_path / "a"), "--json"]
    assert run(words) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "EXTRACTABLE"
    assert record == json.loads((tmp_path / "a" / "audit.json").read_text())


def test_no_scheduler_there(monkeypatch):
    monkeypatch.setattr(sweep, "PATIENCE", "1s")
    with pytest.raises(ValueError, match=r"no Dask scheduler at 'tcp://127.0.0.1:1'"):
        run_audit(partial(demo_oracle, "attention", width=2), defences=TABLE, scheduler="tcp://127.0.0.1:1")


class Counting:
    """A client that notes how many tasks were unfinished whenever one was sent."""

    def __init__(self, client, threads):
        self.client, self.threads, self.sent, self.unfinished = client, threads, [], []

    def nthreads(self):
        return self.threads

    def submit(self, work, row, **settings):
        self.unfinished.append(sum(not future.done() for future in self.sent))
        self.sent.append(self.client.submit(work, row, **settings))
        return self.sent[-1]


def name_of(row):
    return row.name


@pytest.mark.parametrize(("threads", "most"), [({"a": 1, "b": 1}, 2), ({"a": 3}, 3), ({}, len(TABLE))])
def test_rows_are_sent_when_a_thread_is_free(cluster, threads, most):
    with Client(cluster[0]) as client:
        counting = Counting(client, threads)
        assert sorted(sweep._handed_out(counting, name_of, list(TABLE))) == sorted(row.name for row in TABLE)
    assert len(counting.sent) == len(TABLE)
    assert max(counting.unfinished) < most
