"""Decoder language models from their logits: every head of every layer, against the bars.

    python benchmarks/decoders.py random          random Llama-like decoders of two shapes, float64
    python benchmarks/decoders.py log             the same answered with log-probabilities
    python benchmarks/decoders.py everywhere      the same, with logits or log-probabilities in turn, at every position
    python benchmarks/decoders.py gpt             decoders with learned positions, biases and LayerNorm, float64
    python benchmarks/decoders.py trained FILE    a decoder that ``benchmarks/train_decoder.py`` wrote, evaluated in float64
    python benchmarks/decoders.py device          a decoder of GPT-2-small's shape in torch (--device cuda, --limit SECONDS)
    python benchmarks/decoders.py strangers       other decoders: each must be refused, or recovered rightly

Each part takes ``--first-seed`` and ``--seeds``, and prints one line for each run: worst relative error of V over heads, of the
scores at distances 0 to 100, of the unembedding (absolute), whether every head is in its layer, queries, queries per parameter,
seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Literal

import numpy as np

import unsoftmax as us
from unsoftmax.errors import RefusalError
from unsoftmax.learners.decoder import DecoderLearner
from unsoftmax.models import Decoder, Floats
from unsoftmax.models.decoder import random_decoder, random_gpt, rotated
from unsoftmax.models.stack import Norm, normalised
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.symmetry.distance import AT, block_error

Positions = Literal["last", "all"]
SHAPES = {"2 layers of 2 heads": (2, 2, 32, 8, 2), "3 layers of 4 heads, 2 keys": (3, 4, 32, 8, 2)}


def errors(found: Decoder, truth: Decoder) -> tuple[bool, float, float]:
    """Whether layers and groups are right; worst relative errors of V and of scores, heads matched by their values."""
    shapes = [[(len(layer.heads), layer.groups) for layer in model.layers] for model in (found, truth)]
    if shapes[0] != shapes[1]:
        return False, np.inf, np.inf
    values = scores = 0.0
    for a, b in zip(found.layers, truth.layers, strict=True):
        apart = np.array([[block_error(x, y) for y in b.V] for x in a.V])
        match = apart.argmin(axis=1)
        values = max(values, float(apart.min(axis=1).max()))
        for n in AT:
            pairs = zip(a.scores(n), b.scores(n)[match], strict=True)
            scores = max(scores, *(block_error(x, y) for x, y in pairs))
    return values < 0.1, values, scores


def tried(
    name: str, target: Decoder, seed: int, bars: tuple[float, float, float] = (1e-8, 1e-6, 4.0), positions: Positions = "last"
) -> bool:
    """One run of the learner, one line; ``bars`` are the errors of V and scores, and the queries per parameter, allowed."""
    meter = Metered(CallableOracle(lambda sequences: target(sequences, positions), width=target.width))
    start = time.perf_counter()
    try:
        learned = DecoderLearner().run(meter, rng=np.random.default_rng([seed, 1]))
    except RefusalError as refusal:
        print(f"{name} seed {seed}: REFUSED after {meter.spent}: {refusal}", flush=True)
        return False
    took = time.perf_counter() - start
    found = learned.model
    assert isinstance(found, Decoder)
    right, values, scores = errors(found, target)
    table = target.unembedding - target.unembedding.mean(axis=0) if target.log else target.unembedding
    off = float(np.abs(found.unembedding - table).max())
    asked = meter.spent - meter.phases["check"].queries
    each = asked / target.sizes(None).parameters
    good = right and values <= bars[0] and scores <= bars[1] and off <= 1e-14 and each <= bars[2]
    print(
        f"{name} seed {seed}: V {values:.0e} scores {scores:.0e} U {off:.0e} layers {'right' if right else 'WRONG'} "
        f"base {found.base:g} epsilon {found.epsilon:.4g} queries {asked} ({each:.2f} per parameter) "
        f"check {learned.evidence['check_error']:.0e} {took:.0f} s {'ok' if good else 'MISSED'}",
        flush=True,
    )
    return good


def learned_positions(layers: int, heads: int, width: int, rank: int, seed: int, positions: Positions) -> bool:
    """One decoder with learned positions: heads to 1e-7, the table to 1e-10."""
    target = random_gpt(layers, heads, width, rank, np.random.default_rng(seed), log=bool(seed % 2))
    meter = Metered(CallableOracle(lambda sequences: target(sequences, positions), width=target.width))
    start = time.perf_counter()
    learned = DecoderLearner().run(meter, rng=np.random.default_rng([seed, 1]))
    found = learned.model
    assert isinstance(found, Decoder)
    assert found.positions is not None
    assert target.positions is not None
    off = us.distance(found, target)
    places = target.positions - target.positions[0]
    table = float(np.abs(found.positions - (places - places.mean(axis=1, keepdims=True))).max())
    asked = meter.spent - meter.phases["check"].queries
    print(
        f"learned positions, {positions} answered, rank {rank} seed {seed}: V, W, c, U {off:.0e} table {table:.0e} queries {asked} "
        f"({asked / target.sizes(None)['parameters']:.2f} per parameter) {time.perf_counter() - start:.0f} s",
        flush=True,
    )
    return off <= 1e-7 and table <= 1e-10


def variant(target: Decoder, rng: np.random.Generator, kind: str, positions: Positions) -> Callable[[Floats], Floats]:
    """The target with one thing changed, as a function of embeddings."""
    width, rank = target.width, target.layers[0].rank
    bias = 0.3 * rng.normal(size=(3, width))
    experts = [rng.permutation(len(target.mlps or ())) for _ in range(2)]
    router = rng.normal(size=(2, width))
    shift = 0.3 * rng.normal(size=(len(target.layers), len(target.layers[0].heads), rank))

    def answer(sequences: Floats) -> Floats:
        assert target.mlps is not None
        hidden = np.asarray(sequences, dtype=np.float64)
        length = hidden.shape[1]
        places = np.arange(length, dtype=np.float64)
        norm: Norm = "layer" if kind == "LayerNorm" else "rms"
        for i, (layer, mlp) in enumerate(zip(target.layers, target.mlps, strict=True)):
            seen = normalised(hidden, norm, 1e-5)
            queries, keys, values = (np.einsum("bni,hri->bhnr", seen, m) for m in (layer.query, layer.key, layer.value))
            if kind == "q and k biases":
                queries, keys = (
                    queries + shift[i][:, None],
                    keys + shift[i][layer.group[:: len(layer.heads) // len(layer.key)], None],
                )
            if kind == "QK-norm":
                queries, keys = (normalised(a, "rms", 1e-6) for a in (queries, keys))
            part = rank // 2 if kind == "partial rotary" else rank
            queries, keys = (
                np.concatenate([rotated(a[..., :part], places, target.base), a[..., part:]], axis=-1) for a in (queries, keys)
            )
            keys, values = keys[:, layer.group], values[:, layer.group]
            scores = queries @ np.swapaxes(keys, 2, 3) / np.sqrt(rank)
            if kind == "score soft-cap":
                scores = 5 * np.tanh(scores / 5)
            seen_by = places[None, :] <= places[:, None]
            if kind == "sliding window":
                seen_by &= places[:, None] - places[None, :] < 16
            if kind == "last layer linear attention" and i + 1 == len(target.layers):
                weights = np.where(seen_by, scores, 0.0) / (1 + places[:, None])
            else:
                scores = np.where(seen_by, scores, -np.inf)
                top = scores.max(-1, keepdims=True)
                raised = np.exp(scores - top)
                sink = np.exp(0.5 - top) if kind == "attention sinks" else 0.0
                weights = raised / (raised.sum(-1, keepdims=True) + sink)
            added = np.einsum("bhnr,hor->bno", weights @ values, layer.out)
            if kind == "sandwich norms":
                added = normalised(added, "rms", 1e-5)
            if kind == "attention bias":
                added = added + bias[0]
            before = hidden
            hidden = hidden + added
            point = normalised(before if kind == "parallel blocks" else hidden, norm, 1e-5)
            if kind == "experts":
                chosen = np.argmax(point @ router.T, axis=-1)[..., None]
                hidden = hidden + np.where(chosen == 0, *(target.mlps[order[i]](point) for order in experts))
            else:
                hidden = hidden + mlp(point)
            if kind == "MLP bias":
                hidden = hidden + bias[1]
        logits = normalised(hidden if positions == "all" else hidden[:, -1], norm, 1e-5) @ target.unembedding.T
        if kind == "dropout":
            logits = logits * (rng.random(size=logits.shape) > 0.1)
        if kind == "noise":
            logits = logits + 1e-3 * rng.normal(size=logits.shape)
        if kind == "logit soft-cap":
            logits = 30 * np.tanh(logits / 30)
        if kind == "top-20 log-probabilities":
            logits = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            logits = np.where(logits >= np.sort(logits, axis=-1)[..., -20:-19], logits, -100.0)
        if kind == "bfloat16 logits":
            logits = (logits.astype(np.float32).view(np.uint32) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)
        return np.asarray(logits)

    return answer


STRANGERS = (
    "QK-norm",
    "q and k biases",
    "attention bias",
    "MLP bias",
    "LayerNorm",
    "experts",
    "last layer linear attention",
    "score soft-cap",
    "attention sinks",
    "partial rotary",
    "sliding window",
    "sandwich norms",
    "parallel blocks",
    "logit soft-cap",
    "dropout",
    "noise",
    "top-20 log-probabilities",
    "bfloat16 logits",
)


def strangers(seeds: range, kinds: list[str], positions: Positions) -> None:
    """What ``recover`` says to decoders of other kinds; a success must be right."""
    for kind in kinds or STRANGERS:
        for seed in seeds:
            target = random_decoder(2, 2, 32, 8, np.random.default_rng(seed))
            function = variant(target, np.random.default_rng([seed, 2]), kind, positions)
            start = time.perf_counter()
            found = us.recover(function, width=32, seed=seed, on_failure="return")
            verdict = found.status.name
            if found.status.success:
                assert isinstance(found.model, Decoder)
                right, values, scores = errors(found.model, target)
                verdict += f" layers {'right' if right else 'WRONG'} V {values:.0e} scores {scores:.0e}"
            print(
                f"{kind} seed {seed}: {verdict} after {found.queries}, {time.perf_counter() - start:.0f} s: {found.message}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["random", "log", "everywhere", "gpt", "trained", "device", "strangers"])
    parser.add_argument("file", nargs="?", help="of a trained decoder")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--shape", choices=SHAPES, help="one of the shapes alone")
    parser.add_argument("--positions", choices=["last", "all"], default="last", help="that strangers answer")
    parser.add_argument("--kinds", nargs="*", default=[], help="of strangers, these alone")
    parser.add_argument("--device", default="cpu", help="of torch")
    parser.add_argument("--sizes", nargs=4, type=int, default=(12, 12, 768, 64), help="layers, heads, width, rank on the device")
    parser.add_argument("--strength", type=float, default=1.0, help="of the scores there")
    parser.add_argument("--limit", type=int, default=540, help="seconds for one run there")
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    if given.part == "trained":
        target = us.load(given.file)
        assert isinstance(target, Decoder)
        print(f"{given.file}: {sum(tried(given.file, target, seed, (1e-6, 1e-5, 3.0)) for seed in seeds)} of {len(seeds)}")
        return
    if given.part == "device":
        from device_decoder import device_part

        device_part(seeds, tuple(given.sizes), given.device, given.strength, given.limit)
        return
    if given.part == "strangers":
        strangers(seeds, given.kinds, given.positions)
        return
    if given.part == "gpt":
        for positions in ("last", "all"):
            good = sum(learned_positions(*shape, seed, positions) for seed in seeds for shape in ((2, 2, 32, 16), (2, 2, 32, 8)))
            print(f"learned positions, {positions} answered: {good} of {2 * len(seeds)}", flush=True)
        return
    for name, (layers, heads, width, rank, groups) in SHAPES.items():
        if given.shape not in (None, name):
            continue
        good = 0
        for seed in seeds:
            log = given.part == "log" or (given.part == "everywhere" and seed % 2 == 1)
            target = random_decoder(layers, heads, width, rank, np.random.default_rng(seed), groups=groups, log=log)
            if given.part == "everywhere":
                good += tried(f"{name}, every position", target, seed, (1e-8, 1e-6, 1.0), "all")
            else:
                good += tried(name, target, seed)
        print(f"{name}: {good} of {len(seeds)}", flush=True)


if __name__ == "__main__":
    main()
