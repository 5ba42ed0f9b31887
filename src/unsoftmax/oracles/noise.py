"""Defences to try on one's own model: rounded, noisy, clipped and low-precision answers."""

from __future__ import annotations

import hashlib

import numpy as np

from unsoftmax.models import Attention, Floats, check_sequences
from unsoftmax.oracles.base import Oracle, Wrapper
from unsoftmax.oracles.local import checked_answers

FORMATS = ("float32", "float16", "bfloat16")


class Rounded(Wrapper):
    """Answers rounded to a number of decimals or of significant digits.

    >>> from unsoftmax.oracles import CallableOracle
    >>> oracle = Rounded(CallableOracle(lambda X: X[:, -1, 0], width=1), decimals=2)
    >>> oracle(np.full((1, 1, 1), 3.14159))
    array([3.14])
    """

    def __init__(self, inner: Oracle, *, decimals: int | None = None, digits: int | None = None) -> None:
        super().__init__(inner)
        if (decimals is None) == (digits is None):
            raise ValueError(f"decimals={decimals} and digits={digits}: give exactly one of them.")
        if digits is not None and digits < 1:
            raise ValueError(f"digits is {digits}; at least one significant digit must stay.")
        self.decimals = decimals
        self.digits = digits

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask, then round."""
        answers = self.inner(sequences)
        if self.decimals is not None:
            return np.round(answers, self.decimals)
        assert self.digits is not None
        return round_digits(answers, self.digits)


class Thresholded(Wrapper):
    """Answers replaced by one bit: 1.0 where they exceed ``threshold``, else 0.0; of several outputs, the place of the largest.

    >>> from unsoftmax.oracles import CallableOracle
    >>> oracle = Thresholded(CallableOracle(lambda X: X[:, -1, 0], width=1), 0.5)
    >>> oracle(np.array([[[0.2]], [[0.7]]]))
    array([0., 1.])
    """

    def __init__(self, inner: Oracle, threshold: float = 0.0) -> None:
        super().__init__(inner)
        if not np.isfinite(threshold):
            raise ValueError(f"threshold is {threshold}; it must be a finite number.")
        self.threshold = float(threshold)

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask, then tell only the side, or the winner; at every position where all are answered."""
        answers = self.inner(sequences)
        if answers.ndim == 1 or answers.shape[-1] == 1:
            return (answers > self.threshold).astype(np.float64)
        winners: Floats = np.argmax(answers, axis=-1, keepdims=True).astype(np.float64)
        return winners


class TopOnly(Wrapper):
    """Only the ``kept`` largest numbers of an answer are told, as top-k log-probabilities are; the others get the least of these.

    >>> from unsoftmax.oracles import CallableOracle
    >>> oracle = TopOnly(CallableOracle(lambda X: X[:, -1], width=3), 2)
    >>> oracle(np.array([[[0.2, -1.0, 0.7]]]))
    array([[0.2, 0.2, 0.7]])
    """

    def __init__(self, inner: Oracle, kept: int) -> None:
        super().__init__(inner)
        if kept < 1:
            raise ValueError(f"kept is {kept}; at least one number of an answer is told.")
        self.kept = kept

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask, then raise all others to the least number that is told."""
        answers = np.asarray(self.inner(sequences), dtype=np.float64)
        if answers.ndim == 1 or answers.shape[-1] <= self.kept:
            return answers
        least = np.partition(answers, -self.kept, axis=-1)[..., -self.kept, None]
        return np.maximum(answers, least)


class Lengthened(Wrapper):
    """A target that takes no token shorter than ``shortest``: whoever asks sends a token of that length in its place.

    So a target that refuses tokens that are zero is asked with tokens of length 1e-30, which norms take for zero.

    >>> from unsoftmax.oracles import CallableOracle
    >>> oracle = Lengthened(CallableOracle(lambda X: X[:, 0, 0], width=2), 0.5)
    >>> oracle(np.array([[[0.0, 0.0]], [[0.3, 0.0]], [[3.0, 0.0]]]))
    array([0.5, 0.5, 3. ])
    """

    def __init__(self, inner: Oracle, shortest: float) -> None:
        super().__init__(inner)
        if not 0 < shortest < np.inf:
            raise ValueError(f"shortest is {shortest}; it must be a positive length.")
        self.shortest = float(shortest)

    def __call__(self, sequences: Floats, /) -> Floats:
        """Lengthen, then ask."""
        tokens = np.array(sequences, dtype=np.float64)
        size = np.abs(tokens).max(axis=2)  # squares of very short tokens would underflow
        length = size * np.linalg.norm(tokens / np.where(size > 0, size, 1.0)[..., None], axis=2)
        short = length < self.shortest
        tokens[short] *= (self.shortest / np.where(length[short] > 0, length[short], 1.0))[:, None]
        tokens[short & (length == 0), 0] = self.shortest
        return self.inner(tokens)


class Noisy(Wrapper):
    """Answers with Gaussian noise of standard deviation ``scale``.

    Args:
        inner: the oracle to ask.
        scale: standard deviation of the noise.
        seed: seed of the noise.
        fresh: draw new noise for every question; False makes the noise a fixed function of the question.
    """

    def __init__(self, inner: Oracle, scale: float, *, seed: int = 0, fresh: bool = True) -> None:
        super().__init__(inner)
        if not (np.isfinite(scale) and scale >= 0):
            raise ValueError(f"scale is {scale}; the standard deviation of the noise must be finite and not negative.")
        self.scale = float(scale)
        self.fresh = fresh
        self._seed = seed
        self._rng = np.random.default_rng(seed)

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask, then add noise."""
        answers = self.inner(sequences)
        if self.fresh:
            return answers + self.scale * self._rng.normal(size=answers.shape)
        noise = np.empty_like(answers)
        for row, sequence in enumerate(sequences):
            digest = hashlib.sha256(np.ascontiguousarray(sequence, dtype=np.float64).tobytes() + str(self._seed).encode()).digest()
            noise[row] = np.random.default_rng(int.from_bytes(digest[:16], "little")).normal(size=answers.shape[1:])
        return answers + self.scale * noise


