"""Whether a target fits into the memory of this machine, told before the memory is taken."""

from __future__ import annotations

from pathlib import Path

SQUARES = 4  # arrays of width x width float64 that any learner holds: W, its readings, probes and answers


def check_memory(width: int) -> None:
    """Refuse a width whose score matrix alone, with what reads it, exceeds the memory that is left.

    Raises:
        MemoryError: it cannot fit.
    """
    needed, left = SQUARES * 8 * width * width, memory_left()
    if left is not None and needed > left:
        raise MemoryError(
            f"width {width} needs about {needed / 2**30:.3g} GiB for the score matrix and its readings, "
            f"and {left / 2**30:.3g} GiB are left"
        )


def memory_left() -> int | None:
    """Bytes that this process may still take: of the machine, of its control group, of its own limit; None where none is known."""
    known = [left for left in (_of_machine(), _of_group(), _of_limit()) if left is not None]
    return min(known) if known else None


def _of_machine() -> int | None:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_group() -> int | None:
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, taken = _lines(most), _lines(used)
        if limit and taken and limit[0].isdigit() and taken[0].isdigit():
            return max(0, int(limit[0]) - int(taken[0]))
    return None


def _of_limit() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = _lines("/proc/self/statm")
    taken = int(pages[0].split()[0]) * resource.getpagesize() if pages else 0
    return max(0, limit - taken)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
