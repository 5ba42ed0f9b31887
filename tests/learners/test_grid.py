"""Weights on a grid are read several to an answer and come out exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax import distance, recover
from unsoftmax.errors import NotIdentifiableError, NotInFamilyError
from unsoftmax.learners.grid import GridLearner, price
from unsoftmax.learners.grid.reader import PackedReader
from unsoftmax.learners.grid.rows import _whole
from unsoftmax.models import Attention
from unsoftmax.models.attention import Floats
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.probes.packed import base_of, capacity, common_step, digits, plain_number, strips
from unsoftmax.results import Floor, Learned


def gridded(
    width: int, largest: int, seed: int, *, step: float | Floats = 0.037, values: str = "grid", b: float = 0.0
) -> Attention:
    rng = np.random.default_rng(seed)
    steps = np.broadcast_to(np.asarray(step, dtype=np.float64), (width,))
    v = rng.integers(-largest, largest + 1, size=width) * 0.01 if values == "grid" else rng.normal(size=width)
    v[-1] = 0.01 * largest  # not all zero
    return Attention.single(W=rng.integers(-largest, largest + 1, size=(width, width)) * steps[:, None], v=v, b=b)


def learn(head: Attention, grid: float | Floats | str, seed: int = 0) -> tuple[Learned, Metered]:
    oracle = Metered(CallableOracle(head))
    return GridLearner(grid=grid).run(oracle, rng=np.random.default_rng(seed)), oracle


@settings(max_examples=30, deadline=None)
@given(
    width=st.integers(1, 12),
    largest=st.sampled_from([1, 8, 128]),
    seed=st.integers(0, 2**32 - 1),
    b=st.sampled_from([0.0, -3.3]),
    values=st.sampled_from(["grid", "real"]),
)
def test_every_entry_is_exact(width: int, largest: int, seed: int, b: float, values: str) -> None:
    step = float(np.random.default_rng(seed).uniform(1e-3, 10))
    head = gridded(width, largest, seed, step=step, values=values, b=b)
    found = learn(head, step)[0].model
    assert isinstance(found, Attention)
    assert np.array_equal(found.W, head.W)
    np.testing.assert_allclose(found.V, head.V, rtol=0, atol=1e-14 * float(np.abs(head.V).max()))  # type: ignore[arg-type]
    assert found.b == b


@pytest.mark.parametrize(("largest", "bar"), [(128, 200), (8, 120), (1, 60)])
def test_width_32_stays_below_the_bar(largest: int, bar: int) -> None:
    for seed in range(4):
        head = gridded(32, largest, seed)
        learned, oracle = learn(head, 0.037)
        assert np.array_equal(learned.model.W, head.W)  # type: ignore[union-attr]
        assert np.array_equal(learned.model.V, head.V)  # type: ignore[union-attr, arg-type]
        assert oracle.spent <= bar


def test_the_bill_is_what_is_asked() -> None:
    for largest in (128, 8, 1):
        head = gridded(20, largest, largest, step=0.01)  # the values lie on the same grid
        _, oracle = learn(head, 0.01)
        bill = price(20, largest)
        assert [(name, oracle.phases[name].queries, oracle.phases[name].tokens) for name, _, _ in bill] == bill


def test_one_step_per_row() -> None:
    steps = np.random.default_rng(5).uniform(0.01, 0.1, size=16)
    head = gridded(16, 128, 6, step=steps)
    learned, oracle = learn(head, steps)
    assert np.array_equal(learned.model.W, head.W)  # type: ignore[union-attr]
    assert oracle.spent < 80
    assert np.array_equal(learned.evidence["grid"], steps)
    found, _ = learn(head, "auto")
    np.testing.assert_allclose(found.model.W, head.W, rtol=2e-15, atol=0)  # type: ignore[union-attr]
    assert "one step per row" in " ".join(found.notes)


@pytest.mark.parametrize("largest", [128, 8, 1])
def test_a_grid_is_noticed(largest: int) -> None:
    head = gridded(16, largest, 3, step=0.0125)
    learned, oracle = learn(head, "auto")
    assert np.array_equal(learned.model.W, head.W)  # type: ignore[union-attr]
    assert learned.evidence["grid"] == 0.0125
    assert oracle.spent < 16 * 17


@pytest.mark.parametrize("factor", [2, 3, 6])
def test_entries_that_share_a_factor_by_chance_do_not_hide_the_step(factor: int) -> None:
    head = gridded(16, 128, seed=5)
    reader = PackedReader(CallableOracle(head), np.random.default_rng(1))
    assert reader.read_values(None)
    found = reader._divided(3, factor * 0.037, np.array([1.0, -4.0]))
    assert found is not None
    assert np.allclose(found, 0.037, rtol=1e-12)


def test_steps_of_rows_may_be_told() -> None:
    steps = np.linspace(0.01, 0.02, 6)
    head = gridded(6, 8, seed=2, step=steps)
    found = recover(head, grid=steps, seed=0)
    assert found.status.name == "EXACT"
    assert distance(found.model, head) < 1e-15


@pytest.mark.parametrize(("largest", "bar"), [(128, 400), (8, 300), (1, 250)])
def test_a_step_for_each_row_is_found_within_the_bar(largest: int, bar: int) -> None:
    steps = np.exp(np.random.default_rng(largest).uniform(-6, -1, size=32))
    head = gridded(32, largest, 5, step=steps)
    learned, oracle = learn(head, "auto")
    np.testing.assert_allclose(learned.model.W, head.W, rtol=4e-15, atol=0)  # type: ignore[union-attr]
    np.testing.assert_allclose(learned.evidence["grid"], steps, rtol=4e-15)
    assert oracle.spent <= bar


@pytest.mark.parametrize("special", ["sparse", "first row small", "even row"])
def test_rows_of_other_kinds_come_out_right(special: str) -> None:
    rng = np.random.default_rng(3)
    steps = rng.uniform(0.01, 0.1, size=16)
    multiples = rng.integers(-128, 129, size=(16, 16))
    if special == "sparse":
        multiples[rng.uniform(size=(16, 16)) < 0.2] = 0
    elif special == "first row small":
        multiples[0] = rng.integers(-8, 9, size=16)
    else:
        multiples[4] = 2 * (multiples[4] // 2)
    head = Attention.single(W=multiples * steps[:, None], v=rng.normal(size=16))
    learned, oracle = learn(head, "auto")
    np.testing.assert_allclose(learned.model.W, head.W, rtol=4e-15, atol=0)  # type: ignore[union-attr]
    assert "one step per row" in " ".join(learned.notes)
    assert oracle.spent < 16 * 17


@pytest.mark.parametrize("seed", [5400000, 5400007, 5400017, 5410017])
def test_rows_half_of_whose_entries_are_zero_cost_less_than_full_price(seed: int) -> None:
    """Some never come out whole, some come out wrong, and the first ones may share a large factor: each is read entry by entry."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(32, 32))
    W[rng.uniform(size=(32, 32)) < 0.5] = 0
    steps = np.abs(W).max(axis=1, keepdims=True) / 127
    head = Attention.single(W=np.rint(W / steps) * steps, v=rng.normal(size=32))
    found = recover(head, grid="auto", seed=seed)
    assert isinstance(found.model, Attention)
    np.testing.assert_allclose(found.model.W, head.W, rtol=1e-14)
    assert found.queries < 700 < 32 * 33


