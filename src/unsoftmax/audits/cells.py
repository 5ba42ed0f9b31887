"""One cell of the audit: extraction against one defence, measured against undefended answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax.audits.defences import Defence
from unsoftmax.audits.parts import known_part, part_error
from unsoftmax.driver import recover
from unsoftmax.errors import JournalError
from unsoftmax.learners.threads import one_thread
from unsoftmax.models import Floats, Model
from unsoftmax.oracles import Journal, Journaled, Oracle
from unsoftmax.oracles.adapt import identity_of
from unsoftmax.results import Recovery
from unsoftmax.version import __version__

PER_LENGTH = 24  # honest questions of each length
Opener = Callable[[], Oracle]  # opens the target anew: a cell may run in another process


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Honest questions, tokens of standard normal entries, and the undefended answers to them."""

    questions: list[Floats]
    answers: list[Floats]
    noise: float = 0.0  # standard deviation of the target's own noise, from questions asked twice

    @property
    def spread(self) -> float:
        """Standard deviation of the answers, root mean square over outputs."""
        return float(np.sqrt(np.mean(np.var(np.concatenate(self.answers), axis=0))))

    @property
    def outputs(self) -> int:
        """Numbers of an answer."""
        return int(self.answers[0].shape[1])

    @property
    def middle(self) -> float:
        """The median answer."""
        return float(np.median(np.concatenate(self.answers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What extraction achieved against one defence.

    Attributes:
        defence: the defence.
        status: name of the recovery's ``Status``, or "ERROR".
        message: the recovery's own words.
        queries: sequences asked while learning, as ``Recovery.queries``.
        total_queries: the same with the held-out check; price and time count these.
        error: largest deviation of the extracted model from undefended answers to honest questions, over their spread; None
            where no model came out.
        estimated: the target's own answers are noisy and hide the error, so it follows from the extraction's error bars.
        check_error: the recovery's own held-out relative error, against defended answers.
        values_known: whether the model can answer; False where only scores were extracted.
        part: of a deep model that cannot answer, what of it was extracted, in words; ``error`` is then that of this part.
        told: the family was told, from the first row: a refusal is the work of the defence.
        honest_cost: root mean square error that the defence adds to honest answers.
        seconds: time the extraction took here.
        measured: False where the row is arithmetic on another one.
        journal: SHA-256 over the answers, where a journal was kept.
        replayed: sequences whose answers came from that journal.
        confirmed: sequences asked again to confirm those; no part of the price of the extraction.
        answers_from: when the oldest of those was answered.
        recovery: the whole recovery, for the target as it stands alone.
    """

    defence: Defence
    status: str
    message: str
    queries: int = 0
    total_queries: int = 0
    error: float | None = None
    estimated: bool = False
    check_error: float | None = None
    values_known: bool = True
    part: str = ""
    told: bool = False
    honest_cost: float = 0.0
    seconds: float = 0.0
    measured: bool = True
    journal: str | None = None
    replayed: int = 0
    confirmed: int = 0
    answers_from: str | None = None
    recovery: Recovery | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data, without the recovery."""
        known = asdict(replace(self, recovery=None))
        del known["recovery"]
        return known


def honest_sample(oracle: Oracle, seed: int, folder: Path | None, max_length: int | None = None) -> Sample:
    """Ask the undefended target 24 honest questions of each of six lengths, a few of them twice; with a folder, only once."""
    rng = np.random.default_rng([seed, 0xA0D17])  # apart from the learners' own streams
    lengths = [min(length, max_length or length) for length in (1, 2, 4, 8, 16, 32)]
    questions = [rng.normal(size=(PER_LENGTH, length, oracle.width)) for length in lengths]
    *answers, again = _told(oracle, [*questions, questions[2]], seed, folder, "honest")
    twice = again - answers[2]
    exact = np.abs(twice).max() <= 1e-6 * np.abs(again).max()  # float32 on another thread is no noise
    return Sample(questions, answers, 0.0 if exact else float(np.sqrt(np.mean(twice**2) / 2)))


def _told(oracle: Oracle, questions: list[Floats], seed: int, folder: Path | None, name: str) -> list[Floats]:
    """Answers to honest questions; with a folder they are kept there under ``name`` and asked only once."""
    with _kept(oracle, seed, folder, name) as kept:
        return [_flat(kept(batch)) for batch in questions]


@contextmanager
def _kept(oracle: Oracle, seed: int, folder: Path | None, name: str) -> Iterator[Oracle]:
    """The target itself; with a folder its answers are kept there under ``name``, and confirmed where they are replayed."""
    if folder is None:
        yield oracle
        return
    identity = {"target": identity_of(oracle), "width": oracle.width, "version": __version__, "seed": seed, "audit": name}
    journal = Journal(folder / f"{name}.sqlite", identity)
    try:
        yield Journaled(oracle, journal, "honest")
        journal.confirm_replayed(oracle, None)
    finally:
        journal.close()


def run_cell(
    opener: Opener,
    defence: Defence,
    sample: Sample,
    *,
    budget: int,
    seed: int,
    folder: Path | None,
    max_norm: float | None = None,
    max_length: int | None = None,
    check: int | None = None,
    family: str = "auto",
) -> Cell:
    """Extract through ``defence`` with at most ``budget`` queries; an unforeseen error spoils this cell alone.

    No token longer than ``max_norm``, or than the defence's own limit, is sent; ``max_length``, ``check`` and
    ``family`` as for ``recover``.

    Raises:
        JournalError: the folder belongs to another run.
    """
    started = time.perf_counter()
    cost = 0.0
    oracle: Oracle | None = None
    try:
        # a norm limit over the length of a zero token; and the last bits must not depend on where a row is computed
        with np.errstate(over="ignore"), one_thread():
            oracle = opener()
            cost = honest_cost(oracle, defence, sample, seed, folder)
            found = recover(
                defence.wrap(oracle, seed),
                max_norm=min((limit for limit in (max_norm, defence.max_norm) if limit is not None), default=None),
                max_length=max_length,
                check=check,
                family=family,
                budget=min(budget, defence.quota or budget),
                journal=None if folder is None else folder / f"{defence.slug}.sqlite",
                seed=seed,
                entropy=seed,
                on_failure="return",
            )
            part = known_part(found)
            seen = model_error(found.model, sample, defence.threshold is not None)
            if part and found.model is not None and max_norm is None:
                with _kept(oracle, seed, folder, f"part-{defence.slug}") as undefended:
                    seen = part_error(undefended, found.model, seed=seed, max_length=max_length)
    except JournalError:
        raise
    except Exception as error:
        return Cell(
            defence=defence,
            status=getattr(error, "status_name", "ERROR"),
            message=f"{type(error).__name__}: {error}",
            honest_cost=cost,
            told=family != "auto",
            seconds=time.perf_counter() - started,
        )
    finally:
        close = getattr(oracle, "close", None)
        if callable(close):
            close()
    hidden = (
        found.status.success and seen is not None and 0 < seen * sample.spread <= 6.0 * sample.noise
    )  # as the largest of some hundred
    expected = expected_error(found, sample) if hidden else None
    kept = found.account.journal
    return Cell(
        defence=defence,
        status=found.status.name,
        message=found.message,
        queries=found.queries,
        total_queries=found.spent.learn + found.spent.check,
        error=seen if expected is None else expected,
        estimated=expected is not None,
        check_error=None if found.check is None else found.check.relative_error,
        values_known=found.model is None or found.model.can_answer,
        part=part,
        told=family != "auto",
        honest_cost=cost,
        seconds=time.perf_counter() - started,
        journal=None if kept is None else kept.sha256,
        replayed=0 if kept is None else kept.replayed,
        confirmed=0 if kept is None else kept.confirmed,
        answers_from=None if kept is None else kept.answers_from,
        recovery=found if defence.base else None,
    )


def rate_limited(present: Cell, defence: Defence) -> Cell:
    """A rate limit changes no answer: the present state's row, slower."""
    return replace(
        present,
        defence=defence,
        measured=False,
        journal=None,
        replayed=0,
        confirmed=0,
        answers_from=None,
        recovery=None,
        message=f"Not run: {present.total_queries} queries as without a defence, at {defence.rate:g} a second.",
    )


def honest_cost(oracle: Oracle, defence: Defence, sample: Sample, seed: int, folder: Path | None) -> float:
    """Root mean square error that the defence adds to honest answers; asks only where honest tokens exceed its norm limit."""
    longest = max(float(np.linalg.norm(batch, axis=2).max()) for batch in sample.questions)
    if defence.max_norm is not None and longest > defence.max_norm:
        told = _told(defence.wrap(oracle, seed), sample.questions, seed, folder, f"honest-{defence.slug}")
    else:
        known = _Known(np.concatenate(sample.answers), oracle.width)
        told = [replace(defence, max_norm=None, min_norm=None).wrap(known, seed)(known.answers)]
    given, answers = np.concatenate(told), np.concatenate(sample.answers)
    if defence.threshold is not None:  # the best guess that a label leaves is the mean of the answers that get it
        labels, places = np.unique(given, return_inverse=True)
        given = np.stack([answers[places.ravel() == k].mean(axis=0) for k in range(len(labels))])[places.ravel()]
    return float(np.sqrt(np.mean((given - answers) ** 2)))


def model_error(model: Model | None, sample: Sample, labels: bool = False) -> float | None:
    """Largest deviation from the undefended answers over their spread; None for a model that cannot answer.

    Of a model learned from ``labels``, after the factor and the constants that labels cannot show.
    """
    if model is None or not model.can_answer:
        return None
    pairs = list(zip(sample.questions, sample.answers, strict=True))
    told = [model.answer(batch) for batch, _ in pairs]
    if labels:
        told = _unscaled(told, sample)
    worst = max(float(np.abs(_flat(t) - answers).max()) for t, (_, answers) in zip(told, pairs, strict=True))
    if not np.isfinite(worst):
        return None
    return worst / sample.spread if sample.spread > 0 else (0.0 if worst == 0 else None)


def _unscaled(told: list[Floats], sample: Sample) -> list[Floats]:
    """A model's answers with the factor that fits the target's differences between outputs, or between answers, best."""
    given, answers = np.concatenate([_flat(t) for t in told]), np.concatenate(sample.answers)
    several = given.shape[1] > 1
    middle = [block.mean(axis=1, keepdims=True) if several else block.mean() for block in (given, answers)]
    factor = float(np.sum((given - middle[0]) * (answers - middle[1])) / max(np.sum((given - middle[0]) ** 2), 1e-300))
    fitted = factor * (given - middle[0]) + middle[1]
    return np.split(fitted, np.cumsum([len(t) for t in told])[:-1])


def expected_error(found: Recovery, sample: Sample) -> float | None:
    """As ``model_error``, from the recovery's own error bars: how far models within them differ; None without such bars."""
    model, bounds = found.model, found.bounds
    if model is None or sample.spread <= 0:
        return None
    rng = np.random.default_rng(0)
    worst = []
    for _ in range(8):
        other = model.within(bounds, rng)
        if other is None:
            return None
        worst.append(max(float(np.abs(other.answer(batch) - model.answer(batch)).max()) for batch in sample.questions))
    return float(np.median(worst)) / sample.spread


class _Known:
    """Answers that are known already, as an oracle for a defence to act on, whatever it is asked."""

    def __init__(self, answers: Floats, width: int) -> None:
        self.answers = answers
        self.width = width

    def __call__(self, sequences: Floats, /) -> Floats:
        return self.answers


def _flat(answers: Floats) -> Floats:
    """Answers at the last position as ``(batch, outputs)``."""
    last = answers[:, -1] if answers.ndim == 3 else answers
    return np.asarray(last).reshape(len(last), -1)
