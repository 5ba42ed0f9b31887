"""The first few questions: what kind of answers are these, and do single tokens behave?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import DriftingError, Sign, TargetError
from unsoftmax.linalg import INSIDE
from unsoftmax.models import Floats
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.precision.settings import READING
from unsoftmax.results import Floor

LENGTHS = 2.0 ** np.array([0.0, 1.0, 2.0, 4.0])  # of tokens that show whether values cancel; modest, for half precision


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FirstLook:
    """What five one-token questions and the repetition of one tell.

    Attributes:
        layout: "scalar", "vector" or "all positions".
        outputs: length of an answer (1 for scalar).
        zero_answer: the answer to the zero token, as it came.
        tokens: those asked, the zero token first ``(5, width)``.
        answers: what they were answered, one at a time, ``(5, outputs)``.
        floor: precision of the answers as far as seen; ``kind`` is "exact", "float32" or "coarse".
        grid: precision of the numbers alone: float32 or rounded to decimals if they look so, whatever the function does.
        bend: deviation of one-token answers from an affine function, relative to their size.
        size: the largest of the answers.
        repeats: whether a repeated question got the identical answer.
        steady: the same, up to the last bits of float64, which may depend on the batch.
        calm: the same, up to the last bits of float32.
        cancelled: one token alone gets the same answer whatever it is, up to rounding, but several tokens do not: the values of
            several heads add up to zero.
        queries: what it cost.
    """

    layout: str
    outputs: int
    zero_answer: Floats
    tokens: Floats
    answers: Floats
    floor: Floor
    grid: Floor
    bend: float
    size: float
    repeats: bool
    steady: bool
    calm: bool
    cancelled: bool
    queries: int

    @property
    def pair(self) -> Floats:
        """Two of the tokens ``(2, width)``."""
        return self.tokens[1:3]

    @property
    def pair_answers(self) -> Floats:
        """What they were answered ``(2, outputs)``."""
        return self.answers[1:3]


def first_look(oracle: Oracle, *, rng: np.random.Generator, max_norm: float | None = None, three: bool = True) -> FirstLook:
    """Ask ``f([0]), f([r]), f([s]), f([r + s]), f([t])`` in one call and ``f([t])`` again in another; 6 queries.

    12 more where one-token answers show nothing but rounding: three tokens of four lengths, and far longer ones, on either side.

    ``three``: sequences of three tokens may be sent; else it stays with the 6.

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
    change = float(np.abs(again.reshape(-1) - flat[4]).max())
    jitter = change / size if size > 0 else 0.0
    rounding = three and _only_rounding(flat, bend)
    longer, woken = None, flat[:0]
    if rounding:
        longer, woken = _longer(oracle, np.concatenate([flat, again.reshape(1, -1)]), rng, max_norm)
    if len(woken):  # neurons that slept so far
        size = max(size, float(np.abs(woken).max()))
        bend = float(np.abs(woken[: len(LENGTHS)] + woken[len(LENGTHS) :] - 2 * flat[0]).max()) / size
    grid = _grid(flat)
    floor = _floor(flat, grid, bend, jitter)
    if longer is not None:  # measured against what the heads say, not against what is left of it
        size, bend = max(size, float(np.abs(longer).max())), 0.0
        longer = np.concatenate([longer, longer[:1]])
        floor = _floor(longer, _grid(longer), bend, change / size)
    queries = 6 + 3 * len(LENGTHS) * rounding
    if floor.unclear and 0 < jitter <= READING.jittery and bend <= READING.jittery:
        floor = _jittering(oracle, batch[4:], np.stack([flat[4], again.reshape(-1)]), jitter, bend)
        queries += READING.repeats
    return FirstLook(
        layout=layout,
        outputs=flat.shape[1],
        zero_answer=answers[0:1],
        tokens=batch[:, 0],
        answers=flat,
        floor=floor,
        grid=grid,
        bend=bend,
        size=size,
        repeats=jitter == 0.0,
        steady=jitter <= READING.steady,
        calm=jitter <= 16 * READING.single,
        cancelled=longer is not None,
        queries=queries,
    )


def _only_rounding(flat: Floats, bend: float) -> bool:
    """Whether the answers to single tokens are one number, or a few bits about zero."""
    if float(np.abs(flat - flat[0]).max()) <= READING.constant * float(np.abs(flat).max()):
        return True
    mantissa = np.ldexp(np.frexp(flat)[0], READING.few_bits)
    return (bend > READING.bent or float(np.abs(flat).max()) < READING.faint) and bool((mantissa == np.rint(mantissa)).all())


