"""Screen, JSON, page and exit code are drawn from one conclusion."""

import io
import json

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from unsoftmax.audits import Audit, Cell, Defence, Run, Verdict, conclude, outcome, parse_gate
from unsoftmax.audits.sweep import gate_values
from unsoftmax.report.audit_record import audit_record
from unsoftmax.report.audit_screen import print_audit
from unsoftmax.report.audit_story import audit_report
from unsoftmax.report.common import to_json
from unsoftmax.report.page import page
from unsoftmax.results import Status

SUCCESS = ("EXACT", "WITHIN_TOLERANCE")


@st.composite
def cells(draw, name="none"):
    status = draw(st.sampled_from([*(s.name for s in Status), "ERROR"]))
    return Cell(
        defence=Defence(name=name),
        status=status,
        message=draw(st.sampled_from(["done", "<script>alert(1)</script>", "[bold]x", "[/]"])),
        queries=draw(st.integers(0, 10**7)),
        total_queries=draw(st.integers(0, 10**7)),
        error=draw(st.none() | st.floats(0, 10)),
        values_known=draw(st.booleans()),
        honest_cost=draw(st.floats(0, 10)),
        seconds=draw(st.floats(0, 1e6)),
    )


def audit_of(table, gate, rate, price):
    conclusion = conclude(table, gate_values(table[0], rate, price), gate)
    asked = {"honest_questions": 1, "honest_asked_twice": 0, "honest_noise": 0.0}
    run = Run(width=4, budget=100, seed=0, version="0", seconds=1.0, date="2026-11-18", **asked)
    return Audit(cells=tuple(table), conclusion=conclusion, spread=1.0, rate=rate, price=price, run=run)


@given(
    cells(),
    st.lists(cells(name="other"), max_size=2),
    st.none() | st.tuples(st.sampled_from(["queries<1000", "error<1e-3", "queries<100000 and error<0.5", "error>1 or price<1"])),
    st.booleans(),
)
def test_screen_json_page_and_exit_code_agree(first, others, condition, priced):
    gate = None if condition is None else parse_gate(condition[0])
    audit = audit_of([first, *others], gate, 2.0 if priced else None, 3.0 if priced else None)
    record = audit_record(audit, target="<b>t</b>", command="unsoftmax", remote=False)
    parsed = json.loads(to_json(record))
    assert parsed == record
    screen = io.StringIO()
    print_audit(record, console=Console(file=screen, width=400))
    text = page(audit_report(record))
    verdict = parsed["verdict"]
    assert f"{verdict}</h1>" in text
    assert verdict in screen.getvalue()
    assert "<script" not in text
    assert "<b>t" not in text
    failed = "Gate failed" in parsed["sentence"]
    assert failed == (gate is not None and parsed["gate"]["failed"])
    assert failed == ("Gate failed" in screen.getvalue()) == ("Gate failed" in text)
    if failed and gate.tripped(gate_values(first, audit.rate, audit.price)):
        for clause in gate.tripped(gate_values(first, audit.rate, audit.price)):
            assert clause.text in parsed["sentence"]
            assert clause.text in " ".join(screen.getvalue().split())
    # the exit code: the target's own fault first, then the gate
    expected = {"TARGET_FAILED": 3, "DRIFTING": 5}.get(first.status, 1 if failed else 0)
    assert parsed["exit_code"] == audit.conclusion.exit_code == expected
    if verdict == "INCONCLUSIVE" and gate is not None:
        assert parsed["exit_code"] != 0
    assert parsed["verdict"] == parsed["cells"][0]["outcome"]


@given(cells())
def test_only_a_verified_close_copy_is_extractable(cell):
    found = outcome(cell) is Verdict.EXTRACTABLE
    assert found == (cell.status in SUCCESS and cell.values_known and cell.error is not None and cell.error <= 1e-2)
    if cell.status in ("DRIFTING", "TARGET_FAILED", "ERROR"):
        assert outcome(cell) is Verdict.INCONCLUSIVE


def test_nothing_extracted_does_not_trip_a_gate_on_few_queries():
    cell = Cell(defence=Defence(name="none"), status="BUDGET_SPENT", message="spent", queries=3)
    conclusion = conclude([cell], gate_values(cell, None, None), parse_gate("queries<100000"))
    assert (conclusion.verdict, conclusion.exit_code) == (Verdict.NOT_WITHIN_BUDGET, 0)
