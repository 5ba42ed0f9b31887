"""Are verdicts true? Targets outside every family, honest targets in every precision, and the coverage of error bars.

    PYTHONPATH=src python benchmarks/truth.py outside  --runs 200   ladders of strangers, effects from 1e-9 to 1
    PYTHONPATH=src python benchmarks/truth.py strangers --runs 200  the same with nineteen other kinds
    PYTHONPATH=src python benchmarks/truth.py honest   --runs 50    float32 of PyTorch's kind, jitter, small budgets under noise
    PYTHONPATH=src python benchmarks/truth.py coverage --runs 20    share of parameters within their 95% bars, by class
    PYTHONPATH=src python benchmarks/truth.py half --runs 20        the same for heads cast to or computed in half precision
    PYTHONPATH=src python benchmarks/truth.py certified --runs 100  intervals for answers within a tolerance, biases within it too
    PYTHONPATH=src python benchmarks/truth.py single --runs 20      float32 Transformers and networks: function, count, bars
    PYTHONPATH=src python benchmarks/truth.py mixed --runs 5        scores or tokens rounded inside a float64 target: is it named?

A false success is one whose error on natural sequences exceeds three times the stated tolerance, or whose W is off by more than ten
of its bars (where the target has a W). Seeds are drawn by the operating system unless ``--seed`` fixes them.
"""

from __future__ import annotations

import argparse
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np

import unsoftmax as us

Target = Callable[[np.ndarray], np.ndarray]
Drawn = tuple[int, us.Attention | None, Target]


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


