"""Attention read through networks that are never learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.errors import BudgetExceededError, NotIdentifiableError, NotInFamilyError, RefusalError
from unsoftmax.learners.behind_network import BehindNetworkLearner, mixed_tokens, price
from unsoftmax.models import Attention, Floats, softmax
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.results import Floor, Learned


class Behind:
    """One or more heads, then two dense layers; remembers the longest token that it was sent."""

    def __init__(
        self, width: int, seed: int, *, act: Callable[[Floats], Floats] = np.tanh, outputs: int = 1, **options: Any
    ) -> None:
        rng = np.random.default_rng(seed)
        inner = options.get("rank", width)
        self.W = rng.normal(size=(width, inner)) @ rng.normal(size=(inner, width)) / np.sqrt(width * max(inner, 1))
        self.c = rng.normal(size=width) * options.get("bias", False)
        self.V = rng.normal(size=(width, width)) / np.sqrt(width)
        self.V[:, : options.get("flat", 0)] = 0.0
        self.layers = rng.normal(size=(6 * width, width)) / np.sqrt(width), rng.normal(size=(outputs, 6 * width)) / np.sqrt(width)
        self.shift = rng.normal(size=6 * width)
        self.residual = options.get("residual", False)
        self.cap = options.get("cap", np.inf)
        self.second = rng.normal(size=(width, width)) if options.get("two") else None
        self.act, self.width, self.outputs, self.longest = act, width, outputs, 0.0

    def __call__(self, X: Floats) -> Floats:
        self.longest = max(self.longest, float(np.linalg.norm(X, axis=-1).max()))
        scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ self.W.T + self.c)
        scores = scores if np.isinf(self.cap) else self.cap * np.tanh(scores / self.cap)
        mixed = np.einsum("bn,bnd->bd", softmax(scores), X) @ self.V.T
        if self.second is not None:
            mixed = mixed + np.einsum("bn,bnd->bd", softmax(np.einsum("bnd,bd->bn", X, X[:, -1] @ self.second.T)), X)
        hidden = self.act((mixed + self.residual * X[:, -1]) @ self.layers[0].T + self.shift)
        answers: Floats = hidden @ self.layers[1].T + 0.3
        return answers[:, 0] if self.outputs == 1 else answers


def learn(target: Behind, seed: int = 0, **options: Any) -> tuple[Learned, Metered]:
    oracle = Metered(CallableOracle(target))
    return BehindNetworkLearner(**options).run(oracle, rng=np.random.default_rng(seed)), oracle


def error_of_scores(learned: Learned, target: Behind) -> float:
    assert isinstance(learned.model, Attention)
    assert learned.model.V is None
    size = float(np.linalg.norm(target.W) + np.linalg.norm(target.c)) or 1.0
    return float((np.linalg.norm(learned.model.W[0] - target.W) + np.linalg.norm(learned.model.c[0] - target.c)) / size)


ACTS: dict[str, Callable[[Floats], Floats]] = {
    "tanh": np.tanh,
    "relu": lambda z: np.maximum(z, 0),
    "softplus": lambda z: np.logaddexp(z, 0),
}


def missed(oracle: Any, learned: Learned, sequences: Any) -> float:
    """How far the answers to sequences are from those to the one token that each is worth, of their spread."""
    answers, alone = oracle(sequences), oracle(mixed_tokens(learned, sequences)[:, None])
    return float(np.abs(answers - alone).max() / answers.std())


@settings(max_examples=25, deadline=None)
@given(
    width=st.integers(1, 10),
    seed=st.integers(0, 2**32 - 1),
    act=st.sampled_from(sorted(ACTS)),
    outputs=st.sampled_from([1, 3]),
    bias=st.booleans(),
)
def test_scores_come_through_any_network(width: int, seed: int, act: str, outputs: int, bias: bool) -> None:
    target = Behind(width, seed, act=ACTS[act], outputs=outputs, bias=bias)
    learned, oracle = learn(target)
    assert error_of_scores(learned, target) < 1e-9
    assert learned.model.has_c == bias  # type: ignore[union-attr]
    fresh = np.random.default_rng(seed).normal(size=(20, 5, width))
    assert missed(oracle, learned, fresh) < 1e-8


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_low_rank_is_noticed_and_saves_queries(rank: int) -> None:
    target = Behind(12, rank, rank=rank)
    learned, oracle = learn(target)
    full, full_oracle = learn(Behind(12, rank))
    assert error_of_scores(learned, target) < 1e-9
    assert (learned.evidence["rank"], full.evidence["rank"]) == (rank, 12)
    assert oracle.spent < 0.75 * full_oracle.spent


@pytest.mark.parametrize("flat", [3, 7])
def test_directions_that_the_network_cannot_see_are_read_all_the_same(flat: int) -> None:
    target = Behind(8, 1, flat=flat)
    assert error_of_scores(learn(target)[0], target) < 1e-8


@pytest.mark.parametrize("seed", range(3))
def test_residual_with_vector_answers(seed: int) -> None:
    target = Behind(7, seed, outputs=9, residual=True, bias=True)
    learned, oracle = learn(target)
    mixing = np.linalg.solve(np.eye(7) + target.V, target.V)
    assert error_of_scores(learned, target) < 1e-7
    assert np.linalg.norm(learned.mixing - mixing) < 1e-7 * np.linalg.norm(mixing)
    assert missed(oracle, learned, np.random.default_rng(seed).normal(size=(20, 4, 7))) < 1e-6


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"residual": True}, NotInFamilyError),
        ({"two": True}, NotInFamilyError),
        ({"cap": 3.0}, NotInFamilyError),
        ({"act": np.zeros_like}, NotIdentifiableError),
        ({"act": np.sign}, RefusalError),
    ],
)
def test_targets_outside_are_refused(options: dict[str, Any], refusal: type[RefusalError]) -> None:
    for seed in range(3):
        with pytest.raises(refusal, match="diagnose"):
            learn(Behind(6, seed, **options))


def test_a_wrong_model_does_not_pass_the_held_out_check() -> None:
    target = Behind(5, 3)
    learned, oracle = learn(target)
    wrong = Learned(
        model=Attention(W=1.001 * learned.model.W, V=None),  # type: ignore[union-attr]
        ambiguity="",
        evidence=learned.evidence,
    )
    before = oracle.spent
    assert missed(oracle, wrong, np.random.default_rng(0).normal(size=(30, 4, 5))) > 1e-6
    assert oracle.spent - before == 60


@pytest.mark.parametrize("seed", [703, 706, 707])
def test_a_residual_is_found_with_short_tokens(seed: int) -> None:
    target = Behind(6, seed, outputs=8, residual=True, bias=True)
    assert error_of_scores(learn(target, max_norm=1.5)[0], target) < 1e-7
    assert target.longest <= 1.5


def test_no_token_is_longer_than_allowed_and_a_budget_is_kept() -> None:
    target = Behind(6, 4)
    assert error_of_scores(learn(target, max_norm=1.5)[0], target) < 1e-8
    assert target.longest <= 1.5
    oracle = Metered(CallableOracle(target), budget=100)
    with pytest.raises(BudgetExceededError):
        BehindNetworkLearner().run(oracle, rng=np.random.default_rng(0))
    assert oracle.spent <= 100


def test_same_seed_same_questions() -> None:
    first, second = (learn(Behind(6, 5), seed=9) for _ in range(2))
    assert np.array_equal(first[0].model.W, second[0].model.W)  # type: ignore[union-attr]
    assert first[1].phases == second[1].phases


@pytest.mark.parametrize("rank", [1, 8])
def test_the_bill_holds_what_is_asked(rank: int) -> None:
    for seed in range(3):
        _, oracle = learn(Behind(8, seed, rank=rank))
        bill = price(8, rank)
        assert [name for name, _, _ in bill] == list(oracle.phases)
        for name, queries, tokens in bill:
            assert queries[0] <= oracle.phases[name].queries <= queries[1]
            assert tokens[0] <= oracle.phases[name].tokens <= tokens[1]


def test_coarse_answers_give_a_coarse_result() -> None:
    class Single(Behind):
        def __call__(self, X: Floats) -> Floats:
            return super().__call__(X).astype(np.float32).astype(np.float64)

    target = Single(6, 6)
    learned, _ = learn(target, floor=Floor(kind="float32", relative=2.0**-22))
    assert error_of_scores(learned, target) < 1e-3


def test_a_rank_that_is_told_narrows_the_bill() -> None:
    told, open_ended = ({name: queries for name, queries, _ in price(10, rank)} for rank in (2, None))
    assert open_ended["scores"][0] < told["scores"][0] < told["scores"][1] < open_ended["scores"][1]
    assert told["place"] == open_ended["place"]
