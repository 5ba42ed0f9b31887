"""How coarse answers are: the grid that they lie on, whether they repeat, and the noise of their evaluation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.recognition.targets import D, case_of, head, heads
from tests.strategies import seeds

import unsoftmax as us
from unsoftmax.errors import Sign, TargetError
from unsoftmax.recognition.case import DecidedError, Verdict
from unsoftmax.recognition.floor import _bfloat16, _grid, line_noise, measure_floor, one_token_noise


def numbers(seed, count=40, size=3.0):
    return size * np.random.default_rng(seed).normal(size=count)


@given(seed=seeds, places=st.integers(0, 6))
def test_decimals_are_seen_with_their_step(seed, places):
    kind, absolute, step = _grid(np.round(numbers(seed, size=50.0), places))
    assert kind == "rounded"
    assert step >= 10.0**-places * (1 - 1e-9)  # fewer decimals may do where trailing ones are zero
    assert absolute == step / 2


@given(seed=seeds)
def test_number_formats_are_told_apart(seed):
    values = numbers(seed)
    assert _grid(values)[0] == "exact"
    assert _grid(values.astype(np.float32).astype(float))[0] == "float32"
    assert _grid(values.astype(np.float16).astype(float))[0] == "float16"
    assert _grid(_bfloat16(values))[0] == "bfloat16"


@given(seed=seeds, digits=st.integers(3, 9))
def test_digits_are_seen_with_their_relative_error(seed, digits):
    values = numbers(seed) * 10.0 ** np.random.default_rng(seed).integers(-12, 12, size=40)  # no common decimals
    kind, absolute, relative = _grid(np.array([float(f"{v:.{digits - 1}e}") for v in values]))
    assert (kind, absolute) == ("digits", 0.0)
    assert relative == pytest.approx(0.5 * 10.0 ** (1 - digits))


def test_few_or_round_numbers_are_no_evidence_of_rounding():
    assert _grid(np.array([0.5, 1.0, 2.0]))[0] == "exact"
    assert _grid(np.zeros(100))[0] == "exact"
    assert _grid(1e9 * numbers(0))[0] == "exact"  # large numbers have few decimals anyway


@given(seed=seeds, noise=st.sampled_from([1e-14, 1e-10, 1e-6]), slope=st.floats(-1.0, 1.0), bend=st.floats(-1.0, 1.0))
def test_noise_on_a_line_is_measured_whatever_the_line_is(seed, noise, slope, bend):
    t = 2.0**-17 * np.arange(8.0)[:, None]
    answers = 1.0 + slope * t + bend * t**2
    assert line_noise(answers) < 1e-14
    measured = line_noise(answers + noise * np.random.default_rng(seed).normal(size=(8, 1)))
    assert 0.05 * noise < measured < 12 * noise


def test_one_token_answers_of_a_head_carry_no_noise_and_float32_ones_do():
    layer = head()
    assert one_token_noise(case_of(layer)) < 2.0**-44
    assert one_token_noise(case_of(lambda X: layer(X.astype(np.float32)).astype(np.float32))) > 2.0**-40


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda y: y, "exact"),
        (lambda y: y.astype(np.float32), "float32"),
        (lambda y: np.round(y, 3), "rounded"),
        (lambda y: y.astype(np.float16), "float16"),
    ],
)
def test_the_law_of_steady_answers_is_measured_in_thirty_questions(answer, kind):
    layer = head(constant=True)
    case = case_of(lambda X: answer(layer(X)))
    measure_floor(case)
    assert case.floor.kind == kind
    assert not case.floor.fresh
    assert case.asked <= 45
    assert not case.finer


def test_noise_is_measured_within_a_factor():
    rng, layer = np.random.default_rng(0), head()
    for sigma in (1e-4, 1e-2):
        case = case_of(lambda X, sigma=sigma: layer(X) + sigma * rng.normal(size=len(X)))
        measure_floor(case)
        assert case.floor.noisy
        assert sigma / 3 < case.floor.absolute < 6 * sigma


def decided(target):
    case = case_of(target)
    found = case.tried(lambda: measure_floor(case))
    assert isinstance(found, Verdict)
    return found


def test_targets_that_need_no_further_look_are_named_at_once():
    layer, rng = head(), np.random.default_rng(1)
    assert decided(lambda X: np.ones(len(X))).family == "outside: constant"
    assert Sign.UNDECIDED in decided(lambda X: 100 + 1e-3 * layer(X) + rng.normal(size=len(X))).signs  # hidden, not constant
    dropped = decided(lambda X: layer(X * rng.binomial(1, 0.5, size=X.shape)))
    assert (dropped.family, dropped.signs) == ("outside: dropout", (Sign.RANDOM,))


def test_a_target_of_one_length_is_named_with_it():
    def five(X):
        if X.shape[1] != 5:
            raise ValueError("five tokens")
        return X.sum(axis=(1, 2))

    assert "takes 5" in decided(five).reason


@pytest.mark.parametrize("longest", [2, 3])
def test_targets_of_two_or_three_tokens_cannot_be_told(longest):
    layer = head()

    def short(X):
        if X.shape[1] > longest:
            raise ValueError("too long")
        return layer(X)

    assert Sign.UNDECIDED in decided(short).signs


def test_one_token_alone_is_a_network_for_the_tests_that_follow():
    def single(X):
        if X.shape[1] > 1:
            raise ValueError("one token")
        return np.maximum(X[:, 0], 0).sum(axis=1)

    case = case_of(single)
    measure_floor(case)
    assert case.longest == 1


def test_a_target_that_always_fails_is_no_verdict():
    def broken(X):
        raise RuntimeError("no")

    with pytest.raises(TargetError):
        measure_floor(case_of(broken))


@pytest.mark.parametrize("outputs", [None, 3])
def test_shapes_are_told(outputs):
    layer = head(outputs=outputs)
    case = case_of(layer)
    measure_floor(case)
    assert (case.outputs, case.everywhere) == (outputs, False)
    if outputs:
        case = case_of(lambda X: layer(X, "all"))
        measure_floor(case)
        assert (case.outputs, case.everywhere) == (3, True)
    assert len(case.sentinels) == 2
    assert case.sentinels[0][0].shape[2] == D


def test_scores_rounded_inside_float64_leave_a_mark():
    layer = head()

    def rounded(X):
        scores = np.einsum("bnd,de,be->bn", X, layer.W[0], X[:, -1]).astype(np.float32).astype(float)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("bn,bnd,d->b", weights / weights.sum(axis=1, keepdims=True), X, layer.V[0])

    case = case_of(rounded)
    measure_floor(case)
    assert case.finer
    assert one_token_noise(case) < 2.0**-44
    with pytest.raises(DecidedError):  # the limit holds here as everywhere
        case.ask(np.zeros((500, 1, D)))


@pytest.mark.parametrize("apart", [1e-9, 1e-7])
def test_two_versions_that_answer_in_turn_are_a_verdict_of_both_commands(apart):
    head = us.Attention.single(W=np.random.default_rng(1).normal(size=(5, 5)), v=[1.0, -2.0, 0.5, 1.5, -1.0])
    calls = iter(range(10**6))

    def in_turn(X):
        return head(X) * (1 + apart * (next(calls) % 2))

    told = us.diagnose(in_turn, width=5)
    assert not told.inside
    assert "versions" in told.reason
    found = us.recover(in_turn, width=5, seed=1, on_failure="return")
    assert found.status in (us.Status.DRIFTING, us.Status.NOT_IN_FAMILY)  # by which calls fall on which version


@pytest.mark.parametrize("relative", [1e-13, 1e-12, 1e-11, 1e-10])
@pytest.mark.parametrize("outputs", [None, 3])
def test_jitter_that_a_recovery_takes_for_precision_is_no_stranger(relative, outputs):
    layer = head(seed=2, outputs=outputs)
    for seed in range(3):
        chance = np.random.default_rng(seed)

        def jittering(X, chance=chance):
            answers = layer(X)
            return answers * (1 + relative * chance.normal(size=answers.shape))

        assert us.diagnose(jittering, width=D, seed=seed).inside


@pytest.mark.parametrize("most", [4, 5, 8, 12, 30, 63])
def test_targets_that_take_few_tokens_are_diagnosed(most):
    layers = [head(seed=most), head(seed=most, outputs=3)]
    for layer in layers if most < 24 else [*layers, heads(2, seed=most, outputs=3)]:
        seen = set()

        def short(X, layer=layer, seen=seen):
            if X.shape[1] > most:
                raise ValueError(f"{X.shape[1]} tokens, where {most} are the most")
            seen.add(X.shape[1])
            return layer(X)

        told = us.diagnose(short, width=D)
        assert told.inside
        assert max(seen) == most  # every length up to it was asked
