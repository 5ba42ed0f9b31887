"""What an extraction knows of a deep model whose MLPs it does not know: in words, and how well, against the undefended target."""

from __future__ import annotations

import numpy as np

from unsoftmax.families import family_of, named
from unsoftmax.models import Model
from unsoftmax.oracles import LastPosition, Oracle
from unsoftmax.precision.first_look import first_look
from unsoftmax.proof.fresh import fresh_batches
from unsoftmax.results import Recovery


def known_part(found: Recovery) -> str:
    """The parts that are known and those that are not; "" where the model answers by itself, or is none."""
    model = found.model
    if model is None or model.can_answer or model.anatomy is None or not found.status.success:
        return ""
    anatomy = model.anatomy
    layers, parts = len(anatomy.blocks), [part for block in anatomy.blocks for part in block]
    known, left = (" and ".join(dict.fromkeys(part.name for part in parts if part.known is kind)) for kind in (True, False))
    others = [part.name for part in (*anatomy.before, *anatomy.behind[-1:]) if part.name != "answer"]
    words = ", ".join([f"{known} of {layers} layer{'s' * (layers > 1)}", *others])
    return words + (f"; not the {left}" if left else "")


def part_error(oracle: Oracle, model: Model, *, seed: int, max_length: int | None = None, count: int = 64) -> float | None:
    """Largest deviation of what the heads alone do from what the undefended target shows of it, over its spread.

    None where a family cannot compare parts. Asks some ``2 * count`` to ``8 * count`` questions, the same ones for the same seed.
    """
    family = named(family_of(model))
    if not family.compares_parts:
        return None
    rng = np.random.default_rng([seed, 0xBA27])  # apart from honest questions and the learners' own streams
    law = first_look(oracle, rng=rng).grid
    batches = fresh_batches(model, rng, longest=max_length or 64, count=count)
    seen = family.compare_part(LastPosition(oracle), model, batches, law, rng)
    off = np.abs(seen.answers - seen.predicted) / np.maximum(seen.spreads, np.finfo(float).tiny)[:, None]
    return float(off.max()) if np.isfinite(off).all() else None
