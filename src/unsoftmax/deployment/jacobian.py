"""How answers follow the weights: one row of the Jacobian per sequence, kept in factors so that whole models fit.

A row is the gradient of ``v . f(x)`` for one sequence ``x`` and one random direction ``v`` of the answers. For a linear layer it
is ``sum_t d_t x_t^T`` with the layer's inputs ``x_t`` and the gradients ``d_t`` at its outputs, so that the inner product of two
rows is ``sum_ts (d_t . d_s)(x_t . x_s)``: no gradient of the size of a weight matrix is ever written down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unsoftmax.deployment.checkpoint import Checkpoint, View, shown
from unsoftmax.models import Floats


@dataclass(slots=True)
class Rows:
    """Rows of the Jacobian for one tensor; ``inputs`` is None for vectors, whose rows stand in ``gradients`` as they are.

    Attributes:
        gradients: ``(tokens, out)`` for a matrix, ``(sequences, size)`` for a vector.
        inputs: ``(tokens, in)``.
        lengths: tokens of each sequence.
    """

    gradients: list[Floats] = field(default_factory=list)
    inputs: list[Floats] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of sequences."""
        return len(self.lengths) if self.inputs else sum(map(len, self.gradients))

    def kernel(self) -> Floats:
        """Inner products of all pairs of rows."""
        gradients = np.concatenate(self.gradients).astype(np.float32)
        scale = float(np.sqrt(np.mean(gradients**2, dtype=np.float64))) or 1.0
        gradients /= np.float32(scale)
        if not self.inputs:
            return np.asarray(gradients @ gradients.T, dtype=np.float64) * scale**2
        inputs = np.concatenate(self.inputs).astype(np.float32)
        starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        products = (gradients @ gradients.T) * (inputs @ inputs.T)
        joined = np.add.reduceat(np.add.reduceat(products, starts, axis=0), starts, axis=1)
        return np.asarray(joined, dtype=np.float64) * scale**2

    def squares(self) -> Floats:
        """Squared lengths of the rows."""
        if not self.inputs:
            return np.concatenate([np.sum(g**2, axis=1) for g in self.gradients])
        found, at = [], 0
        gradients, inputs = np.concatenate(self.gradients), np.concatenate(self.inputs)
        for length in self.lengths:
            part = slice(at, at + length)
            found.append(float(np.sum((gradients[part] @ gradients[part].T) * (inputs[part] @ inputs[part].T))))
            at += length
        return np.asarray(found)


def jacobian_rows(
    checkpoint: Checkpoint,
    batches: Sequence[Floats],
    directions: Sequence[Floats],
    view: View | None,
    *,
    sketch: int = 8,
    most: int = 0,
    precision: str = "float64",
) -> dict[str, Rows]:
    """The rows of every tensor that answers depend on; sequences in order, one direction ``(batch, outputs)`` for each.

    Tensors that are no part of a linear layer, a norm or a table (the joined projections of ``nn.MultiheadAttention``, the weights
    of an ONNX graph) have their rows written down where these are at most ``most`` numbers in all; larger ones are moved in
    ``sketch`` random directions instead, whose products stand for those of the rows.
    """
    import torch

    names = {id(value): key for key, value in checkpoint.in_precision(precision).named_parameters()}
    found: dict[str, Rows] = {}
    for sequences, chosen in zip(batches, directions, strict=True):
        seen, gradients = _run(checkpoint, sequences, chosen, view, precision, torch)
        for (part, given, answer), gradient in zip(seen, gradients[1:], strict=True):
            if gradient is not None:
                _add(found, part, given, answer, gradient, gradients[0], names, torch)
    count = sum(map(len, batches))
    kept = {key: rows for key, rows in found.items() if rows.count == count and any(np.any(g) for g in rows.gradients)}
    others = [key for key in _influential(checkpoint, batches[0], directions[0], view, torch) if key not in kept]
    small = [key for key in others if checkpoint.tensors[key].numel() * count <= most]
    kept |= _written(checkpoint, small, batches, directions, view, torch)
    for key in others:
        if key not in kept:
            kept[key] = _sketched(checkpoint, key, batches, directions, view, sketch)
    return kept


def _written(
    checkpoint: Checkpoint,
    keys: Sequence[str],
    batches: Sequence[Floats],
    directions: Sequence[Floats],
    view: View | None,
    torch: Any,
) -> dict[str, Rows]:
    """Rows as they are, sequence by sequence."""
    found = {key: Rows() for key in keys}
    named = dict(checkpoint.module.named_parameters())
    for sequences, chosen in zip(batches, directions, strict=True) if keys else ():
        for i in range(len(sequences)):
            answers = shown(checkpoint.tensor(torch.as_tensor(np.ascontiguousarray(sequences[i : i + 1])), gradients=True), view)
            total = (answers * torch.as_tensor(np.ascontiguousarray(chosen[i : i + 1]))).sum()
            for key, slope in zip(keys, torch.autograd.grad(total, [named[key] for key in keys]), strict=True):
                found[key].gradients.append(slope.detach().reshape(1, -1).to(torch.float32).numpy())
    return found


