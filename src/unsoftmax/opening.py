"""``open``: the oracle that the command line would use, by the same names."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unsoftmax.oracles.base import Oracle


def open(target: str | PathLike[str], *, width: int | None = None, streams: int | None = None) -> Oracle:
    """Open a target by its name: ``"demo:…"``, a file of weights, ``"FILE.py:NAME"``, ``"FILE.onnx"``, a folder or an address.

    The oracle says its ``width``, answers arrays ``(batch, length, width)``, and goes wherever a target does. Nothing is asked of
    it here beyond its metadata. ``streams`` requests are under way at once where the target is a server that works on them side by
    side; every call is divided among them.

    Raises:
        ValueError: the text names nothing that can be opened; the message lists what can.

    >>> import numpy as np, unsoftmax as us
    >>> target = us.open("demo:attention,width=4,seed=1")
    >>> target.width, target(np.zeros((2, 3, 4))).shape
    (4, (2,))
    """
    import click

    from unsoftmax.cli.targets import open_target

    try:
        return open_target(str(target), width, streams=streams)
    except click.UsageError as error:
        raise ValueError(error.format_message()) from error


def model_behind(target: str, width: int | None = None) -> object | None:
    """The model itself where a demo or a file of weights is named, for a bill that knows its sizes; None for anything else."""
    import click

    from unsoftmax.cli.targets import model_of

    try:
        return model_of(target, width)
    except click.UsageError as error:
        raise ValueError(error.format_message()) from error
