"""Faults at single system calls of a process, by strace: a kill, a full disk, a disk that fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from unsoftmax.errors import JournalError

WRITES = ("openat", "write", "pwrite64", "fsync", "fdatasync", "rename", "link", "ftruncate", "fallocate")
OTHERS = ("close", "unlink", "mmap")
READS = ("read", "pread64", "newfstatat", "lseek", "getdents64")
FAULTS = {"signal=KILL": WRITES + OTHERS, "error=ENOSPC": WRITES, "error=EIO": WRITES + READS}

Act = Callable[[Path], object]
Place = tuple[str, int]  # the name of a system call, and the how manieth of that name


def traced(act: Act, path: Path, *options: str) -> tuple[int, str]:
    """``act(path)`` in a process under strace; its exit code (1 for a journal that is refused), and strace's log."""
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        code = 2
        try:
            act(path)
            code = 0
        except JournalError:
            code = 1
        finally:
            os._exit(code)
    os.waitpid(child, os.WUNTRACED)
    with tempfile.NamedTemporaryFile() as log:
        strace = subprocess.Popen(["strace", "-qq", "-o", log.name, *options, "-p", str(child)], stderr=subprocess.DEVNULL)
        status = Path(f"/proc/{child}/status")
        while strace.poll() is None and re.search(r"TracerPid:\s+0\n", status.read_text()):
            time.sleep(0.002)
        os.kill(child, signal.SIGCONT)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        strace.wait()
        return code, Path(log.name).read_text()


def faulty_calls(act: Act) -> dict[str, list[Place]]:
    """For each kind of fault the system calls of ``act(path)`` that it may hit, in order."""
    with tempfile.TemporaryDirectory() as folder:
        _, log = traced(act, Path(folder) / "file", "-e", f"trace={','.join(WRITES + OTHERS + READS)}")
    counts: Counter[str] = Counter()
    places = []
    for name in re.findall(r"^(\w+)\(", log, re.MULTILINE):
        counts[name] += 1
        places.append((name, counts[name]))
    return {fault: [place for place in places if place[0] in names] for fault, names in FAULTS.items()}


def disturbed(act: Act, path: Path, place: Place, fault: str) -> int:
    """``act(path)`` with one fault at one system call; its exit code."""
    name, when = place
    return traced(act, path, "-e", f"trace={name}", "-e", f"inject={name}:{fault}:when={when}")[0]
