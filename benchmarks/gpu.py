"""One head on a GPU: what recovering it costs beside the target's own forward passes, error and device memory.

    python benchmarks/gpu.py [--widths 1024 2048 4096] [--repeat 2] [--device cuda] [--json FILE]

The target is a PyTorch module in float64 with random weights. Its own time is that between CUDA events around every forward pass
(on a CPU: processor time), the total is wall time of ``us.recover`` with everything in it: first look, learning, sentinels,
the check on fresh sequences. A recovery of each width beforehand loads the libraries, which choose kernels by size.
"""

from __future__ import annotations

import argparse
import json
import platform
import time

import numpy as np
import torch

import unsoftmax as us


class Head(torch.nn.Module):
    """Softmax attention of the last token; ``every`` puts all tokens through W, as layers that answer everywhere do."""

    def __init__(self, width, *, seed, device, every):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.width, self.every, self.passes = width, every, []
        self.W = torch.nn.Parameter(torch.tensor(rng.normal(size=(width, width)) / np.sqrt(width), device=device))
        self.v = torch.nn.Parameter(torch.tensor(rng.normal(size=width), device=device))

    def forward(self, X):
        begin, end = _mark(X.device), None
        if self.every:
            scores = torch.einsum("bnd,bd->bn", X @ self.W, X[:, -1])
        else:
            scores = torch.einsum("bnd,bd->bn", X, X[:, -1] @ self.W.T)
        answers = (torch.softmax(scores, dim=1) * (X @ self.v)).sum(dim=1)
        end = _mark(X.device)
        self.passes.append((begin, end))
        return answers

    def seconds(self):
        """Time spent in forward passes so far."""
        if isinstance(self.passes[0][0], float):
            return sum(end - begin for begin, end in self.passes)
        torch.cuda.synchronize()
        return sum(begin.elapsed_time(end) for begin, end in self.passes) / 1000


def _mark(device):
    if device.type != "cuda":
        return time.process_time()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def measure(width, seed, device, every):
    target = Head(width, seed=seed, device=device, every=every).eval()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    recovery = us.recover(target)
    total = time.perf_counter() - started
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json")
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor()
    print(f"{name}, torch {torch.__version__}, NumPy {np.__version__}, unsoftmax {us.__version__}\n")
    rows = []
    for width in options.widths:
        measure(width, 0, options.device, False)
        for every in (False, True):
            for seed in range(1, options.repeat + 1):
                rows.append(measure(width, seed, options.device, every))
                if len(rows) == 1:
                    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
                print("| " + " | ".join(_cell(value) for value in rows[-1].values()) + " |", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": name, "torch": torch.__version__, "numpy": np.__version__, "rows": rows}, file, indent=1)


def _cell(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
