"""Scores of full rank: every key beside every last token."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.labels.equations import Scores, images, solved
from unsoftmax.learners.labels.foresight import foretold
from unsoftmax.learners.labels.scores import Reading, wanted_width
from unsoftmax.models import Floats


def read_roughly(reading: Reading, before: int) -> tuple[Floats, Floats]:
    """Images of all last tokens, and variances: every product that the first ``before`` tokens and keys leave."""
    width = reading.width
    everybody = np.arange(width + 1)
    pairs = [(token, key) for token in range(width + 1) for key in range(width) if token >= before or key >= before]
    tokens, keys = np.array(pairs).T
    reading.add(tokens, reading.design.directions[keys])
    if not before:
        reading.look()
    reading.go_on(reading.coarse())
    image, variance = images(reading.equations(everybody), width + 1)
    foretold(reading, everybody, image, variance, reading.rng)
    return image, variance


def read_finely(reading: Reading) -> Scores:
    """The same products to the last bits wanted, and the solution."""
    width = reading.width

    def solution(unit: bool = False) -> Scores:
        image, variance = images(reading.equations(np.arange(width + 1), unit), width + 1)
        return solved(reading.design.last, image, variance, width)

    reading.go_on(wanted_width(reading, solution(), solution(unit=True)), final=True)
    reading.fine.finish()
    return solution()
