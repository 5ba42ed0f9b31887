"""Recorded examples: checked, in one shape, split into a part to learn from and a part held out, in whitened coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unsoftmax.learners.from_examples.layer import Problem
from unsoftmax.learners.from_examples.settings import EXAMPLES
from unsoftmax.models import Attention, Floats
from unsoftmax.results import Floor


class Extras(NamedTuple):
    """Parts of a layer beside W and V: query bias c, constant b, and a linear map of the asking token (residual)."""

    query_bias: bool = False
    constant: bool = False
    residual: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Recorded examples in one shape.

    Attributes:
        tokens: ``(examples, length, width)``, zeros in padding.
        asking: ``(examples, queries, width)``: the tokens at whose positions answers are given.
        blocked: ``(examples, queries, length)``: True where a position may not look, or None.
        answers: ``(examples, queries, outputs)``.
        counts: ``(examples, queries)``: False for padding.
        present: ``(examples, length)``: False for padding.
        scalar: whether an answer is a number instead of a vector.
        all_positions: whether there is an answer for every position, not just the last.
        floor: how coarse the recorded answers are, as far as their digits show.
        kinds: ``(examples,)``: equal numbers for equal sequences, which tell the same and are held out together.
    """

    tokens: Floats
    asking: Floats
    blocked: NDArray[np.bool_] | None
    answers: Floats
    counts: NDArray[np.bool_]
    present: NDArray[np.bool_]
    scalar: bool
    all_positions: bool
    floor: Floor
    kinds: NDArray[np.int64]

    @property
    def distinct(self) -> float:
        """Share of the sequences that are not repeats of others."""
        return len(np.unique(self.kinds)) / len(self.kinds)

    @property
    def rms(self) -> float:
        """Root mean square of the answers."""
        return float(np.sqrt(np.mean(self.answers[self.counts] ** 2)))

    @property
    def looks(self) -> NDArray[np.int64]:
        """Tokens that each position may look at, ``(examples, queries)``."""
        if self.blocked is None:
            return np.full(self.counts.shape, self.tokens.shape[1])
        return np.asarray((~self.blocked).sum(axis=2))


def read_examples(X: ArrayLike, Y: ArrayLike, mask: ArrayLike | None = None, *, causal: bool = False) -> Examples:
    """Check inputs ``(N, length, width)`` and answers ``(N,)``, ``(N, outputs)`` or ``(N, length, outputs)``.

    Raises:
        ValueError: shapes that do not fit, numbers that are not finite, or a mask that is no padding mask.
    """
    tokens, answers = _numbers(X, "X"), _numbers(Y, "Y")
    if tokens.ndim != 3 or 0 in tokens.shape:
        raise ValueError(f"X has shape {tokens.shape}; it must be (examples, length, width) with none of them zero.")
    examples, length, _ = tokens.shape
    if answers.ndim not in (1, 2, 3) or answers.shape[0] != examples or 0 in answers.shape:
        raise ValueError(
            f"Y has shape {answers.shape} for {examples} examples of length {length}; it must be ({examples},) or "
            f"({examples}, outputs) for answers at the last position, or ({examples}, {length}, outputs) for all positions."
        )
    everywhere = answers.ndim == 3
    if everywhere and answers.shape[1] != length:
        raise ValueError(f"Y has answers for {answers.shape[1]} positions but the sequences of X have {length} tokens.")
    present = _padding(mask, examples, length)
    tokens = np.where(present[:, :, None], tokens, 0.0)
    scalar = answers.ndim == 1
    if everywhere:
        asking, counts = tokens, present
        answers = np.where(present[:, :, None], answers, 0.0)
    else:
        last = length - 1 - np.argmax(present[:, ::-1], axis=1)
        asking, counts = tokens[np.arange(examples), last][:, None], np.ones((examples, 1), dtype=bool)
        answers = answers.reshape(examples, 1, -1)
    for name, array in (("X", tokens), ("Y", answers)):
        if not np.isfinite(array).all():
            bad = np.argwhere(~np.isfinite(array))
            raise ValueError(
                f"{name} holds {len(bad)} NaN or infinite numbers, the first at {tuple(map(int, bad[0]))}; remove those examples, "
                "or mark padding by `mask`."
            )
        if array.any() and not 1.0 / EXAMPLES.most < np.abs(array).max() < EXAMPLES.most:
            raise ValueError(f"The largest number in {name} is {np.abs(array).max():.1e}; scale {name} to a size nearer to 1.")
    return Examples(
        tokens, asking, _blocked(present, causal and everywhere, everywhere), answers, counts, present, scalar, everywhere,
        digits_floor(answers[counts], np.asarray(Y).dtype), _kinds(tokens),
    )  # fmt: skip


