"""Whole pre-norm stacks: every head of every layer, against the bars.

    python benchmarks/stacks.py random            random stacks of five shapes, LayerNorm and RMSNorm
    python benchmarks/stacks.py strong            the same with scores times 3 and 5
    python benchmarks/stacks.py everywhere        every position answered, in both directions and causal
    python benchmarks/stacks.py strangers         targets that are no such stack, and what refusing them costs
    python benchmarks/stacks.py single            float32 arithmetic, in NumPy
    python benchmarks/stacks.py torch             float32 arithmetic, in torch
    python benchmarks/stacks.py device            GPT-2-like torch decoders, cut before the final norm (--device cuda)
    python benchmarks/stacks.py whole             ReLU stacks: heads, MLPs, constants and epsilon, the function compared
    python benchmarks/stacks.py trained FILE      the blocks of a trained model: ch_PP-OCRv4_rec_infer.onnx of the wheel
                                                  rapidocr-onnxruntime 1.3.24, PP-OCRv6_rec_small.onnx of rapidocr 3.10.0, or
                                                  lore_process.onnx of lineless_table_rec 0.0.9

Each part takes ``--seeds FIRST LAST`` and ``--jobs N`` (set OMP_NUM_THREADS=1 with several). Seconds are those of the processor.
Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from unsoftmax.errors import RefusalError
from unsoftmax.learners.stack import StackLearner
from unsoftmax.models import Attention, Floats
from unsoftmax.models.stack import MLP, Activation, Norm, Stack, normalised, random_stack
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.precision.law import Floor
from unsoftmax.results import Bounds

SHAPES = ((1, 4, 32, 8), (2, 4, 32, 8), (2, 8, 64, 8), (4, 2, 64, 32), (6, 2, 64, 32))
PARTS = ["random", "strong", "everywhere", "strangers", "single", "torch", "device", "trained", "whole"]
NORMS: tuple[Norm, ...] = ("layer", "rms")
Shape = tuple[int, int, int, int]  # layers, heads of each, width, rank


def ranks_of(shape: Shape) -> tuple[int, ...]:
    """Of all heads."""
    return (shape[3],) * (shape[0] * shape[1])


def bound(width: int, norm: Norm, ranks: tuple[int, ...]) -> float:
    """Free parameters of the heads, c inside the range of W, over the numbers in an answer."""
    e = width - (norm == "layer")
    return sum(r * (2 * e - r) + r + r * (e + width - r) for r in ranks) / width


def errors(found: Attention, truth: Attention) -> tuple[float, float, float]:
    """Largest relative errors of W, c and V over heads, matched by W."""

    def apart(a: Floats, b: Floats) -> Floats:
        flat = b.reshape(len(b), -1)
        return np.linalg.norm(a.reshape(len(a), 1, -1) - flat[None], axis=2) / np.linalg.norm(flat, axis=1)

    W, c, V = (apart(getattr(found, name), getattr(truth, name)) for name in ("W", "c", "V"))
    match = linear_sum_assignment(np.log(W + 1e-300))
    return float(W[match].max()), float(c[match].max()), float(V[match].max())


def share_covered(found: Attention, truth: Attention, bounds: Bounds) -> float:
    """Share of the entries of W that lie within their error bars, heads matched by W."""
    assert bounds.W is not None
    far = np.linalg.norm((found.W[:, None] - truth.W[None]).reshape(len(found.W), len(truth.W), -1), axis=2)
    match = linear_sum_assignment(far)[1]
    return float(np.mean(np.abs(found.W - truth.W[match]) <= bounds.W))


def tried(name: str, target: Stack, ranks: tuple[int, ...], seed: int, learner: StackLearner, oracle: object = None) -> None:
    """One run, one line."""
    meter = Metered(CallableOracle(target if oracle is None else oracle, width=target.width))  # type: ignore[arg-type]
    start = time.process_time()
    try:
        learned = learner.run(meter, rng=np.random.default_rng([seed, 1]))
    except RefusalError as refusal:
        print(f"{name} seed {seed}: REFUSED after {meter.spent}: {refusal}", flush=True)
        return
    took = time.process_time() - start
    stack = learned.model
    assert isinstance(stack, Stack)
    W, c, V = errors(stack.limit(), target.limit())
    asked = meter.spent - meter.phases["check"].queries
    right = [layer.heads for layer in stack.layers] == [layer.heads for layer in target.layers] and all(
        errors(a, b)[0] < 0.1 for a, b in zip(stack.layers, target.layers, strict=True)
    )
    least = bound(target.width, target.norm, ranks)
    over = asked / least
    tokens = sum(count.tokens for phase, count in meter.phases.items() if phase != "check") / least
    check = learned.evidence["check_error"]
    covered = (
        "" if learned.bounds is None else f" bars cover {share_covered(stack.limit(), target.limit(), learned.bounds):.3f} of W"
    )
    print(
        f"{name} seed {seed}: W {W:.0e} c {c:.0e} V {V:.0e} layers {'right' if right else 'WRONG'} "
        f"queries {asked} ({over:.2f} x bound, tokens {tokens:.1f} x) check {check:.0e}{covered} {took:.1f} s; "
        + ", ".join(f"{phase} {count.queries}" for phase, count in meter.phases.items()),
        flush=True,
    )


def random_run(shape: Shape, norm: Norm, strength: float, seed: int) -> None:
    target = random_stack(*shape, np.random.default_rng(seed), norm=norm, strength=strength)
    tried(f"{shape} {norm} scores x {strength:g}", target, ranks_of(shape), seed, StackLearner())


def everywhere_run(shape: Shape, norm: Norm, causal: bool, strength: float, seed: int) -> None:
    target = random_stack(*shape, np.random.default_rng(seed), norm=norm, strength=strength)
    oracle = partial(target, positions="all", causal=causal)
    name = f"every position {shape} {norm}{' causal' * causal} scores x {strength:g}"
    tried(name, target, ranks_of(shape), seed, StackLearner(mlps=0), oracle)


def in_single(stack: Stack) -> object:
    """The same stack with weights, inputs and all arithmetic in float32."""
    assert stack.mlps is not None
    f = np.float32
    layers = [tuple(np.asarray(x, f) for x in (layer.W, layer.V, layer.c, layer.b)) for layer in stack.layers]
    mlps = [tuple(np.asarray(x, f) for x in (m.first, m.first_bias, m.second, m.second_bias)) for m in stack.mlps]
    epsilon, half, root = f(stack.epsilon or 0.0), f(0.5), f(np.sqrt(0.5))

    def norm(x: Floats) -> Floats:
        centred = x - x.mean(-1, keepdims=True, dtype=f) if stack.norm == "layer" else x
        return centred / np.sqrt((centred * centred).mean(-1, keepdims=True, dtype=f) + epsilon)

    def answer(sequences: Floats) -> Floats:
        from scipy.special import erf

        h = sequences.astype(f)
        for (W, V, c, b), (first, first_bias, second, second_bias) in zip(layers, mlps, strict=True):
            n = norm(h)
            out = b
            for head in range(len(W)):
                scores = (n @ W[head].T + c[head]) @ n.swapaxes(1, 2)
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                out = out + (scores / scores.sum(-1, keepdims=True)) @ n @ V[head]
            h = h + out
            hidden = norm(h) @ first.T + first_bias
            h = h + (half * hidden * (1 + erf(hidden * root))) @ second.T + second_bias
        assert h.dtype == f
        return h[:, -1].astype(np.float64)

    return answer


def in_torch(stack: Stack) -> object:
    """The same stack as a float32 torch module: plain matrix products, softmax and norms of torch."""
    import torch

    assert stack.mlps is not None
    weights = [
        [
            torch.tensor(np.array(x), dtype=torch.float32)
            for x in (a.W, a.V, a.c, a.b, m.first, m.first_bias, m.second, m.second_bias)
        ]
        for a, m in zip(stack.layers, stack.mlps, strict=True)
    ]

    def norm(x: torch.Tensor) -> torch.Tensor:
        if stack.norm == "layer":
            return torch.nn.functional.layer_norm(x, (stack.width,), eps=stack.epsilon)
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + stack.epsilon)

    def answer(sequences: Floats) -> Floats:
        with torch.no_grad():
            h = torch.tensor(sequences, dtype=torch.float32)
            for W, V, c, b, first, first_bias, second, second_bias in weights:
                n = norm(h)[:, None]
                scores = torch.softmax((n @ W.transpose(1, 2) + c[:, None]) @ n.transpose(2, 3), dim=-1)
                h = h + (scores @ n @ V).sum(1) + b
                h = h + torch.nn.functional.gelu(norm(h) @ first.T + first_bias) @ second.T + second_bias
            return h[:, -1].double().numpy()

    return answer


def single_run(shape: Shape, norm: Norm, seed: int, make: Callable[[Stack], object]) -> None:
    learner = StackLearner(floor=Floor(kind="float32", relative=2.0**-21))
    target = random_stack(*shape, np.random.default_rng(seed), norm=norm)
    tried(f"float32 {shape} {norm}", target, ranks_of(shape), seed, learner, make(target))


class Decoder:
    """A GPT-2-like decoder with random weights on a device: learned positions, causal, cut before its final norm; the last answer.

    Args:
        shape: layers, heads, width, rank.
        seed: of the weights.
        device: of torch.
        strength: of the scores.
    """

    def __init__(self, shape: tuple[int, int, int, int], seed: int, device: str, strength: float) -> None:
        import torch

        layers, heads, width, rank = shape
        there = torch.Generator(device).manual_seed(seed)

        def drawn(*size: int, scale: float = 1.0) -> torch.Tensor:
            return scale * torch.randn(size, generator=there, device=device, dtype=torch.float64)

        self.width, self.heads, self.torch = width, heads, torch
        self.places = drawn(64, width)
        self.blocks = [
            {
                "gain": 1 + drawn(width, scale=0.3),
                "shift": drawn(width, scale=0.3),
                "query": drawn(heads, width, rank, scale=strength / np.sqrt(width * np.sqrt(rank))),
                "key": drawn(heads, width, rank, scale=1 / np.sqrt(width * np.sqrt(rank))),
                "value": drawn(heads, width, rank, scale=1 / np.sqrt(width)),
                "out": drawn(heads, rank, width, scale=1 / np.sqrt(heads * rank)),
                "asked": drawn(heads, 1, rank, scale=0.3 * strength / rank**0.25),
                "end": drawn(width, scale=0.1),
                "second_gain": 1 + drawn(width, scale=0.3),
                "first": drawn(width, 4 * width, scale=1 / np.sqrt(width)),
                "bias": drawn(4 * width, scale=0.3),
                "second": drawn(4 * width, width, scale=0.5 / np.sqrt(width)),
            }
            for _ in range(layers)
        ]

    def __call__(self, tokens: Any) -> Any:
        """Hidden states ``(batch, width)`` at the last position, a few thousand sequences at a time."""
        parts = tokens.split(max(1, 2**24 // (tokens.shape[1] * self.width)))
        return self.torch.cat([self._answered(part) for part in parts])

    def _answered(self, tokens: Any) -> Any:
        functional = self.torch.nn.functional
        h = tokens + self.places[: tokens.shape[1]]
        later = self.torch.full((h.shape[1],) * 2, -np.inf, dtype=h.dtype, device=h.device).triu(1)
        for block in self.blocks:
            n = (functional.layer_norm(h, (self.width,)) * block["gain"] + block["shift"])[:, None]
            scores = (n @ block["query"] + block["asked"]) @ (n @ block["key"]).transpose(2, 3) + later
            h = h + (self.torch.softmax(scores, dim=-1) @ (n @ block["value"]) @ block["out"]).sum(1) + block["end"]
            n = functional.layer_norm(h, (self.width,)) * block["second_gain"]
            h = h + functional.gelu(n @ block["first"] + block["bias"]) @ block["second"]
        return h[:, -1]

    def truth(self, layer: int) -> Attention:
        """The heads of one block, gains and shifts folded in."""
        w = {name: block.cpu().numpy() for name, block in self.blocks[layer].items()}
        P = np.eye(self.width) - 1 / self.width
        W = w["key"] @ w["query"].swapaxes(1, 2)
        c = (w["key"] @ w["asked"].swapaxes(1, 2))[:, :, 0] + W @ w["shift"]
        V = w["value"] @ w["out"]
        return Attention(P @ (w["gain"][:, None] * W * w["gain"]) @ P, P @ (w["gain"][:, None] * V), (w["gain"] * c) @ P)


def device_run(shape: Shape, seed: int, device: str, strength: float) -> None:
    from unsoftmax.oracles import TorchOracle

    target = Decoder(shape, seed, device, strength)
    meter = Metered(TorchOracle(target, width=shape[2], device=device, build_there=True))
    start, marks = time.perf_counter(), [("", time.perf_counter())]
    begin = meter.begin_phase

    def marked(name: str, begin: Any = begin, marks: Any = marks) -> None:
        marks.append((name, time.perf_counter()))
        print(f"  {marks[-1][1] - marks[0][1]:.0f} s: {name}", flush=True)
        begin(name)

    meter.begin_phase = marked  # type: ignore[method-assign]
    try:
        learned = StackLearner(mlps=0).run(meter, rng=np.random.default_rng([seed, 1]))
    except RefusalError as refusal:
        print(f"device {shape} seed {seed}: REFUSED after {meter.spent}: {refusal}", flush=True)
        return
    finally:
        marks.append(("end", time.perf_counter()))
        steps = {a[0]: round(b[1] - a[1], 1) for a, b in itertools.pairwise(marks[1:])}
        print(f"  seconds by phase {steps}", flush=True)
    took, stack = time.perf_counter() - start, learned.model
    assert isinstance(stack, Stack)
    off = [errors(found, target.truth(i)) for i, found in enumerate(stack.layers)] if len(stack.layers) == shape[0] else []
    right = [layer.heads for layer in stack.layers] == [shape[1]] * shape[0] and max(one[0] for one in off) < 0.1
    W, c, V = np.max(off, axis=0) if off else (np.nan,) * 3
    asked, least = meter.spent - meter.phases["check"].queries, bound(shape[2], "layer", ranks_of(shape))
    print(
        f"device {device} {shape} scores x {strength:g} seed {seed}: W {W:.0e} c {c:.0e} V {V:.0e} layers "
        f"{'right' if right else 'WRONG'} queries {asked} ({asked / least:.2f} x bound) {took:.0f} s, check "
        f"{learned.evidence['check_error']:.0e}, order off {learned.evidence['order_off']:.0e}; "
        + ", ".join(f"{phase} {count.queries}" for phase, count in meter.phases.items()),
        flush=True,
    )


def trained_stack(path: Path) -> Stack:
    """The blocks of a trained recogniser as a ``Stack``, norms folded into the heads, weights in float64.

    PP-OCRv4's and PP-OCRv6's (two blocks), and the encoder of the table recogniser of ``lineless_table_rec`` (four), whose norms
    divide by the standard deviation over ``n - 1`` with epsilon outside the root: for long tokens a LayerNorm that is shorter by
    ``sqrt((n - 1) / n)``, which goes into the gains.
    """
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            held[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    w = {name: np.asarray(value, dtype=np.float64) for name, value in held.items() if value.dtype == np.float32}
    made = {node.output[0]: node for node in graph.node}
    for node in graph.node:  # products whose weights have no name are known by the bias that is added to them
        if node.op_type == "Add" and node.input[1].endswith("bias") and made[node.input[0]].op_type == "MatMul":
            w[node.input[1].replace("bias", "weight")] = w[made[node.input[0]].input[1]]
    parts = [_paddle(w, i) for i in range(2)] if "linear_0.w_0" in w or "linear_77.w_0" in w else [_table(w, i) for i in range(4)]
    return Stack([_folded(*part[:7]) for part in parts], "layer", 1e-5, [part[7] for part in parts])


def _mlp(gain: Floats, shift: Floats, first: Floats, bias: Floats, second: Floats, end: Floats, activation: Activation) -> MLP:
    return MLP(first.T * gain, bias + first.T @ shift, second.T, end, activation)


def _paddle(w: dict[str, Floats], i: int) -> tuple[Any, ...]:
    """Gain, shift, query, key, value ``(width, width)``, their biases, output, its bias, MLP of block ``i`` of PP-OCRv4 or v6."""
    first = 77 if "linear_77.w_0" in w else 0
    linear = [(w[f"linear_{first + 4 * i + j}.w_0"], w[f"linear_{first + 4 * i + j}.b_0"]) for j in range(4)]
    if first:
        norms = [(w[f"layer_norm_{43 + 2 * i + j}.w_0"], w[f"layer_norm_{43 + 2 * i + j}.b_0"]) for j in range(2)]
    else:
        norms = [(w[f"helper.reshape.{4 * i + 2 * j}"], w[f"helper.reshape.{4 * i + 2 * j + 1}"]) for j in range(2)]
    (gain, shift), (joint, bias) = norms[0], linear[0]
    d = len(gain)
    return gain, shift, joint.reshape(d, 3, d), bias.reshape(3, d), *linear[1], 8, _mlp(*norms[1], *linear[2], *linear[3], "silu")


def _table(w: dict[str, Floats], i: int) -> tuple[Any, ...]:
    """The same of block ``i`` of the table recogniser."""
    at = f"tsfm_axis.encoder.layers.{i}"
    d = len(w[f"{at}.norm_1.alpha"])
    shorter = np.sqrt((d - 1) / d)
    names = [f"{at}.attn.{name}_linear" for name in ("q", "k", "v")]
    joint, bias = np.stack([w[f"{name}.weight"] for name in names], axis=1), np.stack([w[f"{name}.bias"] for name in names])
    linear = [(w[f"{at}.{name}.weight"], w[f"{at}.{name}.bias"]) for name in ("attn.out", "ff.linear_1", "ff.linear_2")]
    mlp = _mlp(shorter * w[f"{at}.norm_2.alpha"], w[f"{at}.norm_2.bias"], *linear[1], *linear[2], "relu")
    return shorter * w[f"{at}.norm_1.alpha"], w[f"{at}.norm_1.bias"], joint, bias, *linear[0], 8, mlp


def _folded(gain: Floats, shift: Floats, joint: Floats, bias: Floats, end: Floats, end_bias: Floats, heads: int) -> Attention:
    """The heads of a block on bare normalised tokens: ``joint (width, 3, width)`` makes queries, keys and values."""
    d = len(gain)
    query, key, value = (joint[:, part].T.reshape(heads, d // heads, d) for part in range(3))
    asked, said = (bias[part].reshape(heads, d // heads) for part in (0, 2))
    out, scale = end.reshape(heads, d // heads, d), (d // heads) ** -0.5
    W = scale * np.einsum("hri,hrj->hij", key, query)
    c = scale * np.einsum("hri,hr->hi", key, asked) + W @ shift
    V = np.einsum("hri,hro->hio", value, out)
    b = end_bias + np.einsum("hr,hro->o", said, out) + np.einsum("hio,i->o", V, shift)
    P = np.eye(d) - 1 / d
    return Attention(P @ (gain[:, None] * W * gain) @ P, P @ (gain[:, None] * V), (gain * c) @ P, b)


def whole_run(shape: Shape, norm: Norm, seed: int, hidden: int) -> None:
    """A stack with ReLU MLPs, and the largest error of the whole function on fresh sequences of natural size."""
    target = random_stack(*shape, np.random.default_rng(seed), norm=norm, hidden=hidden, activation="relu")
    meter, start = Metered(CallableOracle(target)), time.process_time()
    try:
        learned = StackLearner().run(meter, rng=np.random.default_rng([seed, 1]))
    except RefusalError as refusal:
        print(f"{shape} hidden {hidden} {norm} seed {seed}: REFUSED after {meter.spent}: {refusal}", flush=True)
        return
    took, stack = time.process_time() - start, learned.model
    assert isinstance(stack, Stack)
    tokens = np.random.default_rng([seed, 2]).normal(size=(500, 6, target.width))
    off = f"{np.abs(stack(tokens) - target(tokens)).max():.0e}" if stack.complete else learned.notes[-1]
    W, c, V = errors(stack.limit(), target.limit())
    print(
        f"{shape} hidden {hidden} {norm} seed {seed}: function {off} W {W:.0e} c {c:.0e} V {V:.0e} "
        f"queries {meter.spent}, MLPs {meter.phases['MLPs'].queries}, {took:.1f} s",
        flush=True,
    )


def trained_run(path: Path, blocks: int | None, seed: int) -> None:
    target = trained_stack(path)
    if blocks:
        assert target.mlps is not None
        target = Stack(target.layers[:blocks], target.norm, target.epsilon, target.mlps[:blocks])
    tried(path.stem, target, (target.width // 8,) * target.heads, seed, StackLearner(mlps=0))


def strangers_run(seed: int) -> None:
    """What is no stack of pre-norm attention blocks, or not one that can be told: d = 32, two layers of four heads."""
    stack = random_stack(2, 4, 32, 8, np.random.default_rng(seed))
    for name, target in strangers(stack, seed).items():
        meter = Metered(CallableOracle(target, width=32))  # type: ignore[arg-type]
        try:
            learned = StackLearner().run(meter, rng=np.random.default_rng(seed))
            assert isinstance(learned.model, Stack)
            verdict = f"RECOVERED, layers of {[layer.heads for layer in learned.model.layers]} heads"
        except RefusalError as refusal:
            verdict = f"{type(refusal).__name__}: {str(refusal)[:110]}"
        print(f"{name} seed {seed}: {meter.spent} queries, {verdict}", flush=True)


def strangers(stack: Stack, seed: int) -> dict[str, object]:
    """Targets by name; "parallel blocks" is a stack of one layer and may be recovered as that."""
    assert stack.mlps is not None
    pairs = list(zip(stack.layers, stack.mlps, strict=True))
    rng = np.random.default_rng([seed, 2])

    def bare(x: Floats) -> Floats:
        return normalised(x, "layer", 1e-5)

    def blocks(attend: object, mlp: object = None) -> object:
        def answer(X: Floats) -> Floats:
            h = X
            for i, (layer, network) in enumerate(pairs):
                h = h + attend(i, layer, bare(h))  # type: ignore[operator]
                h = h + (network(bare(h)) if mlp is None else mlp(network, bare(h)))  # type: ignore[operator]
            return h[:, -1]

        return answer

    def plain(_: int, layer: Attention, n: Floats) -> Floats:
        return layer(n, "all")

    def post(X: Floats) -> Floats:
        h = X
        for layer, network in pairs:
            h = bare(h + layer(h, "all"))
            h = bare(h + network(h))
        return h[:, -1]

    def parallel(X: Floats) -> Floats:
        n = bare(X)
        return (X + sum(layer(n, "all") + network(n) for layer, network in pairs))[:, -1]

    def rotated(n: Floats) -> Floats:
        turns = np.arange(n.shape[1])[:, None] * 1e4 ** (-np.arange(16) / 16)
        a, b = n[..., :16], n[..., 16:]
        return np.concatenate([a * np.cos(turns) - b * np.sin(turns), a * np.sin(turns) + b * np.cos(turns)], axis=-1)

    def with_scores(change: object) -> object:
        def attend(_: int, layer: Attention, n: Floats) -> Floats:
            assert layer.V is not None
            out = np.zeros_like(n)
            for W, V, c in zip(layer.W, layer.V, layer.c, strict=True):
                scores = np.exp(change(n, W, c))  # type: ignore[operator]
                out += scores / scores.sum(-1, keepdims=True) @ n @ V
            return out

        return attend

    def rope(n: Floats, W: Floats, c: Floats) -> Floats:
        turned = rotated(n)
        return turned @ W.T @ turned.swapaxes(1, 2)

    def capped(n: Floats, W: Floats, c: Floats) -> Floats:
        return 2 * np.tanh((n @ W.T + c) @ n.swapaxes(1, 2) / 2)

    def neighbours(network: MLP, n: Floats) -> Floats:
        return network(0.7 * n + 0.7 * np.concatenate([np.zeros_like(n[:, :1]), n[:, :-1]], axis=1))

    def sandwich(_: int, layer: Attention, n: Floats) -> Floats:
        return bare(layer(n, "all"))

    def last_capped(i: int, layer: Attention, n: Floats) -> Floats:
        return with_scores(capped)(i, layer, n) if i == 1 else layer(n, "all")  # type: ignore[operator, no-any-return]

    def dropped(_: int, layer: Attention, n: Floats) -> Floats:
        return layer(n, "all") * (rng.random(n.shape) > 0.1) / 0.9

    return {
        "post-norm": post,
        "final norm": lambda X: bare(stack(X)),
        "rotary positions": blocks(with_scores(rope)),
        "parallel blocks": parallel,
        "tied layers": Stack([stack.layers[0]] * 2, "layer", 1e-5, stack.mlps),
        "sandwich norm": blocks(sandwich),
        "neighbours": blocks(plain, neighbours),
        "dropout": blocks(dropped),
        "last block capped": blocks(last_capped),
        "no norm": lambda X: X[:, -1] + stack.layers[0](X),
    }


def cells(given: argparse.Namespace) -> list[Callable[[], None]]:
    """The runs of a part, each by itself."""
    seeds, part = range(*given.seeds), given.part
    shapes = {"single": SHAPES[:2], "torch": SHAPES[:2], "device": ((12, 12, 768, 64),), "whole": ((1, 1, 8, 8),)}.get(part, SHAPES)
    shapes = tuple(map(tuple, given.shape)) if given.shape else shapes
    strengths = given.strength or ([3.0, 5.0] if part == "strong" else [1.0])
    if part == "strangers":
        return [partial(strangers_run, seed) for seed in seeds]
    if part == "trained":
        return [partial(trained_run, given.file, given.blocks, seed) for seed in seeds]
    if part == "device":
        return [partial(device_run, shape, seed, given.device, strengths[0]) for shape in shapes for seed in seeds]
    found: list[Callable[[], None]] = []
    for shape, norm, seed in itertools.product(shapes, NORMS, seeds):
        if part in ("random", "strong"):
            found += [partial(random_run, shape, norm, strength, seed) for strength in strengths]
        elif part == "everywhere":
            found += [
                partial(everywhere_run, shape, norm, causal, strength, seed)
                for causal, strength in itertools.product((False, True), strengths)
            ]
        elif part == "whole":
            found.append(partial(whole_run, shape, norm, seed, given.hidden))
        else:
            found.append(partial(single_run, shape, norm, seed, in_single if part == "single" else in_torch))
    return found


def carried_out(runs: list[Callable[[], None]], jobs: int) -> None:
    """One after the other, or so many at once in processes of their own, the last shapes first: they take longest."""
    if jobs == 1:
        for run in runs:
            run()
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(run) for run in reversed(runs)]:
            done.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 10))
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--blocks", type=int, help="of a trained model, the first ones alone")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--strength", type=float, nargs="+")
    parser.add_argument("--shape", nargs=4, type=int, action="append")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.part == "trained" and given.file is None:
        parser.error("give the path of the ONNX file")
    carried_out(cells(given), given.jobs)


if __name__ == "__main__":
    main()