class Head:
    """One head whose scores, weights and values can be tampered with."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.width = int(rng.integers(3, 9))
        self.W = rng.normal(size=(self.width, self.width)) / np.sqrt(self.width)
        self.v = rng.normal(size=self.width)

    @property
    def model(self) -> us.Attention:
        return us.Attention.single(self.W, self.v)

    def scores(self, X: np.ndarray) -> np.ndarray:
        return np.einsum("bnd,de,be->bn", X, self.W, X[:, -1])

    def answer(self, X: np.ndarray, scores: np.ndarray | None = None) -> np.ndarray:
        weights = softmax(self.scores(X) if scores is None else scores)
        return np.einsum("bn,bnd,d->b", weights, X, self.v)


def outside(kind: str, effect: float, rng: np.random.Generator) -> Drawn:
    """A head with a foreign body of this strength."""
    head, other = Head(rng), Head(rng)
    other.width, other.W, other.v = head.width, rng.normal(size=head.W.shape), rng.normal(size=head.width)
    cut = int(rng.integers(3, 150))
    noise = np.random.default_rng(int(rng.integers(2**32)))

    def mixed(X: np.ndarray, strange: np.ndarray) -> np.ndarray:
        plain = head.answer(X)
        return plain + effect * (strange - plain)

    def target(X: np.ndarray) -> np.ndarray:
        scores, n = head.scores(X), X.shape[1]
        if kind == "window":
            return mixed(X, head.answer(X[:, -cut:]))
        if kind == "kernel":
            return mixed(X, head.answer(X, -0.5 * ((X - (X[:, -1] @ head.W.T)[:, None]) ** 2).sum(axis=2)))
        if kind == "sink":
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            total = weights.sum(axis=1, keepdims=True) + effect * np.exp(-scores.max(axis=1, keepdims=True))
            return np.einsum("bn,bnd,d->b", weights / total, X, head.v)
        if kind == "cap":
            return head.answer(X, np.tanh(effect * scores) / effect)
        if kind == "norm":
            normed = X / np.sqrt((X**2).mean(axis=2, keepdims=True) + 1e-6)
            return mixed(X, head.answer(normed))
        if kind == "quantiser":
            return head.answer(X, effect * np.round(scores / effect))
        if kind == "dropout":
            kept = noise.random(scores.shape) >= effect
            kept[:, -1] = True
            return head.answer(X, np.where(kept, scores, -1e30))
        if kind == "replica":
            return np.where(noise.random(len(X)) < 0.5, head.answer(X), mixed(X, other.answer(X)))
        if kind == "length":
            return mixed(X, other.answer(X)) if n > cut else head.answer(X)
        if kind == "position":
            return head.answer(X, scores + effect * np.arange(n))
        return head.answer(X) * (1 + effect * np.tanh(X[:, -1, 0]))  # a gate

    return head.width, head.model, target


KINDS = ("window", "kernel", "sink", "cap", "norm", "quantiser", "dropout", "replica", "length", "position", "gate")


def sparse(scores: np.ndarray, power: float) -> np.ndarray:
    """Weights that vanish beyond a threshold and add up to one: sparsemax (power 1) or entmax 1.5 (power 2)."""
    scaled = (scores - scores.max(axis=-1, keepdims=True)) / power
    low, high = np.full_like(scaled[:, :1], -1.0), np.zeros_like(scaled[:, :1])
    for _ in range(60):
        middle = (low + high) / 2
        over = (np.maximum(scaled - middle, 0) ** power).sum(axis=-1, keepdims=True) > 1
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    weights = np.maximum(scaled - low, 0) ** power
    return weights / weights.sum(axis=-1, keepdims=True)


def stranger(kind: str, effect: float, rng: np.random.Generator) -> Drawn:
    """A head with a foreign body of another sort and of this strength; 0 is the head itself."""
    head = Head(rng)
    width, W = head.width, head.W
    second, u = us.Attention.single(rng.normal(size=W.shape) / np.sqrt(width), rng.normal(size=width)), rng.normal(size=width)
    cut, noise = int(rng.integers(2, 40)), np.random.default_rng(int(rng.integers(2**32)))
    calls = iter(range(10**9))

    def with_weights(X: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return np.einsum("bn,bnd,d->b", weights, X, head.v)

    def target(X: np.ndarray) -> np.ndarray:
        scores, n = head.scores(X), X.shape[1]
        plain, values, back = head.answer(X, scores), X @ head.v, np.arange(n)[::-1]
        lengths, images = np.linalg.norm(X, axis=2) + 1e-300, np.linalg.norm(X[:, -1] @ W.T, axis=1, keepdims=True) + 1e-300
        if kind in ("top-k", "sparsemax", "entmax"):
            if kind == "top-k":
                least = np.sort(scores, axis=1)[:, -min(cut, n)][:, None]
                strange = head.answer(X, np.where(scores >= least, scores, -1e30))
            else:
                strange = with_weights(X, sparse(scores, 1.0 if kind == "sparsemax" else 2.0))
            return plain + effect * (strange - plain)
        moved = {
            "slopes": scores - effect * back,
            "far slopes": scores - effect * np.maximum(back - cut, 0),
            "temperature by length": scores * (1 + effect * np.log(n)),
            "cosine scores": scores + effect * (scores / lengths / images - scores),
            "key norms": scores + effect * lengths,
            "score clipping": np.clip(scores, -1 / effect, 1 / effect),
            "self": scores + effect * (back == 0),
        }
        if kind in moved:
            return head.answer(X, moved[kind])
        added = {
            "value clipping": np.einsum("bn,bn->b", softmax(scores), np.clip(values, -1 / effect, 1 / effect)),
            "residual leak": plain + effect * X[:, -1] @ u,
            "second head": plain + effect * second(X),
            "position gain": np.einsum("bn,bn->b", softmax(scores), values * (1 + effect * np.cos(1 + np.arange(n)))),
            "first token": plain + effect * (X[:, 0] @ u),
            "answer bend": plain + effect * np.tanh(plain),
        }
        if kind in added:
            return added[kind]
        if kind == "quantised tokens":
            return head.answer(effect * np.round(X / effect))
        if kind == "stochastic rounding":
            return effect * np.floor(plain / effect + noise.random(len(X)))
        assert kind == "replicas in turn"
        return plain + (next(calls) % 3 == 0) * effect * (second(X) - plain)

    return width, head.model, target


STRANGERS = (
    "slopes", "far slopes", "temperature by length", "top-k", "sparsemax", "entmax", "cosine scores", "key norms",
    "score clipping", "self", "value clipping", "residual leak", "second head", "position gain", "first token",
    "answer bend", "quantised tokens", "stochastic rounding", "replicas in turn",
)  # fmt: skip


def false_success(found: us.Recovery, model: us.Attention | None, target: Target, rng: np.random.Generator) -> str | None:
    """Why a success is none, or None."""
    if not found.status.success:
        return None
    worst = 0.0
    values_known = not isinstance(found.model, us.Attention) or found.model.V is not None
    for length in (2, 7, 24, 96) if values_known else ():
        X = rng.normal(size=(64, length, found.model.width))
        answers, predicted = target(X), found.model(X)
        answers = answers[:, -1] if answers.ndim > predicted.ndim else answers
        worst = max(worst, float(np.abs(answers - predicted).max() / max(answers.std(), 1e-300)))
    if worst > 3 * found.facts["tolerance"]:
        return f"off by {worst:.1e} where {found.facts['tolerance']:.1e} is stated"
    heads = isinstance(found.model, us.Attention) and found.bounds is not None and found.bounds.W is not None
    if model is not None and heads and found.model.W.shape == model.W.shape:
        bars = float((np.abs(found.model.W - model.W) / found.bounds.W).max())
        if bars > 10:
            return f"W off by {bars:.0f} bars, {found.status.name}"
    return None


def run_outside(runs: int, seed: int) -> None:
    """Counts of false successes by kind."""
    ladder(runs, seed, KINDS, outside)


def run_strangers(runs: int, seed: int) -> None:
    """The same for other kinds."""
    ladder(runs, seed, STRANGERS, stranger)


def ladder(runs: int, seed: int, kinds: tuple[str, ...], draw: Callable[[str, float, np.random.Generator], Drawn]) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for number in range(runs):
        rng = np.random.default_rng([seed, number])
        kind, effect = kinds[number % len(kinds)], float(10.0 ** rng.uniform(-9, 0))
        width, model, target = draw(kind, effect, rng)
        found = us.recover(target, width=width, on_failure="return", budget=20_000)
        reason = false_success(found, model, target, rng)
        counts[kind][found.status.name] += 1
        if reason is not None:
            counts[kind]["FALSE"] += 1
            print(f"  false: {kind}, effect {effect:.1e}, run {number}: {reason}", flush=True)
    for kind, told in counts.items():
        print(f"{kind:22s} {dict(told)}")
    print(f"false successes: {sum(told['FALSE'] for told in counts.values())} of {runs}")


def float32_heads(rng: np.random.Generator, *, biased: bool = False) -> Drawn:
    """torch.nn.MultiheadAttention as it comes, or with biases of order one (those that PyTorch starts with are zero)."""
    import torch

    width = int(rng.choice([16, 24, 32, 48, 64]))
    heads = int(rng.choice([h for h in (1, 2, 4, 8) if width % h == 0]))
    torch.manual_seed(int(rng.integers(2**31)))
    module = torch.nn.MultiheadAttention(width, heads, bias=biased or bool(rng.integers(2)), batch_first=True).eval()
    layer = None
    if biased:
        with torch.no_grad():
            module.in_proj_bias.normal_()
            module.out_proj.bias.normal_()
        twin = torch.nn.MultiheadAttention(width, heads, batch_first=True).double()
        twin.load_state_dict({name: block.double() for name, block in module.state_dict().items()})
        layer = us.Attention.from_torch(twin) if heads == 1 else None

    def target(X: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            x = torch.as_tensor(X, dtype=torch.float32)
            return module(x, x, x, need_weights=False)[0][:, -1].numpy().astype(np.float64)

    return width, layer, target


def biased_heads(rng: np.random.Generator) -> Drawn:
    """The same with biases of order one."""
    return float32_heads(rng, biased=True)


def jittering(rng: np.random.Generator) -> Drawn:
    """Answers whose last digits differ from call to call."""
    head, relative = Head(rng), float(rng.choice([1e-13, 1e-12]))
    return head.width, head.model, lambda X: head.answer(X) * (1 + relative * rng.normal(size=len(X)))


def one_float32(rng: np.random.Generator) -> Drawn:
    """One head, vector answers, evaluated in float32."""
    width = int(rng.choice([8, 16, 32]))
    W, V = rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=(width, int(rng.integers(2, width + 1))))
    single_W, single_V = W.astype(np.float32), V.astype(np.float32)

    def target(X: np.ndarray) -> np.ndarray:
        x = X.astype(np.float32)
        weights = softmax(np.einsum("bnd,bd->bn", x, x[:, -1] @ single_W.T))
        return np.einsum("bn,bnm->bm", weights, x @ single_V).astype(np.float64)

    return width, us.Attention(W[None], V[None]), target


def small_budget(rng: np.random.Generator) -> Drawn:
    """Noise, six queries per parameter."""
    head = Head(rng)
    noise = float(10.0 ** rng.uniform(-4, -2))
    return head.width, head.model, lambda X: head.answer(X) + noise * rng.normal(size=len(X))


HONEST: dict[str, Callable[[np.random.Generator], Drawn]] = {
    "nn.MultiheadAttention float32": float32_heads,
    "the same with biases": biased_heads,
    "one head float32, vector": one_float32,
    "jitter 1e-13, 1e-12": jittering,
    "noise, 6 per parameter": small_budget,
}


def run_honest(runs: int, seed: int) -> None:
    """How many honest targets are recovered."""
    for name, draw in HONEST.items():
        told: Counter[str] = Counter()
        for number in range(runs):
            rng = np.random.default_rng([seed, number])
            width, _, target = draw(rng)
            limits = {"budget": 6 * (width**2 + width) + 64, "max_norm": 4.0} if "noise" in name else {}
            told[us.recover(target, width=width, on_failure="return", **limits).status.name] += 1
        print(f"{name:32s} {dict(told)}", flush=True)


CLASSES = (
    "scalar", "scalar c", "scalar b", "vector", "vector c", "vector b", "every position", "every position c",
    "scalar float32", "vector c b float32", "scalar float16", "scalar noise",
)  # fmt: skip


def covered(name: str, rng: np.random.Generator) -> tuple[int, us.Attention, Target, dict[str, float]]:
    """A head of this class."""
    width = int(rng.integers(4, 11))
    scalar = "scalar" in name
    layer = us.Attention(
        rng.normal(size=(1, width, width)) / np.sqrt(width),
        rng.normal(size=(1, width) if scalar else (1, width, width)),
        rng.normal(size=(1, width)) if " c" in name else None,
        (rng.normal() if scalar else rng.normal(size=width)) if " b" in name else None,
    )
    if "every" in name:
        return width, layer, lambda X: layer(X, "all"), {}
    if "float32" in name:
        return width, layer, lambda X: layer(X).astype(np.float32).astype(np.float64), {}
    if "float16" in name:
        return width, layer, lambda X: layer(X).astype(np.float16).astype(np.float64), {"max_norm": 4.0}
    if "noise" in name:
        return width, layer, lambda X: layer(X) + 1e-3 * rng.normal(size=len(X)), {"max_norm": 4.0}
    return width, layer, layer, {}


PRODUCTS = ("float64 scalar c b", "float64 vector c b", "float32 scalar c b", "float32 vector c b", "cast scalar b")


def product(name: str, rng: np.random.Generator) -> tuple[int, us.Attention, Target, dict[str, float]]:
    """A head computed from its projections, as modules are: scores and values are products, c and b sums; or a cast one."""
    if "cast" in name:
        width, layer, target, limits = covered("scalar b", rng)
        return width, layer, lambda X: target(X).astype(np.float32).astype(np.float64), limits
    width, inner, number = int(rng.integers(4, 11)), int(rng.integers(4, 11)), np.dtype(name.split()[0])
    outputs, longer = 1 if "scalar" in name else width, np.longdouble if number == np.float64 else np.float64
    shapes = ((width, inner), (width, inner), (width, inner), (inner, outputs))
    Q, K, A, B = ((rng.normal(size=shape) / np.sqrt(shape[0])).astype(number) for shape in shapes)
    q, a, o = (rng.normal(size=size).astype(number) for size in (inner, inner, outputs))

    def target(X: np.ndarray) -> np.ndarray:
        x = X.astype(number)
        weights = softmax(np.einsum("bnk,bk->bn", x @ K, x[:, -1] @ Q + q))
        answers = (np.einsum("bn,bnk->bk", weights, x @ A + a) @ B + o).astype(np.float64)
        return answers[:, 0] if outputs == 1 else answers

    key, query, value, out, bias, inside, outside = (block.astype(longer) for block in (K, Q, A, B, q, a, o))
    W, c, V, b = (np.float64(block) for block in (key @ query.T, key @ bias, value @ out, inside @ out + outside))
    return width, us.Attention(W[None], V.T if outputs == 1 else V[None], c[None], b[0] if outputs == 1 else b), target, {}


SHAPES = ("scalar", "scalar c b", "vector", "vector c b")
HALF_CLASSES = (
    *(f"{number} {way}: {shape}" for number in ("float16", "bfloat16") for way in ("written", "inside") for shape in SHAPES),
    "float16 module",
    "bfloat16 module",
)


def short(name: str, rng: np.random.Generator) -> tuple[int, us.Attention, Target, dict[str, float]]:
    """One head in half precision: cast at the end, computed so from weights of that precision, or PyTorch's own module."""
    import torch

    number = getattr(torch, name.split()[0])
    if "module" in name:
        width = int(rng.choice([4, 8, 16]))
        torch.manual_seed(int(rng.integers(2**31)))
        module = torch.nn.MultiheadAttention(width, 1, bias=bool(rng.integers(2)), batch_first=True).to(number).eval()
        weights = {key: value.double() for key, value in module.state_dict().items()}
        twin = torch.nn.MultiheadAttention(width, 1, bias="in_proj_bias" in weights, batch_first=True).double()
        twin.load_state_dict(weights)
        layer = us.Attention.from_torch(twin)

        def ask(X: np.ndarray) -> np.ndarray:
            with torch.no_grad():
                x = torch.as_tensor(X).to(number)
                return module(x, x, x, need_weights=False)[0][:, -1].double().numpy()

        return width, layer, ask, {}
    width, layer, _, _ = covered(name.split(": ")[1], rng)
    if "written" in name:
        return width, layer, lambda X: torch.as_tensor(layer(X)).to(number).double().numpy(), {}
    blocks = {block: torch.as_tensor(np.array(getattr(layer, block))).to(number) for block in "WVcb"}
    rounded = {block: numbers.double().numpy() for block, numbers in blocks.items()}
    layer = us.Attention(rounded["W"], rounded["V"], rounded["c"] if layer.has_c else None, rounded["b"] if layer.has_b else None)

    def target(X: np.ndarray) -> np.ndarray:
        x = torch.as_tensor(X).to(number)
        scores = torch.einsum("bnd,bd->bn", x, x[:, -1] @ blocks["W"][0].T) + x @ blocks["c"][0]
        values = x @ blocks["V"][0].reshape(width, -1)
        answers = torch.einsum("bn,bnm->bm", torch.softmax(scores, dim=1), values) + blocks["b"]
        return answers.double().numpy().reshape(len(X), *layer.V.shape[2:])

    return width, layer, target, {}


