"""Changes that can be tried on our own copy: rounding, pruning, heads switched off, layers swapped, copied or left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from unsoftmax.deployment.checkpoint import Checkpoint
from unsoftmax.deployment.settings import SETTINGS

OUTPUTS = ("o_proj.weight", "attention.output.dense.weight", "attn.c_proj.weight", "out_proj.weight")  # behind the heads
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # of weights that pruning takes


@dataclass(frozen=True, slots=True)
class Trial:
    """A change to try: its kind, where it is, in words, and the tensors that it makes."""

    kind: str
    where: tuple[str, ...]
    layer: str | None
    words: str
    make: Callable[[], dict[str, Any]]


def grid(tensor: Any, bits: int, group: int | None, *, whole: bool = False) -> Any:
    """Rounded to whole multiples of a step: one step for the tensor, for each row, or for ``group`` numbers of a row."""
    import torch

    top = 2 ** (bits - 1) - 1
    rows = tensor.reshape(1, -1) if whole else tensor
    if group is not None and rows.shape[-1] % group == 0:
        rows = rows.reshape(-1, group)
    step = rows.abs().amax(-1, keepdim=True) / top
    step = torch.where(step == 0, torch.ones_like(step), step)
    return (torch.clamp(torch.round(rows / step), -top - 1, top) * step).reshape(tensor.shape)


def by_column(tensor: Any, bits: int) -> Any:
    """One step for each column."""
    return grid(tensor.T, bits, None).T


def shifted_grid(tensor: Any, bits: int, group: int | None) -> Any:
    """The same between the least and the largest number, which need not be opposite."""
    import torch

    rows = tensor
    if group is not None and rows.shape[-1] % group == 0:
        rows = rows.reshape(-1, group)
    low, high = rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    step = torch.where(step == 0, torch.ones_like(step), step)
    zero = torch.round(-low / step)
    numbers = torch.clamp(torch.round(rows / step) + zero, 0, 2**bits - 1)
    return ((numbers - zero) * step).reshape(tensor.shape)


def eight_bit_float(tensor: Any, name: str) -> Any:
    """Rounded to an eight-bit float, scaled so that the largest number is the format's largest."""
    import torch

    kind = getattr(torch, name)
    scale = float(tensor.abs().max()) / float(torch.finfo(kind).max) or 1.0
    return (tensor / scale).to(torch.float32).to(kind).to(tensor.dtype) * scale


def roundings() -> dict[str, dict[str, Callable[[Any], Any]]]:
    """Ways to round a matrix, by kind."""
    import torch

    def cast(kind: Any) -> Callable[[Any], Any]:
        return lambda tensor: tensor.to(kind).to(tensor.dtype)

    found: dict[str, dict[str, Callable[[Any], Any]]] = {
        "rounded to bfloat16": {"": cast(torch.bfloat16)},
        "rounded to float16": {"": cast(torch.float16)},
        "rounded to fp8": {
            " (e4m3, one scale a tensor)": lambda t: eight_bit_float(t, "float8_e4m3fn"),
            " (e5m2, one scale a tensor)": lambda t: eight_bit_float(t, "float8_e5m2"),
            " (e4m3, no scale)": cast(torch.float8_e4m3fn),
        },
    }
    for bits in (8, 4):
        ways: dict[str, Callable[[Any], Any]] = {
            ", one step a row": partial(grid, bits=bits, group=None),
            ", one step a column": partial(by_column, bits=bits),
            ", one step a tensor": partial(grid, bits=bits, group=None, whole=True),
            ", one step a row, shifted": partial(shifted_grid, bits=bits, group=None),
        }
        for group in (32, 64, 128):
            ways[f", one step for {group} numbers"] = partial(grid, bits=bits, group=group)
            ways[f", one step for {group} numbers, shifted"] = partial(shifted_grid, bits=bits, group=group)
        found[f"rounded to int{bits}"] = ways
    return found


def pruned(tensor: Any, share: float) -> Any:
    """The smallest numbers set to zero."""
    import torch

    count = round(share * tensor.numel())
    if count == 0:
        return tensor
    bound = torch.kthvalue(tensor.abs().flatten(), count).values
    return torch.where(tensor.abs() <= bound, torch.zeros_like(tensor), tensor)


def rounding_trials(checkpoint: Checkpoint, scopes: Mapping[str, Sequence[str]]) -> Iterator[Trial]:
    """Every rounding on every scope (a name for its matrices)."""
    for kind, ways in roundings().items():
        for scope, names in scopes.items():
            for way, rounded in ways.items():
                group = next((int(word) for word in way.split() if word.isdigit()), None)
                if group is not None and all(checkpoint.tensors[name].shape[-1] % group for name in names):
                    continue  # no row has such a part: it would be one step a row again
                yield Trial(kind, (scope,), _layer(scope), f"{kind}{way}, in {scope}", _made(checkpoint, names, rounded))


def pruning_trials(checkpoint: Checkpoint, scopes: Mapping[str, Sequence[str]]) -> Iterator[Trial]:
    """The smallest weights of each matrix set to zero."""
    for scope, names in scopes.items():
        for share in SHARES:
            words = f"the smallest {share:.0%} of the weights set to zero, in {scope}"
            yield Trial("pruned", (scope,), _layer(scope), words, _made(checkpoint, names, partial(pruned, share=share)))


def head_trials(checkpoint: Checkpoint) -> Iterator[Trial]:
    """Each head switched off, through the matrix behind the heads."""
    for name, tensor in checkpoint.tensors.items():
        if checkpoint.heads is None or not name.endswith(OUTPUTS) or "crossattention" in name:
            continue
        across = name.endswith("c_proj.weight")  # GPT-2 keeps it transposed
        inner = tensor.shape[0 if across else 1]
        if inner % checkpoint.heads:
            continue
        size = inner // checkpoint.heads
        layer = checkpoint.layer_of(name)
        for head in range(checkpoint.heads):
            part = slice(head * size, (head + 1) * size)

            def make(name: str = name, part: slice = part, across: bool = across) -> dict[str, Any]:
                changed = checkpoint.tensors[name].clone()
                changed[part if across else (slice(None), part)] = 0.0
                return {name: changed}

            yield Trial("head switched off", (layer,), layer, f"head {head} of {layer} switched off", make)


def layer_trials(checkpoint: Checkpoint) -> Iterator[Trial]:
    """Two layers swapped, and one layer in the place of another."""
    layers = [(name, held) for name, held in checkpoint.layers().items() if name.startswith("layer ")]
    for i, (one, held) in enumerate(layers):
        for j, (other, kept) in enumerate(layers):
            if i == j or len(held) != len(kept) or (len(layers) > SETTINGS.swaps and abs(i - j) > 1):
                continue
            here, there = ([checkpoint.tensors[name] for name in names] for names in (held, kept))
            if any(a.shape != b.shape for a, b in zip(here, there, strict=True)):
                continue
            copy = dict(zip(held, there, strict=True))
            yield Trial("layer replaced", (one,), one, f"{one} is a copy of {other}", partial(dict, copy))
            if i < j:
                both = {**copy, **dict(zip(kept, here, strict=True))}
                yield Trial("layers swapped", (one, other), one, f"{one} and {other} swapped", partial(dict, both))


def _made(checkpoint: Checkpoint, names: Sequence[str], change: Callable[[Any], Any]) -> Callable[[], dict[str, Any]]:
    return lambda: {name: change(checkpoint.tensors[name]) for name in names}


def _layer(scope: str) -> str | None:
    return scope if scope.startswith("layer ") else None
