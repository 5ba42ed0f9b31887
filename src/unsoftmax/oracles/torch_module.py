"""Targets in PyTorch: modules, attention layers as they come, and functions on tensors."""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unsoftmax.errors import FileFormatError, MissingExtraError
from unsoftmax.models import Floats
from unsoftmax.oracles.local import Batches, Layout, blamed, check_shape, checked_answers, checked_width

if TYPE_CHECKING:
    import torch

WIDTH_NAMES = ("width", "embed_dim", "hidden_size", "n_embd", "d_model", "in_features")  # as libraries call it
PICKLED = (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")


class TorchOracle:
    """A ``torch.nn.Module``, or a function on tensors, asked in evaluation mode and without gradients.

    ``nn.MultiheadAttention`` attends to itself; modules whose ``forward`` takes ``hidden_states`` or ``inputs_embeds`` (as in
    Hugging Face's libraries) are called that way; of a tuple, a dict or an output object the first tensor counts. Probes
    are rounded to the module's own dtype and moved to its device, answers come back as float64 arrays of NumPy. Questions that are
    tensors on the device already are answered by a tensor there, which nobody has waited for or looked into yet;
    the memory of such questions is used again, so a module that stores them must copy them.

    Args:
        module: the module or function.
        width: token length, where the module does not tell it.
        dtype: dtype of the tensors; by default that of the parameters, float64 where there are none, and PyTorch's own default
            where quantised ones are all.
        device: device of the tensors; by default that of the parameters.
        build_there: learners that can shall build their probes on the device; by default if it is not the CPU.
    """

    local = True  # what fails here fails because of the question

    def __init__(
        self,
        module: Callable[..., Any],
        width: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        build_there: bool | None = None,
    ) -> None:
        torch = _torch()
        if isinstance(module, str | Path):
            refuse_pickle(module)
            raise ValueError(f"{module!r} is a path; TorchOracle takes a module or a function.")
        self.module = module
        self._torch = torch
        tensors = [*module.parameters(), *module.buffers()] if isinstance(module, torch.nn.Module) else []
        first = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
        self.dtype = dtype or (_without_floats(module, torch) if first is None else first.dtype)
        self.device = torch.device(device or ("cpu" if first is None else first.device))
        self._build_there = self.device.type != "cpu" if build_there is None else build_there
        self._width = checked_width(module, width if width is not None else _told_width(module, torch))
        self._layout = Layout()
        self.batches = Batches()
        self._call = _way_to_call(module, torch)
        if self.device.type == "cuda" and self.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
            warnings.warn(
                "The module multiplies float32 matrices in TF32, whose factors keep 11 bits of 24: its answers are no better than "
                "those of float16. Set torch.backends.cuda.matmul.allow_tf32 = False for float32 answers.",
                stacklevel=2,
            )
        if getattr(module, "training", False):
            warnings.warn(
                "The module is in training mode (dropout and the like would be random); it is asked in evaluation mode "
                "and put back afterwards. Call module.eval() to say so yourself.",
                stacklevel=2,
            )

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self._width

    @property
    def vain(self) -> int:
        """Sequences sent beyond those that were wanted."""
        return self.batches.vain

    @property
    def like(self) -> Any:
        """An empty tensor of the kind that probes may be; None where they are arrays of NumPy."""
        return self._torch.empty(0, dtype=self._torch.float64, device=self.device) if self._build_there else None

    @property
    def precision(self) -> str:
        """The dtype that probes are rounded to, such as ``"float32"``."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def identity(self) -> str:
        """What a journal may know this target by: its class and a digest of its parameters."""
        digest = hashlib.sha256()
        if isinstance(self.module, self._torch.nn.Module):
            for name, tensor in sorted(self.module.state_dict().items()):
                digest.update(name.encode())
                if isinstance(tensor, self._torch.Tensor):
                    digest.update(tensor.detach().cpu().contiguous().flatten().view(self._torch.uint8).numpy().tobytes())
        return f"torch {type(self.module).__qualname__} {self.precision} {digest.hexdigest()}"

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask the module and check shape and finiteness of what it says."""
        return self.batches.told(self._told, sequences)

    def _told(self, sequences: Floats) -> Floats:
        torch = self._torch
        there = isinstance(sequences, torch.Tensor)
        asked, takes = f"sequences of shape {tuple(sequences.shape)}", "tensors (batch, length, width) of this width"
        with blamed("module", asked, takes), torch.no_grad(), _evaluating(self.module):
            given: Any = sequences if there else torch.as_tensor(np.ascontiguousarray(sequences))
            # a copy on this machine, too: a module may work in place
            tokens = given.to(device=self.device, dtype=self.dtype, copy=not there)
            answer = _tensor(self._call(tokens), torch).detach().to(torch.float64)
            raw = answer if there else answer.to("cpu").numpy()
        if there:
            check_shape(raw.shape, sequences.shape, self._layout)
            return raw  # type: ignore[no-any-return]  # a tensor stands for an array here
        return checked_answers(raw, sequences.shape, self._layout)


def refuse_pickle(path: str | Path) -> None:
    """Refuse files that only unpickling could read: that would run whatever code they hold.

    Raises:
        FileFormatError: with the way to export the model instead.
    """
    if Path(path).suffix.lower() in PICKLED:
        raise FileFormatError(
            f"{path} is a pickled file; opening it could run any code that it holds, so unsoftmax never does. Where you trust it, "
            'export the model yourself: torch.onnx.export(model, (example,), "model.onnx", dynamo=True), or save its layer with '
            'unsoftmax.Attention.from_torch(layer).save("layer.safetensors"), or name it in a Python file as FILE.py:NAME.'
        )


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch") from error
    return torch


def _without_floats(module: Any, torch: Any) -> Any:
    """The dtype that a module without floating-point parameters takes: quantised layers take no float64."""
    held = module.state_dict().values() if isinstance(module, torch.nn.Module) else ()
    packed = any(not isinstance(part, torch.Tensor) or part.is_quantized for part in held)
    return torch.get_default_dtype() if packed else torch.float64


def _told_width(module: Any, torch: Any) -> int | None:
    """The token length as the module, its configuration or its first linear layer tells it; None if nothing does."""
    inner = getattr(module, "self_attn", None)
    for holder in (module, getattr(module, "config", None), inner):
        for name in WIDTH_NAMES:
            told = getattr(holder, name, None)
            if isinstance(told, int) and not isinstance(told, bool):
                return told
    if isinstance(module, torch.nn.Module):
        for layer in module.modules():
            told = getattr(layer, "embed_dim", None) or getattr(layer, "in_features", None)
            if isinstance(told, int):
                return told
    return None


def _way_to_call(module: Any, torch: Any) -> Callable[[Any], Any]:
    attention = module if isinstance(module, torch.nn.MultiheadAttention) else getattr(module, "self_attn", None)
    swapped = isinstance(attention, torch.nn.MultiheadAttention) and not attention.batch_first
    if isinstance(module, torch.nn.MultiheadAttention):
        if not (module.kdim == module.vdim == module.embed_dim):
            raise ValueError(
                f"This nn.MultiheadAttention takes keys of width {module.kdim} and values of {module.vdim} for queries of "
                f"{module.embed_dim}; it cannot attend to its own input. Wrap it in a function of one tensor."
            )
        attend = module

        def call(tokens: Any) -> Any:
            return attend(tokens, tokens, tokens, need_weights=False)
    elif "inputs_embeds" in _parameters(module) and "hidden_states" not in _parameters(module):

        def call(tokens: Any) -> Any:
            return module(inputs_embeds=tokens)
    else:
        call = module
    if not swapped:
        return call
    return lambda tokens: _tensor(call(tokens.transpose(0, 1)), torch).transpose(0, 1)


def way_to_call(module: Any) -> Callable[[Any], Any]:
    """How to ask a module with one tensor of sequences, so that a tensor comes back; gradients flow."""
    torch = _torch()
    call = _way_to_call(module, torch)
    return lambda tokens: _tensor(call(tokens), torch)


def _parameters(module: Any) -> list[str]:
    try:
        return list(inspect.signature(getattr(module, "forward", module)).parameters)
    except (TypeError, ValueError):  # compiled modules have none to show
        return []


def _tensor(answer: Any, torch: Any) -> Any:
    """The first tensor of what a module returned."""
    for _ in range(3):  # an output object may hold a tuple
        if isinstance(answer, torch.Tensor):
            return answer
        if isinstance(answer, dict | tuple | list):  # a loss or a cache that was not asked for is None
            parts = answer.values() if isinstance(answer, dict) else answer
            answer = next((part for part in parts if part is not None), None)
        else:
            answer = getattr(answer, "logits", getattr(answer, "last_hidden_state", None))
    if isinstance(answer, torch.Tensor):
        return answer
    raise TypeError("it returned no tensor; a target returns one, first in a tuple if there are more")


@contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """Evaluation mode for the time of a question; every submodule gets its own mode back."""
    training = [part for part in module.modules() if part.training] if hasattr(module, "modules") else []
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
