"""W of low rank from coarse answers: the rank from noisy columns, then all questions inside the tangent space."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.noisy.design import frames, recentred, softened, tilted_keys
from unsoftmax.learners.noisy.fit import Head, fit
from unsoftmax.learners.noisy.keys import score_keys
from unsoftmax.learners.noisy.probes import Probes, ask_pairs, joined, of_norm
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Images ``W x`` of some last tokens, their standard errors, and the answers behind them.

    Attributes:
        tokens: unit vectors ``(count, width)``.
        images: ``(count, width)``.
        errors: ``(count, width)``, standard errors.
        probes: questions and answers.
        length: of last tokens at which most answers do not saturate.
    """

    tokens: Floats
    images: Floats
    errors: Floats
    probes: list[Probes]
    length: float

    @property
    def rank(self) -> int:
        """Singular values that stand out of the noise."""
        return int((np.linalg.svd(self.images, compute_uv=False) > self.threshold).sum())

    @property
    def threshold(self) -> float:
        """The singular value that noise alone may give."""
        return NOISY.rank_threshold * float(np.sqrt((self.errors**2).sum(axis=1).max()))

    @property
    def largest(self) -> float:
        """The largest singular value."""
        return float(np.linalg.norm(self.images, 2))


def ask_columns(
    oracle: Oracle, head: Head, tokens: Floats, noise: float, norm: float, copies: int, length: float | None = None
) -> Columns:
    """``W x`` for each unit vector in ``tokens``: ``width`` questions each, and one more for every answer that saturates.

    A few are asked first: the length at which those do not saturate is where the others begin. ``length``, where it is known
    from columns before, saves that.
    """
    count, width = tokens.shape
    frame = score_keys(head.v, norm)[1 : width + 1]
    inverse = np.linalg.inv(frame)
    keys, directions = np.tile(frame, (count, 1)), np.repeat(tokens, width, axis=0)
    key = keys @ head.v
    answers, length_of = np.zeros(len(keys)), np.full(len(keys), NOISY.column_length * norm if length is None else length)
    probes: list[Probes] = []
    order = np.argsort(np.arange(len(keys)) % width, kind="stable")  # the first few are of different last tokens
    first = NOISY.low_rank_pilot if length is None else 0
    pilot, others = order[:first], np.sort(order[first:])
    for part in (pilot, others):
        if part is others and first:
            length_of[others] = np.median(length_of[pilot])
        again = part
        for _ in range(NOISY.low_rank_max_halvings):
            if not len(again):
                break
            half = np.full(len(again), copies / 2)
            probes.append(ask_pairs(oracle, keys[again], half, half, length_of[again, None] * directions[again]))
            answers[again] = probes[-1].answers - head.b
            again = again[np.abs(answers[again]) >= NOISY.saturated * key[again]]
            length_of[again] /= 2
    answers = np.clip(answers, -NOISY.saturated * key, NOISY.saturated * key)
    images = np.zeros_like(tokens)
    for _ in range(NOISY.own_score_steps):  # the last tokens' own scores follow from the columns themselves
        own = length_of**2 * np.repeat(np.einsum("kd,kd->k", tokens, images), width)
        scores = balanced_scores(answers, key, length_of * (directions @ head.v), own, copies) / length_of
        images = scores.reshape(count, width) @ inverse.T
    errors = noise / (key * (1 - (answers / key) ** 2) * length_of)
    spread = np.sqrt(errors.reshape(count, width) ** 2 @ (inverse**2).T)
    return Columns(tokens, images, spread, probes, float(np.median(length_of)))


def balanced_scores(answers: Floats, key: Floats, last: Floats, own: Floats, copies: int) -> Floats:
    """Scores of keys in equal copies of either sign, from unsaturated answers and the last tokens' own scores."""
    square, constant = copies / 2 * (key - answers), copies / 2 * (key + answers)
    linear = np.exp(np.clip(own, -20, 20)) * (answers - last)
    root = np.sqrt(linear**2 + 4 * square * constant)
    scores: Floats = np.log(np.where(linear < 0, 2 * constant / (root - linear), (linear + root) / (2 * square)))
    return scores


def more_columns(first: Columns, second: Columns) -> Columns:
    """Both together."""
    return Columns(
        np.concatenate([first.tokens, second.tokens]),
        np.concatenate([first.images, second.images]),
        np.concatenate([first.errors, second.errors]),
        first.probes + second.probes,
        min(first.length, second.length),
    )


