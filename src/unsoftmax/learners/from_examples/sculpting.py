"""The provable route from examples to heads: six phases, one or two heads (``method="sculpt"``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.learners.from_examples.sculpt_phases import (
    Body,
    Span,
    crude_sum,
    minimum_norm_point,
    refine_sum,
    sculpt_body,
    span_of_heads,
)
from unsoftmax.learners.from_examples.search import PLAIN, Search
from unsoftmax.learners.from_examples.settings import EXAMPLES
from unsoftmax.learners.from_examples.verdict import Verdict, examine
from unsoftmax.models import Attention, Floats, softmax


@dataclass(frozen=True, slots=True, eq=False)
class Sculpture:
    """What each phase found.

    Attributes:
        crude: phase 1, the crude sum of the projections ``S``, ``(width, outputs)``.
        first_body: phase 2, the body cut with the crude sum.
        average: phase 3, the body's point of least norm, ``(width, width)``, query by key.
        refined: phase 3, the refined ``S``.
        body: phase 4, the body cut with the refined sum.
        span: phase 5, where the heads differ, checked by linear programs; None for one head.
        theta: phase 6, the heads chosen from the net, ``(heads, width, width)``, query by key.
        model: the layer, values by least squares; nothing is polished.
        training_error: relative error on the examples.
    """

    crude: Floats
    first_body: Body
    average: Floats
    refined: Floats
    body: Body
    span: Span | None
    theta: Floats
    model: Attention
    training_error: float


def sculpt(X: Floats, Y: Floats, *, heads: int, seed: int = 0) -> Sculpture:
    """Run the six phases on inputs ``(examples, length, width)`` and answers at all positions ``(examples, length, outputs)``.

    Needs ``length - 1 <= outputs``, a well-conditioned sum of the projections, scores of moderate size (|Theta|_F about 2 to 4 for
    white tokens), and thousands of examples: it shows how the theorem works, while ``method="fit"`` is what to use.
    """
    if heads not in (1, 2):
        raise ValueError(f"heads is {heads}; the six phases are carried out for 1 or 2 heads. Use method='fit' for more.")
    rng = np.random.default_rng(seed)
    crude = crude_sum(X, Y)
    first_body, average = minimum_norm_point(sculpt_body(X, Y, crude))
    refined = refine_sum(X, Y, average)
    best: Sculpture | None = None
    total = refined
    for _ in range(EXAMPLES.passes):
        body, centre = minimum_norm_point(sculpt_body(X, Y, total, theta=None if best is None else best.theta))
        span = span_of_heads(body, heads, rng) if heads == 2 else None
        theta = centre[None] if span is None else _net(X, Y, centre, span.directions[0].reshape(centre.shape), rng)
        model, error = _with_values(X, Y, theta)
        if best is not None and error >= best.training_error:
            break
        best = Sculpture(crude, first_body, average, total, body, span, theta, model, error)
        assert model.V is not None  # just solved for
        total = model.V.sum(axis=0)
    assert best is not None  # the first pass always gives one
    return best


def _with_values(X: Floats, Y: Floats, theta: Floats) -> tuple[Attention, float]:
    """Values by least squares for given heads, and the relative error that is left."""
    features = head_features(X, theta)
    answers = Y.reshape(len(features), -1)
    values = np.linalg.lstsq(features, answers, rcond=None)[0]
    error = float(np.linalg.norm(answers - features @ values) / np.linalg.norm(answers))
    V = np.asarray(values, dtype=np.float64).reshape(len(theta), X.shape[2], -1)
    return Attention(W=theta.transpose(0, 2, 1), V=V), error


def head_features(X: Floats, theta: Floats) -> Floats:
    """``[A_1 X | … | A_m X]`` over all positions, ``(examples * length, heads * width)``."""
    parts = [softmax(X @ head @ X.transpose(0, 2, 1)) @ X for head in theta]
    return np.concatenate(parts, axis=2).reshape(X.shape[0] * X.shape[1], -1)


def _net(X: Floats, Y: Floats, centre: Floats, direction: Floats, rng: np.random.Generator) -> Floats:
    """Phase 6: every pair of net points on the line of heads, values by least squares, the best pair kept, then a finer net."""
    chosen = rng.permutation(len(X))[:2_000]
    tokens, answers = X[chosen], Y[chosen].reshape(-1, Y.shape[2])
    reach = 4.0 * max(float(np.linalg.norm(centre)), 1.0)
    middles = np.zeros(2)
    places = np.linspace(-reach, reach, EXAMPLES.net)
    nets = [places, places]
    for _ in range(EXAMPLES.zooms):
        middles = _best_pair(tokens, answers, centre, direction, nets)
        reach /= 4.0 * (EXAMPLES.net - 1) / (2 * 20)  # the next net covers two steps of this one on either side
        nets = [middle + np.linspace(-reach, reach, 21) for middle in middles]
    return np.stack([centre + place * direction for place in middles])


def _best_pair(tokens: Floats, answers: Floats, centre: Floats, direction: Floats, nets: list[Floats]) -> Floats:
    width = tokens.shape[2]
    stacks = [head_features(tokens, centre + net[:, None, None] * direction) for net in nets]
    squares = [[a.T @ b for b in stacks] for a in stacks]
    aims = [stack.T @ answers for stack in stacks]
    best, found = -np.inf, np.zeros(2)
    same = nets[0] is nets[1]
    for i, place in enumerate(nets[0]):
        mine = slice(i * width, (i + 1) * width)
        for j in range(i + 1 if same else 0, len(nets[1])):
            other = slice(j * width, (j + 1) * width)
            gram = np.block(
                [[squares[0][0][mine, mine], squares[0][1][mine, other]], [squares[1][0][other, mine], squares[1][1][other, other]]]
            )
            aim = np.concatenate([aims[0][mine], aims[1][other]])
            gram += 1e-10 * np.trace(gram) * np.eye(len(gram))
            explained = float(np.sum(aim * np.linalg.solve(gram, aim)))
            if explained > best:
                best, found = explained, np.array([place, nets[1][j]])
    return found


def decide_by_sculpting(search: Search, heads: int | None) -> tuple[Verdict, dict[str, Any]]:
    """Sculpt, then polish by the ordinary fit and examine the result like any other; the phases' figures come along.

    Raises:
        ValueError: answers or options that the six phases do not cover.
    """
    examples = search.examples
    if heads not in (None, 1, 2):
        raise ValueError(f"heads is {heads}; the six phases are carried out for 1 or 2 heads. Use method='fit' for more.")
    if not examples.all_positions or examples.blocked is not None:
        raise ValueError("method='sculpt' needs answers at all positions, without mask and not causal. Use method='fit'.")
    length, outputs = examples.tokens.shape[1], examples.answers.shape[2]
    if not 2 <= length <= outputs + 1:
        raise ValueError(
            f"method='sculpt' needs 2 to {outputs + 1} tokens for {outputs} outputs; X has {length}. Use method='fit'."
        )
    used = search.learn.all(axis=1)
    X, Y = examples.tokens[used], examples.answers[used]
    report: dict[str, Any] = {}
    verdict = Verdict(None, accepted=False, reason="examples")
    for count in (1, 2) if heads is None else (heads,):
        found = sculpt(X, Y, heads=count, seed=int(search.rng.integers(2**31)))
        search.tell(f"{count} head{'s' * (count > 1)} sculpted: error {found.training_error:.1e}")
        report = phase_report(found)
        verdict = examine(search, search.descend(_in_frame(search, found.theta), PLAIN, search.effort))
        if verdict.accepted:
            break
    return verdict, report


def _in_frame(search: Search, theta: Floats) -> Floats:
    """Heads ``(heads, width, width)`` in the whitened coordinates of the fit."""
    back = np.linalg.pinv(search.frame.query_map), np.linalg.pinv(search.frame.key_map)
    return np.asarray(np.einsum("qa,hab,kb->qhk", back[0], theta, back[1]).reshape(len(back[0]), -1))


def phase_report(found: Sculpture) -> dict[str, Any]:
    """The phases in numbers, for reports."""
    report: dict[str, Any] = {
        "refined_sum_moved": float(np.linalg.norm(found.refined - found.crude) / np.linalg.norm(found.refined)),
        "body_width": [found.first_body.width, found.body.width],
        "slabs": [len(found.first_body.offsets), len(found.body.offsets)],
        "average_norm": float(np.linalg.norm(found.average)),
        "unpolished_error": found.training_error,
    }
    if found.span is not None:
        report["extent_along_span"] = float(found.span.extents.min())
        report["extent_elsewhere"] = float(np.median(found.span.elsewhere))
    return report
