"""Results are typed: what code reads has a field, what people read is a view of it, and nobody writes to either."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.accounts import Account, Fact, Phase, Queries
from unsoftmax.errors import NotInFamilyError
from unsoftmax.evidence import Evidence
from unsoftmax.models import Sizes
from unsoftmax.precision.law import Floor
from unsoftmax.report import recovery_record
from unsoftmax.results import Learned

HEAD = us.Attention.single(np.array([[0.4, -0.2, 0.1], [0.3, 0.2, 0.0], [-0.1, 0.5, 0.2]]), np.array([1.0, -2.0, 0.5]))


@pytest.fixture(scope="module")
def found():
    return us.recover(HEAD, seed=1)


def test_evidence_is_frozen_where_it_is_handed_over():
    numbers = {"misfit": 0.2}
    learned, refusal = Learned(model=HEAD, ambiguity="", evidence=numbers), NotInFamilyError("no", evidence=numbers)
    numbers["misfit"] = 9.0
    for evidence in (learned.evidence, refusal.evidence):
        assert evidence == {"misfit": 0.2}
        assert evidence | {"more": 1} == {"misfit": 0.2, "more": 1}
        assert pickle.loads(pickle.dumps(evidence)) == copy.deepcopy(evidence) == evidence
        with pytest.raises(TypeError):
            evidence["misfit"] = 1.0
    assert NotInFamilyError("no").evidence == Learned(model=HEAD, ambiguity="").evidence == {}


def test_facts_are_a_view_of_the_account_that_cannot_be_written_to(found):
    assert found.facts["family"] == found.account.family == "attention"
    assert found.facts["queries"] == {"learn": found.queries, "check": found.spent.check, "total": found.spent.total}
    assert found.facts["phases"].keys() == found.account.phases.keys()
    assert (found.facts["heads"], found.facts["rank"], found.facts["ranks"]) == (1, 3, [3])
    assert sum(phase.queries for phase in found.account.phases.values()) == found.queries
    with pytest.raises(TypeError):
        found.facts["family"] = "other"
    with pytest.raises(FrozenInstanceError):
        found.account.family = "other"
    found.facts["notes"].append("nobody keeps this")
    assert "nobody keeps this" not in found.facts["notes"]


def test_a_recovery_grows_by_copies(found):
    noted = found.noted("One.", "Two.").of(target="t", command="c", authorised_by=None, date="2026-11-18")
    assert noted.account.notes == (*found.account.notes, "One.", "Two.")
    assert "target" not in found.facts
    record = recovery_record(noted)
    assert (record["target"], record["command"], record["date"], record["authorised_by"]) == ("t", "c", "2026-11-18", None)
    assert pickle.loads(pickle.dumps(noted)).facts == noted.facts


def test_an_account_tells_what_applies_and_leaves_out_the_rest():
    bare = Account().record()
    assert {"queries", "phases", "tests", "journal", "examples", "target", "heads"}.isdisjoint(bare)
    assert (bare["family"], bare["floor"], bare["notes"]) == (None, None, [])
    full = Account(
        floor=Floor(),
        queries=Queries(5, 2, 1),
        phases={"values": Phase(3, 6, 1)},
        tests=(Fact("bend", 0.1, 1.0, True, "It is straight."),),
        sizes=Sizes(parameters=7, neurons=2, more=Evidence({"norm": "rms"})),
        more=Evidence({"method": "fit"}),
    ).record()
    assert full["queries"] == {"learn": 5, "check": 2, "confirm": 1, "total": 8}
    assert full["phases"] == {"values": {"queries": 3, "tokens": 6, "calls": 1}}
    assert full["tests"][0]["sentence"] == "It is straight."
    assert (full["parameters"], full["neurons"], full["norm"], full["method"]) == (7, 2, "rms", "fit")
    assert full["floor"]["kind"] == "exact"


def test_labels_have_no_counting_bound(found):
    assert recovery_record(found)["theory"]["parameters"] == 12
    assert recovery_record(replace(found, account=replace(found.account, labels=True)))["theory"] is None


def test_a_refusal_to_learn_keeps_its_check():
    X = np.random.default_rng(0).normal(size=(60, 4, 3)) * [1.0, 1.0, 0.0]
    refused = us.learn_from_examples(X, HEAD(X), on_failure="return")
    assert refused.status is us.Status.NOT_IDENTIFIABLE
    assert recovery_record(refused)["check"]["sequences"] == refused.check.sequences > 0
    assert refused.account.examples == 60
