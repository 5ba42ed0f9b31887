"""Run the cells side by side: on the processes of this machine, or on a Dask cluster."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from unsoftmax.audits.cells import PER_LENGTH, Cell, Opener, honest_sample, rate_limited, run_cell
from unsoftmax.audits.curves import curves
from unsoftmax.audits.defences import Defence, deep_defences, standard_defences
from unsoftmax.audits.gate import Gate
from unsoftmax.audits.results import Audit, Run
from unsoftmax.audits.search import weakest_noise
from unsoftmax.audits.verdict import conclude
from unsoftmax.errors import MissingExtraError, check_positive
from unsoftmax.families import named
from unsoftmax.families.settings import LAWS
from unsoftmax.oracles.journal_file import settled_seed
from unsoftmax.version import __version__

PATIENCE = "10s"  # for a scheduler to answer
Work = Callable[[Defence], Cell]


def run_audit(
    opener: Opener,
    *,
    defences: tuple[Defence, ...] | None = None,
    extra: tuple[Defence, ...] = (),
    search: tuple[Defence, ...] = (),
    budgets: tuple[int, ...] = (),
    runs: int = 1,
    gate: Gate | None = None,
    budget: int = 100_000,
    rate: float | None = None,
    price: float | None = None,
    max_norm: float | None = None,
    max_length: int | None = None,
    check: int | None = None,
    seed: int | None = None,
    folder: Path | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    on_cell: Callable[[Cell, int], None] | None = None,
) -> Audit:
    """Try extraction against every defence.

    Args:
        opener: opens the target; called once in every process, so it must be picklable unless ``workers`` is 1.
        defences: the rows, the target as it stands first; the standard table if left out.
        extra: rows after these.
        search: defences for which the weakest noise is searched that, added to them, stops the extraction.
        budgets: where given, each row is also run with each of these, for a curve of error against queries.
        runs: seeds of each point of such a curve.
        gate: condition on the target as it stands under which the audit fails.
        budget: sequences that each extraction may ask.
        rate: sequences a second that the attacker may ask, for times.
        price: price of 1000 sequences, for bills.
        max_norm: the target takes no longer tokens; none is sent.
        max_length: the target takes no longer sequences; none is sent.
        check: fresh sequences of the held-out check of each row.
        seed: same seed, same table; drawn by the operating system if left out, or as the folder's earlier run drew it.
        folder: keeps a journal for each cell; the same call goes on from there. A cluster must share it.
        scheduler: address of a Dask scheduler.
        workers: processes on this machine; as many as it has cores if left out.
        on_cell: called with every finished cell and the number of all.

    Raises:
        ValueError: the gate needs a rate or price that was not given, ``max_norm`` is no length, or the first row is a defence.
    """
    from unsoftmax.report.provenance import now

    for name, value, option in (("time", rate, "rate"), ("price", price, "price")):
        if gate is not None and name in gate.names and value is None:
            raise ValueError(f"The condition {gate.text!r} needs the {name}, so `{option}` must be given.")
    check_positive(max_norm=max_norm)
    started = time.perf_counter()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    seed = settled_seed(seed, None if folder is None else folder / "honest.sqlite")
    oracle = opener()
    sample = honest_sample(oracle, seed, folder, max_length)
    limits: dict[str, Any] = {"max_norm": max_norm, "max_length": max_length, "check": check}
    work: Work = partial(run_cell, opener, sample=sample, budget=budget, seed=seed, folder=folder, **limits)
    done: dict[str, Cell] = {}
    deep = None
    base = Defence(name="none") if not defences else defences[0]
    # hidden states or logits: the first row tells the family to all others
    if base.base and sample.outputs >= oracle.width >= LAWS.narrowest:
        done[base.name] = work(base)
        deep = _deep(done[base.name])
    table = standard_defences(oracle.width, sample.spread, sample.middle)
    if deep is not None:
        limits["family"] = deep
        work = partial(run_cell, opener, sample=sample, budget=budget, seed=seed, folder=folder, **limits)
        table = deep_defences(oracle.width, sample.spread, sample.outputs)
    rows = table if defences is None else defences
    rows = (*rows, *(row for row in extra if row.slug not in {other.slug for other in rows}))
    if not rows or not rows[0].base:
        raise ValueError("The first defence must be none: the target as it stands.")
    if len({row.slug for row in rows}) < len(rows):
        raise ValueError("Two defences have the same name; each needs its own.")
    measured = [row for row in rows if row.rate is None]
    left = [row for row in measured if row.name not in done]
    for cell in chain(tuple(done.values()), _run(work, left, scheduler, workers)):
        done[cell.defence.name] = cell
        if on_cell is not None:
            on_cell(cell, len(measured))
    present = done[rows[0].name]
    cells = [done[row.name] if row.rate is None else rate_limited(present, row) for row in rows]
    for base in search:
        cells += weakest_noise(work, base, sample.spread)

    def again(row: Defence, most: int, number: int) -> Cell:
        place = None if folder is None else folder / "curves" / f"{most}-{number}"
        if place is not None:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        return run_cell(opener, row, sample, budget=most, seed=number, folder=place, **limits)

    drawn = tuple(curves(again, rows, budgets, range(seed, seed + runs))) if budgets else ()
    run = Run(
        width=oracle.width,
        budget=budget,
        max_norm=max_norm,
        seed=seed,
        version=__version__,
        honest_questions=sum(len(batch) for batch in sample.questions),
        honest_asked_twice=PER_LENGTH,
        honest_noise=sample.noise,
        seconds=time.perf_counter() - started,
        date=now(),
    )
    conclusion = conclude(cells, gate_values(present, rate, price), gate)
    return Audit(cells=tuple(cells), conclusion=conclusion, spread=sample.spread, rate=rate, price=price, run=run, curves=drawn)


def _deep(first: Cell) -> str | None:
    """The family of a stack or decoder that was recovered: then every row is tried as that, for nothing else is like it."""
    if first.recovery is None or not first.recovery.status.success:
        return None
    family = first.recovery.account.family
    decisive = family is not None and named(family).decisive and named(family).compares_parts
    return family if decisive else None


def gate_values(cell: Cell, rate: float | None, price: float | None) -> dict[str, float]:
    """The numbers that a gate may name; where nothing was extracted, each of them is infinite."""
    if cell.error is None and cell.values_known:
        return dict.fromkeys(("queries", "error", "seconds", "price", "time"), math.inf)
    return {
        "queries": float(cell.queries),
        "error": math.inf if cell.error is None else cell.error,
        "seconds": cell.seconds,
        "price": math.inf if price is None else bill(cell, price),
        "time": math.inf if rate is None else duration(cell, rate) or 0.0,
    }


def bill(cell: Cell, price: float) -> float:
    """What the questions of a cell cost at ``price`` for 1000."""
    return cell.total_queries * price / 1000.0


def duration(cell: Cell, rate: float | None) -> float | None:
    """Seconds that the questions of a cell take at the attacker's rate, or at the defence's limit if that is lower."""
    rates = [r for r in (rate, cell.defence.rate) if r is not None]
    return cell.total_queries / min(rates) if rates else None


def _run(work: Work, rows: list[Defence], scheduler: str | None, workers: int | None) -> Iterator[Cell]:
    """Cells as they are finished."""
    if scheduler is not None:
        yield from _on_cluster(work, rows, scheduler)
        return
    count = min(len(rows), workers or os.cpu_count() or 1)
    if count == 1:
        yield from map(work, rows)
        return
    left, deaths = _heaviest_first(rows), 0
    while left:
        died = []
        for row, cell in _in_pool(work, left, count):
            if cell is None:
                died.append(row)
            else:
                yield cell
        deaths += bool(died)
        if deaths > 2:  # each alone, so that the one that kills its process is known
            died, alone = [], died
            for row in alone:
                for _, cell in _in_pool(work, [row], 1):
                    yield cell if cell is not None else _killed(row)
        left = died


def _in_pool(work: Work, rows: list[Defence], count: int) -> Iterator[tuple[Defence, Cell | None]]:
    """Cells as they are finished; None for those that were under way, or waiting, when a process was killed."""
    # spawn, not fork: a target may hold threads and sockets
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        count, mp_context=multiprocessing.get_context("spawn"), initializer=_follow_parent, initargs=(os.getpid(),)
    )
    try:
        with _one_thread():
            futures: dict[Future[Cell], Defence] = {}
            for row in rows:
                with suppress(BrokenProcessPool):
                    futures[pool.submit(work, row)] = row
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool:
                yield futures[future], None
        for row in rows[len(futures) :]:
            yield row, None
    except BaseException:  # an interrupt, too: what was answered is in the journals, so nothing is waited for
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _killed(row: Defence) -> Cell:
    return Cell(
        defence=row,
        status="ERROR",
        message="The process of this row was killed four times, perhaps for want of memory. Run the same command again.",
    )


def _follow_parent(parent: int) -> None:
    """Ctrl-C is the parent's to handle, and this process ends with it, also when it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, AttributeError, TypeError):  # Linux alone; elsewhere the thread below looks
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, name="unsoftmax-parent", daemon=True).start()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started in here get one thread of arithmetic each: more would fight over the same cores."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _heaviest_first(rows: list[Defence]) -> list[Defence]:
    return sorted(rows, key=lambda row: -row.weight)


