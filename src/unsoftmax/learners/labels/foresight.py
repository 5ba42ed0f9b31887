"""A test before most of the bill is paid: what is known roughly must foretell labels of other keys."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import NotInFamilyError, Sign
from unsoftmax.learners.labels.paths import Rows
from unsoftmax.learners.labels.scores import Reading
from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.models import Floats


def foretold(
    reading: Reading,
    tokens: Rows,
    image: Floats,
    variance: Floats,
    rng: np.random.Generator,
    *,
    tests: int = 12,
    length: float = 1.5,
    margins: float = 8.0,
    misses: int = 2,
) -> None:
    """Ask ``2 tests`` labels of new keys beside tokens whose images are known; one round.

    Keys are ``length`` times as long as those asked, and labels lie ``margins`` standard deviations to either side of the boundary
    foretold; up to ``misses`` may be wrong.

    Raises:
        NotInFamilyError: they are not as foretold.
    """
    normal = reading.design.plane.normal
    chosen = rng.integers(len(tokens), size=tests)
    turned = rng.normal(size=(tests, reading.width))
    turned -= np.outer(turned @ normal, normal)
    turned *= length / np.maximum(np.linalg.norm(turned, axis=1, keepdims=True), 1e-300)
    keys = reading.design.keys(tokens[chosen], turned)
    plane, known = reading.fine.plane, image[chosen]

    def ahead(at: Floats) -> Floats:
        """How far the score of each key exceeds what it needs to win."""
        given = keys.keys(slice(None), at)
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.log((plane.offset - keys.last @ plane.normal) / (given @ plane.normal - plane.offset))
        excess: Floats = ((given - keys.last) * known).sum(axis=1) - needed
        return excess

    low, high = np.full(tests, BOUNDARY.lowest), np.full(tests, BOUNDARY.highest)
    solved = (ahead(low) > 0) & (ahead(high) < 0)
    for _ in range(BOUNDARY.bits):
        at = (low + high) / 2
        wins = ahead(at) > 0
        low, high = np.where(wins, at, low), np.where(wins, high, at)
    steps = keys.keys(slice(None), at) - keys.last
    size = np.linalg.norm(steps, axis=1) + 2 * np.linalg.norm(keys.last, axis=1)
    blur = np.hypot(plane.normal_spread * size, plane.offset_spread) / np.abs(keys.far) * (1 + np.exp(np.abs(at)))
    slope = (ahead(at - 1e-4) - ahead(at + 1e-4)) / (2 * 1e-4)
    margin = margins * np.hypot(np.sqrt((steps**2 * variance[chosen]).sum(axis=1)), blur) / np.maximum(slope, 0.25)
    solved &= slope > 0.25
    rows = np.flatnonzero(solved & (margin < 1.0))
    if not len(rows):
        return
    places = np.concatenate([at[rows] - margin[rows], at[rows] + margin[rows]])
    labels = reading.asker(keys.tokens(np.tile(rows, 2), places))
    above = keys.above(np.tile(rows, 2), labels)
    wrong = int((above != (np.arange(2 * len(rows)) < len(rows))).sum())
    if wrong > misses:
        raise NotInFamilyError(
            f"{wrong} of {2 * len(rows)} labels of two tokens are not what one softmax head would answer, given its labels so far. "
            "Several heads, positions, a network behind the attention or a threshold that moves answer so; with labels only, one "
            "head can be recovered. Ask a target that tells numbers, if there is one.",
            evidence={"foretold": 2 * len(rows), "wrong": wrong},
            signs=(Sign.WRONG_LABELS,),
        )
