import sys
from functools import partial

import numpy as np
import pytest

import unsoftmax as us
from audit_tables import assert_same_table
from unsoftmax.audits import Defence, parse_gate, run_audit, standard_defences
from unsoftmax.audits.cells import Sample, honest_sample, model_error
from unsoftmax.demo import demo_oracle
from unsoftmax.errors import JournalError, MissingExtraError, TargetError
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered, Noisy

OPEN = partial(demo_oracle, "attention", width=5, seed=3)
QUICK = (
    Defence(name="none"),
    Defence(name="4 decimals", decimals=4),
    Defence(name="norm 1", max_norm=1.0),
    Defence(name="quota 16", quota=16),
    Defence(name="rate limit 1/s", rate=1.0),
)


SENTINELS = 4  # questions asked again at places that the operating system's randomness chooses


def test_numbers_agree_with_separate_recoveries():
    audit = run_audit(OPEN, defences=QUICK, workers=1)
    for cell in audit.cells:
        d = cell.defence
        if d.rate is None:
            alone = us.recover(d.wrap(OPEN()), max_norm=d.max_norm, budget=d.quota or 100_000, on_failure="return")
            assert cell.status == alone.status.name
            assert abs(cell.queries - alone.queries) <= SENTINELS
    none, rounded, limited, quota, rate = audit.cells
    assert none.status == "EXACT"
    assert none.error < 1e-10
    assert none.honest_cost == quota.honest_cost == 0.0
    assert rounded.honest_cost == pytest.approx(1e-4 / np.sqrt(12), rel=0.3)
    assert limited.honest_cost > 1e-3
    assert quota.status == "BUDGET_SPENT"
    assert not rate.measured
    assert audit.conclusion.stopped_by == ("quota 16",)


def test_two_processes_give_the_same_table():
    assert_same_table(run_audit(OPEN, defences=QUICK, workers=2, seed=0), run_audit(OPEN, defences=QUICK, workers=1, seed=0))


def test_a_second_run_asks_again_only_to_confirm(tmp_path):
    asked = []

    def opener():
        meter = Metered(OPEN(), on_count=lambda _, n: asked.append(n))
        meter.identity = "one and the same"
        return meter

    first = run_audit(opener, defences=QUICK[:2], workers=1, folder=tmp_path / "cells")
    spent = sum(asked)
    again = run_audit(opener, defences=QUICK[:2], workers=1, folder=tmp_path / "cells")
    again_asked = sum(asked) - spent
    assert again_asked == 64 + sum(cell.confirmed for cell in again.cells)
    assert all(32 <= cell.confirmed <= 64 for cell in again.cells)
    assert [c.journal for c in again.cells] == [c.journal for c in first.cells]
    assert [c.queries for c in again.cells] == [c.queries for c in first.cells]
    assert_same_table(again, first)
    with pytest.raises(JournalError):
        run_audit(opener, defences=QUICK[:2], workers=1, folder=tmp_path / "cells", seed=1)


def test_noise_of_the_target_itself_does_not_pass_for_an_error_of_the_copy():
    audit = run_audit(lambda: Noisy(OPEN(), 0.05, seed=1), defences=QUICK[:1], workers=1)
    cell = audit.cells[0]
    assert audit.facts["honest_noise"] == pytest.approx(0.05, rel=0.4)
    assert cell.estimated
    truth = us.distance(cell.recovery.model, OPEN().target)
    assert cell.error < 0.02  # the largest of the noises is a fifth of the spread
    assert truth < 5 * cell.error + 1e-12
    assert not run_audit(OPEN, defences=QUICK[:1], workers=1).cells[0].estimated


def test_targets_that_fail_or_do_not_belong():
    def broken(X):
        raise RuntimeError("no")

    with pytest.raises(TargetError, match="no"):
        run_audit(lambda: CallableOracle(broken, width=3), defences=QUICK[:1], workers=1)
    odd = run_audit(lambda: CallableOracle(lambda X: np.sin(3 * X).sum(axis=(1, 2)), width=3), defences=QUICK[:1], workers=1)
    assert odd.conclusion.verdict.words in ("OUT OF FAMILY", "NOT WITHIN BUDGET", "INCONCLUSIVE")


def test_misuse_says_what_is_missing():
    with pytest.raises(ValueError, match="`price` must be given"):
        run_audit(OPEN, gate=parse_gate("price<1"))
    with pytest.raises(ValueError, match="as it stands"):
        run_audit(OPEN, defences=QUICK[1:])
    with pytest.raises(ValueError, match="same name"):
        run_audit(OPEN, defences=(QUICK[0], QUICK[1], QUICK[1]))


@pytest.mark.parametrize(("width", "spread"), [(1, 1.0), (16, 0.003), (64, 4e5), (3, 0.0), (3, float("nan"))])
def test_the_standard_table_fits_any_target(width, spread):
    table = standard_defences(width, spread)
    assert len(table) >= 12
    assert table[0].base
    assert not any(row.base for row in table[1:])
    assert len({row.slug for row in table}) == len(table)
    honest = honest_sample(CallableOracle(lambda X: X[:, -1].sum(axis=1), width=width), 0, None)
    longest = max(np.linalg.norm(batch, axis=2).max() for batch in honest.questions)
    assert all(row.max_norm >= longest for row in table if row.max_norm is not None)


def test_no_dask_is_an_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match="unsoftmax\\[sweep\\]"):
        run_audit(OPEN, defences=QUICK[:1], scheduler="tcp://127.0.0.1:1")


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_copy_from_labels_is_judged_up_to_the_scale_that_labels_hide(outputs):
    rng = np.random.default_rng(0)
    W, V, X = rng.normal(size=(1, 4, 4)), rng.normal(size=(1, 4, outputs)), [rng.normal(size=(20, n, 4)) for n in (1, 5)]
    truth = Attention(W, V, b=rng.normal(size=outputs))
    copy, other = Attention(W, 3 * V, b=np.full(outputs, 7.0) + 3 * truth.b), Attention(2 * W, V)
    sample = Sample(X, [truth.answer(batch) for batch in X])
    assert model_error(copy, sample) > 1
    assert model_error(copy, sample, labels=True) < 1e-12
    assert model_error(other, sample, labels=True) > 0.1
