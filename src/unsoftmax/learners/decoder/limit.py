"""The limit of a decoder for very long tokens, read through its final norm and unembedding."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.errors import NotInFamilyError, TooNoisyError
from unsoftmax.learners.decoder.nodes import Nodes
from unsoftmax.learners.decoder.settings import LOGITS, Settings
from unsoftmax.models import Floats
from unsoftmax.models.stack import Norm, normalised
from unsoftmax.oracles.base import Oracle


@dataclass(frozen=True, slots=True, eq=False)
class Readout:
    """How a decoder's last hidden state becomes an answer: ``table @ n(h) + bias``.

    Attributes:
        table: unembedding ``(vocabulary, width)``, the gain of the final norm folded in; of log-probabilities, its centred part.
        bias: ``(vocabulary,)``, centred alike.
        norm: which norm comes last.
        log: answers are known up to one number for each of them.
        single: the decoder takes tokens in float32.
    """

    table: Floats
    bias: Floats
    norm: Norm
    log: bool
    single: bool = False
    inverse: Floats = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inverse", np.asarray(np.linalg.pinv(self.table, rcond=1e-10), dtype=np.float64))

    def directions(self, answers: Floats) -> Floats:
        """Normalised hidden states ``(n, width)``."""
        return (centred(answers, self.log) - self.bias) @ self.inverse.T

    def limits(self, oracle: Oracle, sequences: Floats, nodes: Nodes) -> Floats:
        """``P_x D(0)``, ``(n, width)``: what the decoder adds to the last ``x`` of ``sequences (n, length, width)``.

        The last token must lie on the sphere; it is sent ``1 / t`` as long, the others as they are. Then the hidden state is
        ``x / t + D(t)``, and the answer tells its direction.
        """
        n, length, width = sequences.shape
        t = np.arange(1, nodes.count + 1)[:, None, None] / nodes.length
        sent = np.repeat(sequences[None], nodes.count, axis=0)
        sent[:, :, -1] /= t
        if self.single:  # what the decoder will round is not counted as its answer
            sent[:, :, -1] = sent[:, :, -1].astype(np.float32)
        x = sent[:, :, -1] * t
        seen = self.directions(oracle(sent.reshape(-1, length, width))).reshape(nodes.count, n, width)
        along = np.einsum("jni,jni->jn", seen, x)[:, :, None]
        moved = (seen * (np.einsum("jni,jni->jn", x, x)[:, :, None] / along) - x) / t
        return np.asarray(np.einsum("j,jni->ni", nodes.weights, moved))

    def limits_everywhere(self, oracle: Oracle, front: Floats, tokens: Floats, nodes: Nodes) -> Floats:
        """The same at every one of ``tokens (n, length, width)`` on the sphere, ``(n, length, width)``.

        All of them are sent ``1 / t`` as long, so that what earlier ones add to each other is analytic in ``t`` like the rest.
        ``front (n, some, width)`` stands before them as it is.
        """
        told = np.zeros_like(tokens)
        for j, weight in enumerate(nodes.weights, start=1):
            t = j / nodes.length
            seen = self.directions(oracle(np.concatenate([front, tokens / t], axis=1))[:, front.shape[1] :])
            along = np.einsum("nli,nli->nl", seen, tokens)[:, :, None]
            told += weight / t * (seen * (np.einsum("nli,nli->nl", tokens, tokens)[:, :, None] / along) - tokens)
        return told


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Limit answers ``(n, width)`` to ``tokens (n, length, width)`` behind ``zeros`` zero tokens."""

    tokens: Floats
    zeros: int
    answers: Floats

    def each(self) -> list[tuple[Floats, Floats]]:
        """Every last token with its answer."""
        return list(zip(self.tokens[:, -1], self.answers, strict=True))


