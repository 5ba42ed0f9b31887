"""Softmax attention with any number of heads, in the one form that can be known from answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from array_api_compat import device
from numpy.typing import ArrayLike

from unsoftmax.models.base import Floats, Places, Sizes, jittered
from unsoftmax.models.forward import OnDevice
from unsoftmax.models.kinds import array_namespace
from unsoftmax.models.matrices import Matrices
from unsoftmax.models.places import alike

SCORES = (0.5, 1.0, 2.0, 4.0)  # standard deviations of scores that tokens are sized for: even, typical and peaked attention


def frozen_array(value: ArrayLike, name: str, ndim: tuple[int, ...]) -> Floats:
    """``value`` as a read-only float64 array, its number of axes and finiteness checked; copied unless it is read-only already."""
    array = value if _is_frozen(value) else np.array(value, dtype=np.float64)
    assert isinstance(array, np.ndarray)
    if array.ndim not in ndim:
        raise ValueError(f"{name} has {array.ndim} axes (shape {array.shape}); it needs {' or '.join(map(str, ndim))}.")
    if not all_finite(array):
        raise ValueError(f"{name} holds NaN or infinite numbers; parameters must be finite.")
    array.setflags(write=False)
    return array


def _matrices(given: ArrayLike | Matrices, name: str, ndim: tuple[int, ...]) -> Matrices:
    """``given`` as matrices of finite numbers that nobody writes to; of ``(heads, width)`` each row becomes one column."""
    if not isinstance(given, Matrices):
        array = frozen_array(given, name, ndim)
        return Matrices(array if array.ndim == 3 else array[:, :, None])
    if not all(all_finite(factor) for factor in given.factors):
        raise ValueError(f"{name} holds NaN or infinite numbers; parameters must be finite.")
    return given


def _is_frozen(value: ArrayLike) -> bool:
    """Whether nobody can write to these numbers, neither through ``value`` nor through an array that it is a view of."""
    if not isinstance(value, np.ndarray) or value.dtype != np.float64:
        return False
    holder: Any = value
    while isinstance(holder, np.ndarray) and not holder.flags.writeable:
        holder = holder.base
    return not isinstance(holder, np.ndarray)


def all_finite(array: Floats) -> bool:
    """Whether no number is NaN or infinite, of an array of any kind; one fast pass in the usual case."""
    xp = array_namespace(array)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(xp.isfinite(xp.sum(array)) or xp.all(xp.isfinite(array)))


@dataclass(frozen=True, eq=False, init=False)
class Attention:
    """One attention layer: scores ``x_i·W[h]·x_N + c[h]·x_i``, answer ``b + sum_h sum_i softmax(s)_i V[h]^T x_i``.

    Args:
        W: score matrices ``(heads, width, width)``, as one array or as ``Matrices`` in factors, which are kept as they are; ``W``
            and ``V`` read as arrays of NumPy all the same, multiplied out when first read.
        V: value vectors ``(heads, width)`` for scalar answers, ``(heads, width, outputs)`` for vector answers,
            or None where the values were not learned (then the model cannot be called).
        c: query biases ``(heads, width)``; None means that the model has none.
        b: constant, scalar or ``(outputs,)``; None means that the model has none.

    ``c`` and ``b`` read as zeros where the model has none; ``has_c`` and ``has_b`` tell.

    >>> head = Attention.single(W=[[0.0, 1.0], [0.0, 0.0]], v=[1.0, 2.0])
    >>> head([[[1.0, 0.0], [0.0, 0.0]]])
    array([0.5])
    """

    scores: Matrices
    values: Matrices | None
    c: Floats
    b: Floats
    has_c: bool
    has_b: bool
    scalar: bool

    def __init__(
        self, W: ArrayLike | Matrices, V: ArrayLike | Matrices | None, c: ArrayLike | None = None, b: ArrayLike | None = None
    ) -> None:
        scores, values = _matrices(W, "W", (3,)), None if V is None else _matrices(V, "V", (2, 3))
        heads, width, other = scores.shape
        if width != other or width == 0 or heads == 0:
            raise ValueError(f"W has shape {scores.shape}; it needs (heads, width, width) with at least one head and width 1.")
        scalar = V is not None and not isinstance(V, Matrices) and np.ndim(np.asarray(V)) == 2
        if values is not None and values.shape[:2] != (heads, width):
            given = values.shape[:2] if scalar else values.shape
            raise ValueError(f"V has shape {given}; with W {scores.shape} it must start with {(heads, width)}.")
        tail = () if values is None or scalar else values.shape[2:]
        object.__setattr__(self, "has_c", c is not None)
        object.__setattr__(self, "has_b", b is not None)
        c = frozen_array(np.zeros((heads, width)) if c is None else c, "c", (2,))
        b = frozen_array(np.zeros(tail) if b is None else b, "b", (0, 1))
        if c.shape != (heads, width):
            raise ValueError(f"c has shape {c.shape}; it must be {(heads, width)}.")
        if b.shape != tail:
            raise ValueError(f"b has shape {b.shape}; for these values it must be {tail}.")
        for name, value in (("scores", scores), ("values", values), ("c", c), ("b", b), ("scalar", scalar)):
            object.__setattr__(self, name, value)

    @classmethod
    def single(cls, W: ArrayLike, v: ArrayLike, c: ArrayLike | None = None, b: ArrayLike = 0.0) -> Attention:
        """One head from ``W (width, width)``, ``v (width,)`` or ``(width, outputs)``; ``b = 0`` means no constant."""
        return cls(
            W=np.asarray(W, dtype=np.float64)[None],
            V=np.asarray(v, dtype=np.float64)[None],
            c=None if c is None else np.asarray(c, dtype=np.float64)[None],
            b=b if np.any(b) else None,
        )

    @classmethod
    def from_torch(cls, module: Any, *, layout: str = "auto", heads: int | None = None) -> Attention:
        """Fold a torch attention module or its state dict into W, V, c, b (see ``unsoftmax.models.torch_layouts``)."""
        from unsoftmax.models.torch_layouts import attention_from_torch

        return attention_from_torch(module, layout=layout, heads=heads)

    def to_torch(self, *, positions: Literal["last", "all"] = "last", causal: bool = False) -> Any:
        """A ``torch.nn.Module`` with the same answers, at the last position or at all (needs the extra ``torch``)."""
        from unsoftmax.models.torch_layouts import attention_to_torch

        return attention_to_torch(self, positions=positions, causal=causal)

    def to_state_dict(self, layout: str = "mha", *, rank: int | None = None) -> dict[str, Any]:
        """Torch tensors as nn.MultiheadAttention ("mha"), BERT ("bert") or GPT-2 ("gpt2") names them; ``from_torch`` undoes it.

        Each ``W_h`` is split into queries and keys by its singular values: one choice of factors; only the product can be known.
        """
        from unsoftmax.models.torch_layouts import to_state_dict

        return to_state_dict(self, layout, rank=rank)

    @cached_property
    def W(self) -> Floats:
        """Score matrices ``(heads, width, width)``."""
        return self.scores.whole()

    @cached_property
    def V(self) -> Floats | None:
        """Values ``(heads, width)`` or ``(heads, width, outputs)``; None where they were not learned."""
        if self.values is None:
            return None
        whole = self.values.whole()
        return whole[:, :, 0] if self.scalar else whole

    @cached_property
    def score_sizes(self) -> Floats:
        """The Frobenius norm of each score matrix ``(heads,)``."""
        return self.scores.sizes

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.scores.shape[0]

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self.scores.shape[1]

    @property
    def outputs(self) -> int | None:
        """Length of a vector answer; None for scalar answers."""
        return None if self.values is None or self.scalar else self.values.shape[2]

    def __call__(self, sequences: ArrayLike, positions: Literal["last", "all"] = "last", *, causal: bool = False) -> Floats:
        """Answer ``(batch, length, width)`` with ``(batch,)`` or ``(batch, outputs)``, everywhere ``(batch, length, outputs)``."""
        X = check_sequences(sequences, self.width)
        if self.values is None:
            raise ValueError("This model holds W and c only (V is None): the values were not learned, so it cannot answer.")
        if positions not in ("last", "all"):
            raise ValueError(f"positions is {positions!r}; it must be 'last' or 'all'.")
        return self.on_device(X)(X, everywhere=positions == "all", causal=causal)

    def last_scores(self, sequences: Floats) -> Floats:
        """Scores ``(heads, batch, length)`` of all tokens at the last position, on the device of the ``sequences``."""
        there = self.on_device(sequences)
        asked = there.scores.turned(sequences[:, -1]) + there.c[:, None]  # products: sums by index take far longer
        scores: Floats = (asked[:, :, None] @ sequences.swapaxes(1, 2))[:, :, 0]
        return scores

    @property
    def token_sizes(self) -> Floats:
        """Root mean square entries of tokens whose scores have the sizes of ``SCORES``."""
        bilinear = float(self.score_sizes.max())
        linear = float(np.linalg.norm(self.c, axis=1).max())
        return np.array([_token_size(score, bilinear, linear) for score in SCORES])

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The layer itself."""
        return (self,)

    @property
    def matrices(self) -> tuple[Floats, ...]:
        """No network."""
        return ()

    @property
    def anatomy(self) -> None:
        """Too few parts for a picture of them."""

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by the names under which they are saved."""
        named = {"W": self.W, "V": self.V, "c": self.c if self.has_c else None, "b": self.b if self.has_b else None}
        return {f"attention.{name}": value for name, value in named.items() if value is not None}

    @property
    def settings(self) -> dict[str, str]:
        """Nothing beside the parameters."""
        return {}

    @classmethod
    def from_blocks(cls, blocks: dict[str, Floats], settings: dict[str, str]) -> Attention:
        """The inverse of ``blocks`` and ``settings``."""
        return cls(blocks["attention.W"], *(blocks.get(f"attention.{name}") for name in ("V", "c", "b")))

    @property
    def takes_sequences(self) -> bool:
        """It is called on sequences."""
        return True

    @property
    def can_answer(self) -> bool:
        """Whether its values are known."""
        return self.values is not None

    def respond(self, sequences: Floats) -> Floats:
        """Answers at the last position."""
        return self(sequences)

    def answer(self, sequences: Floats) -> Floats:
        """Answers ``(batch, outputs)`` at the last position."""
        return self(sequences).reshape(len(sequences), -1)

    def answer_at(self, sequences: Floats, *, causal: bool) -> tuple[Places, Floats]:
        """Every position, and the answers there ``(batch, length, outputs)``."""
        return np.arange(sequences.shape[1]), self(sequences, "all", causal=causal)

    def on_device(self, like: Floats) -> OnDevice:
        """The layer as arrays of the kind of ``like``, where it is; parameters move there once, and stay until ``left_device``."""
        kept: dict[Any, OnDevice] = self.__dict__.setdefault("_there", {})
        place = type(like), device(like)
        if place not in kept:
            values = None if self.values is None else self.values.at(like)
            kept[place] = OnDevice(self.scores.at(like), values, alike(self.c, like), alike(self.b, like), self.scalar)
        return kept[place]

    def left_device(self) -> None:
        """Nothing of the layer stays on a device."""
        self.__dict__.pop("_there", None)
        here = np.empty(0)
        object.__setattr__(self, "scores", self.scores.at(here))
        object.__setattr__(self, "values", None if self.values is None else self.values.at(here))

    def shaken(self, relative: float, rng: np.random.Generator) -> Attention:
        """The layer with every score off by about this share of itself."""
        scores = self.scores.jittered(relative, rng)
        c = jittered(self.c, relative, rng) if self.has_c else None
        return self.with_(scores, self.values, c)

    def with_(self, scores: Matrices, values: Matrices | None, c: Floats | None) -> Attention:
        """Heads with these matrices, whose answers have the form and the constant of this layer's."""
        V = values.whole()[:, :, 0] if self.scalar and values is not None else values
        return Attention(scores, V, c, self.b if self.has_b else None)

    def within(self, bounds: Any, rng: np.random.Generator) -> Attention | None:
        """A layer drawn within 95% bars of this one; None where W or V have none, or bars without end, which say nothing."""
        if self.V is None or bounds is None or bounds.W is None or bounds.V is None:
            return None

        def moved(block: Floats, bars: Floats | None) -> Floats:
            return block if bars is None else block + np.asarray(bars) / 2 * rng.normal(size=np.shape(block))

        pairs = ((self.W, bounds.W), (self.V, bounds.V), (self.c, bounds.c), (self.b, bounds.b))
        with np.errstate(over="ignore"):
            drawn = [moved(block, bars) for block, bars in pairs]
        return Attention(*drawn) if all(np.isfinite(block).all() for block in drawn) else None

    def sizes(self, ranks: tuple[int, ...] | None) -> Sizes:
        """Heads, ranks and the number of free parameters."""
        d, known = self.width, ranks or (self.width,) * self.heads
        outputs = self.outputs or 1
        values = 0 if self.values is None else self.heads * d * outputs + outputs * self.has_b
        scores = sum(r * (2 * d - r) for r in known) + self.heads * d * self.has_c
        return Sizes(parameters=scores + values, heads=self.heads, rank=max(known), ranks=known)

    def save(self, path: str | Path) -> None:
        """Write the parameters to a safetensors file."""
        from unsoftmax.models.files import save_model

        save_model(self, path)


def _token_size(score: float, bilinear: float, linear: float) -> float:
    """The t with ``bilinear t^2 + linear t = score``."""
    if bilinear == 0:
        return score / linear if linear > 0 else 1.0
    return 2 * score / (linear + float(np.sqrt(linear**2 + 4 * bilinear * score)))


def check_sequences(sequences: ArrayLike, width: int) -> Floats:
    """Check that ``sequences`` is ``(batch, length, width)`` with at least one token and return it as float64."""
    X = np.asarray(sequences, dtype=np.float64)
    if X.ndim != 3 or X.shape[1] == 0 or X.shape[2] != width:
        raise ValueError(f"Sequences have shape {X.shape}; they must be (batch, length >= 1, {width}).")
    return X
