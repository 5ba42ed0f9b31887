"""One head with vector answers from noisy ones: the scores from one mixture of the outputs, the values from one-token answers."""

from __future__ import annotations

from functools import partial
from typing import cast

import numpy as np
from scipy.special import fdtri, stdtrit

from unsoftmax.errors import NotInFamilyError, RefusalError, Sign, tried
from unsoftmax.learners.noisy.certified import CertifiedHeadLearner
from unsoftmax.learners.noisy.design import frames
from unsoftmax.learners.noisy.further import variances
from unsoftmax.learners.noisy.learner import NoisyHeadLearner
from unsoftmax.learners.noisy.probes import of_norm
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.learners.noisy.stages import find_norm
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import LastPosition, Oracle, Wrapper, phase
from unsoftmax.results import Bounds, Floor, Learned


class Mixture(Wrapper):
    """One mixture of the outputs; the whole answers to single tokens and to some longer sequences are kept."""

    def __init__(self, inner: Oracle, direction: Floats) -> None:
        super().__init__(LastPosition(inner))
        self.direction = direction
        self.singles: list[tuple[Floats, Floats]] = []
        self.longer: list[tuple[Floats, Floats]] = []

    def __call__(self, sequences: Floats, /) -> Floats:
        """Answer with one number per sequence."""
        answers = self.inner(sequences)
        if sequences.shape[1] == 1:
            self.singles.append((sequences[:, 0].copy(), answers))
        else:
            room = max(0, NOISY.vector_kept - sum(len(told) for _, told in self.longer))
            if room:
                self.longer.append((sequences[:room].copy(), answers[:room]))
        return np.asarray(answers @ self.direction)


def learn_vector(learner: NoisyHeadLearner, oracle: Oracle, rng: np.random.Generator) -> Learned:
    """W, c from the mixture of outputs with the largest values, V and b from all one-token answers.

    Price: that of ``learner`` and ``2 width + 8`` one-token questions. Errors of the outputs are taken to be independent and of
    like size. Answers that are rounded when they are written down stay so in a single output, which is then the mixture.
    """
    width = oracle.width
    phase(oracle, "outputs")
    tokens = frames(rng, 2 * width + 8, width, 1.0 if learner.max_norm is None else learner.max_norm)
    answers = LastPosition(oracle)(tokens[:, None])
    values = np.linalg.lstsq(np.pad(tokens, ((0, 0), (0, 1)), constant_values=1.0), answers, rcond=None)[0][:-1]
    if learner.floor.decimals or learner.floor.cast:
        direction = np.eye(values.shape[1])[np.argmax(np.linalg.norm(values, axis=0))]
    else:
        direction = np.linalg.svd(values)[2][0]
    mixture = Mixture(oracle, direction)
    mixture.singles.append((tokens, answers))
    learned = learner.run(mixture, rng=rng)
    return _packed(learned, mixture, learner.floor)