def run_half(runs: int, seed: int) -> None:
    """The same in half precision."""
    run_coverage(runs, seed, HALF_CLASSES, short)


def run_coverage(
    runs: int, seed: int, classes: tuple[str, ...] = CLASSES, draw: Callable[..., tuple[int, us.Attention, Target, dict]] = covered
) -> None:
    """Share of parameters within their bars."""
    for name in classes:
        hits: dict[str, list[float]] = defaultdict(list)
        for number in range(runs):
            rng = np.random.default_rng([seed, number])
            width, layer, target, limits = draw(name, rng)
            found = us.recover(target, width=width, on_failure="return", **limits)
            if not found.status.success or found.bounds is None:
                hits[found.status.name].append(1.0)
                continue
            for block in "WVcb":
                bars, truth = getattr(found.bounds, block), getattr(layer, block)
                if bars is not None and np.any(truth):
                    hits[block].append(float(np.mean(np.abs(getattr(found.model, block) - truth) <= np.asarray(bars))))
        print(
            f"{name:28s} " + ", ".join(f"{block} {np.mean(shares):.3f} ({len(shares)})" for block, shares in hits.items()),
            flush=True,
        )


def single_network(rng: np.random.Generator, *, head: bool) -> tuple[int, int, np.ndarray | None, Target]:
    """A ReLU network of PyTorch's own layers in float32, plain or behind one head: width, neurons, W and the target."""
    import torch

    torch.manual_seed(int(rng.integers(2**31)))
    width, neurons = (8, 16) if head else (int(rng.choice([4, 8, 16])), int(rng.choice([8, 16, 24])))
    outputs = int(rng.choice([1, 1, 4, width]))
    ordinary = rng.random() < 0.5  # weights as PyTorch draws them (uniform, biases small), or Gaussian with biases of order 1
    first, last = torch.nn.Linear(width, neurons), torch.nn.Linear(neurons, outputs)
    values = torch.nn.Linear(width, width, bias=False)
    scores = rng.normal(size=(width, width)) / np.sqrt(width)
    if not ordinary:
        for layer in (first, last, values):
            torch.nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
            if layer.bias is not None:
                torch.nn.init.normal_(layer.bias)
    W, residual = torch.as_tensor(scores, dtype=torch.float32), bool(rng.random() < 0.3)

    def target(X: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            x = torch.as_tensor(X, dtype=torch.float32)
            z = x[:, -1]
            if head:
                weights = torch.softmax(torch.einsum("bnd,bd->bn", x, z @ W.T), dim=1)
                z = values(torch.einsum("bn,bnd->bd", weights, x)) + (z if residual else 0.0)
            y = last(torch.relu(first(z))).double().numpy()
        return y[:, 0] if outputs == 1 else y

    return width, neurons, scores if head else None, target


def run_single(runs: int, seed: int) -> None:
    """Float32 networks and Transformers: how many are whole, how far off on natural tokens, whether counts and bars hold."""
    for head in (True, False):
        told: Counter[str] = Counter()
        errors, shares, queries = [], [], []
        for number in range(runs):
            rng = np.random.default_rng([seed, number])
            width, neurons, W, target = single_network(rng, head=head)
            found = us.recover(target, width=width, on_failure="return")
            told[found.status.name] += 1
            queries.append(found.queries)
            network = getattr(found.model, "ffn", found.model)
            if not found.status.success or not hasattr(network, "weights"):
                told["attention alone" if found.status.success else "refused"] += 1
                print(f"  {number}: {found.status.name}, {found.queries} queries: {found.message[:300]}", flush=True)
                continue
            X = rng.normal(size=(512, 5 if head else 1, width))
            errors.append(float(np.abs(target(X) - found.model.answer(X).reshape(target(X).shape)).max() / target(X).std()))
            told["error below 1e-3"] += errors[-1] < 1e-3
            count = found.facts.get("neurons")
            told["count right" if count == neurons else "no count" if count is None else "count WRONG"] += 1
            if W is not None and found.bounds is not None and found.bounds.W is not None:
                shares.append(float(np.mean(np.abs(found.model.attention.W[0] - W) <= found.bounds.W)))
            print(
                f"  {number}: {found.status.name}, {found.queries} queries, off by {errors[-1]:.1e}, neurons {count} of {neurons}",
                flush=True,
            )
        name = "Transformers" if head else "networks"
        worst = max(errors, default=np.nan)
        print(f"{name}: {dict(told)}, worst {worst:.1e}, median queries {np.median(queries):.0f}")
        print(f"  W within its bars: {np.mean(shares) if shares else np.nan:.3f} ({len(shares)})", flush=True)


ROUNDED = (
    "float16 scores", "bfloat16 scores", "float32 scores", "int8 tokens", "int8 tokens by token", "int8 tokens by sequence",
    "float8_e4m3fn tokens", "float8_e5m2 tokens", "float8_e4m3fn cache", "float8_e5m2 cache", "int8 cache", "float8_e4m3fn keys",
    "float8_e5m2 keys", "int8 keys",
)  # fmt: skip


def mixed(kind: str, rng: np.random.Generator) -> Drawn:
    """One head that answers in float64 and rounds its scores, its tokens, its keys, or keys and values (a cache) inside."""
    import torch

    head = Head(rng)
    inner = int(rng.integers(2, head.width + 1))
    query, key = rng.normal(size=(2, inner, head.width)) / np.sqrt(head.width)
    project, out = rng.normal(size=(inner, head.width)) / np.sqrt(head.width), rng.normal(size=inner)
    format_, what = kind.split(" ", 1)

    def cast(values: np.ndarray, axes: tuple[int, ...] = (-1,)) -> np.ndarray:
        if format_ == "int8":
            scale = np.abs(values).max(axis=axes, keepdims=True) / 127 + 1e-300
            return scale * np.round(values / scale)
        number = getattr(torch, format_)
        most = torch.finfo(number).max  # caches saturate
        return torch.as_tensor(values).clip(-most, most).to(number).to(torch.float64).numpy()

    def target(X: np.ndarray) -> np.ndarray:
        if what == "scores":
            return head.answer(X, cast(head.scores(X)))
        if kind == "int8 tokens":
            return head.answer(np.round(32 * X) / 32)
        if what.startswith("tokens"):
            return head.answer(cast(X, (-2, -1) if what.endswith("sequence") else (-1,)))
        keys, values = cast(X @ key.T), X @ project.T
        weights = softmax(np.einsum("bnk,bk->bn", keys, X[:, -1] @ query.T))
        return np.einsum("bn,bnk,k->b", weights, cast(values) if what == "cache" else values, out)

    return head.width, us.Attention.single(key.T @ query, project.T @ out) if what in ("cache", "keys") else head.model, target


NAMES = ("in steps", "between jumps", "rounds inside", "fp8", "int8")  # words that name the cause


def run_mixed(runs: int, seed: int) -> None:
    """How targets that round inside are refused, whether the reason names it, and what ``diagnose`` says."""
    for kind in ROUNDED:
        told: Counter[str] = Counter()
        for number in range(runs):
            width, _, target = mixed(kind, np.random.default_rng([seed, number]))
            found = us.recover(target, width=width, on_failure="return", budget=20_000)
            named = any(word in found.message for word in NAMES)
            told[f"{found.status.name}, {'named' if named else 'not named'}"] += 1
            diagnosis = us.diagnose(target, width=width)
            told[f"diagnosed: {diagnosis.family}"] += 1
            if not named:
                print(f"  {number}, {found.queries} queries: {found.message[:300]}", flush=True)
        print(f"{kind:24s} {dict(told)}", flush=True)


def run_certified(runs: int, seed: int) -> None:
    """Violations of certified intervals where c and b are small and the errors adversarial."""
    certified = violated = 0
    for number in range(runs):
        rng = np.random.default_rng([seed, number])
        width, tau = int(rng.integers(2, 8)), float(10.0 ** rng.uniform(-6, -2))
        c = tau * rng.normal(size=width) if rng.random() < 0.5 else None
        layer = us.Attention.single(rng.normal(size=(width, width)), rng.normal(size=width), c, 0.9 * tau * rng.uniform(-1, 1))
        errors = [lambda y: np.sign(np.sin(1e6 * y)), lambda y: np.ones_like(y), lambda y: -np.sign(y)][number % 3]
        limit = float(rng.uniform(1.5, 6)) if number % 2 else None
        found = us.recover(
            lambda X, layer=layer, tau=tau, errors=errors: (lambda y: y + tau * errors(y))(layer(X)),
            width=width, tolerance=tau, max_norm=limit, on_failure="return",
        )  # fmt: skip
        if found.status.success and found.bounds is not None and found.bounds.kind == "certified":
            certified += 1
            violated += any(
                (np.abs(getattr(found.model, block) - getattr(layer, block)) > np.asarray(getattr(found.bounds, block))).any()
                for block in "WVcb"
            )
    print(f"certified {certified} of {runs}, violated {violated}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["outside", "strangers", "honest", "coverage", "half", "certified", "single", "mixed"])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    drawn = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {drawn}")
    {
        "outside": run_outside,
        "strangers": run_strangers,
        "honest": run_honest,
        "coverage": run_coverage,
        "half": run_half,
        "certified": run_certified,
        "single": run_single,
        "mixed": run_mixed,
    }[options.part](options.runs, drawn)
