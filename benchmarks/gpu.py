"""Attention on a GPU: what recovering it costs beside the target's own forward passes, error and device memory.

    python benchmarks/gpu.py [--widths 1024 2048 4096] [--repeat 2] [--device cuda] [--json FILE]
    python benchmarks/gpu.py --layers 4096,32,128 [--dtype float32] [--tf32] [--positions all] [--alone] [--profile 40]
    python benchmarks/gpu.py --widths 8192 --repeat 1 --writes last --cold

One head with scalar answers, or whole layers (width, heads, rank) with vector answers: PyTorch modules with random weights, in
float64 unless told. The target's own time is that between CUDA events around every forward pass, the total is wall time of
``us.recover`` (on a CPU both are processor time) with everything in it: first look, learning, sentinels, the check on fresh
sequences; with ``--alone`` that of the learner with its own check. A recovery of each width beforehand loads the libraries, which
choose kernels by size (not with ``--cold``); layers are preceded by a smaller one. ``--profile`` says where the host's time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import platform
import pstats
import time

import numpy as np
import torch

import unsoftmax as us
from unsoftmax.learners.vector_heads import VectorHeadsLearner
from unsoftmax.oracles import Metered, TorchOracle
from unsoftmax.results import Floor


class Timed(torch.nn.Module):
    """Marks when each forward pass begins and ends."""

    def __init__(self):
        super().__init__()
        self.passes = []

    def forward(self, X):
        begin = _mark(X.device)
        answers = self.answer(X)
        self.passes.append((begin, _mark(X.device)))
        return answers

    def seconds(self):
        """Time spent in forward passes so far."""
        if isinstance(self.passes[0][0], float):
            return sum(end - begin for begin, end in self.passes)
        torch.cuda.synchronize()
        return sum(begin.elapsed_time(end) for begin, end in self.passes) / 1000


class Layer(Timed):
    """Attention of several heads from projections of its own, as in a Transformer, without positions; last answer or all."""

    def __init__(self, width, heads, rank, *, seed, device, dtype, positions):
        super().__init__()
        self.width, self.heads, self.positions = width, heads, positions
        there = torch.Generator(device).manual_seed(seed)

        def drawn(*shape):
            numbers = torch.randn(shape, generator=there, device=device, dtype=torch.float64) / np.sqrt(shape[1])
            return torch.nn.Parameter(numbers.to(dtype), requires_grad=False)

        self.query, self.key, self.value = (drawn(heads * rank, width) for _ in range(3))
        self.out = drawn(width, heads * rank)

    def answer(self, X):
        batch = len(X)
        asked = X if self.positions == "all" else X[:, -1:]
        query, key, value = (
            (tokens @ weights.T).reshape(batch, tokens.shape[1], self.heads, -1).transpose(1, 2)
            for tokens, weights in ((asked, self.query), (X, self.key), (X, self.value))
        )
        scores = query @ key.transpose(2, 3) / np.sqrt(query.shape[3])
        mixed = (torch.softmax(scores, dim=-1) @ value).transpose(1, 2).reshape(batch, asked.shape[1], -1)
        answers = mixed @ self.out.T
        return answers if self.positions == "all" else answers[:, 0]

    def errors(self, model):
        """Largest relative errors of W and V over the heads."""
        query, key, value = (w.double().reshape(self.heads, -1, self.width) for w in (self.query, self.key, self.value))
        out, worst = self.out.double().reshape(self.width, self.heads, -1), {"W": 0.0, "V": 0.0}
        row = torch.stack([value[h].T[0] @ out[:, h].T for h in range(self.heads)]).cpu().numpy()
        first_rows = model.values.first_rows
        for h in range(self.heads):
            mine = int(np.argmin(np.linalg.norm(first_rows - row[h], axis=1)))
            truth = {"W": key[h].T @ query[h] / np.sqrt(key.shape[1]), "V": value[h].T @ out[:, h].T}
            for name, matrices in (("W", model.scores), ("V", model.values)):
                found, block = matrices.some([mine]).at(truth[name]).together[0], truth[name]
                worst[name] = max(worst[name], float((found - block).norm() / block.norm()))
        return worst


class Head(Timed):
    """Softmax attention of the last token; ``every`` puts all tokens through W, as layers that answer everywhere do."""

    def __init__(self, width, *, seed, device, every):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.width, self.every = width, every
        self.W = torch.nn.Parameter(torch.tensor(rng.normal(size=(width, width)) / np.sqrt(width), device=device))
        self.v = torch.nn.Parameter(torch.tensor(rng.normal(size=width), device=device))

    def answer(self, X):
        if self.every:
            scores = torch.einsum("bnd,bd->bn", X @ self.W, X[:, -1])
        else:
            scores = torch.einsum("bnd,bd->bn", X, X[:, -1] @ self.W.T)
        return (torch.softmax(scores, dim=1) * (X @ self.v)).sum(dim=1)


def _mark(device):
    if device.type != "cuda":
        return time.process_time()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _clock(device):
    """Wall time beside a device; processor time where both take turns on one processor, which others may use too."""
    return time.process_time if device == "cpu" else time.perf_counter


def measure(width, seed, device, every):
    target = Head(width, seed=seed, device=device, every=every).eval()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    clock = _clock(device)
    started = clock()
    recovery = us.recover(target)
    total = clock() - started
    own = target.seconds()
    W = target.W.detach().cpu().numpy()
    return {
        "width": width,
        "target": "every token through W" if every else "the last token through W",
        "seed": seed,
        "status": recovery.status.name,
        "queries": recovery.queries,
        "beyond d^2 + d": recovery.queries - width * (width + 1),
        "calls": len(target.passes),
        "error of W": float(np.linalg.norm(recovery.model.W[0] - W) / np.linalg.norm(W)),
        "held-out error": recovery.check.relative_error,
        "total s": total,
        "target s": own,
        "ratio": total / own,
        "peak device GB": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
    }


def measure_layer(shape, seed, options):
    width, heads, rank = shape
    dtype = getattr(torch, options.dtype)
    target = Layer(*shape, seed=seed, device=options.device, dtype=dtype, positions=options.positions).eval()
    if options.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    clock = _clock(options.device)
    started = clock()
    if options.alone:
        oracle = Metered(TorchOracle(target, build_there=True))
        floor = Floor() if options.dtype == "float64" else Floor(kind="float32", relative=2.0**-21)
        learned = VectorHeadsLearner(floor=floor).run(oracle, rng=np.random.default_rng(seed))
        model, status, queries, held_out = learned.model, "learned", oracle.spent, learned.evidence["own_check"]
    else:
        recovery = us.recover(target, seed=seed, on_failure="return")
        model, status, queries = recovery.model, recovery.status.name, recovery.queries
        held_out = recovery.check.relative_error if recovery.check else None
    total = clock() - started
    peak = torch.cuda.max_memory_allocated() / 1e9 if options.device == "cuda" else None
    own = target.seconds()
    if model is None or model.values is None or model.heads != heads:
        print(f"{shape} seed {seed}: {status}, {queries} queries. {'' if options.alone else recovery.message}")
    found = {"W": None, "V": None} if model is None or model.values is None or model.heads != heads else target.errors(model)
    least = 2 * heads * rank * (2 * width - rank) / width
    return {
        "width, heads, rank": f"{width}, {heads}, {rank}",
        "answers": f"{options.dtype}{' (TF32)' if options.tf32 else ''}, {options.positions}",
        "seed": seed,
        "status": status,
        "queries": queries,
        "of parameters / outputs": queries / least,
        "calls": len(target.passes),
        "error of W": found["W"],
        "error of V": found["V"],
        "held-out error": held_out,
        "total s": total,
        "target s": own,
        "ratio": total / own,
        "peak device GB": peak,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json")
    parser.add_argument("--layers", nargs="+", metavar="WIDTH,HEADS,RANK", help="layers of several heads instead of one head")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--tf32", action="store_true", help="let products of float32 matrices be rounded to TF32")
    parser.add_argument("--positions", choices=("last", "all"), default="last")
    parser.add_argument("--writes", choices=("last", "every"), nargs="+", default=["last", "every"], help="what goes through W")
    parser.add_argument("--cold", action="store_true", help="no recovery beforehand")
    parser.add_argument("--profile", type=int, metavar="LINES", help="functions that took the host most time")
    parser.add_argument("--alone", action="store_true", help="the learner without first look and held-out check")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor()
    print(f"{name}, torch {torch.__version__}, NumPy {np.__version__}, unsoftmax {us.__version__}\n")
    rows = []
    if not options.cold:  # what a process pays once
        measure_layer((256, 4, 32), 0, options) if options.layers else measure(options.widths[0], 0, options.device, False)
    profile = cProfile.Profile()
    if options.profile:
        profile.enable()
    for row in layers(options) if options.layers else heads(options):
        rows.append(row)
        if len(rows) == 1:
            print("| " + " | ".join(row) + " |\n|" + "---|" * len(row))
        print("| " + " | ".join(_cell(value) for value in row.values()) + " |", flush=True)
    if options.profile:
        profile.disable()
        for order in ("cumulative", "tottime"):
            pstats.Stats(profile).sort_stats(order).print_stats(options.profile)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": name, "torch": torch.__version__, "numpy": np.__version__, "rows": rows}, file, indent=1)


def heads(options):
    for width in options.widths:
        for writes in options.writes:
            for seed in range(1, options.repeat + 1):
                yield measure(width, seed, options.device, writes == "every")


def layers(options):
    for shape in options.layers:
        for seed in range(1, options.repeat + 1):
            yield measure_layer(tuple(map(int, shape.split(","))), seed, options)


def _cell(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
