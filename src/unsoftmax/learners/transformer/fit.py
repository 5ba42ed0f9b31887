"""All parameters of a one-layer Transformer at once, fitted to every answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import qr, solve_triangular

from unsoftmax.learners.ffn.hinges import Hinges, beyond_doubt, design_at, fixed_pattern, moved_by, shifted
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.transformer.model import Mixture, Sequences
from unsoftmax.learners.transformer.shared import attention_rows
from unsoftmax.models import Floats

ROUNDS = 6
LARGEST = 250_000_000  # numbers in the system of equations; beyond, the model is left as it was read
FAINT = 1e-13  # ridge relative to the columns: directions that no answer determines stay where they are


def _solver(matrix: Floats, network: Hinges) -> Callable[[Floats], Floats]:
    """Least squares by QR, not normal equations: values near a singular ``1 + V`` need all digits. Overwrites ``matrix``."""
    scales = np.sqrt(np.einsum("ij,ij->j", matrix, matrix)) + 1e-300
    matrix /= scales
    rows, columns = matrix.shape
    neurons, outputs = network.out.shape
    held = np.zeros((neurons if outputs > 1 else 0, columns))  # the length of out against that of normal is free: hold |out| = 1
    start = (neurons + outputs) * (network.normal.shape[1] + 1)
    for j in range(len(held)):
        held[j, start + j * outputs : start + (j + 1) * outputs] = network.out[j]
    q, r = qr(np.concatenate([matrix, held, FAINT * np.eye(columns)]), mode="economic", overwrite_a=True, check_finite=False)
    return lambda gaps: np.asarray(solve_triangular(r, q[:rows].T @ gaps, check_finite=False) / scales)


@dataclass(frozen=True, slots=True, eq=False)
class JointFit:
    """Gauss–Newton on network, scores, query bias and values, every answer weighted by its error.

    Args:
        questions: the one-token answers.
        sequences: the answers to longer sequences.
        left: column space of W, ``(width, rank)``; a W of low rank is moved along matrices of that rank only, for the answers that
            were asked do not determine more.
        bias: whether ``c`` is fitted.
        values: whether ``mix`` is fitted.
    """

    questions: Questions
    sequences: Sequences
    left: Floats | None
    bias: bool
    values: bool

    def run(self, model: Mixture[Hinges]) -> Mixture[Hinges]:
        """The fitted model, or the given one where the fit does not improve on it."""
        network = model.network
        points, references, answers = self.questions.points, self.questions.references, self.questions.answers
        certain = beyond_doubt(network, references, 1e-9)
        points, references, answers = points[certain], references[certain], answers[certain]
        weights = 1 / self.questions.noise(points)
        centre = np.asarray(np.average(points, axis=0, weights=weights))
        groups = [(X, y, *self._rows(model, X, centre)) for X, y in self.sequences.kept]
        total = groups[0][2].shape[1]
        if total * (answers.size + sum(y.size for _, y, _, _ in groups) + total) > LARGEST:
            return model
        own = design_at(network, centre, points, references, weights)
        size = own.shape[1]
        matrix = np.concatenate([np.pad(own, ((0, 0), (0, total - size))), *(rows for _, _, rows, _ in groups)])
        del own
        solve = _solver(matrix, network)
        best, lowest, current = model, np.inf, model
        for _ in range(ROUNDS):
            residual = (answers - fixed_pattern(current.network, points, references)) * weights[:, None]
            deviations = [((y - current(X)) * own_weights[:, None]).T.ravel() for X, y, _, own_weights in groups]
            gaps = np.concatenate([residual.T.ravel(), *deviations])
            misfit = float(gaps @ gaps)
            if not misfit < 0.999 * lowest:
                if misfit < lowest:
                    best = current
                break
            best, lowest = current, misfit
            current = self._moved(model, current, centre, size, solve(gaps))
        return best

    def _rows(self, model: Mixture[Hinges], X: Floats, centre: Floats) -> tuple[Floats, Floats]:
        """Weighted derivatives ``(outputs * n, parameters)`` of the answers to ``X`` and the weights ``(n,)``."""
        seen = model.parts(X)[2]
        clear = beyond_doubt(model.network, seen, 1e-7)  # right beside a bend the derivative is in doubt
        own = clear / self.questions.noise(seen)
        blocks = [design_at(model.network, centre, seen, seen, own)]
        blocks += attention_rows(model, X, own, self.left, bias=self.bias, values=self.values)
        return np.concatenate(blocks, axis=1), own

    def _moved(self, start: Mixture[Hinges], model: Mixture[Hinges], centre: Floats, size: int, step: Floats) -> Mixture[Hinges]:
        network = shifted(moved_by(shifted(model.network, centre), step[:size]), -centre)
        width = len(model.W)
        rest = step[size:]
        if self.left is None:
            W, rest = model.W + rest[: width * width].reshape(width, width), rest[width * width :]
        else:
            rank = self.left.shape[1]
            tall, rest = rest[: width * rank].reshape(width, rank), rest[width * rank :]
            flat, rest = rest[: width * rank].reshape(rank, width), rest[width * rank :]
            W = model.W + tall @ (self.left.T @ start.W) + self.left @ flat
        c, rest = (model.c + rest[:width], rest[width:]) if self.bias else (model.c, rest)
        mix = model.mix + rest.reshape(width, width) if self.values else model.mix
        return replace(model, network=network, W=W, c=c, mix=mix)
