"""The rules: what a rival gets, how it is timed, and how its model is judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import unsoftmax as us
from unsoftmax.errors import RefusalError
from unsoftmax.oracles import CallableOracle, Metered

Rival = Callable[[Metered, int, float, np.random.Generator], us.Attention]


@dataclass(frozen=True)
class Score:
    """How one run ended; ``error`` is the larger relative Frobenius error of W and v, infinite where there is no model."""

    rival: str
    kind: str
    width: int
    rank: int
    budget: int
    seed: int
    queries: int
    error: float
    seconds: float
    said: str

    def record(self) -> dict[str, Any]:
        return {**self.__dict__, "error": self.error if np.isfinite(self.error) else None}


def head(kind: str, width: int, seed: int, rank: int | None = None) -> us.Attention:
    """A random head: plain, entries of W near 10, three of four values zero, rows and columns of unlike size, or low rank."""
    rng = np.random.default_rng([seed, width, 0 if rank is None else rank])
    W = rng.normal(size=(width, width)) / np.sqrt(width)
    v = rng.normal(size=width)
    if kind == "loud":
        W *= 10 * np.sqrt(width)
    elif kind == "sparse values":
        v[rng.permutation(width)[width // 4 :]] = 0.0
    elif kind == "uneven":
        W *= 10 ** rng.uniform(-1.5, 1.5, size=(width, 1)) * 10 ** rng.uniform(-1.5, 1.5, size=width)
    elif kind == "low rank":
        assert rank is not None
        W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width)) / np.sqrt(width * rank)
    return us.Attention.single(W, v)


def error_of(found: us.Attention | None, truth: us.Attention) -> float:
    if found is None or found.V is None or truth.V is None:
        return float("inf")
    off = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in ((found.W, truth.W), (found.V, truth.V))]
    return float(max(off)) if np.isfinite(off).all() else float("inf")


def play(name: str, rival: Rival, kind: str, truth: us.Attention, budget: int, seconds: float, seed: int, rank: int) -> Score:
    """One run: the rival sees a metered oracle that refuses the first question beyond the budget."""
    oracle = Metered(CallableOracle(truth, width=truth.width), budget=budget)
    found, said = None, ""
    started = time.process_time()
    try:
        found = rival(oracle, budget, seconds, np.random.default_rng([seed, 1]))
    except (RefusalError, ArithmeticError, ValueError, AssertionError) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
    spent = time.process_time() - started
    return Score(name, kind, truth.width, rank, budget, seed, oracle.spent, error_of(found, truth), spent, said)


def unsoftmax(oracle: Metered, budget: int, seconds: float, rng: np.random.Generator) -> us.Attention:
    """Ours, as a user calls it; its held-out check is paid from the same budget."""
    model = us.recover(oracle, budget=budget, seed=int(rng.integers(2**31))).model
    assert isinstance(model, us.Attention)
    return model
