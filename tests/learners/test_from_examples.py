"""Learning from recorded examples: exact, noisy, awkward and hopeless data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, RefusalError
from unsoftmax.learners.from_examples import errors, learn_from_examples, search, verdict
from unsoftmax.learners.from_examples.data import Extras, frame_of, hold_out, read_examples
from unsoftmax.learners.from_examples.errors import normal_matrix
from unsoftmax.learners.from_examples.fit import Effort, fit_from, fit_together, random_theta
from unsoftmax.learners.from_examples.layer import Linearised, evaluate
from unsoftmax.learners.from_examples.search import Candidate
from unsoftmax.learners.from_examples.settings import EXAMPLES
from unsoftmax.models import Attention, Floats
from unsoftmax.results import Recovery, Status
from unsoftmax.symmetry import distance

SEEDS = st.integers(0, 2**32 - 1)


def layer(rng: np.random.Generator, heads: int, width: int, *, size: float = 2.0, outputs: int | None = None) -> Attention:
    W = rng.normal(size=(heads, width, width))
    W *= size / np.linalg.norm(W, axis=(1, 2), keepdims=True)
    return Attention(W, rng.normal(size=(heads, width, outputs or width)) / np.sqrt(width))


def signs(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.choice([-1.0, 1.0], size=shape)


def quietly(X: Floats, Y: Floats, **options: object) -> Recovery:
    return learn_from_examples(X, Y, on_failure="return", **options)  # type: ignore[arg-type]


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, heads=st.integers(1, 3), length=st.sampled_from([4, 8]), boolean=st.booleans())
def test_exact_answers_give_back_the_layer(seed: int, heads: int, length: int, boolean: bool) -> None:
    rng = np.random.default_rng(seed)
    truth = layer(rng, heads, 6)
    number = 8 * 2 * heads * 6 // length
    X = signs(rng, number, length, 6) if boolean else rng.normal(size=(number, length, 6))
    found = quietly(X, truth(X, "all"), seed=seed % 1000)
    if found.status.success:  # a Boolean sample of this size may be degenerate; then it must be refused, not wrong
        assert found.status is Status.EXACT
        assert found.queries == 0
        assert distance(found.model, truth) < 1e-8  # type: ignore[arg-type]
    else:
        assert boolean


@settings(max_examples=8, deadline=None)
@given(seed=SEEDS, number=st.integers(3, 8))
def test_few_examples_are_never_a_wrong_success(seed: int, number: int) -> None:
    rng = np.random.default_rng(seed)
    truth = layer(rng, 2, 3)
    X = rng.normal(size=(number, 4, 3))  # one to three equations per unknown
    found = quietly(X, truth(X, "all"))
    assert not found.status.success or distance(found.model, truth) < 1e-8  # type: ignore[arg-type]


def test_too_few_examples_name_the_number_needed_and_that_number_suffices() -> None:
    rng = np.random.default_rng(5)
    truth = layer(rng, 2, 8)
    X = rng.normal(size=(200, 8, 8))
    with pytest.raises(NotIdentifiableError, match="about") as caught:
        learn_from_examples(X[:3], truth(X[:3], "all"), heads=2)
    needed = caught.value.recovery.facts["examples_needed"]
    assert 3 < needed < 60
    assert caught.value.recovery.status is Status.NOT_IDENTIFIABLE
    assert learn_from_examples(X[:needed], truth(X[:needed], "all"), heads=2).status is Status.EXACT


@pytest.mark.parametrize(
    "kind", ["last", "scalar", "causal", "padded", "biases", "residual", "low rank", "cancelling", "saturated"]
)
def test_every_kind_of_recording(kind: str) -> None:
    rng = np.random.default_rng(11)
    truth, X = layer(rng, 2, 6), rng.normal(size=(64, 6, 6))
    options: dict[str, object] = {}
    if kind == "last":
        X = rng.normal(size=(200, 6, 6))
        Y = truth(X)
    elif kind == "scalar":
        truth = Attention(truth.W, truth.V[:, :, 0])  # type: ignore[index]
        X = rng.normal(size=(700, 6, 6))
        Y = truth(X)
    elif kind == "causal":
        Y, options = truth(X, "all", causal=True), {"causal": True}
    elif kind == "padded":
        lengths = rng.integers(1, 7, size=64)
        mask = np.arange(6) < lengths[:, None]
        Y = np.full((64, 6, 6), np.nan)
        for i, n in enumerate(lengths):
            Y[i, :n] = truth(X[i : i + 1, :n], "all")[0]
        options = {"mask": mask}
    elif kind in ("biases", "residual"):
        truth = Attention(truth.W, truth.V, rng.normal(size=(2, 6)), rng.normal(size=6))
        Y = truth(X, "all") + (X if kind == "residual" else 0.0)
    elif kind == "low rank":
        truth = Attention(np.einsum("hi,hj->hij", *rng.normal(size=(2, 2, 6))) / 3, truth.V)
        Y = truth(X, "all")
    elif kind == "cancelling":
        truth = Attention(truth.W, np.stack([truth.V[0], -truth.V[0]]))  # type: ignore[index]
        Y = truth(X, "all")
    else:
        truth, X = layer(rng, 2, 6, size=32.0), signs(rng, 256, 6, 6)
        Y = truth(X, "all")
    found = learn_from_examples(X, Y, **options)  # type: ignore[arg-type]
    assert found.status is Status.EXACT
    assert distance(found.model, truth) < 1e-8  # type: ignore[arg-type]
    assert ("residual" in found.facts) == (kind == "residual")
    if kind == "residual":
        np.testing.assert_array_equal(found.facts["residual"], np.eye(6))


@pytest.mark.parametrize(("dtype", "error"), [(np.float16, 2e-3), (np.float32, 1e-6)])
def test_coarse_digits_are_reached_and_called_so(dtype: type, error: float) -> None:
    rng = np.random.default_rng(2)
    truth, X = layer(rng, 2, 6), rng.normal(size=(64, 6, 6))
    found = learn_from_examples(X, truth(X, "all").astype(dtype))
    assert found.status is Status.WITHIN_TOLERANCE
    assert distance(found.model, truth) < error  # type: ignore[arg-type]


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_noise_leaves_the_head_count_right_and_the_error_bars_honest(heads: int) -> None:
    rng = np.random.default_rng(heads)
    truth, X = layer(rng, heads, 6), rng.normal(size=(40 * heads, 6, 6))
    Y = truth(X, "all")
    found = learn_from_examples(X, Y + 1e-3 * rng.normal(size=Y.shape))
    model, bounds = found.model, found.bounds
    assert found.status is Status.WITHIN_TOLERANCE
    assert isinstance(model, Attention)
    assert model.V is not None
    assert truth.V is not None
    assert bounds is not None
    assert bounds.V is not None
    assert model.heads == heads
    order = [int(np.argmin([np.abs(W - other).max() for other in truth.W])) for W in model.W]
    inside = np.concatenate(
        [(np.abs(model.W - truth.W[order]) <= bounds.W).ravel(), (np.abs(model.V - truth.V[order]) <= bounds.V).ravel()]
    )
    assert 0.88 < inside.mean() <= 1.0


def test_error_bars_from_draws_agree_with_those_of_the_normal_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(21)
    truth, X = layer(rng, 1, 4), rng.normal(size=(40, 5, 4))
    truth = Attention(truth.W, truth.V, rng.normal(size=(1, 4)), rng.normal(size=4))
    Y = truth(X, "all") + 1e-3 * rng.normal(size=X.shape)
    inverted = learn_from_examples(X, Y, heads=1).bounds
    monkeypatch.setattr(errors, "EXAMPLES", replace(EXAMPLES, largest=0))
    drawn = learn_from_examples(X, Y, heads=1).bounds
    assert inverted is not None
    assert drawn is not None
    for name in ("W", "V", "c", "b"):
        ratio = getattr(drawn, name) / getattr(inverted, name)
        assert 0.9 < ratio.mean() < 1.3  # sixteen draws: a fifth each way, and Student's t adds 8%


def test_starts_side_by_side_end_where_each_alone_ends() -> None:
    rng = np.random.default_rng(22)
    truth, X = layer(rng, 1, 4), rng.normal(size=(30, 5, 4))
    examples = read_examples(X, truth(X, "all") + 0.01 * rng.normal(size=X.shape))
    problem = frame_of(examples).problem(examples, examples.counts, Extras())
    starts = [random_theta(problem, 1, rng) for _ in range(3)]
    together = fit_together(problem, starts, Effort(goal=0.0, stall=1e-6), rng)
    alone = [fit_from(problem, theta, Effort(goal=0.0, stall=1e-6), rng) for theta in starts]
    np.testing.assert_allclose([fit.error for fit in together], [fit.error for fit in alone], rtol=1e-3)


@pytest.mark.parametrize("noise", [0.0, 1e-2])
def test_a_fit_with_too_many_heads_is_brought_down_to_the_right_number(noise: float) -> None:
    rng = np.random.default_rng(23)
    truth, X = layer(rng, 2, 4), rng.normal(size=(80, 6, 4))
    examples = read_examples(X, truth(X, "all") + noise * rng.normal(size=X.shape))
    looking = search.Search(
        examples, frame_of(examples), examples.counts, rng, EXAMPLES.exact, exact=noise == 0.0, tell=lambda line: None
    )
    crowded = looking.start(5, search.PLAIN, 2)
    assert crowded.fit.error < 0.03
    assert search.simplify(looking, crowded).heads == 2


@pytest.mark.parametrize("outside", ["relu", "causal"])
def test_other_targets_are_refused(outside: str) -> None:
    rng = np.random.default_rng(3)
    truth, X = layer(rng, 1, 3), rng.normal(size=(40, 4, 3))
    Y = np.maximum(truth(X, "all"), 0.0) if outside == "relu" else truth(X, "all", causal=True)
    with pytest.raises(RefusalError) as caught:
        learn_from_examples(X, Y, heads=1)
    assert not caught.value.recovery.status.success
    assert caught.value.recovery.message == str(caught.value)


def test_a_missing_head_is_refused_when_the_count_is_given() -> None:
    rng = np.random.default_rng(4)
    truth, X = layer(rng, 2, 3), rng.normal(size=(40, 4, 3))
    with pytest.raises(NotInFamilyError):
        learn_from_examples(X, truth(X, "all"), heads=1)


def test_large_noise_on_few_examples_is_not_told_from_a_missing_head_unless_the_count_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "EXAMPLES", replace(EXAMPLES, least_work=1e7))  # the refusal stands from the first round on
    rng = np.random.default_rng(13)
    truth, X = layer(rng, 1, 4), rng.normal(size=(9, 5, 4))
    Y = truth(X, "all")
    Y += 0.1 * np.sqrt(np.mean(Y**2)) * rng.normal(size=Y.shape)
    with pytest.raises(NotIdentifiableError, match="missing head") as caught:
        learn_from_examples(X, Y)
    assert caught.value.recovery.facts["examples_needed"] > 9
    assert learn_from_examples(X, Y, heads=1).status is Status.WITHIN_TOLERANCE


def test_repeats_of_a_sequence_tell_nothing_new_and_are_held_out_together() -> None:
    rng = np.random.default_rng(14)
    truth, X = layer(rng, 2, 4), np.repeat(rng.normal(size=(3, 5, 4)), 30, axis=0)
    with pytest.raises(NotIdentifiableError, match="too few"):
        learn_from_examples(X, truth(X, "all"), heads=2)
    X = np.repeat(rng.normal(size=(50, 5, 4)), 2, axis=0)
    held = hold_out(read_examples(X, truth(X, "all")), rng)
    assert held.any()
    np.testing.assert_array_equal(held[::2], held[1::2])


def test_width_one_leaves_no_head_count_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    # the last rounds leave counts out that the first did not reach
    monkeypatch.setattr(verdict, "EXAMPLES", replace(EXAMPLES, rounds=(1, 1, 1, 1, 1, 1)))
    rng = np.random.default_rng(15)
    X = rng.normal(size=(40, 5, 1))
    assert not quietly(X, rng.normal(size=(40, 5, 1))).status.success


def test_tokens_in_a_subspace_are_refused_with_the_reason() -> None:
    rng = np.random.default_rng(6)
    truth, X = layer(rng, 1, 5), rng.normal(size=(60, 5, 3)) @ rng.normal(size=(3, 5))
    with pytest.raises(NotIdentifiableError, match="3 of 5 directions"):
        learn_from_examples(X, truth(X, "all"))


def test_nothing_to_see_is_refused() -> None:
    X = np.random.default_rng(0).normal(size=(20, 3, 3))
    with pytest.raises(NotIdentifiableError, match="zero"):
        learn_from_examples(X, np.zeros((20, 3, 3)))
    with pytest.raises(NotIdentifiableError, match="one token"):
        learn_from_examples(X[:, :1], X[:, :1])


def test_two_tokens_with_a_twin_layer_are_refused() -> None:
    rng = np.random.default_rng(8)
    truth = layer(rng, 2, 4)
    truth = Attention(truth.W, np.stack([truth.V[0], -truth.V[0]]))  # type: ignore[index]
    X = rng.normal(size=(200, 2, 4))
    twin = Attention(-truth.W, -truth.V)  # type: ignore[operator]
    np.testing.assert_allclose(truth(X, "all"), twin(X, "all"), atol=1e-12)
    assert quietly(X, truth(X, "all")).status is Status.NOT_IDENTIFIABLE


def test_the_same_seed_gives_the_same_bits() -> None:
    rng = np.random.default_rng(9)
    truth, X = layer(rng, 2, 4), rng.normal(size=(40, 5, 4))
    first, second = (learn_from_examples(X, truth(X, "all"), seed=7).model for _ in range(2))
    assert isinstance(first, Attention)
    assert isinstance(second, Attention)
    np.testing.assert_array_equal(first.W, second.W)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"X": np.zeros((3, 4))}, "X has shape"),
        ({"Y": np.zeros((2, 4, 3))}, "Y has shape"),
        ({"Y": np.zeros((3, 5, 3))}, "positions"),
        ({"Y": np.full((3, 4, 3), np.nan)}, "NaN"),
        ({"X": np.array([["a"]])}, "real numbers"),
        ({"mask": np.ones((3, 3))}, "mask"),
        ({"mask": np.zeros((3, 4))}, "without any token"),
        ({"X": np.full((3, 4, 3), 1e200)}, "scale X"),
        ({"Y": np.full((3, 4, 3), 1e-300)}, "scale Y"),
        ({"heads": 0}, "heads"),
        ({"method": "guess"}, "method"),
        ({"on_failure": "cry"}, "on_failure"),
    ],
)
def test_misuse_is_told_at_once(change: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {"X": np.ones((3, 4, 3)), "Y": np.ones((3, 4, 3)), **change}
    with pytest.raises(ValueError, match=words):
        learn_from_examples(**arguments)  # type: ignore[arg-type]


@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, heads=st.integers(1, 3), extra=st.booleans())
def test_the_linearised_map_and_its_adjoint_agree_and_match_finite_differences(seed: int, heads: int, extra: bool) -> None:
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(9, 4, 3)), rng.normal(size=(9, 4, 3))
    examples = read_examples(X, Y)
    problem = frame_of(examples).problem(examples, rng.random((9, 4)) < 0.9, Extras(extra, extra, extra))
    theta = random_theta(problem, heads, rng)
    point = evaluate(problem, theta)
    linear = Linearised(problem, [point])
    step, rows = rng.normal(size=theta.shape), linear.project(rng.normal(size=point.error.shape))
    assert np.isclose(np.vdot(linear.forward(step), rows), np.vdot(step, linear.adjoint(rows)), rtol=1e-9)
    nudge = 1e-6
    gradient = (evaluate(problem, theta + nudge * step).size ** 2 - evaluate(problem, theta - nudge * step).size ** 2) / (4 * nudge)
    assert np.isclose(gradient, -np.vdot(linear.adjoint(point.error), step), rtol=1e-4, atol=1e-6)


def test_the_normal_matrix_is_that_of_finite_differences() -> None:
    rng = np.random.default_rng(1)
    truth, X = layer(rng, 2, 3), rng.normal(size=(7, 4, 3))
    examples = read_examples(X, truth(X, "all") + 0.1 * rng.normal(size=X.shape))
    problem = frame_of(examples).problem(examples, examples.counts, Extras(query_bias=True, constant=True))
    fit = fit_from(problem, random_theta(problem, 2, rng), Effort(steps=5), rng)
    theta, values = fit.point.theta, fit.point.values

    def answers(flat: Floats) -> Floats:
        moved = evaluate(problem, flat[: theta.size].reshape(theta.shape))
        return np.asarray((moved.features @ flat[theta.size :].reshape(values.shape)).ravel())

    start = np.concatenate([theta.ravel(), values.ravel()])
    columns = [(answers(start + 1e-6 * e) - answers(start - 1e-6 * e)) / 2e-6 for e in np.eye(start.size)]
    jacobian = np.stack(columns, axis=1)
    found = normal_matrix(Candidate(2, Extras(query_bias=True, constant=True), problem, fit))
    np.testing.assert_allclose(found, jacobian.T @ jacobian, rtol=1e-5, atol=1e-5)


def test_of_many_exact_examples_a_part_is_learned_from_and_all_the_rest_checks() -> None:
    rng = np.random.default_rng(0)
    layer, X = Attention(W=rng.normal(size=(2, 2, 2)), V=rng.normal(size=(2, 2, 2))), rng.normal(size=(700, 6, 2))
    found = learn_from_examples(X, layer(X, "all"), seed=0)
    assert found.status is Status.EXACT
    assert distance(found.model, layer) < 1e-12
    assert found.check.sequences > 400  # of a tenth, as else, there would be 70


@pytest.mark.parametrize("answer", [1.0, 0.1, np.arange(1.0, 5.0)], ids=str)
def test_answers_that_do_not_depend_on_the_tokens_say_nothing_of_the_scores(answer):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(120, 5, 4))
    found = learn_from_examples(X, answer + 0 * X, on_failure="return", seed=1)
    assert found.status is Status.NOT_IDENTIFIABLE


@pytest.mark.parametrize("wrong", [{"heads": True}, {"seed": 1.5}, {"seed": -1}, {"causal": "yes"}], ids=str)
def test_options_of_a_wrong_kind_are_refused_in_words(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is"):
        learn_from_examples(np.ones((9, 3, 2)), np.ones((9, 3, 2)), **wrong)
