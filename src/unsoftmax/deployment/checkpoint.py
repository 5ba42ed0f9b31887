"""A checkpoint that can be run here: any torch module on embeddings, in several precisions and with changed weights."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unsoftmax.errors import MissingExtraError, TargetError
from unsoftmax.models import Floats
from unsoftmax.oracles.text import plain

if TYPE_CHECKING:
    import torch

LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?|block|encoder|decoder|transformer)\.(\d+)\.")
CHUNK = 2**22  # numbers of a batch of tokens that are run at once; bounds the memory of activations

View = Callable[[Any], Any]
"""What an endpoint lets see of the answers, as a function of tensors ``(batch, outputs)``."""


class Checkpoint:
    """Weights that can be run on this machine.

    Args:
        module: a torch module; it is copied, never changed.
        name: what to call it in reports.
        width: token length.
        call: how the module is asked: ``call(module, tokens)`` gives a tensor ``(batch, outputs)`` or ``(batch, length, outputs)``.
        heads: attention heads per layer, where known (for telling that one was switched off).
        vocabulary: rows of the token table ``(words, width)`` as natural tokens; None where there is none.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        name: str,
        width: int,
        call: Callable[[Any, Any], Any],
        heads: int | None = None,
        vocabulary: Floats | None = None,
    ) -> None:
        torch_ = _torch()
        self.name = name
        self.width = width
        self.heads = heads
        self.vocabulary = vocabulary
        self._call = call
        floating = [p for p in module.parameters() if p.is_floating_point()]
        self.stored = str(floating[0].dtype).removeprefix("torch.") if floating else "float64"
        self._runs: dict[str, Any] = {"float64": copy.deepcopy(module).to(torch_.float64).eval()}
        self.tensors: dict[str, torch.Tensor] = {
            key: value.detach() for key, value in self._runs["float64"].named_parameters() if value.is_floating_point()
        }

    @property
    def module(self) -> Any:
        """The module in float64."""
        return self._runs["float64"]

    def in_precision(self, precision: str) -> Any:
        """The module in another precision, its weights rounded to it."""
        torch_ = _torch()
        if precision not in self._runs:
            self._runs[precision] = copy.deepcopy(self.module).to(getattr(torch_, precision)).eval()
        return self._runs[precision]

    def tensor(
        self, tokens: Any, *, precision: str = "float64", changed: Mapping[str, Any] | None = None, gradients: bool = False
    ) -> Any:
        """Answers to a tensor of sequences as a float64 tensor, with some weights replaced; gradients flow where asked for."""
        torch_ = _torch()
        module = self.in_precision(precision)
        dtype = getattr(torch_, precision)
        given = tokens.to(dtype)
        with torch_.set_grad_enabled(gradients):
            if not changed:
                return self._call(module, given).to(torch_.float64)
            run = _Asked(module, self._call)
            weights = {f"module.{key}": value.to(dtype) for key, value in changed.items()}
            return torch_.func.functional_call(run, weights, (given,)).to(torch_.float64)

    def __call__(
        self, sequences: Floats, *, precision: str = "float64", changed: Mapping[str, Any] | None = None, view: View | None = None
    ) -> Floats:
        """Answers to ``(batch, length, width)`` as the endpoint would show them, ``(batch, outputs)``; positions are joined.

        Raises:
            TargetError: the module cannot run such sequences.
        """
        torch_ = _torch()
        size = max(1, CHUNK // max(1, int(np.prod(sequences.shape[1:])) * 16))
        pieces = []
        for start in range(0, len(sequences), size):
            tokens = torch_.as_tensor(np.ascontiguousarray(sequences[start : start + size]))
            try:
                answers = self.tensor(tokens, precision=precision, changed=changed)
            except (RuntimeError, TypeError, IndexError) as error:
                raise TargetError(
                    f"The checkpoint {self.name} cannot be run on sequences of {sequences.shape[1]} tokens of width "
                    f"{sequences.shape[2]} ({type(error).__name__}: {plain(error, 200)})."
                ) from error
            pieces.append(shown(answers, view).numpy())
        return np.concatenate(pieces)

    def each(
        self,
        batches: Sequence[Floats],
        *,
        precision: str = "float64",
        changed: Mapping[str, Any] | None = None,
        view: View | None = None,
    ) -> list[Floats]:
        """Answers to several batches; those of one length are run together."""
        found: dict[int, Floats] = {}
        for held in by_length(batches).values():
            answers = self(np.concatenate([batches[i] for i in held]), precision=precision, changed=changed, view=view)
            ends = np.cumsum([len(batches[i]) for i in held])[:-1]
            found.update(zip(held, np.split(answers, ends), strict=True))
        return [found[i] for i in range(len(batches))]

    def size_of(self, tensor: str) -> float:
        """Rms of a tensor's numbers; of one that is zero throughout, as a bias may be, that of a typical tensor."""
        own = float(self.tensors[tensor].pow(2).mean().sqrt())
        return own or float(np.median([float(other.pow(2).mean().sqrt()) for other in self.tensors.values()])) or 1.0

    def layer_of(self, tensor: str) -> str:
        """The layer that a tensor belongs to: ``"layer 3"``, or its own name where it stands outside of the layers.

        >>> Checkpoint.layer_of(None, "model.layers.3.self_attn.q_proj.weight")
        'layer 3'
        >>> Checkpoint.layer_of(None, "lm_head.weight")
        'lm_head.weight'
        """
        found = LAYER.search(tensor)
        return f"layer {found[1]}" if found else tensor

    def layers(self) -> dict[str, list[str]]:
        """The names of the tensors, by layer."""
        found: dict[str, list[str]] = {}
        for key in self.tensors:
            found.setdefault(self.layer_of(key), []).append(key)
        return found


def by_length(batches: Sequence[Floats]) -> dict[int, list[int]]:
    """Places of the batches, by the length of their sequences."""
    found: dict[int, list[int]] = {}
    for i, batch in enumerate(batches):
        found.setdefault(batch.shape[1], []).append(i)
    return found


class _Asked:
    """A module together with the way to ask it; made a module on first use, since torch is imported late."""

    def __new__(cls, module: Any, call: Callable[[Any, Any], Any]) -> Any:
        torch_ = _torch()

        class Asked(torch_.nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.module = module

            def forward(self, tokens: Any) -> Any:
                return call(self.module, tokens)

        return Asked()


def shown(answers: Any, view: View | None) -> Any:
    """Answers as rows ``(batch, outputs)``: as the endpoint lets see them, all positions of a sequence side by side."""
    seen = answers if view is None else view(answers)
    if seen.ndim == 1:
        seen = seen[:, None]
    return seen.reshape(len(seen), -1)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch") from error
    return torch