def test_a_number_that_is_none_is_not_whole() -> None:
    with np.errstate(all="raise"):
        _, rest = digits(np.array([np.inf, np.nan, 5.0]), 17, 2)
    assert rest.tolist() == [np.inf, np.inf, 0.0]


def test_digits_in_units_of_a_wrong_step_are_told_by_the_room_they_take() -> None:
    entries = np.random.default_rng(4).integers(-8, 9, size=14)
    entries[[0, 1, 3]] = 8, -6, 5
    numbers = np.array([entries[:2] @ 25 ** np.arange(2), *(entries[i : i + 4] @ 25 ** np.arange(4) for i in (2, 6, 10))])
    sizes = [2, 4, 4, 4]
    for share in (1, 2, 3, 7):
        told, found = _whole(numbers / share, sizes, 25, 8)
        assert told == share
        assert np.array_equal(found, entries)
    assert _whole(numbers / 3.001, sizes, 25, 8)[0] == 0
    assert _whole(numbers, sizes, 25, 4)[0] == 0, "a larger range"
    assert _whole(np.full(4, np.nan), sizes, 25, 8)[0] == 0
    shifted = 25 * (numbers - entries[[1, 5, 9, 13]] * 25 ** (np.array(sizes) - 1))  # the first digit of each is zero
    assert _whole(shifted, sizes, 25, 8)[0] == 1
    assert _whole(shifted / 25, sizes, 25, 8)[0] == 0, "entries one place further on would explain it, too"


