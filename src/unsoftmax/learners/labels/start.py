"""The first questions: which labels there are, where both of them occur, and how often a label is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import NotIdentifiableError, TooNoisyError
from unsoftmax.learners.labels.asking import Asker, flat_labels, listed
from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, phase


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Two tokens with different labels, opposite each other, and the length at which they were found."""

    values: tuple[float, ...]
    no: Floats
    yes: Floats
    length: float
    far: Floats  # tokens (count, width) as long as were asked, far from the boundary most of them
    flip: float = 0.0


def lengths(width: int, max_norm: float | None) -> list[float]:
    """The lengths of tokens tried, shortest first."""
    wanted = [length * np.sqrt(width) for length in BOUNDARY.lengths]
    if max_norm is None:
        return wanted
    return [0.9 * max_norm * 2.0**k for k in range(1 - len(wanted), 1)]


def first_labels(oracle: Oracle, rng: np.random.Generator, max_norm: float | None) -> tuple[Floats, Floats]:
    """One-token questions in opposite pairs, ``(lengths, directions, 2, width)``, and their labels."""
    directions = rng.normal(size=(BOUNDARY.directions, oracle.width))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    pairs = np.stack([directions, -directions], axis=1)
    tokens = np.array(lengths(oracle.width, max_norm))[:, None, None, None] * pairs
    answers = oracle(tokens.reshape(-1, 1, oracle.width))
    return tokens, flat_labels(answers, BOUNDARY.first).reshape(tokens.shape[:-1])


def start(oracle: Oracle, *, rng: np.random.Generator, max_norm: float | None, flip: float | None) -> Start:
    """Find a yes and a no, and the flip rate unless it is known. Price: ``first + flips``, and ten times that if labels are wrong.

    Raises:
        NotIdentifiableError: only one label was ever seen.
        TooNoisyError: more than ``most`` of the labels are wrong.
    """
    phase(oracle, "first labels")
    tokens, labels = first_labels(oracle, rng, max_norm)
    values = tuple(np.unique(labels).tolist())
    if len(values) < 2:
        raise NotIdentifiableError(
            f"All of the first {BOUNDARY.first} labels were {listed(values)}, for tokens up to "
            f"{np.linalg.norm(tokens[-1, 0, 0]):.3g} long: without a boundary there is nothing to find. Allow longer tokens "
            "(`max_norm`), or the target answers the same to everything.",
            evidence={"labels": list(values)},
        )
    asker = Asker(oracle, values)
    if flip is None:
        flip = flip_rate(asker, tokens[-1].reshape(-1, asker.width), rng)
    if flip > BOUNDARY.most:
        raise TooNoisyError(
            f"About {flip:.0%} of the labels are wrong; beyond {BOUNDARY.most:.0%} too few bits come through. Ask a target that "
            "answers alike more often.",
            evidence={"flip_rate": flip},
        )
    return _bracket(asker, tokens, labels, values, flip, rng)


def flip_rate(asker: Asker, ray: Floats, rng: np.random.Generator, first: int = BOUNDARY.flips) -> float:
    """The share of wrong labels on rays through these tokens, far from the boundary; 0 where none was seen.

    Each question is another point of the rays, so that labels which are wrong for a question, again and again, show too.
    """
    asked, wrong = 0, 0
    for more in (first, 10 * BOUNDARY.flips):
        count = more // len(ray)
        lengths = np.sort(rng.uniform(0.5, 1.0, size=(count, len(ray), 1)), axis=0)
        told = asker.classes((ray[None] * lengths).reshape(-1, 1, asker.width)).reshape(count, len(ray))
        wrong += sum(_odd(column) for column in told.T)
        asked += told.size
        if wrong == 0:
            return 0.0
    return (wrong + 1.0) / (asked + 2.0)


def _odd(labels: Floats) -> int:
    """Labels along a ray that differ from the others; where it crosses the boundary once, from those on their side."""

    def minority(part: Floats) -> int:
        return len(part) - int(np.unique(part, return_counts=True)[1].max())

    whole = minority(labels)
    if whole < 2:
        return whole
    return min(whole, *(minority(labels[:k]) + minority(labels[k:]) for k in range(2, len(labels) - 1)))


def _bracket(
    asker: Asker, tokens: Floats, labels: Floats, values: tuple[float, ...], flip: float, rng: np.random.Generator
) -> Start:
    """The shortest opposite pair with different labels; where labels may be wrong, the pair is asked over and over."""
    for level in range(len(tokens)):
        pairs = tokens[level]
        told = labels[level] == asker.yes
        if flip:
            times = repeats(flip)
            shaken = pairs[None] * rng.uniform(0.98, 1.02, size=(times, *pairs.shape[:2], 1))
            told = asker(shaken.reshape(-1, 1, asker.width)).reshape(times, *pairs.shape[:2]).mean(axis=0) > 0.5
        mixed = np.flatnonzero(told[:, 0] != told[:, 1])
        if len(mixed):
            first, second = pairs[mixed[0]]
            yes, no = (first, second) if told[mixed[0], 0] else (second, first)
            return Start(values, no, yes, float(np.linalg.norm(no)), tokens[-1].reshape(-1, asker.width), flip)
    raise NotIdentifiableError(
        "No two opposite tokens had different labels, so no boundary was found on a line through the origin. Allow longer tokens "
        "(`max_norm`).",
        evidence={"labels": list(values)},
    )


def repeats(flip: float) -> int:
    """How often to ask so that most labels are right but for about one case in ten thousand."""
    return 1 if not flip else int(np.ceil(np.log(1e4) / (2 * (0.5 - flip) ** 2))) | 1