def ask_rows(
    oracle: Oracle,
    head: Head,
    columns: Columns,
    rank: int,
    count: int,
    *,
    noise: float,
    norm: float,
    copies: int,
    rng: np.random.Generator,
) -> tuple[Head, Probes]:
    """``count`` questions with keys in the range found, and the head of this rank that they and the columns give."""
    _, _, span = np.linalg.svd(columns.images)
    basis = span[:rank].T
    keys = _keys_within(rng, count, head.v, basis, norm)
    last = frames(rng, count, head.width, min(NOISY.column_length * norm, columns.length))
    half = np.full(count, copies / 2)
    probes = ask_pairs(oracle, keys, half, half, last)
    answers, key = probes.answers - head.b, keys @ head.v
    usable = np.abs(answers) < NOISY.saturated * key
    slope = np.where(usable, key * (1 - (answers / key) ** 2), 0.0)
    answers = np.clip(answers, -NOISY.saturated * key, NOISY.saturated * key)
    # columns say basis^T W x directly; rows and columns weigh as their standard errors
    rows = ((keys @ basis)[:, :, None] * last[:, None, :]).reshape(count, -1) * slope[:, None]
    trust = np.repeat(noise / np.maximum(np.sqrt((columns.errors**2).mean(axis=1)), np.finfo(float).tiny), rank)
    known = (columns.images @ basis).ravel()
    column_rows = np.einsum("kl,jx->jklx", np.eye(rank), columns.tokens).reshape(len(known), -1) * trust[:, None]
    system = np.concatenate([rows, column_rows])
    core = np.zeros((rank, head.width))
    for _ in range(NOISY.own_score_steps):
        own = np.einsum("md,md->m", last @ basis, last @ core.T)
        score = balanced_scores(answers, key, last @ head.v, own, copies)
        core = np.linalg.lstsq(system, np.concatenate([score * slope, known * trust]), rcond=1e-10)[0].reshape(rank, head.width)
    return replace(head, W=basis @ core).of_rank(rank), probes


def _keys_within(rng: np.random.Generator, count: int, v: Floats, basis: Floats, norm: float) -> Floats:
    """Keys half along v and half along a random direction of the range."""
    inside = rng.normal(size=(count, basis.shape[1])) @ basis.T
    inside /= np.linalg.norm(inside, axis=1, keepdims=True)
    # signed so that the two halves never cancel
    direction = v / np.linalg.norm(v)
    inside *= np.where(inside @ direction >= 0, 1.0, -1.0)[:, None]
    return of_norm(direction + inside, norm)


def ask_tangent(oracle: Oracle, head: Head, count: int, norm: float, copies: int, rng: np.random.Generator) -> Probes:
    """Recentred questions along the tangent space: keys anywhere with last tokens in the row space, and the reverse."""
    if head.left is None or head.right is None:
        raise ValueError("These questions need a head in factors.")
    first = count // 2
    left, right = np.linalg.qr(head.left)[0], np.linalg.qr(head.right)[0]
    keys = np.concatenate([tilted_keys(rng, first, head.v, norm), _keys_within(rng, count - first, head.v, left, norm)])
    within = of_norm(rng.normal(size=(first, right.shape[1])) @ right.T, norm)
    last = np.concatenate([within, frames(rng, count - first, head.width, norm)])
    # with last tokens in the row space there is little room to move them: soften those pairs through their keys; a quarter stay as
    # they are, or else nothing would see the few numbers that join the two spaces
    image = within @ head.W.T
    excess = np.einsum("md,md->m", keys[:first], image)
    excess -= np.clip(excess, -NOISY.design_largest_score, NOISY.design_largest_score)
    excess[: first // 4] = 0.0
    excess /= np.maximum((image**2).sum(axis=1), np.finfo(float).tiny)
    keys[:first] = of_norm(keys[:first] - excess[:, None] * image, norm)
    soft = first + (count - first) // 4
    last[soft:] = softened(head, keys[soft:], last[soft:])
    length, plus = recentred(head, keys, last, copies)
    return ask_pairs(oracle, keys, plus, copies - plus, last * length[:, None])


def fit_low_rank(
    oracle: Oracle,
    head: Head,
    singles: Probes,
    columns: Columns,
    rank: int,
    *,
    queries: int,
    noise: float,
    norm: float,
    copies: int,
    rng: np.random.Generator,
) -> tuple[Head, Probes]:
    """Spend ``queries`` on rows and two rounds of tangent questions; the maximum-likelihood head of this rank and all answers."""
    rows = min(queries // 2, int(1.5 * rank * head.width) + 4)
    start, probes = ask_rows(oracle, head, columns, rank, rows, noise=noise, norm=norm, copies=copies, rng=rng)
    asked = [singles, *columns.probes, probes]
    head = fit(start, joined(asked))
    moderate = float(
        np.sqrt(norm * min(norm, columns.length / NOISY.column_length))
    )  # keys and last tokens share what steep scores take
    for share in (2, 1):
        left = queries - rows - sum(len(part) for part in asked[len(columns.probes) + 2 :])
        asked.append(ask_tangent(oracle, head, left // share, moderate, copies, rng))
        head = fit(head, joined(asked))
    return head, joined(asked)