def digits_floor(answers: Floats, dtype: np.dtype[np.generic]) -> Floor:
    """How coarse recorded answers are, from their type and their digits alone."""
    if dtype == np.float16 or _survives(answers, np.float16):
        return Floor(kind="float16", relative=2.0**-11, absolute=2.0**-25)
    for decimals in range(8):
        scaled = answers * 10.0**decimals
        if np.abs(scaled).max() < 2**50 and np.allclose(
            scaled, np.rint(scaled), rtol=0.0, atol=1e-6 + 1e-15 * np.abs(scaled).max()
        ):
            step = 10.0**-decimals
            return Floor(kind="rounded", relative=2.0**-50, absolute=step / 2, step=step)
    if dtype == np.float32 or _survives(answers, np.float32):
        return Floor(kind="float32", relative=2.0**-24)
    return Floor()


def hold_out(examples: Examples, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose the answers to keep for the check, ``(examples, queries)``: whole sequences if there are many, else single answers.

    Repeats of a sequence are held out together: a fit has seen an answer that it has seen for an equal sequence.
    """
    held = np.zeros_like(examples.counts)
    number = int(examples.kinds.max()) + 1
    if number >= 40:
        chosen = rng.permutation(number)[: ceil(EXAMPLES.held_out * number)]
        held[np.isin(examples.kinds, chosen)] = True
        return held & examples.counts
    first = np.unique(examples.kinds, return_index=True)[1]
    rows = np.argwhere(examples.counts[first])
    chosen = rows[rng.permutation(len(rows))[: max(1, ceil(EXAMPLES.held_out * len(rows)))]]
    for kind, position in chosen:
        held[examples.kinds == kind, position] = True
    return held & examples.counts


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Coordinates in which tokens are white: parameters found there are mapped back by ``to_model``.

    Attributes:
        query_map, key_map, value_map: ``(width, directions)``. Keys are white within their sequence, because a shift common
            to all tokens of a sequence does not change a softmax.
        scale: the answers' root mean square.
    """

    query_map: Floats
    key_map: Floats
    value_map: Floats
    scale: float

    @property
    def missing(self) -> int:
        """Token directions that never vary, so that nothing can be known along them."""
        width = len(self.query_map)
        return int(width - min(m.shape[1] for m in (self.query_map, self.key_map, self.value_map)))

    def problem(self, examples: Examples, rows: NDArray[np.bool_], extras: Extras) -> Problem:
        """The least-squares problem over the answers marked in ``rows``; sequences without any are left out."""
        used = rows.any(axis=1)
        rows = rows[used]
        asking = examples.asking[used] @ self.query_map
        ones = np.ones((*rows.shape, 1))
        kept = None if rows.all() else rows.reshape(-1, 1).astype(np.float64)
        answers = examples.answers[used].reshape(rows.size, -1) / self.scale
        linear = [ones] * extras.constant + [asking] * extras.residual
        return Problem(
            queries=np.concatenate([asking, ones], axis=2) if extras.query_bias else asking,
            keys=examples.tokens[used] @ self.key_map,
            values=examples.tokens[used] @ self.value_map,
            blocked=None if examples.blocked is None else examples.blocked[used],
            linear=np.concatenate(linear, axis=2).reshape(rows.size, -1) if linear else np.zeros((rows.size, 0)),
            answers=answers if kept is None else answers * kept,
            kept=kept,
        )

    def to_model(self, theta: Floats, values: Floats, extras: Extras, *, scalar: bool) -> tuple[Attention, Floats | None]:
        """The layer in the user's coordinates, and the residual map ``(width, outputs)`` where there is one."""
        key_width, value_width, width = self.key_map.shape[1], self.value_map.shape[1], len(self.key_map)
        heads = theta.shape[1] // key_width
        scores = theta.reshape(-1, heads, key_width)
        directions = self.query_map.shape[1]
        W = np.einsum("ai,qhi,bq->hab", self.key_map, scores[:directions], self.query_map)
        c = np.einsum("ai,hi->ha", self.key_map, scores[directions]) if extras.query_bias else None
        V = self.value_map @ values[: heads * value_width].reshape(heads, value_width, -1) * self.scale
        rest = values[heads * value_width :] * self.scale
        b = rest[0] if extras.constant else None
        residual = self.query_map @ rest[int(extras.constant) :] if extras.residual else None
        assert V.shape[1] == width
        if scalar:
            V, b = V[:, :, 0], None if b is None else b[0]
        return Attention(W, V, c, b), residual


def frame_of(examples: Examples) -> Frame:
    """Whiten what the scores see of queries and keys, and what the answers see of the tokens."""
    present = examples.present[:, :, None]
    centred = (examples.tokens - examples.tokens.sum(axis=1, keepdims=True) / present.sum(axis=1, keepdims=True)) * present
    return Frame(
        query_map=_whitening(examples.asking[examples.counts]),
        key_map=_whitening(centred[examples.present]),
        value_map=_whitening(examples.tokens[examples.present]),
        scale=examples.rms or 1.0,
    )


def _whitening(rows: Floats) -> Floats:
    _, sizes, right = np.linalg.svd(rows, full_matrices=False)
    keep = sizes > EXAMPLES.token_cut * max(float(sizes[0]), np.finfo(float).tiny)
    return np.asarray(right[keep].T * (np.sqrt(len(rows)) / sizes[keep]))


def _numbers(array: ArrayLike, name: str) -> Floats:
    numbers = np.asarray(array)
    if numbers.dtype.kind not in "fiub":
        raise ValueError(f"{name} holds {numbers.dtype} data; it must hold real numbers in one rectangular array.")
    return numbers.astype(np.float64)


def _padding(mask: ArrayLike | None, examples: int, length: int) -> NDArray[np.bool_]:
    if mask is None:
        return np.ones((examples, length), dtype=bool)
    given = np.asarray(mask)
    if given.shape != (examples, length):
        raise ValueError(f"mask has shape {given.shape}; it must be ({examples}, {length}) as X is, True where a token is real.")
    if not np.isin(given, (0, 1)).all():
        raise ValueError("mask holds something else than True and False (or 1 and 0); it must be True where a token is real.")
    present = given.astype(bool)
    if not present.any(axis=1).all():
        raise ValueError(f"mask leaves sequence {int(np.argmin(present.any(axis=1)))} without any token; remove such sequences.")
    return present


def _kinds(tokens: Floats) -> NDArray[np.int64]:
    """Equal numbers for equal sequences, counted from 0 in the order in which they first come."""
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(hash(sequence.tobytes()), len(numbers)) for sequence in tokens])


def _blocked(present: NDArray[np.bool_], causal: bool, everywhere: bool) -> NDArray[np.bool_] | None:
    if present.all() and not causal:
        return None
    length = present.shape[1]
    queries = length if everywhere else 1
    blocked = np.repeat(~present[:, None, :], queries, axis=1)
    if causal:
        blocked |= ~np.tri(length, dtype=bool)
    blocked[blocked.all(axis=2)] = False  # a padded position looks anywhere: its answer does not count
    return blocked


def _survives(answers: Floats, dtype: type[np.float16 | np.float32]) -> bool:
    with np.errstate(over="ignore"):
        return bool((answers == answers.astype(dtype)).all())
