"""Questions of two distinct tokens: copies of ``x + u`` before copies of ``x``, answered by a sum of sigmoids, one per head."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from unsoftmax.errors import NotIdentifiableError, TooNoisyError
from unsoftmax.learners.scalar_heads.settings import SCALAR
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle

Copies = tuple[int, int]


class Probe(NamedTuple):
    """One question: a step u, a last token x, and how often ``x + u`` and ``x`` are repeated."""

    u: Floats
    x: Floats
    copies: Copies = (1, 1)


class Record(NamedTuple):
    """Questions of one shape and their answers: ``p = x + u`` and ``x`` are ``(batch, width)``."""

    p: Floats
    x: Floats
    copies: Copies
    answers: Floats


@dataclass
class Pairs:
    """An oracle seen through pairs: what the heads add to the one-token answer.

    With k = copies[0]/copies[1], ``response = sum_h (V_h·u) k / (k + exp(-z_h))`` and ``z_h = u·(W_h x + c_h)``.
    """

    oracle: Oracle
    constant: float
    total: Floats  # sum of all V_h
    size: float  # of the values: what a unit step moves at least, also where they add up to nothing
    max_norm: float | None = None
    asked: list[Record] = field(default_factory=list)

    def respond(self, u: Floats, x: Floats, copies: Copies = (1, 1)) -> tuple[Floats, Floats]:
        """Responses ``(batch,)`` to steps u and tokens x, both ``(batch, width)``, and the steps as the target saw them."""
        p = x + u
        if not np.isfinite(p).all():  # readings of heads that do not separate can lead to no token at all
            raise NotIdentifiableError("The heads found do not separate: no token lets one of them speak alone.")
        if self.max_norm is not None and max(np.linalg.norm(p, axis=1).max(), np.linalg.norm(x, axis=1).max()) > self.max_norm:
            raise TooNoisyError(
                f"Telling the heads apart needs tokens longer than max_norm = {self.max_norm:g}. Allow longer tokens.",
                evidence={"needed_norm": float(max(np.linalg.norm(p, axis=1).max(), np.linalg.norm(x, axis=1).max()))},
            )
        size = max(1, SCALAR.chunk // (sum(copies) * p.shape[1]))
        pieces = []
        for i in range(0, len(p), size):
            rows = [np.repeat(tokens[i : i + size, None], n, axis=1) for tokens, n in zip((p, x), copies, strict=True)]
            pieces.append(np.asarray(self.oracle(np.concatenate(rows, axis=1))).reshape(-1))
        answers = np.concatenate(pieces)
        self.asked.append(Record(p, x, copies, answers))
        return answers - self.constant - x @ self.total, p - x

    def respond_to(self, probes: list[Probe]) -> list[float]:
        """Responses to probes of mixed copies, one call per kind."""
        responses = np.zeros(len(probes))
        for copies in sorted({probe.copies for probe in probes}):
            chosen = [i for i, probe in enumerate(probes) if probe.copies == copies]
            u, x = (np.stack([getattr(probes[i], name) for i in chosen]) for name in ("u", "x"))
            responses[chosen] = self.respond(u, x, copies)[0]
        return [float(value) for value in responses]


Task = Generator[list[Probe], list[float], Any]


def run_together(tasks: list[Task], ask: Callable[[list[Probe]], list[float]]) -> list[Any]:
    """Advance all tasks in step: what they ask in one round travels in common calls. Returns what each task returned."""
    results: list[Any] = [None] * len(tasks)
    wishes: dict[int, list[Probe]] = {}

    def advance(i: int, answers: list[float] | None) -> None:
        try:
            wishes[i] = next(tasks[i]) if answers is None else tasks[i].send(answers)
        except StopIteration as stop:
            wishes.pop(i, None)
            results[i] = stop.value

    for i in range(len(tasks)):
        advance(i, None)
    while wishes:
        running = sorted(wishes)
        answers = ask([probe for i in running for probe in wishes[i]])
        start = 0
        for i in running:
            count = len(wishes[i])
            advance(i, answers[start : start + count])
            start += count
    return results


def log_odds(above: Floats, below: Floats) -> Floats:
    """``log(above / below)``: the score of a sigmoid that is ``above`` its lower level and ``below`` its upper one; NaN outside."""
    with np.errstate(all="ignore"):
        ratio = np.asarray(above) / np.asarray(below)
        return np.where((ratio > 0.0) & np.isfinite(ratio), np.log(np.abs(ratio)), np.nan)