def test_no_grid_is_said_so() -> None:
    head = Attention.single(W=np.random.default_rng(0).normal(size=(6, 6)), v=np.ones(6))
    learned, _ = learn(head, "auto")
    np.testing.assert_allclose(learned.model.W, head.W, rtol=1e-10)  # type: ignore[union-attr]
    assert "No grid" in " ".join(learned.notes)


@pytest.mark.parametrize("factor", [2.0, 1.5, 1.003, 0.7])
@pytest.mark.parametrize("largest", [128, 8, 1])
def test_a_wrong_step_is_refused(factor: float, largest: int) -> None:
    head = gridded(12, largest, 8)
    with pytest.raises(NotInFamilyError, match="auto"):
        learn(head, 0.037 * factor)
    with pytest.raises(NotInFamilyError, match="grid"):
        learn(Attention.single(W=head.W[0] + 0.01 * np.eye(12), v=head.V[0]), 0.037)  # type: ignore[index]


def test_a_finer_step_than_the_true_one_serves() -> None:
    head = gridded(10, 8, 9)
    assert np.array_equal(learn(head, 0.037 / 2)[0].model.W, head.W)  # type: ignore[union-attr]


def test_query_bias_vectors_and_bounds_take_the_plain_way() -> None:
    rng = np.random.default_rng(1)
    W = rng.integers(-128, 129, size=(6, 6)) * 0.02
    biased = Attention.single(W=W, v=rng.normal(size=6), c=rng.normal(size=6))
    vectors = Attention.single(W=W, v=rng.normal(size=(6, 3)))
    for head in (biased, vectors):
        assert np.array_equal(learn(head, 0.02)[0].model.W[0], W)  # type: ignore[union-attr]
        with pytest.raises(NotInFamilyError):
            learn(head, 0.03)
    oracle = Metered(CallableOracle(vectors))
    bounded = GridLearner(grid=0.02, max_norm=2.0, floor=Floor()).run(oracle, rng=rng)
    assert np.array_equal(bounded.model.W[0], W)  # type: ignore[union-attr]


def test_values_of_zero_hide_everything() -> None:
    with pytest.raises(NotIdentifiableError, match="values"):
        learn(Attention.single(W=np.eye(5), v=np.zeros(5)), 1.0)


@pytest.mark.parametrize("grid", ["coarse", 0.0, -1.0, np.nan, np.ones(3)])
def test_misuse(grid: float | Floats | str) -> None:
    with pytest.raises(ValueError, match="grid"):
        learn(gridded(4, 8, 0), grid)


@given(st.lists(st.integers(-8, 8), min_size=1, max_size=10))
def test_digits_come_back(numbers: list[int]) -> None:
    base = base_of(8)
    packed = float(sum(number * base**place for place, number in enumerate(numbers)))
    found, rest = digits(np.array([packed]), base, len(numbers))
    assert found[0].tolist() == numbers
    assert rest[0] == 0


@given(st.integers(1, 60), st.integers(1, 40))
def test_strips_cover_every_column_within_the_limit(width: int, limit: int) -> None:
    cut = strips(width, limit)
    assert sum(columns for columns, _ in cut) == width
    assert all(columns * rows <= limit for columns, rows in cut)
    assert sum(-(-width // rows) for _, rows in cut) <= width * -(-width // limit)


@given(st.lists(st.integers(-128, 128), min_size=2, max_size=9), st.floats(1e-6, 1e6))
def test_a_common_step_divides_everything(multiples: list[int], step: float) -> None:
    values = np.array(multiples) * step
    found = common_step(values)
    if np.count_nonzero(values) < 2:
        assert found is None
    else:
        assert found is not None
        np.testing.assert_allclose(values / found, np.rint(values / found), atol=1e-9)
        assert found >= step * (1 - 1e-12)


def test_random_numbers_have_no_common_step() -> None:
    assert all(common_step(np.random.default_rng(seed).normal(size=6)) is None for seed in range(200))
    assert plain_number(0.1 + 1e-17) == 0.1
    assert capacity(10**9) == 1
