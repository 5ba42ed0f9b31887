"""Fresh sequences for the held-out check: sized for the model, at natural size, long, and of kinds that probes never are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace

from unsoftmax.linalg import on_host
from unsoftmax.models import Floats
from unsoftmax.proof.drawn import Part, rows_of, tokens_of
from unsoftmax.proof.settings import PROOF

SIZED = PROOF.sized * PROOF.per_length
COUNT = SIZED + PROOF.natural * PROOF.per_natural + (len(PROOF.long) + 1) * PROOF.per_long


@dataclass(frozen=True, slots=True, eq=False)
class Fresh:
    """Sequences ``(batch, length, width)`` of one length; ``natural`` ones have tokens of natural size, others suit the model.

    ``chosen`` ones are the most extreme of many. ``told`` are raw answers, where these were asked for already.
    """

    sequences: Floats
    natural: bool = False
    chosen: bool = False
    told: Floats | None = None

    @property
    def length(self) -> int:
        """Tokens of each sequence."""
        return int(self.sequences.shape[1])

    def first(self, count: int) -> Fresh:
        """The first few of them."""
        return replace(self, sequences=self.sequences[:count], told=None if self.told is None else self.told[:count])


class Sized(Protocol):
    """What must be known of a model to draw sequences that suit it."""

    @property
    def width(self) -> int:
        """Length of a token vector."""

    @property
    def token_sizes(self) -> Floats:
        """Root mean square entries of tokens at which its parts show."""

    @property
    def attentions(self) -> tuple[Any, ...]:
        """Its layers of heads: what tells the scores of tokens."""


def tokens_of_check(width: int) -> int:
    """Tokens of all fresh sequences where answers are exact and calls cheap: more of narrow ones, which cost little."""
    return max(PROOF.tokens, min(PROOF.many_tokens, PROOF.many_numbers // width))


def fresh_batches(
    model: Sized,
    rng: np.random.Generator,
    *,
    longest: int = PROOF.longest,
    max_norm: float | None = None,
    vocabulary: Floats | None = None,
    natural: Floats | None = None,
    like: Floats | None = None,
    count: int | None = None,
    every: bool = False,
    tokens: int = PROOF.tokens,
) -> list[Fresh]:
    """About ``count`` fresh sequences (None: ``COUNT``), whose lengths, sizes and kinds are drawn: no target can foresee them.

    Most have 2 to 64 tokens, sized so that the model's scores matter. Others have tokens of natural size: entries of standard
    deviation one, or the rows of ``natural (tokens, width)``; some of them are whole numbers, repeat each other or are equally
    long, and a few short ones are those of many whose scores are the most extreme. The rest are long. No sequence has more than
    ``longest`` tokens, no token is longer than ``max_norm``. With a ``vocabulary (tokens, width)`` all are made of its rows; with
    ``like`` they are arrays of that kind, drawn on its device, for which nobody waits; with ``every`` there are some of every
    moderate length, which takes a call each. What ``tokens`` exceeds the usual number by goes into longer sequences in place of
    moderate ones: no more are asked.
    """
    plan = _lengths(rng, longest, every, tokens - PROOF.tokens)
    share = 1.0 if count is None else count / sum(each for _, _, each in plan)
    counts = [(length, kind, max(1, round(share * each))) for length, kind, each in plan]
    if vocabulary is not None:
        return [Fresh(rows_of(vocabulary, (count, n), rng), kind in ("natural", "extreme")) for n, kind, count in counts]
    sizes = rng.permutation(len(model.token_sizes))
    pool = min(PROOF.pool, PROOF.large // (4 * model.width)) if model.attentions else 0
    parts: list[Part] = []
    for length, kind, each in counts:
        half = each // 2 if kind == "long" else each if kind == "sized" else 0
        if half:
            parts.append(Part(length, half, sizes if kind == "sized" else rng.permutation(sizes)))
        if half < each:
            parts.append(Part(length, each - half, drawn=pool if kind == "extreme" else 0))
    drawn = tokens_of(parts, model.width, model.token_sizes, rng, max_norm, natural, like)
    return [
        Fresh(
            sequences if (few := len(sequences) <= part.count) else _extremes(sequences, part.count, model), part.natural, not few
        )
        for part, sequences in zip(parts, drawn, strict=True)
    ]


def ordinary(
    count: int, length: int, width: int, rng: np.random.Generator, *, natural: Floats | None, max_norm: float | None
) -> Floats:
    """Sequences of natural tokens, on this machine."""
    return tokens_of([Part(length, count)], width, np.ones(0), rng, max_norm, natural)[0]


def _extremes(sequences: Floats, count: int, model: Sized) -> Floats:
    """Of many sequences those whose scores are all very low, and one on which several are high at once.

    Where no token scores, whatever else takes a share of the weights shows (a sink, a second head); where several score high at
    once, whatever bends scores does (a cap, a norm, short numbers). Ordinary sequences are like that once in hundreds.
    """
    scores = model.attentions[0].last_scores(sequences)
    xp = array_namespace(scores)
    lowest = xp.argsort(xp.min(xp.max(scores, axis=2), axis=0))[:count]
    high = xp.max(xp.min(scores, axis=2), axis=0)
    high[lowest] = high[lowest] - np.inf  # a number from this machine would be waited for
    few: Floats = sequences[xp.concat([lowest[: count - 1], xp.argmax(high, axis=0, keepdims=True)])]
    return few


def _lengths(rng: np.random.Generator, longest: int, every: bool, more: int = 0) -> list[tuple[int, str, int]]:
    """Lengths with the kind and number of their sequences; the shortest and longest of each kind, and others drawn.

    ``more``: tokens by which sequences may be longer; the longest take the place of others, but one of each moderate length.
    """
    top = min(PROOF.moderate, longest)
    if top < 4:
        short = [*range(1, top + 1)]
        sized = [(n, "sized", SIZED // len(short)) for n in short]
        return [*sized, *((n, "natural", PROOF.natural * PROOF.per_natural // len(short)) for n in short)]
    between = np.arange(3, top)
    drawn = rng.choice(between, size=min(PROOF.sized - 2, len(between)), replace=False, p=1 / between / (1 / between).sum())
    moderate = [*range(2, top + 1)] if every else sorted({2, top, *drawn.tolist()})
    natural = rng.choice(np.arange(2, top + 1), size=min(PROOF.natural, top) - 1, replace=False)
    long = sorted({n for n in PROOF.long if n <= longest} | ({longest} if longest > PROOF.moderate else set()))
    others = [n for n in range(PROOF.moderate + 1, longest) if n not in long]
    if others:
        long.append(int(rng.choice(others)))
    shares = [PROOF.per_long] * len(long)
    spare = min(SIZED - len(moderate), more // longest) if long else 0
    if spare:
        most = spare + PROOF.per_long * len(long) - PROOF.fewer_long * (len(long) - 1)
        shares = [most if n == longest else PROOF.fewer_long for n in long]
    parts = np.array_split(np.arange(SIZED - spare), len(moderate))
    plan = [(n, "sized", len(part)) for n, part in zip(moderate, parts, strict=True)]
    few = PROOF.extremes
    plan += [(1, "natural", PROOF.per_natural - few), (1, "extreme", few), (2, "extreme", few)]
    plan += [(int(n), "natural", PROOF.per_natural - few * (n == natural[0])) for n in natural]
    return [*plan, *((n, "long", share) for n, share in zip(long, shares, strict=True))]


def natural_tokens(samples: object, width: int) -> Floats:
    """The caller's natural samples, ``(tokens, width)`` or sequences ``(…, length, width)``, as a table of tokens."""
    wanted = f"it must hold finite tokens of width {width}, as (tokens, {width})."
    try:
        table = np.asarray(on_host(samples) if hasattr(samples, "shape") else samples)
    except ValueError as error:
        raise ValueError(f"natural is no array ({error}); {wanted}") from error
    if table.dtype.kind not in "fiu" or table.ndim < 2 or table.shape[-1] != width or not table.size:
        raise ValueError(f"natural has shape {table.shape} and holds {table.dtype} numbers; {wanted}")
    if not np.isfinite(table).all():
        raise ValueError(f"natural holds numbers that are not finite; {wanted}")
    return table.astype(np.float64).reshape(-1, width)


def afforded(batches: list[Fresh], most: int, rng: np.random.Generator) -> list[Fresh]:
    """At most so many of the sequences: fewer of each batch, or of fewer batches."""
    total = sum(len(batch.sequences) for batch in batches)
    if total <= most:
        return batches
    if most < len(batches):
        kept = sorted(rng.choice(len(batches), size=most, replace=False).tolist())
        if all(batches[i].natural for i in kept):
            kept[0] = 0
        return [batches[i].first(1) for i in kept]
    share, shorter = most / total, []
    for batch in batches:
        shorter.append(batch.first(max(1, int(share * len(batch.sequences)))))
    while sum(len(batch.sequences) for batch in shorter) > most:
        longest = max(range(len(shorter)), key=lambda i: len(shorter[i].sequences))
        shorter[longest] = shorter[longest].first(len(shorter[longest].sequences) - 1)
    return shorter
