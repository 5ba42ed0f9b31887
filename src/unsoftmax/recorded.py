"""Recovery from answers to fixed probes: no live target, nothing asked."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import numpy as np

from unsoftmax.accounts import Account, Queries
from unsoftmax.errors import FileFormatError, NotInFamilyError, RefusalError, check_positive
from unsoftmax.evidence import Evidence
from unsoftmax.learners.non_adaptive import NonAdaptiveLearner, recorded_check
from unsoftmax.memory import archive_holds
from unsoftmax.probes.fixed import FixedProbes, load_answers
from unsoftmax.proof.limits import LIMITS
from unsoftmax.results import Check, Learned, Recovery, Status

CHECKS = 64  # longer sequences that an exported plan holds beside its probes, for the held-out check


def export_probes(
    path: str | Path, width: int, *, rank: int | None = None, seed: int = 0, max_norm: float | None = None
) -> FixedProbes:
    """Write all probes of a non-adaptive recovery, and sequences for its check, to ``path``; returns them."""
    check_positive(max_norm=max_norm)
    learner = NonAdaptiveLearner(rank=rank, max_norm=max_norm)
    probes = learner.plan(width, np.random.default_rng(seed), checks=CHECKS)
    probes.save(path)
    return probes


def _questions_beside(path: Path) -> Path:
    """The file with the questions: the same one, or the only other in its folder that holds a plan."""
    if not path.is_file() or not zipfile.is_zipfile(path) or archive_holds(path, "X0"):
        return path
    others = [p for p in sorted(path.parent.glob("*.npz")) if archive_holds(p, "plan")]
    if len(others) != 1:
        raise FileFormatError(
            f"{path} holds answers but no questions, and {len(others)} files beside it hold a plan. "
            "Add the answers Y0, Y1, … to the exported file, or keep exactly that one in the same folder."
        )
    return others[0]


def recover_recorded(path: str | Path, *, probes_path: str | Path | None = None, seed: int = 0) -> Recovery:
    """Recover from a file with questions ``X0, X1, …`` and answers ``Y0, Y1, …``; the last array is held out for the check.

    Args:
        path: file with the answers.
        probes_path: file with the questions, where they are not in the same one.
        seed: of the solver's random starts.
    """
    started = time.perf_counter()
    probes = FixedProbes.load(_questions_beside(Path(path)) if probes_path is None else probes_path)
    answers = load_answers(path, probes)
    learned: Learned | None = None
    check: Check | None = None
    refusal: RefusalError | None = None
    try:
        learned = NonAdaptiveLearner(rank=probes.record.get("rank")).learn(probes, answers, rng=np.random.default_rng(seed))
        check = recorded_check(learned, probes, answers)
        if check is None:
            raise NotInFamilyError(
                "The file holds no sequences for a held-out check, so nothing can be announced. "
                "Export the probes again with `unsoftmax plan TARGET --non-adaptive --export FILE.npz`.",
                model=learned.model,
            )
        if not check.relative_error <= LIMITS.exact:
            raise NotInFamilyError(
                f"The model that fits the recorded answers misses the held-out ones by {check.relative_error:.2g} (relative), "
                f"where {LIMITS.exact:.0e} is allowed: too few probes, too low a rank, or a target outside the family.",
                model=learned.model,
            )
        status, message = Status.EXACT, Status.EXACT.value
    except RefusalError as error:  # the door of this way to a recovery
        refusal = error
        status, message = Status[error.status_name], str(error)
    model = learned.model if learned is not None else getattr(refusal, "model", None)
    asked = probes.queries - (0 if check is None else check.sequences)
    account = Account(
        family="attention",
        width=probes.width,
        layout={1: "scalar", 2: "vector", 3: "all positions"}[answers[0].ndim],
        outputs=int(np.prod(answers[0].shape[1:], dtype=int)),
        tolerance=LIMITS.exact,
        queries=Queries(asked, probes.queries - asked),
        notes=("All probes were fixed beforehand.", *(() if learned is None else learned.notes)),
        evidence=Evidence(None if learned is None else learned.evidence),
        seed=seed,
        seconds=time.perf_counter() - started,
        sizes=None if model is None else model.sizes(None if learned is None else learned.ranks),
        more=Evidence({"floor": {"kind": "exact"}, "recorded": True}),
    )
    return Recovery(
        model=model,
        status=status,
        queries=asked,
        check=check,
        bounds=None,
        ambiguity="" if learned is None else learned.ambiguity,
        message=message,
        account=account,
    )