def _influential(checkpoint: Checkpoint, sequences: Floats, chosen: Floats, view: View | None, torch: Any) -> list[str]:
    """Tensors that answers depend on at all."""
    named = [(key, value) for key, value in checkpoint.module.named_parameters() if key in checkpoint.tensors]
    tokens = torch.as_tensor(np.ascontiguousarray(sequences[:1]))
    answers = shown(checkpoint.tensor(tokens, gradients=True), view)
    total = (answers * torch.as_tensor(np.ascontiguousarray(chosen[:1]))).sum()
    gradients = torch.autograd.grad(total, [value for _, value in named], allow_unused=True)
    return [key for (key, _), gradient in zip(named, gradients, strict=True) if gradient is not None and bool(gradient.any())]


def _sketched(
    checkpoint: Checkpoint, key: str, batches: Sequence[Floats], directions: Sequence[Floats], view: View | None, sketch: int
) -> Rows:
    """Rows seen through random directions of the tensor, by small differences."""
    import torch

    tensor = checkpoint.tensors[key]
    step = 1e-5 * float(tensor.pow(2).mean().sqrt()) or 1e-5
    drawn = torch.Generator().manual_seed(len(key))
    columns = []
    before = checkpoint.each(batches, view=view)
    for _ in range(sketch):
        direction = torch.randn(tensor.shape, generator=drawn, dtype=tensor.dtype)
        after = checkpoint.each(batches, changed={key: tensor + step * direction}, view=view)
        columns.append(np.concatenate([np.sum((a - b) * v, axis=1) for a, b, v in zip(after, before, directions, strict=True)]))
    return Rows(gradients=[np.stack(columns, axis=1) / (step * np.sqrt(sketch))])


def _run(
    checkpoint: Checkpoint, sequences: Floats, chosen: Floats, view: View | None, precision: str, torch: Any
) -> tuple[list[Any], Any]:
    """Inputs and outputs of every layer on the way, and the gradients at the tokens and at those outputs."""
    seen: list[tuple[Any, Any, Any]] = []

    def noticed(part: Any, given: Any, answer: Any) -> None:
        seen.append((part, given[0] if given else None, answer))

    hooks = [part.register_forward_hook(noticed) for part in checkpoint.in_precision(precision).modules() if _kind(part, torch)]
    try:
        tokens = torch.as_tensor(np.ascontiguousarray(sequences)).requires_grad_(True)
        answers = shown(checkpoint.tensor(tokens, precision=precision, gradients=True), view)
        total = (answers * torch.as_tensor(np.ascontiguousarray(chosen))).sum()
        goals = [answer for _, _, answer in seen]
        return seen, torch.autograd.grad(total, [tokens, *goals], allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()


def _kind(part: Any, torch: Any) -> str:
    name = type(part).__name__
    if isinstance(part, torch.nn.Linear) or name == "Conv1D":
        return "linear"
    if isinstance(part, torch.nn.Embedding):
        return "table"
    if "Norm" in name and getattr(part, "weight", None) is not None and part.weight.ndim == 1:
        return "norm"
    return ""


def _add(
    found: dict[str, Rows], part: Any, given: Any, answer: Any, gradient: Any, at_tokens: Any, names: dict[int, str], torch: Any
) -> None:
    kind = _kind(part, torch)
    batch = len(at_tokens)
    if kind == "table":
        if (
            gradient.ndim == 3 and gradient.shape[1:] == at_tokens.shape[1:]
        ):  # positions, shared by the batch: per sequence at tokens
            _vector(found, names.get(id(part.weight)), _placed(at_tokens, given, part.weight.shape[0]))
        return
    if gradient.ndim == 2 and len(gradient) == batch * at_tokens.shape[1]:
        gradient, given, answer = (t.reshape(batch, at_tokens.shape[1], -1) for t in (gradient, given, answer))
    if gradient.ndim == 2:
        gradient, given, answer = gradient[:, None], given[:, None], answer[:, None]
    if len(gradient) != batch or gradient.ndim != 3:
        return
    weight, bias = names.get(id(part.weight)), names.get(id(getattr(part, "bias", None)))
    if kind == "linear":
        if weight is not None:
            rows = found.setdefault(weight, Rows())
            rows.gradients.append(gradient.detach().flatten(0, 1).numpy())
            rows.inputs.append(given.detach().flatten(0, 1).numpy())
            rows.lengths += [gradient.shape[1]] * batch
    else:
        gain = part.weight.detach()
        safe = torch.where(gain == 0, torch.ones_like(gain), gain)
        shift = getattr(part, "bias", None)
        normal = (answer.detach() - (0 if shift is None else shift.detach())) / safe
        _vector(found, weight, (gradient.detach() * normal).sum(1))
    _vector(found, bias, gradient.detach().sum(1))


def _vector(found: dict[str, Rows], name: str | None, gradient: Any) -> None:
    if name is not None:
        found.setdefault(name, Rows()).gradients.append(gradient.detach().flatten(1).numpy())


def _placed(at_tokens: Any, rows: Any, size: int) -> Any:
    """Gradients at tokens as gradients of the rows of a table that were added to them; the first 64 rows, as one vector each."""
    import torch

    kept = min(size, 64)
    flat = rows.reshape(-1)[: at_tokens.shape[1]]
    inside = flat < kept
    placed = torch.zeros(len(at_tokens), kept, at_tokens.shape[2], dtype=at_tokens.dtype)
    return placed.index_add_(1, flat[inside], at_tokens.detach()[:, inside])
