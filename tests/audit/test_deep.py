"""Audits of stacks and decoders: every row ends soon, and tells what of the model leaks."""

from dataclasses import replace

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.audits import Defence, Verdict, outcome, parse_gate, read_defence, run_audit
from unsoftmax.audits.cells import Cell
from unsoftmax.audits.search import stops
from unsoftmax.oracles import CallableOracle, Lengthened
from unsoftmax.report.audit_record import audit_record
from unsoftmax.report.audit_story import audit_report, stopped

PART = Cell(defence=Defence(name="none"), status="EXACT", message="", error=1e-9, values_known=False, part="attention of 2 layers")


@pytest.fixture(scope="module")
def stack():
    return run_audit(
        lambda: us.open("demo:stack,layers=2,heads=1,width=16,rank=3"),
        seed=3,
        workers=1,
        gate=parse_gate("queries<10000 and error<1e-3"),
    )


def by_name(audit):
    return {cell.defence.name: outcome(cell) for cell in audit.cells}


def test_what_leaks_of_a_stack_is_told_with_its_error_and_trips_the_gate(stack):
    first = stack.cells[0]
    assert stack.conclusion.verdict is Verdict.PARTIAL
    assert first.part == "attention of 2 layers; not the MLP"
    assert first.error < 1e-8
    assert stack.conclusion.gate_failed
    assert "attention of 2 layers" in stack.conclusion.sentence
    found = by_name(stack)
    assert found["float32"] is Verdict.PARTIAL
    assert found["norm limit 8e+06"] is Verdict.PARTIAL
    assert {"bfloat16", "norm limit 8"} <= set(stack.conclusion.stopped_by)
    assert {name for name, verdict in found.items() if verdict is Verdict.NOT_WITHIN_BUDGET} == set(stack.conclusion.stopped_by)
    assert stack.conclusion.weakened_by == ()
    assert sum(cell.seconds for cell in stack.cells) < 60


def test_the_report_compares_defences_with_the_part(stack):
    record = audit_record(stack, target="a stack", command="", remote=False, authorised_by=None)
    assert stopped(record)[0].startswith("Would have stopped the extraction")
    assert [name for name, _ in record["advice"]][:2] == ["The choice", "A short number format alone"]
    report = audit_report(record, stack.cells[0].recovery.model)
    assert report.mood == "bad"
    assert any(str(number[1]) == "error of the part" for number in report.headlines)


def test_a_decoder_that_takes_no_zero_tokens_is_read_all_the_same():
    rows = tuple(read_defence(words) for words in ("none", "no zero tokens", "shortest token 0.1", "top 8"))
    audit = run_audit(lambda: us.open("demo:decoder,layers=1,heads=1,width=12,rank=4"), defences=rows, seed=1, workers=1)
    none, zeros, short, top = audit.cells
    assert none.part == "attention of 1 layer, unembedding; not the MLP"
    assert outcome(zeros) is Verdict.PARTIAL
    assert zeros.error < 1e-6
    assert (outcome(short), outcome(top)) == (Verdict.NOT_WITHIN_BUDGET,) * 2
    assert zeros.honest_cost == short.honest_cost == 0
    assert top.honest_cost > 0


def test_a_refusal_is_the_work_of_the_defence_where_the_family_is_known():
    refused = replace(PART, status="NOT_IN_FAMILY", error=None, part="", values_known=True)
    assert outcome(refused) is Verdict.OUT_OF_FAMILY
    assert outcome(replace(refused, told=True)) is Verdict.NOT_WITHIN_BUDGET
    assert not stops(PART)
    assert stops(replace(PART, error=0.2))


def test_very_short_tokens_keep_their_direction():
    seen = []
    oracle = Lengthened(CallableOracle(lambda X: seen.append(X) or X[:, -1], width=3), 1e-30)
    oracle(np.array([[[0.0, 3e-200, 4e-200], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]]))
    np.testing.assert_allclose(seen[0][0], [[0.0, 6e-31, 8e-31], [1e-30, 0.0, 0.0], [1.0, 0.0, 0.0]], rtol=1e-12)
