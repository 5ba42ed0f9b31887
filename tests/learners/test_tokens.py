"""Targets that take token ids only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.errors import BudgetExceededError, NotIdentifiableError, NotInFamilyError, TargetError
from unsoftmax.learners.tokens import TokensLearner, price
from unsoftmax.models import Attention
from unsoftmax.models.attention import Floats
from unsoftmax.oracles import Metered
from unsoftmax.oracles.tokens import Tokens
from unsoftmax.results import Learned


def vocabulary_of(width: int, size: int, seed: int) -> Floats:
    return np.random.default_rng([seed, 1]).normal(size=(size, width))


def head_for(table: Floats, rank: int, deviation: float, seed: int, **options: Any) -> Attention:
    rng = np.random.default_rng(seed)
    width = table.shape[1]
    W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width))
    W *= deviation / ((table @ W @ table.T).std() or 1.0)
    return Attention.single(
        W=W,
        v=rng.normal(size=(width, *options.get("outputs", ()))),
        c=rng.normal(size=width) if options.get("bias") else None,
        b=options.get("b", 0.0),
    )


def learn(head: Attention, table: Floats, budget: int | None = None) -> tuple[Learned, Metered]:
    oracle = Metered(Tokens(lambda ids: head(table[ids]), table), budget=budget)
    return TokensLearner().run(oracle, rng=np.random.default_rng(0)), oracle


def prediction_error(learned: Learned, head: Attention, table: Floats) -> float:
    fresh = table[np.random.default_rng(99).integers(len(table), size=(200, 5))]
    answers = head(fresh)
    return float(np.abs(learned.model(fresh) - answers).max() / answers.std())


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 8),
    extra=st.integers(2, 60),
    seed=st.integers(0, 2**32 - 1),
    bias=st.booleans(),
    b=st.sampled_from([0.0, 1.5]),
    outputs=st.sampled_from([(), (3,)]),
)
def test_predictions_on_all_token_sequences(
    width: int, extra: int, seed: int, bias: bool, b: float, outputs: tuple[int, ...]
) -> None:
    table = vocabulary_of(width, width + extra, seed)
    head = head_for(table, width, 1.0, seed, bias=bias, outputs=outputs)
    learned, _ = learn(head, table)
    assert prediction_error(learned, head, table) < 1e-8
    assert "unique" in learned.ambiguity


@pytest.mark.parametrize("rank", [1, 3, 16])
def test_all_of_w_where_tokens_span(rank: int) -> None:
    table = vocabulary_of(16, 120, rank)
    head = head_for(table, rank, 1.0, rank)
    learned, oracle = learn(head, table)
    assert learned.evidence["rank"] == rank
    assert np.linalg.norm(learned.model.W - head.W) < 1e-10 * np.linalg.norm(head.W)  # type: ignore[union-attr]
    assert not learned.model.has_c  # type: ignore[union-attr]
    assert not learned.model.has_b  # type: ignore[union-attr]
    assert oracle.spent <= 16 + rank * (32 - rank) + rank + 14
    bill = price(16, rank, 120)
    assert [name for name, _, _ in bill] == list(oracle.phases)
    assert abs(sum(queries for _, queries, _ in bill) - oracle.spent) <= 10


@pytest.mark.parametrize("rank", [1, 4])
def test_wide_scores_are_read_with_other_keys(rank: int) -> None:
    for seed in range(3):
        table = vocabulary_of(24, 300, seed)
        head = head_for(table, rank, 3.0, seed)
        learned, oracle = learn(head, table)
        assert prediction_error(learned, head, table) < 1e-9
        assert oracle.spent <= 1.7 * (24 + rank * (48 - rank))


def test_a_small_vocabulary_leaves_w_open_and_says_how_much() -> None:
    table = vocabulary_of(32, 20, 5)
    head = head_for(table, 32, 1.0, 5)
    learned, oracle = learn(head, table)
    assert prediction_error(learned, head, table) < 1e-10
    assert learned.evidence["identifiable"] == 20 * 19
    assert learned.evidence["unidentifiable"] == 1024 - 380
    assert "not identifiable" in learned.ambiguity
    assert "380 of its 1024" in learned.ambiguity
    assert oracle.spent <= 404


@pytest.mark.parametrize("deviation", [3.0, 5.0])
def test_companions_read_what_saturates_in_a_small_vocabulary(deviation: float) -> None:
    for seed in range(3):
        table = vocabulary_of(32, 20, seed)
        head = head_for(table, 32, deviation, seed)
        learned, oracle = learn(head, table)
        assert prediction_error(learned, head, table) < (1e-10 if deviation == 3.0 else 1e-7)
        assert oracle.spent <= 1.7 * 400


def test_differences_that_do_not_span() -> None:
    table = vocabulary_of(6, 50, 7)
    table[:, 5] = 1.0  # every token has the same last entry
    head = head_for(table, 6, 1.0, 7)
    learned, _ = learn(head, table)
    assert prediction_error(learned, head, table) < 1e-9
    assert learned.evidence["identifiable"] == 5 * 6


def test_refusals() -> None:
    table = vocabulary_of(4, 30, 8)
    with pytest.raises(NotIdentifiableError, match="values"):
        learn(Attention.single(W=np.eye(4), v=np.zeros(4)), table)
    with pytest.raises(NotIdentifiableError, match="equal"):
        learn(Attention.single(W=np.eye(4), v=np.ones(4)), np.ones((3, 4)))
    two = Attention(W=np.random.default_rng(0).normal(size=(2, 4, 4)), V=np.random.default_rng(1).normal(size=(2, 4)))
    with pytest.raises(NotInFamilyError, match="embedding"):
        learn(two, table)
    shuffled = Metered(Tokens(lambda ids: head_for(table, 4, 1.0, 0)(table[::-1][ids]), table))
    with pytest.raises(NotInFamilyError, match="embedding"):
        TokensLearner().run(shuffled, rng=np.random.default_rng(0))
    with pytest.raises(BudgetExceededError):
        learn(head_for(table, 4, 1.0, 8), table, budget=10)


def test_only_rows_of_the_table_are_sent() -> None:
    table = vocabulary_of(3, 9, 1)
    seen: list[Any] = []

    def target(ids: Any) -> Floats:
        seen.append(ids)
        return np.zeros(len(ids))

    oracle = Tokens(target, table)
    assert (oracle.width, oracle.vocabulary) == (3, 9)
    sequences = oracle.draw(np.random.default_rng(0), 5, 4)
    assert oracle(sequences).shape == (5,)
    assert seen[0].dtype == np.int64
    assert np.array_equal(table[seen[0]], sequences)
    with pytest.raises(ValueError, match="not a row"):
        oracle(sequences + 1e-9)
    with pytest.raises(ValueError, match="embeddings"):
        Tokens(target, np.zeros(3))
    with pytest.raises(TargetError, match="RuntimeError"):
        Tokens(_broken, table)(sequences)


def _broken(ids: Any) -> Floats:
    raise RuntimeError("no")


def test_equal_rows_and_signed_zeros_are_one_token() -> None:
    table = np.array([[0.0, 1.0], [1.0, 0.0], [-0.0, 1.0]])
    assert Tokens(lambda ids: ids.sum(axis=1), table).ids(table[None]).tolist() == [[0, 1, 0]]
