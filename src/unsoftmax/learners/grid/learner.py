"""Weights on a grid: several whole numbers are read off one answer, and come out exact."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from unsoftmax.learners.grid.reader import PackedReader, off_grid
from unsoftmax.learners.grid.rows import read_rows
from unsoftmax.learners.grid.settings import ON_GRID
from unsoftmax.learners.one_head import OneHeadLearner
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.probes.packed import ANSWER_BITS, SAFE_BITS, Integers, capacity, common_step, strips
from unsoftmax.results import Floor, Learned


@dataclass(frozen=True, slots=True)
class GridLearner:
    """Recover one head whose weights are whole multiples of a step, in about ``(d^2 + d) / k`` queries, exactly.

    ``k`` digits fit into one answer: 30 for ternary weights, 12 for int4, 6 for int8. The values v are read packed too where they
    lie on a grid of their own (judged by six of them), else one by one. Price: ``(d^2 + d) / k``, rounded up by strips, and 14.
    Assumes scalar exact answers, one head without query bias and no bound on the tokens. Where that does not hold the head is
    learned at full price by ``OneHeadLearner`` and then moved to the grid.

    Attributes:
        grid: the step, one step per row of W, or "auto" to find a common step or one per row.
        floor: how coarse the answers are.
        max_norm: longest token that may be sent.
    """

    grid: float | Floats | str = "auto"
    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Ask and learn. Refuses weights that do not lie on the grid given; says so where "auto" finds none."""
        steps = self._given(oracle.width)
        if not self.floor.exact or self.max_norm is not None:
            return self._plain(oracle, steps, rng)
        reader = PackedReader(oracle, rng)
        if not (reader.read_values(steps) and reader.without_bias()):
            return self._plain(oracle, steps, rng)
        if steps is None:
            found = _searched(reader)
            if found is None:
                return self._plain(oracle, None, rng)
            steps, multiples = found
        else:
            read = reader.multiples(steps)
            if read is None:
                raise off_grid(steps, "its entries are not whole numbers of steps")
            multiples = read
        model = Attention.single(W=multiples * steps[:, None], v=reader.v, b=reader.b)
        return Learned(
            model=model, ambiguity=_AMBIGUITY, notes=(_grid_note(steps, multiples),), evidence=_evidence(steps, multiples)
        )

    def _given(self, width: int) -> Floats | None:
        """One step for each row, or None where they are to be found."""
        if isinstance(self.grid, str):
            if self.grid != "auto":
                raise ValueError(f"grid is {self.grid!r}; it must be a step, one step per row, or 'auto'.")
            return None
        steps = np.asarray(self.grid, dtype=np.float64)
        if steps.shape not in ((), (width,)) or not (np.isfinite(steps).all() and (steps > 0).all()):
            raise ValueError(f"grid has shape {steps.shape}; it must be one positive step, or {width} of them, one per row of W.")
        return np.broadcast_to(steps, (width,)).copy()

    def _plain(self, oracle: Oracle, steps: Floats | None, rng: np.random.Generator) -> Learned:
        """Learn without the grid, then move W to it."""
        learned = OneHeadLearner(floor=self.floor, max_norm=self.max_norm).run(oracle, rng=rng)
        model = cast(Attention, learned.model)
        W = model.W[0]
        found = _steps_of(W, 1e-9 if self.floor.exact else 0.0) if steps is None else steps
        if found is None:
            note = "No grid was noticed in the score matrix; it was learned as real numbers."
            return replace(learned, notes=(*learned.notes, note), bounds=None)
        multiples = np.rint(W / found[:, None]).astype(np.int64)
        off = np.abs(W / found[:, None] - multiples)
        if steps is not None and (off > ON_GRID.left_over).any():
            raise off_grid(steps, f"an entry of W lies {off.max():.2f} steps from the nearest multiple", model=model)
        exact = Attention(
            W=(multiples * found[:, None])[None],
            V=model.V,
            c=model.c if model.has_c else None,
            b=model.b if model.has_b else None,
        )
        return Learned(
            model=exact,
            ambiguity=learned.ambiguity,
            notes=(*learned.notes, _grid_note(found, multiples)),
            evidence={**learned.evidence, **_evidence(found, multiples)},
            ranks=learned.ranks,
        )


def _searched(reader: PackedReader) -> tuple[Floats, Integers] | None:
    """A common step, or one for each row, with the multiples; None where there is none, or where only some share it."""
    step = reader.common_step()
    if step is None:
        return read_rows(reader)
    rough = float(f"{step:.9g}") != step  # measured, not guessed as a short number
    steps = np.full(reader.width, step)
    multiples = reader.multiples(steps, SAFE_BITS if rough else ANSWER_BITS)
    return None if multiples is None else (steps, multiples)


_AMBIGUITY = "The parameters are unique in this form; W is exact, as whole multiples of the step."


def _steps_of(W: Floats, tolerance: float) -> Floats | None:
    """A common step of all entries, or one per row, where there is one within the tolerance."""
    W = np.where(np.abs(W) > 2.0**-40 * np.abs(W).max(initial=0.0), W, 0.0)
    step = common_step(W.ravel(), tolerance=tolerance)
    if step is not None:
        return np.full(len(W), step)
    steps = [common_step(row, tolerance=tolerance) for row in W]
    return None if any(step is None for step in steps) else np.array(steps, dtype=np.float64)


def _grid_note(steps: Floats, multiples: Integers) -> str:
    largest = int(np.abs(multiples).max(initial=0))
    spacing = f"step {steps[0]:.9g}" if np.ptp(steps) == 0 else f"one step per row, {steps.min():.3g} to {steps.max():.3g}"
    return f"W lies on a grid ({spacing}); its entries are whole multiples from -{largest} to {largest} and are exact."


def _evidence(steps: Floats, multiples: Integers) -> dict[str, Any]:
    return {"grid": steps[0] if np.ptp(steps) == 0 else steps, "largest_multiple": int(np.abs(multiples).max(initial=0))}


def price(width: int, largest: int = 128, *, packed_values: bool = True) -> list[tuple[str, int, int]]:
    """Phases with queries and tokens for a known step; ``largest`` is 128 for int8, 8 for int4, 1 for ternary weights."""
    limit = capacity(largest)
    sample = min(ON_GRID.value_samples, width)
    rest = width - sample
    values = 1 + sample + ((-(-rest // limit) + (rest > 0)) if packed_values else rest)
    tiles = sum(-(-width // rows) for _, rows in strips(width, limit))
    length = 1 + ON_GRID.copies
    return [
        ("values", values, values),
        ("query bias", 1, 2),
        ("range", ON_GRID.samples, length * ON_GRID.samples),
        ("entries", tiles, length * tiles),
        ("confirm", ON_GRID.confirm, length * ON_GRID.confirm),
    ]
