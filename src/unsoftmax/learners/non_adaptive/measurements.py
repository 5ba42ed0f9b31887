"""Rank-one measurements of a score matrix with their errors, and the last digits of a fit to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.non_adaptive.low_rank_fit import factor_jacobian, measure
from unsoftmax.models import Floats


@dataclass(frozen=True, eq=False)
class Measurements:
    """``u_i·W·x_i = z_i`` up to ``errors``; ``good`` marks those that did not saturate."""

    u: Floats
    x: Floats
    z: Floats
    errors: Floats
    good: NDArray[np.bool_]

    def part(self, which: slice | NDArray[np.bool_]) -> Measurements:
        """Some of them."""
        return Measurements(self.u[which], self.x[which], self.z[which], self.errors[which], self.good[which])

    def readable(self) -> Measurements:
        """Those that did not saturate."""
        return self.part(self.good)

    def size(self) -> float:
        """Root mean square of the readable measurements."""
        return float(np.sqrt(np.mean(self.z[self.good] ** 2)))

    def noise(self) -> float:
        """Typical error of one."""
        return float(np.median(self.errors[self.good]))

    def misfit(self, W: Floats, which: slice) -> float:
        """How far W misses readable measurements, relative to their size."""
        part = self.part(which).readable()
        return float(np.sqrt(np.mean((part.z - measure(W, part.u, part.x)) ** 2))) / self.size()


def polished(measured: Measurements, W: Floats, rank: int) -> Floats:
    """A few Gauss-Newton steps on the factors of the best rank-``rank`` part of W, measurements weighted by their errors."""
    u, x, z = measured.u, measured.x, measured.z
    weights = 1 / np.maximum(measured.errors, np.median(measured.errors))
    for _ in range(3):
        left, values, right = np.linalg.svd(W)
        A, B = left[:, :rank] * np.sqrt(values[:rank]), right[:rank].T * np.sqrt(values[:rank])
        jacobian = factor_jacobian(u, x, A, B)
        residual = (z - measure(A @ B.T, u, x)) * weights
        step = np.linalg.lstsq(jacobian * weights[:, None], residual, rcond=1e-10)[0]  # the gauge of the factors is a null space
        W = (A + step[: A.size].reshape(A.shape)) @ (B + step[A.size :].reshape(B.shape)).T
    return W
