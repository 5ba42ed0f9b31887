"""Probes drawn before the first answer, and what they are worth when too few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.errors import FileFormatError, NotIdentifiableError, NotInFamilyError, TooNoisyError
from unsoftmax.learners.non_adaptive import NonAdaptiveLearner, price, recorded_check
from unsoftmax.learners.non_adaptive.low_rank_fit import fit_rank, measure, nuclear_norm
from unsoftmax.models import Attention
from unsoftmax.models.attention import Floats
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.probes.fixed import FixedProbes, load_answers
from unsoftmax.results import Floor, Learned


def head_of(width: int, rank: int, seed: int, *, size: float = 1.0, outputs: tuple[int, ...] = (), **options: Any) -> Attention:
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width)) * size / np.sqrt(width * max(rank, 1))
    return Attention.single(W=W, v=rng.normal(size=(width, *outputs)), **options)


def learn(head: Attention, seed: int = 0, **settings: Any) -> tuple[Learned, Metered]:
    oracle = Metered(CallableOracle(head))
    return NonAdaptiveLearner(**settings).run(oracle, rng=np.random.default_rng(seed)), oracle


def error_of(learned: Learned, head: Attention) -> float:
    assert isinstance(learned.model, Attention)
    return float(np.linalg.norm(learned.model.W - head.W) / (np.linalg.norm(head.W) or 1.0))


@settings(max_examples=25, deadline=None)
@given(
    width=st.integers(6, 20),
    rank=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    b=st.sampled_from([0.0, 4.0]),
    outputs=st.sampled_from([(), (2,)]),
)
def test_low_rank_from_fixed_probes(width: int, rank: int, seed: int, b: float, outputs: tuple[int, ...]) -> None:
    head = head_of(width, rank, seed, outputs=outputs, b=np.full(outputs, b))
    learned, oracle = learn(head, rank=rank)
    assert error_of(learned, head) < 1e-10
    assert learned.evidence["rank"] == rank
    assert oracle.spent <= (3.0 if rank == 1 else 2.2) * (width + rank * (2 * width - rank)) + 8
    bill = price(width, rank)
    assert [(name, oracle.phases[name].queries, oracle.phases[name].tokens) for name, _, _ in bill] == bill


@pytest.mark.parametrize("max_norm", [None, 1.5])
def test_any_rank_from_the_dense_plan(max_norm: float | None) -> None:
    for rank in (0, 3, 12):
        head = head_of(12, rank, rank)
        learned, oracle = learn(head, max_norm=max_norm)
        assert error_of(learned, head) < 1e-10
        assert learned.evidence["rank"] == rank
        assert oracle.spent <= 1.1 * (144 + 12) + 2


def test_probes_do_not_depend_on_answers() -> None:
    first = NonAdaptiveLearner(rank=2).plan(9, np.random.default_rng(3))
    second = NonAdaptiveLearner(rank=2).plan(9, np.random.default_rng(3))
    assert all(np.array_equal(a, b) for a, b in zip(first.arrays, second.arrays, strict=True))
    asked: list[Floats] = []

    class Listening(CallableOracle):
        def __call__(self, sequences: Floats, /) -> Floats:
            asked.append(sequences)
            return super().__call__(sequences)

    NonAdaptiveLearner(rank=2).run(Listening(head_of(9, 2, 0)), rng=np.random.default_rng(3))
    assert all(np.array_equal(a, b) for a, b in zip(first.arrays, asked, strict=True))


@pytest.mark.parametrize("method", ["factored", "nuclear"])
@pytest.mark.parametrize("oversampling", [0.8, 1.0, 1.1])
def test_too_few_probes_are_never_a_success(method: str, oversampling: float) -> None:
    for seed in range(3):
        with pytest.raises(NotIdentifiableError, match="Too few"):
            learn(head_of(16, 3, seed), seed, rank=3, oversampling=oversampling, method=method)


def test_a_higher_rank_than_planned_is_refused_and_a_lower_one_found() -> None:
    with pytest.raises(NotIdentifiableError, match="higher"):
        learn(head_of(16, 4, 1), rank=2)
    learned, _ = learn(head_of(16, 1, 1), rank=3)
    assert learned.evidence["rank"] == 1
    assert error_of(learned, head_of(16, 1, 1)) < 1e-10


def test_the_nuclear_norm_agrees() -> None:
    head = head_of(12, 2, 5)
    assert error_of(learn(head, rank=2, oversampling=3.0, method="nuclear")[0], head) < 1e-10


def test_solvers_on_plain_measurements() -> None:
    rng = np.random.default_rng(2)
    W = rng.normal(size=(10, 2)) @ rng.normal(size=(2, 10))
    u, x = rng.normal(size=(2, 90, 10))
    z = measure(W, u, x)
    assert np.linalg.norm(fit_rank(u, x, z, 2, rng, 4).W - W) < 1e-9
    assert np.linalg.norm(nuclear_norm(u, x, z).W - W) < 1e-5
    assert fit_rank(u, x, z, 1, rng, 2).misfit > 1e-3


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_scores_of_unknown_size(size: float) -> None:
    head = head_of(12, 2, 7, size=size)
    assert error_of(learn(head, rank=2)[0], head) < 1e-9


def test_refusals() -> None:
    with pytest.raises(TooNoisyError, match="scale"):
        learn(head_of(8, 1, 0, size=1e7), rank=1)
    with pytest.raises(TooNoisyError, match="scale"):
        learn(head_of(8, 1, 0), rank=1, floor=Floor(kind="rounded", relative=1e-3))
    single = CallableOracle(lambda X: head_of(8, 1, 0)(X).astype(np.float32), width=8)
    with pytest.raises(TooNoisyError, match="scale"):
        NonAdaptiveLearner(rank=1).run(single, rng=np.random.default_rng(0))
    with pytest.raises(NotInFamilyError, match="query bias"):
        learn(head_of(8, 1, 0, c=np.ones(8)), rank=1)
    with pytest.raises(NotIdentifiableError, match="values"):
        learn(Attention.single(W=np.eye(4), v=np.zeros(4)), rank=1)
    two = Attention(W=np.random.default_rng(0).normal(size=(2, 6, 6)), V=np.random.default_rng(1).normal(size=(2, 6)))
    with pytest.raises(NotInFamilyError, match="single head"):
        learn(two)


def test_probes_and_answers_travel_as_files(tmp_path: Path) -> None:
    head = head_of(10, 2, 8)
    learner = NonAdaptiveLearner(rank=2)
    probes = learner.plan(10, np.random.default_rng(4), checks=20)
    probes.save(tmp_path / "probes.npz")
    again = FixedProbes.load(tmp_path / "probes.npz")
    assert again.record == probes.record
    assert (again.queries, again.width) == (probes.queries, 10)
    answers = {f"Y{index}": head(array) for index, array in enumerate(again.arrays)}
    np.savez(tmp_path / "answers.npz", **answers)  # type: ignore[arg-type]
    with np.load(tmp_path / "probes.npz") as file:
        np.savez(tmp_path / "both.npz", **file, **answers)  # type: ignore[arg-type]
    for name in ("answers.npz", "both.npz"):
        said = load_answers(tmp_path / name, again)
        learned = learner.learn(again, said, rng=np.random.default_rng(0))
        assert error_of(learned, head) < 1e-10
        check = recorded_check(learned, again, said)
        assert check is not None
        assert check.relative_error < 1e-10
        assert check.sequences == 20
    assert recorded_check(learned, learner.plan(10, np.random.default_rng(4)), said) is None


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    probes = NonAdaptiveLearner(rank=1).plan(4, np.random.default_rng(0))
    probes.save(tmp_path / "probes.npz")
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "bare.npz", X0=np.zeros((1, 1, 4)))
    np.savez(tmp_path / "gap.npz", Y0=np.zeros(5), Y2=np.zeros(5))
    np.savez(tmp_path / "short.npz", Y0=np.zeros(5), Y1=np.zeros(3))
    np.savez(tmp_path / "one.npz", Y0=np.zeros(5))
    np.savez(tmp_path / "nan.npz", Y0=np.full(5, np.nan), Y1=np.zeros(len(probes.arrays[1])))
    np.savez(tmp_path / "plan.npz", X0=np.zeros((1, 1, 4)), plan=np.array("{"))
    np.savez(tmp_path / "words.npz", Y0=np.array(["a"]), Y1=np.array(["b"]))
    with pytest.raises(FileNotFoundError):
        FixedProbes.load(tmp_path / "absent.npz")
    for name in ("text.npz", "bare.npz", "plan.npz"):
        with pytest.raises(FileFormatError):
            FixedProbes.load(tmp_path / name)
    for name in ("gap.npz", "short.npz", "one.npz", "nan.npz", "words.npz"):
        with pytest.raises(FileFormatError, match="Y"):
            load_answers(tmp_path / name, probes)
    with pytest.raises(ValueError, match="kind"):
        NonAdaptiveLearner().learn(FixedProbes(probes.arrays, {}), [np.zeros(5)], rng=np.random.default_rng(0))
