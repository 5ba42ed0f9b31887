"""All parameters of a one-layer Transformer at once, fitted to every answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr, solve_triangular

from unsoftmax.learners.ffn.hinges import Hinges, beyond_doubt, design_at, fixed_pattern, moved_by, shifted, tie_rows
from unsoftmax.learners.ffn.orientation import tied_sides
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.transformer.model import Mixture, Sequences
from unsoftmax.learners.transformer.settings import TRANSFORMER
from unsoftmax.learners.transformer.shared import attention_rows
from unsoftmax.models import Floats


class Bars(NamedTuple):
    """Half widths of 95% intervals of W ``(width, width)`` and of c ``(width,)``, that of c where it was fitted."""

    W: Floats
    c: Floats | None


def _orthogonal(matrix: Floats, network: Hinges) -> tuple[Floats, Callable[[Floats], Floats]]:
    """``q`` of the QR of the scaled columns with what is held fixed below them, and ``b -> R^-T (b / scales)``."""
    q, r, scales = _factors(matrix, network)
    return q, lambda right: np.asarray(solve_triangular(r, right / scales[:, None], trans="T", check_finite=False))


def _solver(matrix: Floats, network: Hinges) -> Callable[[Floats], Floats]:
    """Least squares by QR, not normal equations: values near a singular ``1 + V`` need all digits. Overwrites ``matrix``."""
    rows = len(matrix)
    q, r, scales = _factors(matrix, network)
    return lambda gaps: np.asarray(solve_triangular(r, q[:rows].T @ gaps, check_finite=False) / scales)


def _factors(matrix: Floats, network: Hinges) -> tuple[Floats, Floats, Floats]:
    """QR of the columns scaled to length 1, with what is held fixed below them; overwrites ``matrix``."""
    scales = np.sqrt(np.einsum("ij,ij->j", matrix, matrix)) + 1e-300
    matrix /= scales
    columns = matrix.shape[1]
    neurons, outputs = network.out.shape
    held = np.zeros((neurons if outputs > 1 else 0, columns))  # the length of out against that of normal is free: hold |out| = 1
    start = (neurons + outputs) * (network.normal.shape[1] + 1)
    for j in range(len(held)):
        held[j, start + j * outputs : start + (j + 1) * outputs] = network.out[j]
    chosen = tied_sides(network) if outputs == 1 else None
    if chosen is not None:  # the linear part is not measured apart
        tied = np.pad(tie_rows(network, chosen), ((0, 0), (0, columns - start))) / scales
        held = np.concatenate([held, tied / np.linalg.norm(tied, axis=1, keepdims=True)])
    q, r = qr(
        np.concatenate([matrix, held, TRANSFORMER.faint * np.eye(columns)]), mode="economic", overwrite_a=True, check_finite=False
    )
    return q, r, scales


def _grown(q: Floats, gaps: Floats) -> Floats:
    """What is left of answers ``(questions, outputs)``, grown by the share ``(1 - q q^T)^-1/2`` that the fit took of it (CR2)."""
    shares, turns = np.linalg.eigh(np.einsum("nok,npk->nop", q, q))
    factors = 1 / np.sqrt(1 - np.clip(shares, 0.0, TRANSFORMER.largest_leverage))
    return np.asarray(np.einsum("nop,np,nqp,nq->no", turns, factors, turns, gaps, optimize=True))


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
        system = self._system(model)
        if system is None:
            return model
        matrix, size, centre = system
        solve = _solver(matrix, model.network)
        best, lowest, current = model, np.inf, model
        for _ in range(TRANSFORMER.rounds):
            gaps = self._gaps(model, current)
            misfit = float(gaps @ gaps)
            if not misfit < 0.999 * lowest:
                if misfit < lowest:
                    best = current
                break
            best, lowest = current, misfit
            current = self._moved(model, current, centre, size, solve(gaps))
        return best

    def bars(self, model: Mixture[Hinges]) -> Bars | None:
        """Error bars at a fitted model, from what it leaves of each answer (CR2: errors differ from place to place)."""
        system = self._system(model)
        if system is None or self.left is not None:
            return None
        matrix, size, _ = system
        rows, gaps = len(matrix), self._gaps(model, model)
        q, solve = _orthogonal(matrix, model.network)
        width = len(model.W)
        wanted = np.zeros((matrix.shape[1], width * width + width * self.bias))
        wanted[np.arange(size, size + wanted.shape[1]), np.arange(wanted.shape[1])] = 1.0
        pulls = q[:rows] @ solve(wanted)
        squares = np.zeros(wanted.shape[1])
        for own in self._questions(model):  # the outputs of one sequence share the rounding of its scores
            grown = _grown(q[own], gaps[own])
            squares += np.sum(np.einsum("nov,no->nv", pulls[own], grown) ** 2, axis=0)
        half = TRANSFORMER.student * np.sqrt(squares)
        return Bars(half[: width * width].reshape(width, width), half[width * width :] if self.bias else None)

    def _questions(self, model: Mixture[Hinges]) -> list[NDArray[np.intp]]:
        """Row numbers ``(questions, outputs)`` of the answers, a group of questions at a time."""
        outputs, start, groups = model.network.out.shape[1], 0, []
        for count in (len(self._certain(model)[0]), *(len(X) for X, _ in self.sequences.kept)):
            groups.append(start + np.arange(outputs * count).reshape(outputs, count).T)
            start += outputs * count
        return groups

    def _certain(self, model: Mixture[Hinges]) -> tuple[Floats, Floats, Floats, Floats]:
        """One-token points whose activation pattern is beyond doubt: points, references, answers and weights."""
        points, references, answers = self.questions.points, self.questions.references, self.questions.answers
        certain = beyond_doubt(model.network, references, 1e-9)
        return points[certain], references[certain], answers[certain], 1 / self.questions.noise(points[certain])

    def _system(self, model: Mixture[Hinges]) -> tuple[Floats, int, Floats] | None:
        """Weighted derivatives of all answers, how many columns are the network's, and its centre; None where that is too large."""
        points, references, answers, weights = self._certain(model)
        centre = np.asarray(np.average(points, axis=0, weights=weights))
        groups = [self._rows(model, X, centre)[0] for X, _ in self.sequences.kept]
        total = groups[0].shape[1]
        if total * (answers.size + sum(len(rows) for rows in groups) + total) > TRANSFORMER.largest:
            return None
        own = design_at(model.network, centre, points, references, weights)
        size = own.shape[1]
        return np.concatenate([np.pad(own, ((0, 0), (0, total - size))), *groups]), size, centre

    def _gaps(self, start: Mixture[Hinges], model: Mixture[Hinges]) -> Floats:
        """What ``model`` leaves of every answer, with the patterns and weights of ``start``."""
        points, references, answers, weights = self._certain(start)
        residual = (answers - fixed_pattern(model.network, points, references)) * weights[:, None]
        deviations = []
        for X, y in self.sequences.kept:
            deviations.append(((y - model(X)) * self._weights(start, X)[:, None]).T.ravel())
        return np.concatenate([residual.T.ravel(), *deviations])

    def _weights(self, model: Mixture[Hinges], X: Floats) -> Floats:
        seen = model.parts(X)[2]
        clear = beyond_doubt(model.network, seen, 1e-7)  # right beside a bend the derivative is in doubt
        return np.asarray(clear / self.questions.noise(seen))

    def _rows(self, model: Mixture[Hinges], X: Floats, centre: Floats) -> tuple[Floats, Floats]:
        """Weighted derivatives ``(outputs * n, parameters)`` of the answers to ``X`` and the weights ``(n,)``."""
        seen, own = model.parts(X)[2], self._weights(model, X)
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
