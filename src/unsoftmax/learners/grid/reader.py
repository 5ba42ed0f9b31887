"""Packed questions to one head: many whole numbers in one answer."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError
from unsoftmax.learners.grid.settings import ON_GRID
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.probes.packed import (
    ANSWER_BITS,
    SAFE_BITS,
    Integers,
    base_of,
    capacity,
    common_step,
    digits,
    exact_step,
    plain_number,
    strips,
)


class PackedReader:
    """Packed questions to one head with scalar answers."""

    def __init__(self, oracle: Oracle, rng: np.random.Generator) -> None:
        self.oracle, self.rng, self.width = oracle, rng, oracle.width
        self.b = 0.0
        self.v = np.zeros(self.width)

    def read_values(self, given: Floats | None) -> bool:
        """v and b from one-token answers, packed where v lies on a grid; False where answers are vectors."""
        phase(self.oracle, "values")
        sample = min(ON_GRID.value_samples, self.width)
        constant = self.oracle(np.zeros((1, 1, self.width)))
        if constant.ndim > 1:
            return False
        self.b = float(constant[0])
        self.v[:sample] = self._values_of(np.eye(self.width)[:sample])
        if not any(self._packed_values(step, sample) for step in self._value_steps(self.v[:sample], given)):
            self.v[sample:] = self._values_of(np.eye(self.width)[sample:])
        if not self.v.any():
            raise NotIdentifiableError(
                f"Every one-token answer equals {self.b:.6g}: the values are zero, so W never shows in an answer. Ask a target "
                "whose answers depend on its tokens."
            )
        return True

    def _value_steps(self, sample: Floats, given: Floats | None) -> list[float]:
        """Spacings on which v may lie, judging by a few entries: that of W, or their own, maybe a multiple of the true one."""
        steps = []
        if given is not None and np.ptp(given) == 0 and np.abs(sample / given[0] - np.rint(sample / given[0])).max() < 1e-6:
            steps.append(float(given[0]))
        own = common_step(sample, fewest=1)
        return steps + ([] if own is None else [exact_step(sample, own / share) for share in (1, 2, 3)])

    def _values_of(self, tokens: Floats) -> Floats:
        """``tokens @ v`` from one-token answers; the tokens are sent long, to drown the constant."""
        return (self.oracle(ON_GRID.long * tokens[:, None]) - self.b) / ON_GRID.long if len(tokens) else np.zeros(0)

    def _packed_values(self, step: float, sample: int) -> bool:
        """Read the remaining values several at a time; False if they do not lie on the grid of the first ones."""
        multiples = np.rint(self.v[:sample] / step).astype(np.int64)
        largest = range_of(multiples)
        count, base = capacity(largest), base_of(largest)
        places = np.arange(self.width - sample)
        if not len(places):
            self.v[:] = multiples * step
            return True
        tokens = np.zeros((-(-len(places) // count), self.width))
        tokens[places // count, sample + places] = float(base) ** (places % count)
        found, rest = digits(self._values_of(tokens) / step, base, count)
        multiples = np.concatenate([multiples, found.reshape(-1)[: len(places)]])
        weights = self.rng.integers(1, 2**10, size=(1, self.width)).astype(np.float64)
        dense = float(self._values_of(weights)[0]) / step
        if np.abs(rest).max() > ON_GRID.left_over or abs(dense - weights[0] @ multiples) > ON_GRID.left_over:
            return False
        self.v[:] = multiples * step
        return True

    def without_bias(self) -> bool:
        """Whether keys before a zero token all weigh one half: no query bias. One query."""
        phase(self.oracle, "query bias")
        key = ON_GRID.key * self.rng.uniform(1, 2, size=self.width) * np.where(self.v < 0, -1.0, 1.0)
        share = (float(self.oracle(np.stack([key, np.zeros(self.width)])[None])[0]) - self.b) / float(key @ self.v)
        return abs(share - 0.5) < 1e-12

    def scores(self, keys: Floats, tokens: Floats) -> Floats:
        """``keys W tokens`` row by row, ``(batch, width)`` each; the keys must be signed as v is, so that no value cancels."""
        strongest = int(np.argmax(np.abs(self.v)))
        keys = keys.copy()
        smallest = np.where(keys == 0, np.inf, np.abs(keys)).min(axis=1)
        keys[:, strongest] += ON_GRID.tilt * smallest * np.where(self.v[strongest] < 0, -1.0, 1.0)
        sequences = np.stack([ON_GRID.key * keys] + [tokens / ON_GRID.key] * ON_GRID.copies, axis=1)
        high, low = sequences[:, 0] @ self.v, sequences[:, 1] @ self.v
        parts = np.array_split(sequences, max(1, sequences.nbytes >> 25))
        answers = np.concatenate([self.oracle(part) for part in parts]) - self.b
        with np.errstate(divide="ignore", invalid="ignore"):
            # one logarithm of the ratio: two would be large numbers here, and their difference would lose digits
            return np.asarray(np.log((answers - low) / (high - answers)) + np.log(ON_GRID.copies))

    def products(self, rows: Floats, columns: Floats, top: Floats | float) -> Floats:
        """``rows W columns`` (batch), where their size is at most ``top``: scores are kept within ``TOP``."""
        gain = ON_GRID.top / np.broadcast_to(top, len(rows))
        return self.scores(rows * np.where(self.v < 0, -1.0, 1.0), columns * gain[:, None]) / gain

    def multiples(self, steps: Floats, bits: float = ANSWER_BITS) -> Integers | None:
        """The whole numbers ``W / steps``, or None if they are not whole; ``bits`` of each answer are used."""
        phase(self.oracle, "range")
        sample = self._sample(steps)
        if sample is None:
            return None
        start = ON_GRID.ranges.index(range_of(sample))
        for largest in ON_GRID.ranges[start : start + 3]:
            phase(self.oracle, "entries")
            found = self._entries(steps, largest, bits)
            if found is None:
                continue
            phase(self.oracle, "confirm")
            if self.confirmed(steps, found):
                return found
        return None

    def _sample(self, steps: Floats) -> Integers | None:
        """A few entries, two in a query, read with many spare bits."""
        rows = self.rng.choice(self.width, size=2 * ON_GRID.samples).reshape(ON_GRID.samples, 2)
        columns = self.rng.choice(self.width, size=ON_GRID.samples)
        base = base_of(ON_GRID.sample_largest)
        keys = np.zeros((ON_GRID.samples, self.width))
        np.add.at(keys, (np.arange(ON_GRID.samples), rows[:, 0]), 1 / steps[rows[:, 0]])
        np.add.at(keys, (np.arange(ON_GRID.samples), rows[:, 1]), base / steps[rows[:, 1]])
        signs = np.where(self.v < 0, -1, 1)[rows]
        found, rest = digits(self.products(keys, np.eye(self.width)[columns], ON_GRID.sample_largest * base), base, 2)
        return None if not np.isfinite(rest).all() or np.abs(rest).max() > 2.0**-6 else found * signs

    def _entries(self, steps: Floats, largest: int, bits: float) -> Integers | None:
        """Every entry, tile by tile; None if an answer is not a whole number."""
        base, limit = base_of(largest), capacity(largest, bits)
        found = np.zeros((self.width, self.width), dtype=np.int64)
        signs = np.where(self.v < 0, -1, 1)
        column = 0
        for strip, height in strips(self.width, limit):
            tiles = -(-self.width // height)
            place = np.arange(self.width)
            keys = np.zeros((tiles, self.width))
            keys[place // height, place] = float(base) ** (place % height) / steps
            token = np.zeros(self.width)
            token[column : column + strip] = float(base) ** (height * np.arange(strip))
            numbers = self.products(keys, np.broadcast_to(token, keys.shape), float(base) ** (strip * height) / 2)
            if not np.isfinite(numbers).all():
                return None
            read, rest = digits(numbers, base, strip * height)
            if np.abs(rest).max() > ON_GRID.left_over:
                return None
            block = read.reshape(tiles, strip, height).transpose(0, 2, 1).reshape(tiles * height, strip)
            found[:, column : column + strip] = block[: self.width] * signs[:, None]
            column += strip
        return found

    def confirmed(self, steps: Floats, multiples: Integers) -> bool:
        """Dense random products, each of which sees every entry."""
        rows = self.rng.integers(1, 2**8, size=(ON_GRID.confirm, self.width)).astype(np.float64)
        columns = self.rng.integers(1, 2**8, size=(ON_GRID.confirm, self.width)).astype(np.float64)
        wanted = np.einsum("bi,ij,bj->b", rows * np.where(self.v < 0, -1.0, 1.0), multiples.astype(np.float64), columns)
        top = 2.0**14 * self.width * float(np.abs(multiples).max(initial=1))
        return bool(np.abs(self.products(rows / steps, columns, top) - wanted).max() < ON_GRID.left_over)

    def not_confirmed(self, steps: Floats, multiples: Integers) -> Integers:
        """The rows that do not answer as they were read; one query for each row."""
        tokens = self.rng.integers(1, 2**8, size=multiples.shape).astype(np.float64)
        signs, top = (
            np.where(self.v < 0, -1.0, 1.0),
            2.0**8 * self.width * np.abs(multiples).max(axis=1, initial=1).astype(np.float64),
        )
        off = self.products(np.eye(self.width) / steps, tokens, top) * signs - np.sum(multiples * tokens, axis=1)
        return np.flatnonzero(~(np.abs(off) < ON_GRID.left_over))

    def common_step(self) -> float | None:
        """One step for all entries, from eight of them; None where they have none in common."""
        phase(self.oracle, "grid")
        cells = self.rng.choice(self.width**2, size=min(8, self.width**2), replace=False)
        entries = self._singles(cells // self.width, cells % self.width)
        step = common_step(entries)
        if step is None:
            return None
        return self._divided(cells[0] // self.width, step, np.rint(entries / step))

    def one_row(self) -> tuple[float, int] | None:
        """The step of a row, from six entries, and the range of its multiples; None where it has no step.

        A row most of whose entries are zero tells nothing, and few that share a large factor tell too little: then the next one is
        asked.
        """
        for row in range(min(ON_GRID.rows_tried, self.width)):
            columns = self.rng.choice(self.width, size=min(ON_GRID.of_row, self.width), replace=False)
            entries = self._singles(np.full_like(columns, row), columns)
            if np.count_nonzero(entries) < 2:
                continue
            step = common_step(entries)
            if step is None:
                return None
            step = self._divided(row, step, np.rint(entries / step))
            if step is not None:
                return step, range_of(np.rint(entries / step).astype(np.int64))
        return None

    def _divided(self, row: int, step: float, multiples: Floats) -> float | None:
        """The step, divided where the multiples seen share a factor of 2 or 3 that others do not; None if there are others still.

        One query, of a few more entries of the row in sixths of the step.
        """
        largest = 6 * max(128, range_of(multiples.astype(np.int64)))  # others may be larger than those seen
        base, count = base_of(largest), min(capacity(largest, SAFE_BITS), self.width)
        token, key = np.zeros((1, self.width)), np.zeros((1, self.width))
        token[0, self.rng.choice(self.width, size=count, replace=False)] = float(base) ** np.arange(count)
        key[0, row] = 6 / step
        sixths, rest = digits(self.products(key, token, float(base) ** count / 2), base, count)
        if not np.abs(rest).max() <= ON_GRID.left_over:
            return None
        shared = np.gcd.reduce(np.concatenate([6 * multiples.astype(np.int64), sixths[0]]))
        return plain_number(step * shared / 6)

    def _singles(self, rows: Integers, columns: Integers) -> Floats:
        """Single entries as real numbers, each to nearly full precision."""
        top = np.full(len(rows), ON_GRID.top)
        return self.sized(rows, np.eye(self.width)[columns], top, top / 8)

    def sized(self, rows: Integers, tokens: Floats, top: Floats, least: Floats) -> Floats:
        """Products of rows of W with tokens, each to nearly full precision: asked again at the scale that the first answer shows.

        Args:
            top: the size that is expected of each.
            least: the size from which on this will do.
        """
        keys = np.eye(self.width)[rows]
        signs = np.where(self.v < 0, -1.0, 1.0)[rows]
        found = np.zeros(len(rows))
        enough = least / top
        todo = np.ones(len(rows), dtype=bool)
        for _ in range(12):
            found[todo] = self.products(keys[todo], tokens[todo], top[todo]) * signs[todo]
            size = np.abs(found)
            lost = ~np.isfinite(size)
            nothing = size <= ON_GRID.blank * top  # zero, or too small to show at this scale
            shrink = (size < enough * top) & (~nothing if (~nothing & ~lost).any() else True)
            todo = lost | (size > 2 * top) | shrink
            if not todo.any() or (nothing.all() and top.max() < ON_GRID.smallest):
                break
            top = np.where(todo, np.where(lost, 2.0**20 * top, np.where(nothing, 2.0**-20 * top, 1.5 * size)), top)
        floor = ON_GRID.blank * np.abs(found[np.isfinite(found)]).max(initial=0.0)
        return np.where(np.isfinite(found) & ~nothing & (np.abs(found) > floor), found, 0.0)


def range_of(multiples: Integers) -> int:
    """The smallest usual range that holds these multiples."""
    biggest = int(np.abs(multiples).max(initial=0))
    return next((largest for largest in ON_GRID.ranges if biggest <= largest), ON_GRID.ranges[-1])


def off_grid(steps: Floats, reason: str, model: Attention | None = None) -> NotInFamilyError:
    """The refusal of weights that do not lie on the grid given."""
    spacing = f"{steps[0]:.9g}" if np.ptp(steps) == 0 else f"{steps.min():.3g} to {steps.max():.3g} (one per row)"
    return NotInFamilyError(
        f"The score matrix does not lie on the grid of step {spacing}: {reason}. Leave `grid` out to learn real numbers, or use "
        '`grid="auto"` to look for the step.',
        evidence={"grid": spacing},
        model=model,
    )