def _on_worker(work: Work, row: Defence) -> Cell:
    """One cell on a Dask worker.

    Dask starts its workers with a setting of the C library (MALLOC_TRIM_THRESHOLD_) that hands every freed array back to the
    system at once; arithmetic on matrices then spends half its time on page faults. Freed memory is kept here as usual.
    """
    with suppress(OSError, AttributeError, TypeError):  # another C library has no such settings
        keep = ctypes.CDLL(None).mallopt
        for setting, size in ((-3, 1 << 25), (-1, 1 << 27)):  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
            keep(setting, size)
    return work(row)


def _on_cluster(work: Work, rows: list[Defence], scheduler: str) -> Iterator[Cell]:
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtraError("distributed", "sweep") from error
    try:
        client = Client(scheduler, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        raise ValueError(f"There is no Dask scheduler at {scheduler!r} ({error}). Start one with `dask scheduler`.") from error
    with client:
        yield from _handed_out(client, partial(_on_worker, work), _heaviest_first(rows))


def _handed_out(client: Any, work: Work, rows: list[Defence]) -> Iterator[Cell]:
    """Cells as they are finished, each row sent when a thread is free for it.

    Sent all at once, rows would wait in the queues of workers: a long one behind another while elsewhere a worker runs out of work.
    Without a worker, as on a cluster that grows with its tasks, all are sent, for it to see how many there are.
    """
    from distributed import as_completed as arriving

    left = iter(rows)
    running = arriving()

    def send() -> None:
        threads = sum(client.nthreads().values()) or len(rows)
        for row in islice(left, max(0, threads - running.count())):
            running.add(client.submit(work, row, pure=False, retries=2))

    send()
    for future in running:
        send()
        yield future.result()
