"""Scores of low rank: a few tokens are read whole, all others along what those span."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.labels.equations import Scores, images, solved
from unsoftmax.learners.labels.foresight import foretold
from unsoftmax.learners.labels.full_rank import read_finely, read_roughly
from unsoftmax.learners.labels.scores import Reading, grown, pivots, span, wanted_width
from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What a block shows.

    Attributes:
        rank: of the images, or of their differences.
        apart: whether it is that of differences (then c lies outside the range of W).
        tokens: last tokens that span it.
        clear: whether no singular value is close to rounding.
    """

    rank: int
    apart: bool
    tokens: NDArray[np.int_]
    clear: bool


def block_rank(reading: Reading, size: int) -> Shown | None:
    """What the images of the first ``size`` tokens span along the first ``size`` keys; None if no low rank shows."""
    found = reading.equations(np.arange(size))
    frame = np.concatenate([reading.design.plane.normal[None], span(reading.design.directions[:size])])
    inverse = np.linalg.inv(found.steps.reshape(size, size, reading.width) @ frame.T)
    block = np.einsum("jab,jb->ja", inverse, found.odds.reshape(size, size))
    return rank_shown(block, np.einsum("jab,jb->ja", inverse**2, found.variance.reshape(size, size)))


def rank_shown(block: Floats, noise: Floats) -> Shown | None:
    """What images ``(tokens, directions)`` with these variances span; None if no low rank shows."""
    usual = np.median(noise, axis=0)
    block = block / np.sqrt(usual)  # in units of its rounding, which is larger along v,
    loud = np.sqrt(np.maximum((noise / usual).mean(axis=1), 1.0))  # and for tokens whose keys had to be moved
    floor = BOUNDARY.noise * np.sqrt(len(block))
    quiet = int(np.argmin(loud))
    differences = np.delete(block - block[quiet], quiet, axis=0) / np.delete(np.hypot(loud, loud[quiet]), quiet)[:, None]
    block = block / loud[:, None]
    singular = [np.linalg.svd(b, compute_uv=False) for b in (block, differences)]
    straight, apart = (int((values > floor).sum()) for values in singular)
    if straight > block.shape[1] - BOUNDARY.spare:
        return None
    near = any(((values > floor) & (values < BOUNDARY.rank_clear * floor)).any() for values in singular)
    clear = not near and singular[1][0] > BOUNDARY.rank_clear * floor  # where all is rounding, nothing is told
    order = pivots(block.T)
    if straight <= apart:
        return Shown(straight, False, order[: max(straight, 1)], clear)
    return Shown(apart, True, order[: apart + 1], clear)


def low_scores(reading: Reading, shown: Shown, before: int) -> Scores:
    """Scores of a low rank that a block of ``before`` tokens and keys showed.

    Price: ``len(first) * width + rank * (width + 1 - len(first))`` equations, of which the first block has asked some.
    """
    width = reading.width
    rank, apart, first = shown.rank, shown.apart, shown.tokens
    reading.keep(first, before)
    if before < width:
        tokens = np.repeat(first, width - before)
        reading.add(tokens, np.tile(reading.design.directions[before:], (len(first), 1)), late=reading.asker.hurried)
    reading.go_on(reading.coarse())

    def spanning(unit: bool = False) -> tuple[Floats, Floats, Floats]:
        """Images of the first tokens, their variances, and what all others are combinations of."""
        image, variance = images(reading.equations(first, unit), len(first))
        return image, variance, (image[1:] - image[0]) if apart else image

    others = np.setdiff1d(np.arange(width + 1), first)
    image, variance, basis = spanning()
    foretold(reading, first, image, variance, reading.rng)
    if rank:
        left = np.linalg.svd(basis, full_matrices=False)[2]  # (rank, width)
        normal = reading.design.plane.normal
        # one of them holds all that lies along v, which keys beside v cannot show
        lean = left @ normal
        turn = np.linalg.qr(np.concatenate([lean[:, None], np.eye(rank)], axis=1))[0]
        aimed = turn.T @ left
        aimed = aimed - np.outer(aimed @ normal, normal)
        aimed /= np.maximum(np.linalg.norm(aimed, axis=1, keepdims=True), BOUNDARY.aimed)
        # along them images are longer than along others: keys as much shorter keep the scores as they were
        usual = reading.design.sizes.key * np.sqrt(np.mean((basis @ aimed.T) ** 2, axis=0))
        aimed *= np.minimum(BOUNDARY.sigma / np.maximum(usual, 1e-300), 1.0)[:, None]
        reading.add(np.repeat(others, rank), np.tile(aimed, (len(others), 1)), late=reading.asker.hurried)
        reading.go_on(reading.coarse())

    def solution(unit: bool = False) -> Scores:
        image, variance, basis = spanning(unit)
        start = image[0] if apart else np.zeros(width)
        all_images, all_variances = np.empty((width + 1, width)), np.empty((width + 1, width))
        all_images[first], all_variances[first] = image, variance
        if rank and len(others):
            found = reading.equations(others, unit)
            steps = found.steps.reshape(len(others), rank, width)
            inverse = np.linalg.inv(steps @ basis.T)
            odds = found.odds.reshape(len(others), rank) - steps @ start
            share = np.einsum("jab,jb->ja", inverse, odds)
            all_images[others] = start + share @ basis
            own = np.einsum("jab,jb->ja", inverse**2, found.variance.reshape(len(others), rank)) @ basis**2
            weights = np.concatenate([1 - share.sum(axis=1, keepdims=True), share], axis=1) if apart else share
            all_variances[others] = own + weights**2 @ variance
        elif len(others):
            all_images[others], all_variances[others] = start, variance.mean(axis=0)
        return solved(reading.design.last, all_images, all_variances, rank)

    reading.go_on(wanted_width(reading, solution(), solution(unit=True)), final=True)
    reading.fine.finish()
    return solution()


def scores(reading: Reading, blocks: list[int]) -> Scores:
    """W and c, of low rank if one of the blocks shows it."""
    before = 0
    for size in blocks:
        grown(reading, before, size, late=reading.asker.hurried and reading.width >= BOUNDARY.hurried_widths)
        before = size
        reading.look()
        for share in (BOUNDARY.hurry, BOUNDARY.hurry / 16, BOUNDARY.hurry / 256):
            reading.go_on(reading.coarse(share))
            reading.settle()
            shown = block_rank(reading, size)
            if shown is None:
                break
            if shown.clear:
                return low_scores(reading, shown, before)
    width, shown = reading.width, rank_shown(*read_roughly(reading, before))
    if blocks and shown is not None and shown.clear and shown.rank * (2 * width - shown.rank) < BOUNDARY.worth * width**2:
        return low_scores(reading, shown, width)
    return read_finely(reading)
