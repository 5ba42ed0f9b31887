"""Softmax attention with any number of heads, in the one form that can be known from answers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import ArrayLike, NDArray

from unsoftmax.models.base import Floats, Places, Sizes, jittered

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


def softmax(scores: Floats, *, spent: bool = False) -> Floats:
    """Normalised exponentials along the last axis; rows of ``-inf`` beyond the first entry are masked out.

    Scores that are ``spent``, needed by nobody afterwards, are overwritten: fresh memory takes as long as the arithmetic.
    """
    xp = array_namespace(scores)
    highest = xp.max(scores, axis=-1, keepdims=True)
    weights: Floats
    if isinstance(scores, np.ndarray):
        weights = np.subtract(scores, highest, out=scores if spent else None)
        np.exp(weights, out=weights)
    else:
        weights = xp.exp(scores - highest)
    weights /= xp.sum(weights, axis=-1, keepdims=True)
    return weights


def attend(
    X: Floats,
    W: Floats,
    V: Floats,
    c: Floats,
    b: Floats,
    *,
    everywhere: bool = False,
    causal: bool = False,
    absent: NDArray[np.bool_] | None = None,
) -> Floats:
    """The answers of an ``Attention`` with these parameters to ``X (batch, length, width)``; arrays of any one kind.

    Tokens that are ``absent (batch, 1, length)`` are not attended to.
    """
    batch, width = len(X), X.shape[2]
    queries = X if everywhere else X[:, -1:]
    values = V if V.ndim == 3 else V[:, :, None]
    answers = b
    for h in range(len(W)):
        asked = queries.reshape(-1, width) @ W[h].T + c[h]  # one product for the batch: a stack of small ones is far slower
        mixed = _mixed(asked.reshape(queries.shape), X, causal and everywhere, absent).reshape(-1, width)
        answers = answers + (mixed @ values[h]).reshape(batch, queries.shape[1], values.shape[2])
    if everywhere:
        return answers
    return answers[:, 0, 0] if V.ndim == 2 else answers[:, 0]


def _mixed(asked: Floats, X: Floats, causal: bool, absent: NDArray[np.bool_] | None, most: int = 2**20) -> Floats:
    """Tokens mixed by the softmax of their products with ``asked (batch, queries, width)``.

    On the host about ``most`` scores at a time: fresh memory for all of a large batch takes longer than the arithmetic.
    """
    size = max(1, most // (asked.shape[1] * X.shape[1])) if isinstance(X, np.ndarray) else len(X)
    if len(X) > size:
        parts = [slice(i, i + size) for i in range(0, len(X), size)]
        return np.concatenate([_mixed(asked[part], X[part], causal, None if absent is None else absent[part]) for part in parts])
    scores = asked @ X.swapaxes(1, 2)
    if causal:
        scores[:, ~np.tri(X.shape[1], dtype=bool)] = -np.inf
    if absent is not None:
        scores[absent] = -np.inf
    return softmax(scores, spent=True) @ X


@dataclass(frozen=True, slots=True, eq=False)
class OnDevice:
    """The forward pass of a layer whose parameters are arrays of any one kind."""

    W: Floats
    V: Floats | None
    c: Floats
    b: Floats

    def __call__(self, sequences: Floats, absent: NDArray[np.bool_] | None) -> Floats:
        """Answers at the last position; tokens that are ``absent (batch, 1, length)`` are none."""
        assert self.V is not None  # whoever predicts has asked whether the model can answer
        return attend(sequences, self.W, self.V, self.c, self.b, absent=absent)

    def shaken(self, relative: float, rng: np.random.Generator) -> OnDevice:
        """The same with every score off by about this share of itself."""
        return replace(self, W=jittered(self.W, relative, rng), c=jittered(self.c, relative, rng))


@dataclass(frozen=True, eq=False, init=False)
class Attention:
    """One attention layer: scores ``x_i·W[h]·x_N + c[h]·x_i``, answer ``b + sum_h sum_i softmax(s)_i V[h]^T x_i``.

    Args:
        W: score matrices ``(heads, width, width)``.
        V: value vectors ``(heads, width)`` for scalar answers, ``(heads, width, outputs)`` for vector answers,
            or None where the values were not learned (then the model cannot be called).
        c: query biases ``(heads, width)``; None means that the model has none.
        b: constant, scalar or ``(outputs,)``; None means that the model has none.

    ``c`` and ``b`` read as zeros where the model has none; ``has_c`` and ``has_b`` tell.

    >>> head = Attention.single(W=[[0.0, 1.0], [0.0, 0.0]], v=[1.0, 2.0])
    >>> head([[[1.0, 0.0], [0.0, 0.0]]])
    array([0.5])
    """

    W: Floats
    V: Floats | None
    c: Floats
    b: Floats
    has_c: bool
    has_b: bool

    def __init__(self, W: ArrayLike, V: ArrayLike | None, c: ArrayLike | None = None, b: ArrayLike | None = None) -> None:
        W = frozen_array(W, "W", (3,))
        heads, width, other = W.shape
        if width != other or width == 0 or heads == 0:
            raise ValueError(f"W has shape {W.shape}; it needs (heads, width, width) with at least one head and width 1.")
        values = None if V is None else frozen_array(V, "V", (2, 3))
        if values is not None and values.shape[:2] != (heads, width):
            raise ValueError(f"V has shape {values.shape}; with W {W.shape} it must start with {(heads, width)}.")
        tail = () if values is None else values.shape[2:]
        object.__setattr__(self, "has_c", c is not None)
        object.__setattr__(self, "has_b", b is not None)
        c = frozen_array(np.zeros((heads, width)) if c is None else c, "c", (2,))
        b = frozen_array(np.zeros(tail) if b is None else b, "b", (0, 1))
        if c.shape != (heads, width):
            raise ValueError(f"c has shape {c.shape}; it must be {(heads, width)}.")
        if b.shape != tail:
            raise ValueError(f"b has shape {b.shape}; for these values it must be {tail}.")
        for name, value in (("W", W), ("V", values), ("c", c), ("b", b)):
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
    def score_sizes(self) -> Floats:
        """The Frobenius norm of each score matrix ``(heads,)``."""
        return np.asarray(np.sqrt(np.einsum("hij,hij->h", self.W, self.W)))  # one pass, and no threads to wake

    @property
    def heads(self) -> int:
        """Number of heads."""
        return int(self.W.shape[0])

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return int(self.W.shape[1])

    @property
    def outputs(self) -> int | None:
        """Length of a vector answer; None for scalar answers."""
        return None if self.V is None or self.V.ndim == 2 else int(self.V.shape[2])

    def __call__(self, sequences: ArrayLike, positions: Literal["last", "all"] = "last", *, causal: bool = False) -> Floats:
        """Answer ``(batch, length, width)`` with ``(batch,)`` or ``(batch, outputs)``, everywhere ``(batch, length, outputs)``."""
        X = check_sequences(sequences, self.width)
        if self.V is None:
            raise ValueError("This model holds W and c only (V is None): the values were not learned, so it cannot answer.")
        if positions not in ("last", "all"):
            raise ValueError(f"positions is {positions!r}; it must be 'last' or 'all'.")
        return attend(X, self.W, self.V, self.c, self.b, everywhere=positions == "all", causal=causal)

    def last_scores(self, sequences: Floats) -> Floats:
        """Scores ``(heads, batch, length)`` of all tokens at the last position, on the device of the ``sequences``."""
        there = self.on_device(sequences)
        asked = sequences[:, -1] @ there.W.swapaxes(1, 2) + there.c[:, None]  # products: sums by index take far longer
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
        return self.V is not None

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
        """The layer on the device of ``like``; parameters move there once, and stay until ``left_device``."""
        if isinstance(like, np.ndarray):
            return OnDevice(self.W, self.V, self.c, self.b)
        place = (device(like), like.dtype)
        kept: tuple[Any, OnDevice] | None = self.__dict__.get("_there")
        if kept is None or kept[0] != place:
            xp = array_namespace(like)
            with warnings.catch_warnings():  # that nothing may write to these numbers, which nothing does
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                there = (
                    None if p is None else xp.asarray(p, dtype=like.dtype, device=place[0])
                    for p in (self.W, self.V, self.c, self.b)
                )
                kept = place, OnDevice(*there)
            self.__dict__["_there"] = kept
        return kept[1]

    def left_device(self) -> None:
        """No copy of the parameters stays on a device."""
        self.__dict__.pop("_there", None)

    def shaken(self, relative: float, rng: np.random.Generator) -> Attention:
        """The layer with every score off by about this share of itself."""
        c = jittered(self.c, relative, rng) if self.has_c else None
        return Attention(jittered(self.W, relative, rng), self.V, c, self.b if self.has_b else None)

    def within(self, bounds: Any, rng: np.random.Generator) -> Attention | None:
        """A layer drawn within 95% bars of this one; None where W or V have none."""
        if self.V is None or bounds is None or bounds.W is None or bounds.V is None:
            return None

        def moved(block: Floats, bars: Floats | None) -> Floats:
            return block if bars is None else block + np.asarray(bars) / 2 * rng.normal(size=np.shape(block))

        return Attention(moved(self.W, bounds.W), moved(self.V, bounds.V), moved(self.c, bounds.c), moved(self.b, bounds.b))

    def sizes(self, ranks: tuple[int, ...] | None) -> Sizes:
        """Heads, ranks and the number of free parameters."""
        d, known = self.width, ranks or (self.width,) * self.heads
        outputs = self.outputs or 1
        values = 0 if self.V is None else self.heads * d * outputs + outputs * self.has_b
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
