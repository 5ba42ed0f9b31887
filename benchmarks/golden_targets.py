"""The targets of ``benchmarks/golden.py``: every way through ``recover``, at small widths, each made anew from fixed seeds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import second_zoo
import third_zoo
from tests import zoo

import unsoftmax as us
from unsoftmax.demo import demo_model, demo_oracle
from unsoftmax.oracles import CallableOracle, Cast, Clipped, LowPrecision, Noisy, Rounded, Tokens

Array = NDArray[Any]
OUTSIDER_BUDGET = 3000  # what an outsider of a zoo may cost
NARROW = range(3, 9)  # widths of zoo targets whose width is drawn


@dataclass
class Case:
    """One target: ``make`` builds it anew, as some of them remember what they were asked."""

    name: str
    make: Callable[[], Any]
    truth: Any = None  # as a model of ours
    outside: bool = False  # no right recovery exists
    width: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


def cases() -> list[Case]:
    """All targets, in a fixed order, under names of their own."""
    made = [*heads(), *contract(), *networks(), *behind(), *coarse(), *access(), *drifting(), *zoos()]
    assert len({case.name for case in made}) == len(made)
    return made


def attention(name: str, settings: dict[str, int], **options: Any) -> Case:
    return Case(name, lambda: demo_oracle("attention", **settings), demo_model("attention", **settings), options=options)


def heads() -> Iterator[Case]:
    """Layers of one head and of several, answered in full precision."""
    for d in (1, 2, 3, 5, 8, 16, 32):
        yield attention(f"one head, d {d}", {"width": d, "seed": d})
    for d in (3, 6, 12):
        yield attention(f"one head, c and b, d {d}", {"width": d, "bias": 1, "seed": d})
    for d, m in ((3, 2), (5, 8), (10, 4)):
        yield attention(f"one head, vector {m}, d {d}", {"width": d, "outputs": m, "seed": d})
    yield attention("one head, vector, c and b", {"width": 6, "outputs": 3, "bias": 1})
    yield attention("one head, all positions", {"width": 6, "outputs": 3, "positions": 1})
    yield attention("one head, all positions, causal, c and b", {"width": 7, "outputs": 2, "causal": 1, "bias": 1})
    for d, r in ((8, 1), (12, 3), (24, 6)):
        yield attention(f"one head, rank {r}, d {d}", {"width": d, "rank": r, "seed": d})
    yield attention("one head, rank given", {"width": 12, "rank": 3, "bias": 1}, rank=3)
    for d, h in ((4, 2), (5, 3), (6, 4)):
        yield attention(f"{h} heads, scalar, d {d}", {"width": d, "heads": h, "seed": d})
    yield attention("2 heads, scalar, c and b", {"width": 5, "heads": 2, "bias": 1})
    yield attention("2 heads, scalar, number given", {"width": 5, "heads": 2, "seed": 3}, heads=2)
    for d, h in ((6, 2), (8, 4), (8, 8)):
        yield attention(f"{h} heads, vector, d {d}", {"width": d, "heads": h, "outputs": d, "seed": d})
    yield attention("3 heads, vector, c and b", {"width": 6, "heads": 3, "outputs": 6, "bias": 1})
    yield attention("4 heads, rank 2, all positions", {"width": 8, "heads": 4, "rank": 2, "outputs": 8, "positions": 1})
    yield attention("3 heads, causal", {"width": 6, "heads": 3, "outputs": 6, "causal": 1, "bias": 1})
    twin = demo_model("attention", width=5, outputs=4)
    yield Case("two equal heads", lambda: us.Attention([*twin.W] * 2, [*twin.V / 2] * 2), twin)
    yield Case("silence", lambda: lambda X: np.zeros(len(X)), outside=True, width=5)


def contract() -> Iterator[Case]:
    """What the table of tests/test_learner_contract.py asks of every learner, through ``recover``."""
    rng = np.random.default_rng(77)
    table, one = rng.normal(size=(40, 6)), demo_model("attention", width=6, seed=1)
    steps = us.Attention.single(rng.integers(-7, 8, size=(6, 6)) * 0.125, rng.integers(-7, 8, size=6) * 0.125)
    yield attention("contract: one head", {"width": 6, "seed": 1})
    yield attention("contract: scalar heads", {"width": 6, "heads": 2})
    yield attention("contract: vector heads", {"width": 8, "heads": 2, "outputs": 8})
    for family in ("ffn", "transformer"):
        yield network(f"contract: {family}", family, {"width": 6, "hidden": 8})
    bent = Case("contract: behind a network", lambda: lambda X: np.tanh(0.3 * one(X)) + 0.1 * one(X), scores(one), width=6)
    yield bent
    yield Case("contract: behind a network, told", bent.make, bent.truth, width=6, options={"family": "attention-behind-network"})
    yield Case("contract: grid", lambda: steps, steps, options={"grid": 0.125})
    yield Case("contract: grid to be found", lambda: steps, steps, options={"grid": "auto"})
    yield Case("contract: fixed probes", lambda: one, one, options={"adaptive": False})
    yield Case("contract: tokens", lambda: Tokens(lambda ids: one(table[ids]), table), one)
    yield Case("contract: noisy", lambda: Noisy(CallableOracle(one), 1e-7), one, options={"max_norm": 2.5})
    yield Case("contract: certified", lambda: one, one, options={"tolerance": 1e-9, "max_norm": 2.5})


def network(name: str, family: str, settings: dict[str, int], /, **options: Any) -> Case:
    return Case(name, lambda: demo_oracle(family, **settings), demo_model(family, **settings), options=options)


def networks() -> Iterator[Case]:
    """ReLU networks and one-layer Transformers."""
    yield network("ReLU network, d 4", "ffn", {"width": 4, "hidden": 6})
    yield network("ReLU network, vector", "ffn", {"width": 6, "hidden": 10, "outputs": 3})
    yield network("ReLU network, told", "ffn", {"width": 8, "hidden": 12}, family="ffn")
    yield network("Transformer, d 4", "transformer", {"width": 4, "hidden": 6})
    yield network("Transformer, vector, bias", "transformer", {"width": 5, "hidden": 9, "outputs": 2, "bias": 1})
    yield network("Transformer, rank 2", "transformer", {"width": 6, "hidden": 10, "rank": 2})
    yield network("Transformer, residual", "transformer", {"width": 5, "hidden": 8, "residual": 1})
    yield network("Transformer, residual, bias", "transformer", {"width": 4, "hidden": 8, "residual": 1, "bias": 1})
    yield network("Transformer, told", "transformer", {"width": 5, "hidden": 8, "seed": 2}, family="transformer")
    yield network("Transformer, max_norm", "transformer", {"width": 5, "hidden": 8, "seed": 2}, max_norm=4.0)
    single = demo_model("transformer", width=4, hidden=6)
    yield Case("Transformer, float32", lambda: lambda X: single(X).astype(np.float32), single, width=4)
    flat = demo_model("ffn", width=4, hidden=6)
    yield Case("ReLU network, float32", lambda: lambda X: flat(X[:, -1]).astype(np.float32), flat, width=4)


def scores(model: us.Attention) -> us.Attention:
    """What can be known of a head behind an unknown network."""
    return us.Attention(model.W, None, model.c)


def whole(layer: us.Attention, first: Array, last: Array, residual: bool) -> us.Transformer:
    """The same before one hidden layer of GELU, of which the network can be known too; it takes the constant of the layer."""
    network = us.FFN([first, last], [first @ np.atleast_1d(layer.b), np.zeros(len(last))], activation="gelu_tanh")
    return us.Transformer(us.Attention(layer.W, layer.V, layer.c), network, residual=residual)


def behind() -> Iterator[Case]:
    """A head behind networks, learned with it or not, and networks of several hidden layers."""
    for kind in ("tanh", "gelu"):
        for outputs, residual in ((1, False), (5, False), (5, True)):
            rng = np.random.default_rng([outputs, len(kind)])
            d, act = 5, second_zoo.ACTIVATIONS[kind]
            layer = demo_model("attention", width=d, outputs=d, bias=1, seed=outputs)
            first, last = rng.normal(size=(2 * d, d)) / np.sqrt(d), rng.normal(size=(outputs, 2 * d)) / np.sqrt(2 * d)

            def answer(X: Array, layer=layer, act=act, first=first, last=last, residual=residual) -> Array:
                return act((layer(X) + residual * X[:, -1]) @ first.T) @ last.T

            name = f"behind {kind}, {outputs} outputs{', residual' * residual}"
            yield Case(
                name,
                lambda answer=answer: answer,
                scores(layer) if kind == "tanh" else whole(layer, first, last, residual),
                width=d,
            )
    for sizes, seed in (((5, 9, 8, 1), 0), ((6, 10, 9, 3), 1)):
        deep = transformer(sizes, seed)
        yield Case(f"Transformer of depth 2, {sizes[-1]} outputs", lambda deep=deep: deep, scores(deep.attention))
    told = transformer((5, 9, 8, 1), 0)
    yield Case("Transformer of depth 2, told otherwise", lambda: told, outside=True, options={"family": "transformer"})
    plain = transformer((5, 9, 8, 1), 4).ffn
    yield Case("ReLU network of depth 2", lambda: plain, plain)
    pair = [demo_model("attention", width=5, outputs=5, seed=seed) for seed in (1, 2)]
    mix = np.random.default_rng(5).normal(size=(5, 2))
    yield Case("two heads behind tanh", lambda: lambda X: np.tanh(pair[0](X) + pair[1](X)) @ mix, outside=True, width=5)


def transformer(sizes: tuple[int, ...], seed: int) -> us.Transformer:
    rng, d = np.random.default_rng(seed), sizes[0]
    weights = [1.3 * rng.normal(size=(b, a)) / np.sqrt(a) for a, b in pairwise(sizes)]
    head = us.Attention(rng.normal(size=(1, d, d)) / d, rng.normal(size=(1, d, d)) / np.sqrt(d), rng.normal(size=(1, d)) / 2)
    return us.Transformer(head, us.FFN(weights, [0.7 * rng.normal(size=b) for b in sizes[1:]]))


def coarse() -> Iterator[Case]:
    """Answers that are noisy, rounded, cast or computed in few bits."""
    head, wide = demo_model("attention", width=5, seed=4), demo_model("attention", width=5, outputs=3, bias=1, seed=4)
    pair, both = demo_model("attention", width=5, heads=2, seed=4), demo_model("attention", width=6, heads=2, outputs=6, seed=4)
    for sigma in (1e-6, 1e-3, 0.05):
        yield coarsely(f"noise {sigma:g}", head, lambda inner, sigma=sigma: Noisy(inner, sigma), budget=6000)
        yield coarsely(f"noise {sigma:g}, max_norm", head, lambda inner, s=sigma: Noisy(inner, s), max_norm=2.5, budget=6000)
    yield coarsely("noise fixed by the question", head, lambda inner: Noisy(inner, 1e-3, fresh=False), max_norm=2.5, budget=6000)
    yield coarsely("noise, vector", wide, lambda inner: Noisy(inner, 1e-3), max_norm=2.5, budget=6000)
    yield coarsely("noise, accuracy", head, lambda inner: Noisy(inner, 1e-2), max_norm=2.5, accuracy=1e-2, budget=20_000)
    yield coarsely("noise, budget too small", head, lambda inner: Noisy(inner, 1.0), max_norm=2.5, budget=500)
    for decimals in (1, 3, 6):
        yield coarsely(f"{decimals} decimals", head, lambda inner, n=decimals: Rounded(inner, decimals=n))
    yield coarsely("3 decimals, max_norm", head, lambda inner: Rounded(inner, decimals=3), max_norm=2.5, budget=6000)
    yield coarsely("6 decimals, vector", wide, lambda inner: Rounded(inner, decimals=6))
    yield coarsely("6 decimals, 2 heads", pair, lambda inner: Rounded(inner, decimals=6))
    yield coarsely("10 decimals, 2 heads, vector", both, lambda inner: Rounded(inner, decimals=10))
    for digits in (4, 7):
        yield coarsely(f"{digits} digits", head, lambda inner, n=digits: Rounded(inner, digits=n))
    for dtype in ("float32", "float16", "bfloat16"):
        yield coarsely(f"cast to {dtype}", head, lambda inner, t=dtype: Cast(inner, t), budget=6000)
        yield coarsely(f"cast to {dtype}, max_norm", head, lambda inner, t=dtype: Cast(inner, t), max_norm=4.0, budget=6000)
    for dtype in ("float32", "float16"):
        options = {"max_norm": 4.0, "budget": 6000}
        yield Case(f"computed in {dtype}", lambda t=dtype: LowPrecision(head, t), head, options=options)
    yield Case("computed in float32, no limit", lambda: LowPrecision(wide, "float32"), wide, options={"budget": 6000})
    yield coarsely("cast to float32, 2 heads, vector", both, lambda inner: Cast(inner, "float32"))
    yield coarsely("cast to float32, 2 heads", pair, lambda inner: Cast(inner, "float32"), budget=6000)


def coarsely(name: str, model: us.Attention, wrap: Callable[[Any], Any], **options: Any) -> Case:
    return Case(name, lambda: wrap(CallableOracle(model)), model, options=options)


def access() -> Iterator[Case]:
    """Limits on what may be asked."""
    head, wide = demo_model("attention", width=5, bias=1, seed=6), demo_model("attention", width=4, outputs=3, seed=6)
    ids = np.random.default_rng(6).normal(size=(20, 5))
    yield Case("max_norm 1.5", lambda: head, head, options={"max_norm": 1.5})
    yield attention("max_norm, 2 heads", {"width": 5, "heads": 2, "outputs": 5}, max_norm=3.0)
    yield coarsely("clipped tokens", head, lambda inner: Clipped(inner, 4.0))
    for tau in (1e-8, 1e-3):
        yield Case(
            f"tolerance {tau:g}, max_norm",
            lambda tau=tau: off(head, tau),
            head,
            width=5,
            options={"tolerance": tau, "max_norm": 3.0},
        )
    yield Case("tolerance, max_norm, vector", lambda: wide, wide, options={"tolerance": 1e-6, "max_norm": 3.0})
    yield Case("tolerance alone", lambda: off(head, 1e-6), head, width=5, options={"tolerance": 1e-6})
    yield Case("tokens, c and b", lambda: Tokens(lambda seen: head(ids[seen]), ids), head)
    yield attention("adaptive=False, rank 1", {"width": 8, "rank": 1}, adaptive=False, rank=1)
    yield attention("adaptive=False, max_norm", {"width": 5}, adaptive=False, max_norm=3.0)
    for budget in (10, 30, 60):
        yield Case(f"budget {budget}", lambda: head, head, options={"budget": budget})
    yield network("budget 150, Transformer", "transformer", {"width": 5, "hidden": 8}, budget=150)
    yield attention("budget 100, 2 heads", {"width": 6, "heads": 2, "outputs": 6}, budget=100)
    yield Case("a target that fails", failing, outside=True, width=5)


def off(model: us.Attention, tau: float) -> Callable[[Array], Array]:
    """Answers off by at most ``tau``, otherwise at every call."""
    rng = np.random.default_rng(8)
    return lambda X: model(X) + rng.uniform(-tau, tau, size=len(X))


def failing() -> Callable[[Array], Array]:
    head, asked = demo_model("attention", width=5), [0]

    def answer(X: Array) -> Array:
        asked[0] += len(X)
        if asked[0] > 25:
            raise RuntimeError("out of order")
        return head(X)

    return answer


def drifting() -> Iterator[Case]:
    """Targets that do not stay the same."""
    for after in (5, 25, 40):
        yield Case(f"weights swapped after {after}", lambda after=after: swapped(after), outside=True, width=6)
    for kinds in (1, 4):
        yield Case(f"two replicas, {kinds} outputs", lambda m=kinds: replicas(m), outside=True, width=6)


def swapped(after: int) -> Callable[[Array], Array]:
    pair, asked = [demo_model("attention", width=6, seed=seed) for seed in (1, 2)], [0]

    def answer(X: Array) -> Array:
        late = asked[0] + np.arange(len(X)) >= after
        asked[0] += len(X)
        return np.where(late, pair[1](X), pair[0](X))

    return answer


def replicas(outputs: int) -> Callable[[Array], Array]:
    pair, calls = [demo_model("attention", width=6, outputs=outputs, seed=seed) for seed in (1, 2)], [0]

    def answer(X: Array) -> Array:
        calls[0] += 1
        return pair[calls[0] % 2](X)

    return answer


FIRST = (
    *("positions added", "RoPE", "sliding window", "soft-cap", "LayerNorm before", "LayerNorm before, residual", "QK-norm", "sink"),
    *("dropout", "recurrent", "linear attention", "sigmoid attention", "residual head", "gated head", "two layers", "max pooling"),
    *("two heads, then GELU", "two heads, then ReLU", "soft-cap, then ReLU", "constant", "affine map of the last token"),
    *("smooth network", "step network", "class labels", "weights swapped half-way"),
)
SECOND = (
    *("head, scalar", "head, all positions", "2-8 heads, vector", "heads that share keys", "torch MultiheadAttention"),
    *(
        "differential attention",
        "class probabilities",
        "LayerNorm after",
        "ReLU Transformer, residual",
        "ReLU network, every token",
    ),
    *("rotary", "sliding window", "soft-cap", "RMSNorm first", "norm-first block", "sink logit", "ALiBi", "convolution", "trees"),
)
THIRD = (
    *(
        "head",
        "every position",
        "2-3 heads",
        "nn.MultiheadAttention",
        "pooled by a query",
        "then smooth network",
        "block without norms",
    ),
    *("pooled, then ReLU network", "nn.Sequential with ReLU", "learned positions", "window", "norm first", "prefix tokens"),
    *("nn.TransformerEncoderLayer", "heads, then network", "network on each token", "first token asks"),
)


def zoos() -> Iterator[Case]:
    """Rows of the three zoos of ``benchmarks/diagnose.py``; the first zoo's insiders all of them."""
    for name in (*zoo.INSIDE, *FIRST):
        outside = name in zoo.OUTSIDE and name != "smooth network"  # which is no head, and can be recovered all the same
        yield shown(f"zoo: {name}", lambda name=name: zoo.exhibit(name, 4, width=6), outside)
    for label, which, names in (("second zoo", second_zoo, SECOND), ("third zoo", third_zoo, THIRD)):
        for name in names:
            seed = next(seed for seed in range(4, 10_000) if which.creature(name, seed).width in NARROW)
            make = lambda which=which, name=name, seed=seed: which.creature(name, seed)  # noqa: E731
            yield shown(f"{label}: {name}", make, name in which.OUTSIDE)


def shown(name: str, make: Callable[[], Any], outside: bool) -> Case:
    return Case(name, lambda: make().target, outside=outside, width=make().width, options={"budget": OUTSIDER_BUDGET})
