"""What of a misfit no small change of the parameters explains: of heads whose errors have no bars, several heads among them.

A right layer whose parameters are a little off answers off by ``J e``, J the Jacobian of the answers and e the errors, whatever
amplified them: values that nearly depend on each other, weak heads. What lies outside the columns of J is rounding, or foreign.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import lstsq

from unsoftmax.linalg import on_host
from unsoftmax.models import Attention, Floats
from unsoftmax.proof.compare import Compared
from unsoftmax.proof.settings import PROOF
from unsoftmax.symmetry.jacobian import attention_jacobian


def sequences_for(seen: Compared, model: Attention) -> int:
    """How many sequences it takes, each answered as these are, before there are enough answers beside so many parameters."""
    each = seen.answers.size / seen.sequences
    return int(np.ceil(PROOF.beside * model.sizes(None).parameters / each))


def unexplained(seen: Compared, model: Attention, rounding: Floats, rng: np.random.Generator) -> Floats:
    """How far each row misses all that a change of the parameters explains, in units of its ``rounding (rows, outputs)``.

    Rows that are not looked at, as there are plenty, count as explained. Asks nothing.
    """
    outputs, numbers = seen.answers.shape[1], model.sizes(None).parameters
    strange = (seen.deviations / rounding).max(axis=1)
    most = int(np.ceil(PROOF.plenty * numbers / outputs))
    drawn = rng.random(len(strange)) + (strange > np.quantile(strange, PROOF.worst_rows))
    kept = np.zeros(len(strange), dtype=bool)
    kept[np.argsort(-drawn)[:most]] = True
    rows, columns = [], []
    for at, sequences in _at_last(seen):
        few = kept[at]
        if few.any():
            rows.append(at[few])
            columns.append(attention_jacobian(model, sequences[few])[1])
    row = np.concatenate(rows)
    jacobian = np.concatenate(columns).reshape(len(row) * outputs, -1)
    off, allowed = (seen.answers - seen.predicted)[row].ravel(), rounding[row].ravel()
    weighed = jacobian / allowed[:, None]
    size = np.maximum(np.linalg.norm(weighed, axis=0), np.finfo(float).tiny)
    step = lstsq(weighed / size, off / allowed, cond=PROOF.null, lapack_driver="gelsy", check_finite=False)[0] / size
    by_step = jacobian @ step
    share = _largest_share(model, step)  # of themselves that the parameters change by: the second order is about so much of it
    left = np.abs(off - by_step) / (allowed + PROOF.second_order * share * np.abs(by_step))
    left *= (1.0 - min(numbers, len(off) - 1) / len(off)) ** -0.5  # a fit takes its share of what it does not explain
    times = np.zeros(len(strange))
    times[row] = left.reshape(len(row), outputs).max(axis=1)
    return times


def _largest_share(model: Attention, step: Floats) -> float:
    """The largest change of a block, of itself."""
    assert model.V is not None
    blocks = [model.W, model.V, *([model.c] if model.has_c else []), *([np.asarray(model.b)] if model.has_b else [])]
    parts = np.split(step, np.cumsum([block.size for block in blocks])[:-1])
    return max(float(np.linalg.norm(part) / np.linalg.norm(block)) for part, block in zip(parts, blocks, strict=True))


def _at_last(seen: Compared) -> list[tuple[np.ndarray, Floats]]:
    """Rows with the sequences whose last position they are, of one length each."""
    found, start = [], 0
    for batch, places in zip(seen.batches, seen.positions or (1,) * len(seen.batches), strict=True):
        X = on_host(batch.sequences)
        rows = start + np.arange(len(X) * places).reshape(len(X), places)
        start += rows.size
        if seen.causal is None:
            found.append((rows[:, 0], X))
        else:  # without a mask the order of the other tokens does not matter
            found += [(rows[:, at], X[:, : at + 1] if seen.causal else np.roll(X, -at - 1, axis=1)) for at in range(places)]
    return found
