"""Whether a target is a pre-norm stack, from a dozen questions, and what it is instead where that shows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.stack.settings import EXACT, STACK, Settings
from unsoftmax.learners.stack.sphere import Sphere, support
from unsoftmax.models import Floats
from unsoftmax.models.stack import Norm
from unsoftmax.oracles.base import Oracle


@dataclass(frozen=True, slots=True)
class Recognised:
    """One tested statement: the target is a pre-norm stack, as far as very long tokens show.

    Attributes:
        name: of the statement.
        holds: True, False, or None where it cannot be told.
        number: what was measured: the largest relative difference of answers that must be equal.
        threshold: up to which it holds.
        words: what the target is, or why it is no stack.
        norm: which norm its blocks have.
        positions: something that depends on the length alone is added to the answers (learned positions).
        random: the same question had two answers.
    """

    name: str
    holds: bool | None
    number: float
    threshold: float
    words: str
    norm: Norm = "layer"
    positions: bool = False
    random: bool = False


def price() -> int:
    """Questions that ``recognised`` asks."""
    return STACK.price


def recognised(oracle: Oracle, *, rng: np.random.Generator, settings: Settings = EXACT) -> Recognised:
    """Ask a dozen questions with tokens of length 2^60 whose last token is sparse.

    Pre-norm stacks answer ``scale * x_N`` plus something bounded that depends on directions alone; so two scales, rescaled keys,
    keys in another order and doubled sequences must agree where the last token is zero.
    """
    width, scale, limit = oracle.width, settings.scale, settings.same
    if width < 6:
        return _no(None, 0.0, limit, f"The width is {width}; sparse tokens need 6 coordinates or more.")
    sphere = Sphere(width, "layer")  # such tokens are fine for either norm
    x = sphere.sparse(rng.choice(width, size=support(width), replace=False), rng)
    p, q = sphere.dense(2, rng)
    ones = np.ones(width)
    two = [[p, x], [2 * p, x], [p, 2 * x], [p + 3 * ones, x], [p, x], [x, x], [-p, x]]
    three = np.stack([[p, q, x], [q, p, x]])
    first = _last(oracle, scale * np.array(two))
    if first is None or first.shape[1] != width:
        shape = "one number" if first is None else f"{first.shape[1]} numbers"
        return _no(False, np.inf, limit, f"It answers with {shape}; a stack answers with its hidden state, {width} numbers.")
    clean = x == 0
    one = _last(oracle, scale * x[None, None])
    doubled = _last(oracle, scale * np.array([[p, p, x, x]]))
    turned = _last(oracle, scale * three)
    assert one is not None
    assert doubled is not None
    assert turned is not None
    grown = float(np.abs(first[0][~clean] / (scale * x[~clean]) - 1).max())
    if not grown <= STACK.grown:
        kind = (
            "a norm stands behind the last block (post-norm, or a final norm)" if np.abs(first).max() < 2.0**20 else "it is bounded"
        )
        return _no(
            False,
            grown,
            STACK.grown,
            f"Its answers do not contain the last token {scale:g} times as long: {kind}, or no residual path.",
        )
    y = first[:, clean]
    size = max(float(np.abs(y).max()), 1e-300)
    if not size < 2.0**20:
        return _no(
            False, size, 2.0**20, "Where the last token is zero its answers grow with the tokens: there is a path without a norm."
        )
    moved = float(np.abs(y[0] - y[5]).max() / size)
    far = {
        "the same question has two answers (dropout, or noise)": np.abs(y[0] - y[4]).max() / size,
        "keys act by their length, not their direction alone: no norm stands in front of its attention": np.abs(y[0] - y[1]).max()
        / size,
        "the last token acts by its length": np.abs(y[0] - y[2]).max() / size,
        "the order of keys matters (rotary or relative positions, or blocks that mix neighbours)": np.abs(
            turned[0][clean] - turned[1][clean]
        ).max()
        / size,
    }
    for i, (words, number) in enumerate(far.items()):
        if not number <= limit:
            return replace(_no(False, float(number), limit, f"With very long tokens {words}."), random=i == 0)
    alone = float(np.abs(one[0][clean] - y[5]).max() / size)
    positions = alone > limit
    twice = float(np.abs(doubled[0][clean] - y[0]).max() / size)
    if not positions and twice > limit:
        return _no(
            False, twice, limit, "With very long tokens a sequence and the same one with every token doubled differ: no softmax."
        )
    if moved <= limit:
        return _no(None, moved, limit, "Keys before the last token change nothing.")
    shifted = float(np.abs(y[0] - y[3]).max() / size)
    norm: Norm = "layer" if shifted <= limit else "rms"
    name = "LayerNorm" if norm == "layer" else "RMSNorm"
    extra = ", with positions added to its tokens" if positions else ""
    words = f"a pre-norm stack with {name}{extra}: very long tokens act by their direction, and the residual path is plain"
    return Recognised("pre-norm stack", True, float(max(far.values())), limit, words, norm, positions)


def behind_a_norm(oracle: Oracle, *, rng: np.random.Generator) -> float:
    """How far answers to long single tokens are from an ellipsoid with axes along the outputs, as a last norm puts them on.

    Such a norm makes the mean square of ``(y - shift) / gain`` one: linear in ``y`` and its squares. Others miss that
    by far. ``2 * width + spare`` questions.
    """
    tokens = STACK.long * rng.normal(size=(2 * oracle.width + STACK.spare, 1, oracle.width))
    answers = _last(oracle, tokens)
    assert answers is not None
    scaled = answers / np.maximum(np.abs(answers).max(0), 1e-300)
    design = np.concatenate([scaled**2, scaled], axis=1)
    weights = np.linalg.lstsq(design, np.ones(len(design)), rcond=1e-10)[0]
    return float(np.linalg.norm(design @ weights - 1) / np.sqrt(STACK.spare))


def clipped_at(oracle: Oracle, *, rng: np.random.Generator) -> float | None:
    """At which size the entries of a very long token come out, if the target clips them; one question.

    The last token has two opposite entries. Behind a plain residual path both come out at that size, give or take as much as the
    blocks add, which shows at the other outputs.
    """
    token = np.zeros(oracle.width)
    here = rng.choice(oracle.width, size=2, replace=False)
    token[here] = [1.0, -1.0]
    answers = _last(oracle, EXACT.scale * np.stack([rng.normal(size=oracle.width), token])[None])
    assert answers is not None
    up, down = answers[0][here] * [1.0, -1.0]
    added = float(np.abs(np.delete(answers[0], here)).max())
    level = float(min(up, down))
    return level - added if level > STACK.plainly * added and abs(up - down) <= STACK.apart_by * added else None


def acts_by_direction(oracle: Oracle, reach: float, *, rng: np.random.Generator) -> bool:
    """Whether tokens ``reach`` times as long as normalised ones pass through, and keys act by their direction; three questions.

    Norms leave errors of a few parts in ``reach``. Where those are not small nothing can be told.
    """
    sphere, near = Sphere(oracle.width, "layer"), STACK.apart_by / reach
    token = sphere.sparse(rng.choice(oracle.width, size=support(oracle.width), replace=False), rng)
    key, other = sphere.dense(2, rng)
    answers = _last(oracle, reach * np.array([[key, token], [key / 2, token], [other, token]]))
    assert answers is not None
    here = token != 0
    grown = float(np.abs(answers[:, here] / (reach * token[here]) - 1).max())
    shortened, changed = (float(np.abs(answers[i] - answers[0])[~here].max()) for i in (1, 2))
    return near < 0.5 and grown < near * float(np.abs(1 / token[here]).max() + 1) and shortened < near * changed


def _last(oracle: Oracle, sequences: Floats) -> Floats | None:
    answers = oracle(sequences)
    if answers.ndim == 3:
        answers = answers[:, -1]
    return answers if answers.ndim == 2 else None


def _no(holds: bool | None, number: float, threshold: float, words: str) -> Recognised:
    return Recognised("pre-norm stack", holds, number, threshold, words)
