"""Where heads may lie that explain vector answers along a line: shares in the span of the answers, as MUSIC finds sources."""

from __future__ import annotations

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.recognition.heads_design import Design, peaks
from unsoftmax.recognition.settings import TESTS


def scan(design: Design, Y: Floats, heads: int) -> Floats:
    """Vector answers: shares that lie in the span of the answers' columns, as MUSIC finds sources.

    The map over (height, pace) is rugged where steps are long: the half of the rows with shorter steps is looked at as well.
    """
    gentle = np.argsort(np.abs(design.steps).max(axis=1), kind="stable")[: max(len(Y) // 2, 2 * heads + 4)]
    found = []
    for rows in (gentle, np.arange(len(Y))):
        part = Design(design.steps[rows], design.copies[rows], design.t[rows])
        span = np.linalg.svd(Y[rows], full_matrices=False)[0][:, :heads]
        found.append(_refine(part, span, _minima(part, span, 12 * heads), 40))
    span = np.linalg.svd(Y, full_matrices=False)[0][:, :heads]
    points = _refine(design, span, np.concatenate(found), 60)
    final = _miss(design, span, points[:, 0], points[:, 1])
    chosen: list[Floats] = []
    for i in np.argsort(final, kind="stable"):
        if all(np.abs(points[i] - c).max() > 1e-3 * (1 + np.abs(c).max()) for c in chosen):
            chosen.append(points[i])
        if len(chosen) == 2 * heads:
            break
    return np.array(chosen)


def _minima(design: Design, span: Floats, most: int) -> Floats:
    """Local minima on a grid that is finer near zero."""
    axis = np.sinh(np.linspace(-4.2, 4.2, TESTS.grid)) * 0.8
    height, pace = (g.ravel() for g in np.meshgrid(axis, axis, indexing="ij"))
    miss = _miss(design, span, height, pace).reshape(TESTS.grid, TESTS.grid)
    spots = peaks(-miss)[:most]
    return np.column_stack([axis[spots[:, 0]], axis[spots[:, 1]]])


def _refine(design: Design, span: Floats, points: Floats, steps: int) -> Floats:
    """Pattern search from all points at once: derivative-free, each shrinks to its own minimum."""
    around = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1], [1, -1], [-1, 1]])
    width = 0.2
    for _ in range(steps):
        trial = points[:, None] + width * around * (0.2 + np.abs(points).max(axis=1))[:, None, None]
        values = _miss(design, span, trial[..., 0].ravel(), trial[..., 1].ravel()).reshape(len(points), 9)
        points = trial[np.arange(len(points)), values.argmin(axis=1)]
        width *= 0.75
    return points


def _miss(design: Design, span: Floats, height: Floats, pace: Floats) -> Floats:
    shares = design.shares(height, pace)[0]
    length = (shares**2).sum(axis=1)
    inside = ((shares @ span) ** 2).sum(axis=1)
    miss: Floats = np.maximum(1 - inside / np.maximum(length, 1e-300), 0.0)
    return miss
