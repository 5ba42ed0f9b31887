"""One-token answers along a short line, as a curve that can be inverted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.recognition.case import Case
from unsoftmax.recognition.settings import TESTS


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One-token answers on ``origin + t axis``, t in [-1, 1]: Chebyshev coefficients ``(9, outputs)``, unit vector of the rise."""

    origin: Floats
    axis: Floats
    coefficients: Floats
    rise: Floats

    def tokens(self, t: Floats) -> Floats:
        """Tokens ``(…, width)`` at ``t (…)``."""
        tokens: Floats = self.origin + t[..., None] * self.axis
        return tokens

    def height(self, t: Floats) -> Floats:
        """``g(t)`` along the rise."""
        return np.asarray(np.polynomial.chebyshev.chebval(t, self.coefficients @ self.rise))

    def slope(self, t: Floats) -> Floats:
        """Derivative of ``height``."""
        return np.asarray(np.polynomial.chebyshev.chebval(t, np.polynomial.chebyshev.chebder(self.coefficients @ self.rise)))

    def place(self, height: Floats) -> Floats:
        """Where the curve has that height: the inverse, to the spacing of a fine grid interpolated."""
        grid = np.linspace(-1.0, 1.0, 2001)
        return np.asarray(np.interp(height, self.height(grid), grid))


def curve_along(case: Case, origin: Floats, axis: Floats) -> Curve | None:
    """Nine one-token answers on a line, which is cut around its steepest part until they rise evenly; 5, 10, … 24 queries."""
    nodes = np.cos(np.pi * np.arange(TESTS.order + 1) / TESTS.order)[::-1]
    for _ in range(4):
        y = case.ask((origin + nodes[::2, None] * axis)[:, None])
        steps = np.diff(y, axis=0) / np.diff(nodes[::2])[:, None]
        chord = y[-1] - y[0]
        size = float(np.linalg.norm(chord))
        rise = chord / max(size, 1e-300)
        even = size > TESTS.line_loud * case.noise(y) and _even(steps @ rise)
        if even:
            more = case.ask((origin + nodes[1::2, None] * axis)[:, None])
            all_y = np.empty((TESTS.order + 1, y.shape[1]))
            all_y[::2], all_y[1::2] = y, more
            coefficients = np.asarray(
                np.linalg.solve(np.polynomial.chebyshev.chebvander(nodes, TESTS.order), all_y), dtype=np.float64
            )
            curve = Curve(origin, axis, coefficients, rise)
            tail = float(np.abs(coefficients[-2:]).sum(axis=0).max())
            if tail <= TESTS.bend * size + 4 * case.noise(all_y) and _even(curve.slope(np.linspace(-1.0, 1.0, 101))):
                return curve
        loud = int(np.linalg.norm(steps, axis=1).argmax())
        if float(np.abs(y - y[0]).max()) <= TESTS.line_loud * case.noise(y):
            return None  # flat, or saturated
        origin, axis = origin + nodes[::2][loud : loud + 2].mean() * axis, axis / 3
    return None


def _even(slopes: Floats) -> bool:
    """Rising everywhere, and nowhere far steeper than elsewhere."""
    return bool(slopes.min() > 0 and slopes.max() <= TESTS.uneven * slopes.min())
