"""Answers at every position: a very long token beside ordinary ones shows all heads at once.

A token ``S u`` with ``S = 2**80`` beside ordinary tokens x: at the position of x each head looks at ``S u`` or not, and what else
it looks at vanishes beside it. So one query tells as much as one pair for each of its positions. The long token stands first,
so that causal layers answer alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.special
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.vector_heads.addressing import Steering, checked_steering
from unsoftmax.learners.vector_heads.answers import Answers, unit
from unsoftmax.learners.vector_heads.demixing import MOST_SEARCHED, Mixture, binary_patterns, sums_rank, too_many
from unsoftmax.learners.vector_heads.half_circle import patterns_on_half_circle
from unsoftmax.learners.vector_heads.ranges import Split, ill, ranges_of, stacked
from unsoftmax.learners.vector_heads.settings import SEVERAL
from unsoftmax.learners.vector_heads.values import Values
from unsoftmax.linalg import on_host, orthonormal
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase

LONG = 2.0**80  # a long token: ordinary ones of 2**20 are below its rounding
ORDINARY = 2.0**20  # an ordinary token: long enough that c does not matter beside W
TAG = 2.0**-16  # a token's factor names it: 1 + TAG * (number + 1)


def looks_back_only(answers: Answers, b: Floats, rng: np.random.Generator) -> bool:
    """Whether the layer is causal: then a first zero token does not see what follows. One query.

    Two opposite tokens of different length follow, so that no bias c can hide both.
    """
    phase(answers.oracle, "values")
    direction = unit(rng, 1, answers.width)[0] * 2.0**10
    told = answers.everywhere(answers.there(np.stack([0 * direction, direction, -2 * direction])[None]))[0]
    return bool(abs(told[0] - b).max() <= 64 * answers.floor.of(float(abs(told).max())))


def demix_everywhere(answers: Answers, rng: np.random.Generator, *, heads: int | None = None) -> tuple[Mixture, Steering]:
    """The heads, what each adds for one direction, and how to switch them: one query of about a thousand tokens.

    Some ten more beyond ``MOST_SEARCHED`` heads.
    """
    phase(answers.oracle, "heads")
    width = answers.width
    rotation = answers.rotation(rng)
    xp = array_namespace(rotation)
    u = rotation[0]
    D = orthonormal(width, rng, rows=min(width, 64))  # more heads than that are switched at the last position
    half = int(np.clip(40 * len(D), 300, 800))
    coordinates = rng.normal(size=(half, len(D)))

    def ask(x: Floats) -> Floats:
        sequence = xp.concat([u[None] * LONG, answers.there(x * ORDINARY)])
        return on_host(answers.everywhere(sequence[None])[0, 1:] / LONG)

    told = ask(np.concatenate([coordinates, -coordinates]) @ D)
    whole = told[:half] + told[half:]  # x and -x turn complementary sets of heads on
    size, eps = float(np.abs(told).max()), answers.eps(1.0)
    found = None
    adds_up = bool(np.abs(whole - whole[0]).max() <= 64 * eps * size)
    if adds_up and (rank := sums_rank(told[:half], eps)) > MOST_SEARCHED:
        sums = np.concatenate([whole.mean(axis=0)[None], told[:half]])
        found = patterns_on_half_circle(ask, sums, rank, eps, width, rng) if rank <= len(D) else None
    elif adds_up:
        for count in (24, 48, 96, half):
            sums = np.concatenate([whole.mean(axis=0)[None], told[:count]])
            found = binary_patterns(sums, eps)
            if found is not None:
                break
    if found is not None and heads is not None and found.shape[1] > heads:
        raise too_many(found.shape[1], heads)
    if found is None:
        raise NotInFamilyError(
            f"One long token beside {2 * half} ordinary ones shows no consistent number of heads. "
            "Either there are more heads than outputs, heads with dependent values, or heads that do not depend on the last token; "
            "the scalar learner can still tell some of these apart.",
            evidence={"outputs": told.shape[1]},
        )
    parts = np.linalg.lstsq(found, sums, rcond=None)[0]
    signs = 2 * np.round(told[:half] @ np.linalg.pinv(parts)) - 1
    slopes = np.stack([separating_direction(coordinates, sign) for sign in signs.T])
    steering = checked_steering(Steering(D=D, slopes=slopes, offsets=np.zeros(len(parts))))
    return Mixture(u=u * answers.reach, parts=parts * answers.reach, around=rotation[1:]), steering


def separating_direction(points: Floats, signs: Floats) -> Floats:
    """A direction with these signs on the points: logistic regression with a little shrinkage, by Newton steps."""
    w = np.linalg.lstsq(points, signs, rcond=None)[0]
    for _ in range(12):
        p = scipy.special.expit(points @ w)
        gradient = points.T @ ((1 + signs) / 2 - p) - 1e-3 * w
        w = w + np.linalg.solve((points * (p * (1 - p))[:, None]).T @ points + 1e-3 * np.eye(len(w)), gradient)
    scaled: Floats = w / np.linalg.norm(w) * np.sqrt(len(w))
    return scaled


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """Slices from switches that answer side by side: a direction in one query, or several that are not checked in two.

    ``x (heads + 1, width)`` turns one head on each, and all at last. A step along the rows of ``blind (n, width)`` changes no
    head's side, but which of several long tokens a head that is on looks at; ``rng`` draws such steps.
    """

    answers: Answers
    x: Floats
    blind: Floats
    outputs: int
    rng: np.random.Generator

    @classmethod
    def of(cls, answers: Answers, steering: Steering, outputs: int, rng: np.random.Generator) -> SideBySide:
        """The switches at the length that saturates."""
        x = np.concatenate([steering.switches(), steering.all_on()[None]])
        across = np.linalg.svd(steering.slopes)[2][len(steering.slopes) :]
        return cls(answers, answers.there(x * ORDINARY), across @ steering.D, outputs, rng)

    def ask(self, directions: Floats, *, whole: bool) -> tuple[Floats, Floats]:
        """Values of all heads, and how far they are from the sum of all; zero where several directions shared a question."""
        if whole or len(self.blind) < SEVERAL.together:
            return self._alone(directions)
        xp, shape = array_namespace(directions), (len(directions), len(self.x) - 1, self.outputs)
        values, defects = xp.zeros(shape, dtype=directions.dtype, device=device(directions)), np.zeros(len(directions))
        missing = np.ones(shape[:2], dtype=bool)
        for _ in range(3):
            open_ = np.flatnonzero(missing.any(axis=1))
            if len(open_) < 3:  # as dear as one by one
                break
            for group in np.array_split(open_, -(-len(open_) // SEVERAL.together)):
                self._together(directions, group, values, missing)
        open_ = np.flatnonzero(missing.any(axis=1))
        if len(open_):
            values[open_], defects[open_] = self._alone(directions[open_])
        return values, defects

    def _alone(self, directions: Floats) -> tuple[Floats, Floats]:
        xp = array_namespace(directions)
        behind = xp.broadcast_to(self.x[None], (len(directions), *self.x.shape))
        told = self.answers.everywhere(xp.concat([directions[:, None] * LONG, behind], axis=1))[:, 1:] / LONG
        return told[:, :-1], on_host(xp.max(xp.abs(xp.sum(told[:, :-1], axis=1) - told[:, -1]), axis=1))

    def beside(self, heads: NDArray[np.intp]) -> Floats:
        """Last tokens ``(heads * n, width)`` that turn one of the heads on each, at steps aside."""
        count = min(SEVERAL.beside, SEVERAL.all_beside // len(heads))
        steps = unit(self.rng, count, len(self.blind)) @ self.blind * (SEVERAL.aside * ORDINARY)
        tokens: Floats = (self.x[heads][:, None] + self.answers.there(steps)[None]).reshape(-1, self.x.shape[1])
        return tokens

    def _together(self, directions: Floats, group: NDArray[np.intp], values: Floats, missing: NDArray[np.bool_]) -> None:
        """Fill in values of a group of directions that some position looked at. Two queries."""
        xp, count = array_namespace(directions), len(group)
        heads = np.flatnonzero(missing[group].any(axis=0))
        behind = self.beside(heads)
        factors = self.answers.there(LONG * np.stack([np.ones(count), tags(count)]))
        sequences = xp.stack([xp.concat([directions[group] * factor[:, None], behind]) for factor in factors])
        told = self.answers.everywhere(sequences)[:, count:].reshape(2, len(heads), -1, self.outputs) / LONG
        marks = on_host(told[0] @ self.answers.there(unit(self.rng, 1, self.outputs)[0]))
        for head, mark, local in zip(heads, marks, told.swapaxes(0, 1), strict=True):
            number, valid = chosen(on_host(local), count, 256 * self.answers.floor.relative)
            for place, direction in enumerate(group):
                met = np.flatnonzero(valid & (number == place)) if missing[direction, head] else number[:0]
                if len(met) > 1:  # beside a head that was switched on by chance no two positions agree
                    agree = (np.abs(mark[met][:, None] - mark[met]) <= 2.0**-40 * np.abs(mark).max()).sum(axis=1)
                    if agree.max() > 1:
                        values[direction, head] = local[0, int(met[agree.argmax()])]
                        missing[direction, head] = False

    def confirm(self, directions: Floats, values: Floats) -> Floats:
        """By how much values are other than where each direction is asked alone, or than their sum should be."""
        told, defect = self._alone(directions)
        return np.maximum(defect, on_host(array_namespace(told).max(abs(told - values), axis=(1, 2))))


def spread_values(answers: Answers, blocks: Sequence[Floats], rng: np.random.Generator) -> Values:
    """Values of heads with independent ranges, spanned by ``blocks (n, outputs)``: many long tokens at once.

    Each position shows, for each head, the one it chose. A second query with every long token scaled by its own factor names
    the chosen ones. About ``2 * width / 128`` queries; tokens that no position chose (heads of rank 1 choose extremes only) are
    asked again, in smaller groups where most are left, at last one by one.
    """
    phase(answers.oracle, "values")
    width = answers.width
    bases = ranges_of(blocks, answers)
    split, T = Split.of(bases), answers.rotation(rng)
    xp = array_namespace(T)
    sums = [np.zeros((width, len(basis))) for basis in bases]
    hits = np.zeros((len(bases), width))
    slack = 256 * answers.floor.relative * split.conditioning
    size = min(128, 3 * min(map(len, bases)))  # a head looks at extremes: more than that a low rank has not
    before = 2 * width
    while len(missing := np.flatnonzero((hits == 0).any(axis=0))):
        if len(missing) <= 4:
            size = 1
        elif 2 * len(missing) > before:
            size = max(1, size // 2)
        before = len(missing)
        for group in np.array_split(missing, -(-len(missing) // size)):
            told = ask_spread(answers, T[group], rng)
            parts = split.parts(told.reshape(-1, told.shape[2]))
            for head, local in enumerate(on_host(part).reshape(*told.shape[:2], -1) for part in parts):
                if len(group) == 1:  # x and -x: at one of them the head is on
                    best = (local[0] ** 2).sum(axis=1).argmax()
                    sums[head][group[0]], hits[head, group[0]] = local[0, best], 1
                else:
                    number, valid = chosen(local, len(group), slack)
                    np.add.at(sums[head], group[number[valid]], local[0, valid])
                    np.add.at(hits[head], group[number[valid]], 1)
    left = [T.T @ answers.there(total / count[:, None]) for total, count in zip(sums, hits, strict=True)]
    ranks = tuple(map(len, bases))
    if answers.floor.relative * split.conditioning < ill(answers):
        right = stacked(bases)
        return Values(stacked(left), right, split.padded(right.shape[1]), ranks, split.conditioning)
    V = xp.stack([part @ basis for part, basis in zip(left, bases, strict=True)])
    return Values(V, None, None, ranks, split.conditioning)


def ask_spread(answers: Answers, directions: Floats, rng: np.random.Generator) -> Floats:
    """Answers at ordinary tokens beside long ones ``(n, width)``: ``(2, positions, outputs)``, plain and with long tokens tagged.

    A single long token needs no tag: one query.
    """
    x = answers.there(unit(rng, min(960, 16 * len(directions) + 256), answers.width) * ORDINARY)
    xp, count = array_namespace(x), len(directions)
    factors = np.ones((1, count)) if count == 1 else np.stack([np.ones(count), tags(count)])
    sequences = xp.stack([xp.concat([directions * answers.there(LONG * factor)[:, None], x, -x]) for factor in factors])
    return answers.everywhere(sequences)[:, count:] / LONG


def tags(count: int) -> Floats:
    """The factors that name long tokens; none is 1, which would read as no token at all."""
    return np.asarray(1 + TAG * (1.0 + np.arange(count)), dtype=np.float64)


def chosen(local: Floats, count: int, slack: float) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Which of ``count`` long tokens a head chose at each position, if any; ``local (2, positions, rank)`` is plain and tagged.

    Where it chose none its answer is rounding, which bears no tag.
    """
    plain, tagged = local
    norms = np.maximum((plain**2).sum(axis=1), 1e-300)
    allowed = slack * np.sqrt(np.median(norms))
    number = np.round(((plain * tagged).sum(axis=1) / norms - 1) / TAG) - 1
    valid = (number >= 0) & (number < count) & (np.sqrt(norms) * TAG > 4 * allowed)
    index = np.where(valid, number, 0).astype(np.intp)
    off = np.abs(tagged - plain * tags(count)[index][:, None]).max(axis=1)
    return index, valid & (off < allowed)
