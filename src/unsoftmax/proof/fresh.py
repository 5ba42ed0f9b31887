"""Fresh sequences for the held-out check: sized for the model, at natural size, long, and of kinds that probes never are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import array_namespace

from unsoftmax.linalg import INSIDE, alike, normal, on_host
from unsoftmax.models import Floats, Model
from unsoftmax.proof.settings import PROOF

SIZED = PROOF.sized * PROOF.per_length
COUNT = SIZED + PROOF.natural * PROOF.per_natural + (len(PROOF.long) + 1) * PROOF.per_long


@dataclass(frozen=True, slots=True, eq=False)
class Fresh:
    """Sequences ``(batch, length, width)`` of one length; ``natural`` ones have tokens of natural size, others suit the model.

    ``chosen`` ones are the most extreme of many.
    """

    sequences: Floats
    natural: bool = False
    chosen: bool = False

    @property
    def length(self) -> int:
        """Tokens of each sequence."""
        return int(self.sequences.shape[1])

    def first(self, count: int) -> Fresh:
        """The first few of them."""
        return replace(self, sequences=self.sequences[:count])


def fresh_batches(
    model: Model,
    rng: np.random.Generator,
    *,
    longest: int = PROOF.longest,
    max_norm: float | None = None,
    vocabulary: Floats | None = None,
    natural: Floats | None = None,
    like: Floats | None = None,
    count: int | None = None,
    every: bool = False,
) -> list[Fresh]:
    """About ``count`` fresh sequences (None: ``COUNT``), whose lengths, sizes and kinds are drawn: no target can foresee them.

    Most have 2 to 64 tokens, sized so that the model's scores matter. Others have tokens of natural size: entries of standard
    deviation one, or the rows of ``natural (tokens, width)``; some of them are whole numbers, repeat each other or are equally
    long, and a few short ones are those of many whose scores are the most extreme. The rest are long. No sequence has more than
    ``longest`` tokens, no token is longer than ``max_norm``. With a ``vocabulary (tokens, width)`` all are made of its rows; with
    ``like`` moderate ones are arrays of that kind, on its device; with ``every`` there are some of every moderate length, which
    takes a call each.
    """
    plan = _lengths(rng, longest, every)
    share = 1.0 if count is None else count / sum(each for _, _, each in plan)
    counts = [(length, kind, max(1, round(share * each))) for length, kind, each in plan]
    if vocabulary is not None:
        return [Fresh(_rows(vocabulary, (count, n), rng), kind in ("natural", "extreme")) for n, kind, count in counts]
    moderate = [(n, count) for n, kind, count in counts if kind == "sized"]
    sizes = rng.permutation(model.token_sizes)
    batches = [Fresh(part) for part in sized(sizes, moderate, model.width, rng, max_norm, like)]
    for length, kind, count in counts:
        if kind == "natural":
            batches.append(Fresh(_within(_natural(count, length, model.width, natural, rng, like), max_norm), natural=True))
        if kind == "extreme":
            pool = min(PROOF.pool, PROOF.large // (4 * model.width)) if model.attentions else count
            drawn = _within(_natural(max(count, pool), length, model.width, natural, rng, like), max_norm)
            batches.append(Fresh(_extremes(drawn, count, model), natural=True, chosen=len(drawn) > count))
        if kind == "long":
            half = count // 2
            if half:
                (part,) = sized(rng.permutation(sizes), [(length, half)], model.width, rng, max_norm, like)
                batches.append(Fresh(part))
            rest = _natural(count - half, length, model.width, natural, rng, like)
            batches.append(Fresh(_within(rest, max_norm), natural=True))
    return batches


def ordinary(
    count: int, length: int, width: int, rng: np.random.Generator, *, natural: Floats | None, max_norm: float | None
) -> Floats:
    """Sequences of natural tokens, on this machine."""
    return _within(_natural(count, length, width, natural, rng, None), max_norm)


def _extremes(sequences: Floats, count: int, model: Model) -> Floats:
    """Of many sequences those whose scores are all very low, and one on which several are high at once.

    Where no token scores, whatever else takes a share of the weights shows (a sink, a second head); where several score high at
    once, whatever bends scores does (a cap, a norm, short numbers). Ordinary sequences are like that once in hundreds.
    """
    if len(sequences) <= count:
        return sequences
    scores = on_host(model.attentions[0].last_scores(sequences))
    lowest = np.argsort(scores.max(axis=2).min(axis=0))[:count]
    highest = np.argsort(scores.min(axis=2).max(axis=0))[::-1]
    chosen = [*lowest[: count - 1].tolist(), *[at for at in highest.tolist() if at not in lowest][:1]]
    few: Floats = sequences[chosen]
    return few


def _lengths(rng: np.random.Generator, longest: int, every: bool) -> list[tuple[int, str, int]]:
    """Lengths with the kind and number of their sequences; the shortest and longest of each kind, and others drawn."""
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
    plan = [(n, "sized", len(part)) for n, part in zip(moderate, np.array_split(np.arange(SIZED), len(moderate)), strict=True)]
    few = PROOF.extremes
    plan += [(1, "natural", PROOF.per_natural - few), (1, "extreme", few), (2, "extreme", few)]
    plan += [(int(n), "natural", PROOF.per_natural - few * (n == natural[0])) for n in natural]
    return [*plan, *((n, "long", PROOF.per_long) for n in long)]


def sized(
    sizes: Floats,
    wanted: list[tuple[int, int]],
    width: int,
    rng: np.random.Generator,
    max_norm: float | None = None,
    like: Floats | None = None,
) -> list[Floats]:
    """Sequences for each ``(length, count)``, with entries of these ``sizes`` in turn, sequence by sequence."""
    each = np.concatenate([np.repeat(np.resize(sizes, count), length) for length, count in wanted])
    pool = _draw(each, width, rng, max_norm, like)
    parts, end = [], 0
    for length, count in wanted:
        start, end = end, end + length * count
        parts.append(pool[start:end].reshape(count, length, -1))
    return parts


def _draw(sizes: Floats, width: int, rng: np.random.Generator, max_norm: float | None, like: Floats | None) -> Floats:
    """Tokens ``(len(sizes), width)`` with entries of these sizes."""
    tokens = plain((len(sizes), width), rng, like)
    tokens *= alike(sizes[:, None], like)
    return _within(tokens, max_norm)


def plain(shape: tuple[int, ...], rng: np.random.Generator, like: Floats | None) -> Floats:
    """Entries of standard deviation one; many on this machine evenly spread, of 8 bits: as fresh, and drawn at memory speed."""
    if like is not None or math.prod(shape) < PROOF.large:
        return normal(shape, rng, like)
    return _even_bits(math.prod(shape[:-1]), shape[-1], rng).reshape(shape)


def _even_bits(count: int, width: int, rng: np.random.Generator) -> Floats:
    """Tokens ``(count, width)`` of standard deviation one whose entries are whole multiples of one step."""
    steps = np.asarray(rng.bit_generator.random_raw(-(-count * width // 8))).view(np.int8)[: count * width]
    tokens: Floats = steps.reshape(-1, width).astype(np.float64)
    tokens *= float(np.sqrt(3.0) / 2**7)
    return tokens


def _natural(count: int, length: int, width: int, given: Floats | None, rng: np.random.Generator, like: Floats | None) -> Floats:
    """Sequences of natural tokens; in turn plain ones, whole numbers, tokens that repeat each other, and equally long ones."""
    if given is not None:
        return _rows(given, (count, length), rng)
    tokens = plain((count, length, width), rng, like)
    xp = array_namespace(tokens)
    order = rng.permutation(count)
    whole, repeated, equal = (order[kind::6].tolist() for kind in range(3))
    if whole:
        step = alike(rng.choice([0.5, 1.0], size=(len(whole), 1, 1)), like)
        tokens[whole] = xp.round(tokens[whole] / step) * step
    if repeated:
        again = rng.integers(0, -(-length // 2), size=(len(repeated), length))
        tokens[repeated] = tokens[np.array(repeated)[:, None], again]
    if equal:
        norms = xp.linalg.vector_norm(tokens[equal], axis=-1, keepdims=True)
        tokens[equal] = tokens[equal] * (width**0.5 / xp.clip(norms, min=1e-300))
    return tokens


def _rows(table: Floats, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    return np.asarray(table[rng.integers(0, len(table), size=shape)])


def _within(tokens: Floats, max_norm: float | None) -> Floats:
    """Tokens shortened to ``max_norm`` where they are longer."""
    if max_norm is None:
        return tokens
    xp = array_namespace(tokens)
    norms = xp.linalg.vector_norm(tokens, axis=-1, keepdims=True)
    shortened: Floats = tokens * xp.clip(max_norm * INSIDE / xp.where(norms > 0, norms, max_norm), max=1.0)
    return shortened


def natural_tokens(samples: object, width: int) -> Floats:
    """The caller's natural samples, ``(tokens, width)`` or sequences ``(…, length, width)``, as a table of tokens."""
    table = np.asarray(on_host(samples), dtype=np.float64)
    if table.ndim < 2 or table.shape[-1] != width or not table.size or not np.isfinite(table).all():
        raise ValueError(f"natural has shape {table.shape}; it must hold finite tokens of width {width}, as (tokens, {width}).")
    return table.reshape(-1, width)


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