def _packed(learned: Learned, mixture: Mixture, floor: Floor) -> Learned:
    """All outputs' values from the one-token answers, with bars; refuses if the scores do not explain every output."""
    model, bounds = cast(Attention, learned.model), learned.bounds
    assert model.V is not None
    assert bounds is not None
    tokens, answers = (np.concatenate(parts) for parts in zip(*mixture.singles, strict=True))
    rows = np.pad(tokens, ((0, 0), (0, 1)), constant_values=1.0)
    found, errors, noise = _values(rows, answers, floor)
    freedom = max(1, len(rows) - rows.shape[1])
    # the mixture may hide a constant that the outputs have
    has_b = model.has_b or np.mean((found[-1] / errors[-1]) ** 2) > float(fdtri(answers.shape[1], freedom, 1 - NOISY.false_bias))
    if not has_b:
        found, errors, noise = _values(tokens, answers, floor)
    spread = errors * float(stdtrit(freedom, 0.975))
    V, b = found[: model.width], (found[-1] if has_b else None)
    u = mixture.direction
    along = np.sqrt(spread[: model.width] ** 2 @ u**2)
    if np.mean(np.asarray(bounds.V) ** 2) < np.mean(along**2):  # the mixture's own values are known better
        V = V + np.outer(model.V[0] - V @ u, u)
    whole = Attention(model.W, V[None], model.c if model.has_c else None, b)
    _check_outputs(whole, mixture, noise * (1.0 if floor.noisy or floor.decimals else NOISY.low_precision), freedom)
    note = f"W was learned from one mixture of the {len(u)} outputs, V from {len(tokens)} one-token answers."
    return Learned(
        model=whole,
        ambiguity=learned.ambiguity,
        bounds=Bounds(
            kind="estimated",
            W=bounds.W,
            V=spread[None, : model.width],
            c=bounds.c,
            b=spread[-1] if has_b else None,
        ),
        notes=(*learned.notes, note),
        evidence=learned.evidence,
        ranks=learned.ranks,
        noise=learned.noise,
    )


def _values(rows: Floats, answers: Floats, floor: Floor) -> tuple[Floats, Floats, Floats]:
    """Least squares of each output ``(width, outputs)``, with standard errors, and the noise of the answers ``(outputs,)``.

    Where errors follow the size of tokens or answers, each answer is weighted by its own.
    """
    found: Floats = np.asarray(np.linalg.lstsq(rows, answers, rcond=None)[0], dtype=np.float64)
    freedom = max(1, len(rows) - rows.shape[1])
    least = 2.0**-52 * float(np.abs(answers).max())
    noise = np.sqrt(np.sum((answers - rows @ found) ** 2, axis=0) / freedom) + least
    errors = np.sqrt(np.diag(np.linalg.pinv(rows.T @ rows)))[:, None] * noise
    if not (floor.half or floor.digits):
        return found, errors, noise
    lengths = np.linalg.norm(rows, axis=1)
    longer = lengths > np.sqrt(lengths.min() * lengths.max()) * (1 + 2.0**-20)
    for output, told in enumerate(answers.T):
        for _ in range(NOISY.reweighted):
            squares = (told - rows @ found[:, output]) ** 2 * len(rows) / freedom
            root = 1 / np.sqrt(variances(squares, floor.written(told), longer) + least**2)
            found[:, output] = np.linalg.lstsq(root[:, None] * rows, root * told, rcond=None)[0]
        weighted = root[:, None] * rows
        left = root * (told - rows @ found[:, output])
        inverse = np.linalg.pinv(weighted.T @ weighted)
        pulled = weighted @ inverse
        leverage = np.minimum(np.einsum("ij,ij->i", pulled, weighted), 1 - 1e-6)
        plain = max(1.0, float(left @ left) / freedom) * np.diag(inverse)
        errors[:, output] = np.sqrt(np.maximum(plain, (left**2 / (1 - leverage)) @ pulled**2))  # as in ``standard_errors``
    return found, errors, noise


def _check_outputs(model: Attention, mixture: Mixture, noise: Floats, freedom: int) -> None:
    """Refuse heads that the mixture does not show: the kept answers must be explained in every output."""
    left = np.concatenate([answers - model(sequences) for sequences, answers in mixture.longer])
    found = np.mean((left / noise) ** 2, axis=0)
    allowed = NOISY.loose * float(fdtri(len(left), freedom, 1 - NOISY.false_refusal))
    if (found > allowed).any():
        worst = int(np.argmax(found))
        raise NotInFamilyError(
            f"The head that explains one mixture of the outputs misses output {worst} by {np.sqrt(found[worst]):.3g} times the "
            "noise of one-token answers: the target may have several heads. Run `unsoftmax diagnose`.",
            evidence={"output": worst, "excess": float(found[worst] / allowed)},
            model=model,
            signs=(Sign.OPEN,),
        )


