"""The first few questions: what kind of answers are these, and do single tokens behave?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import TargetError
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor

SINGLE = 2.0**-22  # what a float32 evaluation is good for, relative to the largest number in it
DOUBLE = 2.0**-50
DECIMALS = 11  # answers with fewer decimals than this count as rounded


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FirstLook:
    """What five one-token questions and the repetition of one tell.

    Attributes:
        layout: "scalar", "vector" or "all positions".
        outputs: length of an answer (1 for scalar).
        zero_answer: the answer to the zero token, as it came.
        floor: precision of the answers as far as seen; ``kind`` is "exact", "float32" or "coarse".
        grid: precision of the numbers alone: float32 or rounded to decimals if they look so, whatever the function does.
        bend: deviation of one-token answers from an affine function, relative to their size.
        size: the largest of the answers.
        repeats: whether a repeated question got the identical answer.
        queries: what it cost.
    """

    layout: str
    outputs: int
    zero_answer: Floats
    floor: Floor
    grid: Floor
    bend: float
    size: float
    repeats: bool
    queries: int


def first_look(oracle: Oracle, *, rng: np.random.Generator, max_norm: float | None = None) -> FirstLook:
    """Ask ``f([0]), f([r]), f([s]), f([r + s]), f([t])`` in one call and ``f([t])`` again in another; 6 queries.

    r and s lie on a dyadic grid, so that ``r + s`` carries no rounding even in half precision; t is any token, so that the
    digits of its answer tell the precision of the numbers.
    """
    phase(oracle, "first look")
    r, s = rng.integers(-8, 9, size=(2, oracle.width)) / 8.0
    r[0] = r[0] or 1.0
    s[-1] = s[-1] or -0.5
    t = rng.normal(size=oracle.width)
    if max_norm is not None:  # the longest must fit; a power of two keeps the grid
        longest = max(np.linalg.norm(r), np.linalg.norm(s), np.linalg.norm(r + s))
        shrink = 2.0 ** np.floor(np.log2(max_norm / longest))
        r, s = r * shrink, s * shrink
        t *= 0.9 * max_norm / np.linalg.norm(t)
    batch = np.stack([np.zeros_like(r), r, s, r + s, t])[:, None]
    answers = oracle(batch)
    layout = {1: "scalar", 2: "vector", 3: "all positions"}[answers.ndim]
    flat = answers.reshape(5, -1)
    again = oracle(batch[4:])
    if again.shape[1:] != answers.shape[1:]:
        raise TargetError(
            f"The target answered a batch of 5 with shape {answers.shape} but a batch of 1 with shape {again.shape}. "
            "The shape of an answer must not depend on the batch."
        )
    size = float(np.abs(flat).max())
    bend = float(np.abs(flat[1] + flat[2] - flat[3] - flat[0]).max()) / size if size > 0 else 0.0
    jitter = float(np.abs(again.reshape(-1) - flat[4]).max()) / size if size > 0 else 0.0
    return FirstLook(
        layout=layout,
        outputs=flat.shape[1],
        zero_answer=answers[0:1],
        floor=_floor(flat, bend, jitter),
        grid=_grid(flat),
        bend=bend,
        size=size,
        repeats=jitter == 0.0,
        queries=6,
    )


def _in_single(flat: Floats) -> bool:
    """All answers are float32 numbers."""
    return bool(np.all(flat.astype(np.float32) == flat)) and bool(np.any(flat[4]))


def _in_half(flat: Floats) -> bool:
    """All answers are float16 or bfloat16 numbers."""
    with np.errstate(over="ignore"):
        half = bool(np.all(flat.astype(np.float16) == flat))
    brain = _in_single(flat) and not np.any(flat.astype(np.float32).view(np.uint32) & 0xFFFF)
    return (half or brain) and bool(np.any(flat[4]))


def _grid(flat: Floats) -> Floor:
    """Float32 or decimals, from the digits of the answers; exact otherwise."""
    if _in_single(flat):
        return Floor(kind="float32", relative=SINGLE)
    for decimals in range(DECIMALS):
        if np.array_equal(np.round(flat, decimals), flat) and np.any(flat):
            return Floor(kind="rounded", relative=DOUBLE, absolute=0.5 * 10.0**-decimals, step=10.0**-decimals)
    return Floor()


def _floor(flat: Floats, bend: float, jitter: float) -> Floor:
    """Exact, float32 or coarse: from the defect of additivity, a repetition, and the grid the answers lie on."""
    in_single = _in_single(flat)
    if _grid(flat).kind == "rounded" or _in_half(flat):
        return Floor(kind="coarse", relative=bend, fresh=jitter > 0)
    worst = max(bend, jitter)
    if worst <= 64 * 2.0**-52 and not in_single:
        return Floor(kind="exact", relative=DOUBLE)
    if worst <= 16 * SINGLE and (in_single or worst > 1e-10):
        return Floor(kind="float32", relative=SINGLE, batch=jitter > 0)
    return Floor(kind="coarse", relative=worst, fresh=jitter > 0)
