import contextlib
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.audits import parse_gate

NAMES = ("queries", "error", "seconds", "price", "time")
OPERATORS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt}

numbers = st.floats(allow_nan=False, allow_infinity=False)
clauses = st.tuples(st.sampled_from(NAMES), st.sampled_from(list(OPERATORS)), numbers)


@given(
    st.lists(st.lists(clauses, min_size=1, max_size=3), min_size=1, max_size=3),
    st.fixed_dictionaries(dict.fromkeys(NAMES, numbers)),
)
def test_a_condition_means_what_python_would_mean_by_it(alternatives, values):
    text = " or ".join(" and ".join(f"{name}{sign}{number!r}" for name, sign, number in group) for group in alternatives)
    expected = any(all(OPERATORS[sign](values[name], number) for name, sign, number in group) for group in alternatives)
    gate = parse_gate(text)
    tripped = gate.tripped(values)
    assert bool(tripped) == expected
    assert all(clause.holds(values) for clause in tripped)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "queries",
        "queries<",
        "queries<x",
        "cost<1",
        "queries<1 and",
        "or",
        "__import__('os')",
        "queries<1e",
        "queries<1;error<2",
        "(queries<1)",
        "queries<1" * 200,
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="condition"):
        parse_gate(text)


@given(st.text(max_size=40))
def test_no_text_does_anything_but_parse_or_be_refused(text):
    with contextlib.suppress(ValueError):
        assert parse_gate(text).names <= set(NAMES)


def test_clauses_tell_the_number():
    gate = parse_gate("queries<100000 and error<1e-3")
    values = {"queries": 284.0, "error": 1e-14}
    assert [c.told(values) for c in gate.tripped(values)] == ["queries<100000 (queries is 284)", "error<1e-3 (error is 1e-14)"]
    assert "nothing was extracted" in parse_gate("error>1").alternatives[0][0].told({"error": float("inf")})
