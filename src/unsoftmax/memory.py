"""Whether a target fits into the memory of this machine, told before the memory is taken."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax.errors import FileFormatError

LARGE = 2**28  # bytes up to which any archive is taken
PACKED = 200  # times smaller than its numbers: zeros alone pack so well
DAMAGED = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError, SyntaxError, TypeError, KeyError, OSError)
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


def read_archive(path: str | Path, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The arrays of an ``.npz`` file, or those of ``names`` that it holds; nothing is unpickled.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is no archive, or damaged, or its arrays, unpacked, would fill the memory: a few megabytes
            may hold gigabytes of zeros.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        with path.open("rb") as handle, zipfile.ZipFile(handle) as archive:  # our own handle: NumPy leaves its own open
            _check_sizes(archive, path)
            handle.seek(0)
            with np.load(handle, allow_pickle=False) as file:
                return {name: file[name] for name in file.files if names is None or name in names}
    except FileFormatError:
        raise
    except DAMAGED as error:
        raise FileFormatError(f"{path} is damaged, or not a .npz file of plain arrays ({error}).") from error


def archive_holds(path: Path, name: str) -> bool:
    """Whether a file is an ``.npz`` archive with an array of this name."""
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{name}.npy" in archive.namelist()
    except DAMAGED:
        return False


def _check_sizes(archive: zipfile.ZipFile, path: Path) -> None:
    left, members = memory_left(), archive.infolist()
    unpacked, packed = sum(m.file_size for m in members), max(1, sum(m.compress_size for m in members))
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FileFormatError(f"{member.filename} in {path} is packed as NumPy does not pack. Save it by numpy.savez.")
        with archive.open(member) as file:
            _check_header(file, member, path)
    if (left is not None and unpacked > left / 2) or (unpacked > LARGE and unpacked > PACKED * packed):
        raise FileFormatError(
            f"{path} has {packed / 2**20:.3g} MiB and would unpack to {unpacked / 2**30:.3g} GiB, which is not taken. "
            "Save fewer or smaller arrays."
        )


def _check_header(file: Any, member: zipfile.ZipInfo, path: str | Path) -> None:
    """An array must not claim more numbers than its member has bytes for."""
    if not member.filename.endswith(".npy"):
        return
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
    except (ValueError, SyntaxError, TypeError) as error:
        raise FileFormatError(f"{member.filename} in {path} is no NumPy array ({error}).") from error
    if not kind.hasobject and math.prod(shape) * kind.itemsize > member.file_size:
        raise FileFormatError(f"{member.filename} in {path} claims the shape {shape}, but has {member.file_size} bytes only.")