def certify_vector(learner: CertifiedHeadLearner, oracle: Oracle, rng: np.random.Generator) -> Learned:
    """Certified intervals of W from the output with the largest values, and of V from one answer per axis.

    Price: that of ``learner`` and ``width + 1`` one-token questions.
    """
    width = oracle.width
    phase(oracle, "outputs")
    norm = learner.max_norm * NOISY.shrink
    tokens = np.concatenate([of_norm(np.eye(width), norm), np.zeros((1, width))])
    answers = LastPosition(oracle)(tokens[:, None])
    within = learner.tolerance + learner.relative * np.abs(answers) + NOISY.evaluation * np.abs(answers).sum(axis=0)
    if not learner.biases and (np.abs(answers[width]) > within[width]).any():
        raise NotInFamilyError(
            f"The target has a constant b: the zero token was answered with up to {np.abs(answers[width]).max():.6g}, beyond the "
            f"tolerance ±{learner.tolerance:.3g}. Certified intervals cover heads without biases; leave `tolerance` out to get "
            "estimated ones.",
            evidence={"found": "a constant b"},
        )
    zero = answers[width] if learner.biases else 0.0 * answers[width]
    doubt = within[width] if learner.biases else 0.0 * zero
    best = int(np.argmax(np.linalg.norm(answers[:width] - zero, axis=0)))
    learned = learner.run(Mixture(oracle, np.eye(answers.shape[1])[best]), rng=rng)
    certified = cast(Attention, learned.model)
    assert learned.bounds is not None
    lengths = tokens[:width].diagonal()[:, None]
    V, half = (answers[:width] - zero) / lengths, (within[:width] + doubt) / lengths * (1 + 2.0**-40)
    beyond = np.abs(zero) > doubt  # outputs that certainly have a constant
    b = np.where(beyond, zero, 0.0)
    return Learned(
        model=Attention(certified.W, V[None], certified.c if certified.has_c else None, b if b.any() else None),
        ambiguity=learned.ambiguity,
        bounds=Bounds(
            kind="certified",
            W=learned.bounds.W,
            V=half[None],
            c=learned.bounds.c,
            b=np.where(beyond, doubt, doubt + np.abs(zero)) if learner.biases else None,
        ),
        notes=(*learned.notes, f"W was certified through output {best}, which has the largest values."),
        evidence=learned.evidence,
        ranks=learned.ranks,
    )


def certify_long(tolerance: float, oracle: Oracle, rng: np.random.Generator) -> Learned:
    """Certified intervals where tokens may be of any length: scores decide on one, and tokens many times longer narrow them.

    Price: that of ``CertifiedHeadLearner`` with biases, a few dozen queries more, and up to as many again where answers saturate;
    5 width + 3 more for each time that a query bias does.
    """
    width = oracle.width
    last = LastPosition(oracle)
    phase(oracle, "length")
    some = last(np.concatenate([np.zeros((1, 1, width)), np.eye(width)[:, None]])).reshape(width + 1, -1)
    loudest = int(np.argmax(np.linalg.norm(some[1:] - some[0], axis=0)))
    one = Mixture(oracle, np.eye(some.shape[1])[loudest]) if some.shape[1] > 1 else oracle
    moderate = find_norm(one, 64, rng)
    for times in (NOISY.longer, *NOISY.shorter):
        learner = CertifiedHeadLearner(tolerance, times * moderate, biases=True)
        found = tried(partial(_certified, learner, oracle, rng, some.shape[1]), NotInFamilyError)
        if not isinstance(found, RefusalError):
            return found
        refusal = found
        if Sign.QUERY_BIAS not in found.signs:  # which shorter tokens would not saturate
            break
    raise refusal


def _certified(learner: CertifiedHeadLearner, oracle: Oracle, rng: np.random.Generator, outputs: int) -> Learned:
    return learner.run(oracle, rng=rng) if outputs == 1 else certify_vector(learner, oracle, rng)