@dataclass(slots=True, eq=False)
class Limit:
    """Answers in the limit: ``P_x (sum_h attention_h(tokens) + g(x))``, ``P_x`` the projector along the last token ``x``.

    Tokens lie on the sphere of radius ``sqrt(width)``. All but the last are sent ``FAR`` times as long; the last one ``1 / t`` as
    long, so that the hidden state is ``x / t + D(t)`` and its direction, which the answer tells, gives ``P_x D(0)``.

    Attributes:
        oracle: the target, answering with the logits of the last position.
        readout: how it answers.
        settings: what the steps go by.
        fine: nodes of answers that are to be exact.
        rough: nodes of answers for a start.
        noise: error to expect of one output of a limit answer.
        zeros: the most zero tokens that are sent in front.
        asked: all exact answers, for a fit of everything at the end.
        everywhere: the target, answering every position; None where it answers the last one alone.
    """

    oracle: Oracle
    readout: Readout
    settings: Settings = LOGITS
    fine: Nodes = LOGITS.fine
    rough: Nodes = LOGITS.rough
    noise: float = LOGITS.fine.length * 2.0 ** (LOGITS.fine.count - 52)
    zeros: int = LOGITS.most_zeros
    asked: list[Asked] = field(default_factory=list)
    everywhere: Oracle | None = None

    @property
    def width(self) -> int:
        """Length of a token."""
        return int(self.readout.table.shape[1])

    @property
    def radius(self) -> float:
        """Length of normalised tokens."""
        return float(np.sqrt(self.width))

    def explains(self, residual: float, answers: Floats) -> bool:
        """Whether a fit that leaves ``residual`` of the answers, relative, leaves no more than their errors."""
        size = float(np.sqrt(np.mean(answers**2)))
        return residual <= max(self.settings.accept, self.settings.errors * self.noise / max(size, 1e-300))

    def alone(self, x: Floats) -> Floats:
        """The limit ``(n, width)`` at last tokens ``x`` alone: what all other answers to them are compared with.

        Where answers are rough it is asked at several lengths, whose roundings are not the same, and averaged.
        """
        lengths = self.fine.length * (1 + self.settings.apart * np.arange(self.settings.repeats))
        told = [replace(self, fine=Nodes(self.fine.count, float(length)), asked=[]).ask(x[:, None], 0) for length in lengths]
        answers = np.mean(told, axis=0)
        self.asked.append(Asked(x[:, None], 0, answers))
        return np.asarray(answers)

    def measured(self, rng: np.random.Generator) -> Limit:
        """With nodes at the lengths that suit best what the layers add; where that is little, short ones round less."""
        nodes, noise = best_nodes(self.oracle, self.readout, rng, self.settings)
        return replace(self, fine=nodes, noise=noise)

    def nearer(self, times: float) -> Limit:
        """With nodes at shorter lengths, for differences that are small: rounding falls with the length, the polynomial's error
        is a share of the difference."""
        fine = Nodes(self.fine.count, self.fine.length / times)
        return replace(self, fine=fine, noise=self.noise / times, asked=[])

    def ask(self, tokens: Floats, zeros: int, *, rough: bool = False) -> Floats:
        """The limit ``(n, width)`` at ``tokens (n, length, width)`` behind ``zeros`` tokens that are zero."""
        nodes = self.rough if rough else self.fine
        tokens = np.asarray(tokens)
        length = zeros + tokens.shape[1]
        step = max(1, self.settings.call // (length * self.width * nodes.count))
        parts = [self._part(tokens[i : i + step], zeros, nodes) for i in range(0, len(tokens), step)]
        answers = np.concatenate(parts) if parts else np.zeros((0, self.width))
        if not rough and len(tokens):
            self.asked.append(Asked(tokens, zeros, answers))
        return answers

    def every(self, tokens: Floats, zeros: int, front: Floats | None = None) -> Floats:
        """The limit ``(n, length, width)`` at all ``tokens (n, length, width)`` behind zero tokens and one of ``front (n, width)``.

        One question for each sequence and node, where every position is answered.
        """
        assert self.everywhere is not None
        n, length, width = tokens.shape
        before = np.zeros((n, zeros + (front is not None), width))
        if front is not None:
            before[:, -1] = front
        step = max(1, self.settings.call // ((before.shape[1] + length) * len(self.readout.table)))
        parts = [slice(i, i + step) for i in range(0, n, step)]
        return np.concatenate(
            [self.readout.limits_everywhere(self.everywhere, before[part], tokens[part], self.fine) for part in parts]
        )

    def _part(self, tokens: Floats, zeros: int, nodes: Nodes) -> Floats:
        n, length, width = tokens.shape
        sent = np.zeros((n, zeros + length, width))
        sent[:, zeros:-1] = self.settings.far * tokens[:, :-1]
        sent[:, -1] = tokens[:, -1]
        return self.readout.limits(self.oracle, sent, nodes)


def centred(answers: Floats, log: bool) -> Floats:
    """Answers less their mean, where one number of each is not known."""
    return answers - answers.mean(-1, keepdims=True) if log else answers


def are_log_probabilities(answers: Floats) -> bool:
    """Whether answers are logarithms of numbers that add up to one."""
    top = answers.max(axis=-1)
    return bool(np.abs(top + np.log(np.exp(answers - top[..., None]).sum(axis=-1))).max() < 1e-6)


def best_nodes(oracle: Oracle, readout: Readout, rng: np.random.Generator, settings: Settings = LOGITS) -> tuple[Nodes, float]:
    """From where limits come out best, and by how much one output is off then: estimates from half the length are compared.

    Rounding grows with the length, the error of the polynomial falls with it; where they meet depends on how much the layers add.
    """
    tokens = normalised(rng.normal(size=(4, 2, oracle.width)), readout.norm, 0.0)
    tokens[:, :-1] *= settings.far
    longest = settings.fine
    lengths = longest.length / 2.0 ** np.arange(settings.lengths)
    told = np.stack([readout.limits(oracle, tokens, Nodes(longest.count, length)) for length in lengths])
    off = np.sqrt(np.mean(np.diff(told, axis=0) ** 2, axis=(1, 2)))
    best = int(np.argmin(off))
    return Nodes(longest.count, float(lengths[best])), float(off[best])


def limit_of(oracle: Oracle, readout: Readout, settings: Settings, rng: np.random.Generator, zeros: int) -> Limit:
    """Limits by nodes that suit float64, or that are measured where answers are float32."""
    if not settings.single:
        return Limit(oracle, readout, zeros=zeros)
    nodes, noise = best_nodes(oracle, readout, rng, settings)
    nodes, noise = Nodes(nodes.count, settings.longer * nodes.length), settings.longer * noise
    return Limit(oracle, readout, settings, nodes, nodes, noise, zeros)


def read_out(oracle: Oracle, *, log: bool, settings: Settings = LOGITS) -> Readout:
    """Unembedding with the final gain, final norm and bias, from ``2 * width`` one-token answers at a huge scale.

    Raises:
        NotInFamilyError: there is no final norm, or the unembedding does not show the hidden state.
        TooNoisyError: norms are computed in float32 although answers are float64.
    """
    width = oracle.width
    axes = settings.far * np.concatenate([np.eye(width), -np.eye(width)])[:, None]
    answers = centred(oracle(axes), log)
    plus, minus = answers[:width], answers[width:]
    bias = (plus + minus).mean(axis=0) / 2
    size = float(np.abs(answers).max())
    if size == 0.0:  # the square of the length is no number in float32, and one over it is zero
        raise TooNoisyError(
            f"Tokens of length {settings.far:g} are all answered with zeros: the decoder computes its norms in float32, although "
            "its answers are float64 (as a Llama of transformers after `.double()`). They are no better than float32: run it in "
            "float32 (`model.float()`, and for a folder `model.float().save_pretrained(folder)`)."
        )
    odd = float(np.abs(plus + minus - 2 * bias).max())
    small = settings.same * size
    if not odd <= small:
        raise NotInFamilyError(
            f"Very long tokens and their opposites get answers whose means differ ({odd:.1e} of {size:.1e}): no norm stands in "
            "front of the unembedding, or logits are capped."
        )
    if np.abs(bias).max() <= small:
        bias = np.zeros_like(bias)
    half = (plus - minus).T / 2
    norm: Norm = "layer" if np.linalg.norm(half.sum(axis=1)) <= small * width else "rms"
    shown = np.linalg.pinv(normalised(np.eye(width), norm, 0.0), rcond=settings.same)  # of a LayerNorm one value is only rounding
    table = np.asarray(half @ shown)
    spectrum = np.linalg.svd(table, compute_uv=False)
    rank, whole = int((spectrum > small / size * spectrum[0]).sum()), width - (norm == "layer")
    if rank < whole:
        raise NotInFamilyError(f"{len(table)} answers do not show a hidden state of {whole} dimensions, only {rank} of it.")
    readout = Readout(table, bias, norm, log, settings.single)
    token = np.cos(1.0 + np.arange(width))
    seen = centred(oracle(settings.far * token[None, None]), log)
    off = float(np.abs(seen - bias - normalised(token[None], norm, 0.0) @ table.T).max())
    if not off <= 64 * small:
        raise NotInFamilyError(
            f"Answers are not linear in the direction of a very long token ({off:.1e} of {size:.1e}): logits are capped (a "
            "soft-cap, as in Gemma 2), or no unembedding stands behind the final norm."
        )
    return readout