def _longer(oracle: Oracle, flat: Floats, rng: np.random.Generator, max_norm: float | None) -> tuple[Floats | None, Floats]:
    """Answers ``(4, outputs)`` to three tokens each if they move by far more than those to single ones, else None.

    Beside it the answers to long tokens ``t`` and ``-t`` ``(8, outputs)``, where these are not the one number either.
    """
    tokens = rng.normal(size=(len(LENGTHS), 3, oracle.width))
    tokens /= np.linalg.norm(tokens, axis=2, keepdims=True) / INSIDE
    lengths, far = (size if max_norm is None else np.minimum(size, max_norm) for size in (LENGTHS, READING.far * LENGTHS))
    ends = far[:, None, None] * tokens[:, -1:]
    alone, longer = (
        LastPosition(oracle)(batch).reshape(len(batch), -1)
        for batch in (np.concatenate([ends, -ends]), lengths[:, None, None] * tokens)
    )
    flicker, off, moved = (float(np.abs(answers - flat[0]).max()) for answers in (flat, alone, longer))
    one_number = READING.constant * max(float(np.abs(flat).max()), moved) + 2.0**10 * flicker
    return (longer if moved > 2.0**10 * max(flicker, off) else None), alone if off > one_number else alone[:0]


def _jittering(oracle: Oracle, question: Floats, before: Floats, jitter: float, bend: float) -> Floor:
    """The law of answers that differ in their last digits from call to call: eight further repetitions tell by how much.

    ``before``: the first two answers to this question.
    """
    answer, again = before[0], np.concatenate([LastPosition(oracle)(question).reshape(1, -1) for _ in range(READING.repeats)])
    steps = np.diff(np.concatenate([before, again]), axis=0)
    if ((steps > 0).all(axis=0) | (steps < 0).all(axis=0)).any():  # by chance once in a million
        raise DriftingError(
            f"One question, asked {1 + len(steps)} times, got another answer every time, each further off than the one before, by "
            f"{float(np.abs(steps.sum(axis=0)).max()):.2g} in all: the target changes as it is asked. Pin one version of it and "
            "start again.",
            signs=(Sign.CHANGED,),
            evidence={"drift": float(np.abs(steps.sum(axis=0)).max()), "asked_again": len(steps)},
        )
    shares = (again - answer) / float(np.abs(answer).max())
    off = float(np.sqrt(np.mean(shares**2) / 2))  # two answers differ by both errors
    worst = max(jitter, bend, off)
    versions = len(np.unique(again, axis=0))
    if 1 < versions <= READING.versions and np.ptp(again, axis=0).max() > READING.steady * float(np.abs(answer).max()):
        raise DriftingError(
            f"One question, asked {len(again)} times, got {versions} fixed answers in turn: so many versions of the model answer. "
            "Pin one version of it and start again.",
            evidence={"replicas": versions, "asked_again": len(again)},
        )
    of_batch = versions == 1 and jitter > READING.of_batch
    if worst > READING.jittery or of_batch or bend > READING.bent_by_jitter * max(off, jitter):
        return Floor(kind="coarse", relative=worst, fresh=True)
    return Floor(kind="jittering", relative=max(READING.deviations * off, worst), fresh=True, batch=True)


def _in_single(flat: Floats) -> bool:
    """All answers are float32 numbers."""
    with np.errstate(over="ignore"):  # too large for float32 is no float32 number
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
        return Floor(kind="float32", relative=READING.single)
    finest = 4 * READING.double * float(np.abs(flat).max())  # steps near those of float64 itself say nothing
    for decimals in range(READING.decimals):
        step = 10.0**-decimals
        if step > finest and np.array_equal(np.round(flat, decimals), flat) and np.any(flat):
            return Floor(kind="rounded", relative=READING.double, absolute=0.5 * step, step=step)
    return Floor()


def _floor(flat: Floats, grid: Floor, bend: float, jitter: float) -> Floor:
    """Exact, float32 or coarse: from the defect of additivity, a repetition, and the grid the answers lie on."""
    in_single = _in_single(flat)
    if grid.decimals or _in_half(flat):
        return Floor(kind="coarse", relative=bend, fresh=jitter > 0)
    worst = max(bend, jitter)
    if worst <= READING.steady and not in_single:
        return Floor(kind="exact", relative=READING.double)
    if worst <= 16 * READING.single and in_single:
        return Floor(kind="float32", relative=READING.single, batch=jitter > 0)
    return Floor(kind="coarse", relative=worst, fresh=jitter > 0)
