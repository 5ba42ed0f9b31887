"""Files that appear whole or not at all, follow no symbolic link, and are for their owner unless told otherwise."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

OWNER, PUBLIC = 0o600, 0o644


@contextlib.contextmanager
def replacing(path: str | Path, *, public: bool = False) -> Iterator[Path]:
    """Yields a new name beside ``path`` to write to; at the end that file is synced and takes the place of ``path``.

    What was at ``path`` stays as it was until then, also when the disk is full or the process is killed; a symbolic link there is
    replaced, not followed.
    """
    path = Path(path)
    half = path.with_name(f".{path.name}.{secrets.token_hex(6)}.new")
    try:
        os.close(os.open(half, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER))
        yield half
        with half.open("rb") as handle:
            os.fchmod(handle.fileno(), PUBLIC if public else OWNER)
            os.fsync(handle.fileno())
        os.replace(half, path)
    except OSError as error:
        if error.filename is not None and Path(error.filename) == half:
            error.filename = str(path)  # the name that the user knows
        raise
    finally:
        with contextlib.suppress(OSError):
            half.unlink()


def write_text(path: str | Path, text: str, *, public: bool = False) -> None:
    """Write a file of text in one go; a device or a pipe (``/dev/stdout``) is written to as it is."""
    path = Path(path)
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    with replacing(path, public=public) as half:
        half.write_text(text, encoding="utf-8")