class Clipped(Wrapper):
    """Tokens longer than ``max_norm`` are shortened to it before the target sees them."""

    def __init__(self, inner: Oracle, max_norm: float) -> None:
        super().__init__(inner)
        if not max_norm > 0:
            raise ValueError(f"max_norm is {max_norm}; tokens need a positive length.")
        self.max_norm = float(max_norm)

    def __call__(self, sequences: Floats, /) -> Floats:
        """Shorten, then ask."""
        norms = np.linalg.norm(sequences, axis=-1, keepdims=True)
        return self.inner(sequences * (self.max_norm / np.maximum(norms, self.max_norm)))


class Cast(Wrapper):
    """Answers cast to float32, float16 or bfloat16; the target itself computes as it always does."""

    def __init__(self, inner: Oracle, dtype: str = "float16") -> None:
        super().__init__(inner)
        self.dtype = checked_format(dtype)

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask, then cast."""
        return cast(self.inner(sequences), self.dtype)


class LowPrecision:
    """A model whose every step (inputs, scores, softmax, sums) runs in float32, float16 or bfloat16.

    Args:
        model: an attention layer.
        dtype: the number format of all intermediate results.
    """

    def __init__(self, model: Attention, dtype: str = "float16") -> None:
        self.model = model
        self.dtype = checked_format(dtype)

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self.model.width

    def __call__(self, sequences: Floats, /) -> Floats:
        """Answer ``(batch, length, width)`` at the last position."""
        if self.model.V is None:
            raise ValueError("This model holds W and c only (V is None), so it cannot answer.")
        # bfloat16 has no NumPy type: compute each step in float32 and cut its result
        kind = np.float16 if self.dtype == "float16" else np.float32

        def step(values: Floats) -> Floats:
            return (cast(values, self.dtype) if self.dtype == "bfloat16" else values).astype(kind)

        tokens = step(check_sequences(sequences, self.width))
        V = self.model.V if self.model.V.ndim == 3 else self.model.V[:, :, None]
        answers = step(np.zeros((len(tokens), V.shape[2])) + self.model.b)
        with np.errstate(over="ignore", invalid="ignore"):  # overflow is part of the format; what it spoils is refused below
            for W, values, c in zip(self.model.W, V, self.model.c, strict=True):
                images = step(step(tokens[:, -1] @ step(W).T) + step(c))
                scores = step(np.einsum("bnd,bd->bn", tokens, images))
                weights = step(np.exp(scores - scores.max(axis=1, keepdims=True)))
                weights = step(weights / weights.sum(axis=1, keepdims=True, dtype=kind))
                answers = step(answers + step(step(np.einsum("bn,bnd->bd", weights, tokens)) @ step(values)))
        answers = checked_answers(answers, sequences.shape)
        return answers[:, 0] if self.model.V.ndim == 2 else answers


def checked_format(dtype: str) -> str:
    """The name of a low-precision format, or a ``ValueError``."""
    if dtype not in FORMATS:
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(FORMATS)}.")
    return dtype


def round_digits(answers: Floats, digits: int) -> Floats:
    """Round to ``digits`` significant decimal digits."""
    with np.errstate(divide="ignore"):
        exponent = np.maximum(np.floor(np.log10(np.abs(answers))), -280.0).astype(int)  # below 1e-280 a number counts as zero
    shift = digits - 1 - exponent
    # multiply by whole powers of ten on either side: exact up to 10^22, so that the result is the nearest float to the decimal
    up, down = 10.0 ** np.maximum(shift, 0), 10.0 ** np.maximum(-shift, 0)
    rounded: Floats = np.rint(answers * up / down) / up * down
    return rounded


def cast(answers: Floats, dtype: str) -> Floats:
    """The nearest numbers of a low-precision format, as float64; overflow becomes infinite, as it does in hardware."""
    with np.errstate(over="ignore"):
        if dtype != "bfloat16":
            return answers.astype(dtype).astype(np.float64)
        bits = np.ascontiguousarray(answers, dtype=np.float32).view(np.uint32)
    bits = bits + (0x7FFF + ((bits >> 16) & 1))  # half to even on the 16 bits that go
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
