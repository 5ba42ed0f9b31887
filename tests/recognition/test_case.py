"""One diagnosis in progress: it never asks more than it may, nor longer tokens, and its verdicts are values."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.recognition.targets import D, case_of, head
from tests.strategies import seeds

from unsoftmax.errors import Sign, TargetError
from unsoftmax.recognition.case import Case, DecidedError, Verdict, inconclusive, outside
from unsoftmax.results import Floor


def test_verdicts_tell_people_in_words_and_the_house_by_signs():
    stranger, doubt = outside("soft-cap", "Scores bend.", Sign.OTHER_SCORES), inconclusive("power", "Too coarse.")
    assert (stranger.family, stranger.signs) == ("outside: soft-cap", (Sign.OTHER_SCORES,))
    assert doubt.family == "outside: inconclusive (power)"
    assert Sign.UNDECIDED in doubt.signs
    assert Sign.UNDECIDED not in stranger.signs


@given(limit=st.integers(0, 40), batches=st.lists(st.integers(1, 12), max_size=12))
def test_no_more_sequences_leave_than_the_limit_and_the_reserve_allow(limit, batches):
    case = case_of(head())
    case.limit = limit
    for batch in batches:
        found = case.tried(lambda batch=batch: case.ask(np.ones((batch, 2, D))))
        if isinstance(found, Verdict):
            assert Sign.UNDECIDED in found.signs
            assert case.asked + batch > limit - case.reserve
            break
    assert case.asked <= max(0, limit - case.reserve)


@given(radius=st.floats(0.1, 10.0), length=st.floats(0.1, 10.0))
def test_no_token_longer_than_max_norm_leaves(radius, length):
    sent = []
    case = case_of(lambda X: sent.append(X) or X[:, -1, 0], max_norm=radius)
    token = np.zeros((1, 1, D))
    token[0, 0, 0] = length
    found = case.tried(lambda: case.ask(token))
    assert isinstance(found, Verdict) == (length > radius)
    assert bool(sent) == (length <= radius)


@given(scale=st.floats(1e-3, 1e3), longest=st.floats(1.0, 8.0), radius=st.floats(0.5, 50.0), seed=seeds)
def test_capped_tokens_fit(scale, longest, radius, seed):
    case = case_of(head(), seed=seed % 1000, max_norm=radius)
    size = case.cap(scale, longest)
    assert size <= scale
    assert np.linalg.norm(size * longest / 1.5 * case.draw(20), axis=-1).max() <= radius * (1 + 1e-9) * 1.5


def test_tokens_drawn_keep_their_scale():
    sizes = np.sqrt((case_of(head(), seed=3).draw(500) ** 2).mean(axis=-1))
    assert sizes.min() >= 0.5 - 1e-9
    assert sizes.max() <= 1.5 + 1e-9
    assert 0.8 < sizes.mean() < 1.2


def test_a_target_that_fails_gives_no_answer_and_the_question_is_counted():
    def fails(X):
        raise RuntimeError("too long")

    case = case_of(fails)
    assert case.attempt(np.zeros((3, 2, D))) is None
    assert case.asked == 3
    with pytest.raises(TargetError):
        case.ask(np.zeros((1, 2, D)))


def test_what_ends_a_test_is_a_value_and_a_fault_of_ours_is_not():
    case, verdict = case_of(head()), outside("constant", "All alike.")

    def decided():
        raise DecidedError(verdict)

    assert case.tried(decided) is verdict
    assert case.tried(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        case.tried(lambda: 1 // 0)


@given(size=st.floats(1e-250, 1e250))
def test_huge_and_tiny_answers_are_rescaled_by_a_power_of_two(size):
    case = case_of(head())
    answers = case.measure(np.array([[size], [-size / 3]]))
    assert np.frexp(case.unit)[0] == 0.5
    assert 1e-101 < abs(answers[0, 0]) <= 1e101
    np.testing.assert_allclose(answers / case.unit, [[size], [-size / 3]])


@pytest.mark.parametrize(
    ("shape", "everywhere", "expected"),
    [((4,), False, (4, 1)), ((4, 3), False, (4, 3)), ((4, 7), True, (4, 1)), ((4, 7, 2), True, (4, 2))],
)
def test_the_last_position_is_what_counts(shape, everywhere, expected):
    case = case_of(head())
    case.everywhere = everywhere
    raw = np.arange(float(np.prod(shape))).reshape(shape)
    last = case.last(raw, 7)
    assert last.shape == expected
    assert last[-1, -1] == raw.max()


@given(relative=st.floats(1e-16, 1e-3), absolute=st.floats(0.0, 1e-2), size=st.floats(1e-3, 1e3))
def test_tolerances_follow_the_law_of_the_answers(relative, absolute, size):
    case = case_of(head(), floor=Floor(relative=relative, absolute=absolute))
    answers = np.array([[size], [-size / 2]])
    assert case.noise(answers) == pytest.approx(absolute + relative * size)
    assert case.tolerance(answers) > 10 * case.noise(answers)
    assert case.coarse == (relative > 2.0**-40 or absolute > 0)


def test_facts_fit_into_json_whatever_was_measured():
    case = case_of(head())
    for number in (np.inf, -np.inf, np.nan, np.float64(2.0)):
        case.record("test", number, 1.0, np.bool_(True), "A fact.")
    json.loads(json.dumps([fact.record() for fact in case.evidence], allow_nan=False))
    assert all(fact.passed is True for fact in case.evidence)


def test_a_diagnosis_keeps_the_limit_of_its_documentation():
    for width in (1, 8, 100):
        case = Case(head(width), np.random.default_rng(0), None)
        assert case.limit == 200 + 4 * width
        assert case.left() == case.limit - 2
