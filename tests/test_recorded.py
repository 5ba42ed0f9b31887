"""Probes that go out in a file and answers that come back in one."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.errors import FileFormatError
from unsoftmax.probes.fixed import FixedProbes
from unsoftmax.recorded import export_probes, recover_recorded


def head(seed=0, width=6):
    rng = np.random.default_rng(seed)
    return us.Attention.single(W=rng.normal(size=(width, width)) / np.sqrt(width), v=rng.normal(size=width))


def answered(path, target, probes, into=None):
    """Answer an exported file, in the same file or beside it."""
    given = dict(np.load(path, allow_pickle=False)) if into is None else {}
    given |= {f"Y{i}": target(X) for i, X in enumerate(probes.arrays)}
    np.savez(path if into is None else into, **given)


def test_answers_in_the_same_file_or_beside_it_give_the_head(tmp_path):
    truth = head()
    probes = export_probes(tmp_path / "probes.npz", width=6, rank=None, max_norm=None, seed=1)
    answered(tmp_path / "probes.npz", truth, probes, into=tmp_path / "answers.npz")
    found = recover_recorded(tmp_path / "answers.npz")
    assert found.status is us.Status.EXACT
    assert us.distance(found.model, truth) < 1e-10
    assert found.facts["queries"]["total"] == probes.queries == found.queries + found.check.sequences
    answered(tmp_path / "probes.npz", truth, probes)
    again = recover_recorded(tmp_path / "probes.npz")
    assert np.array_equal(again.model.W, found.model.W)


def test_answers_without_their_questions_are_refused(tmp_path):
    probes = export_probes(tmp_path / "probes.npz", width=4, rank=None, max_norm=None, seed=1)
    answered(tmp_path / "probes.npz", head(width=4), probes, into=tmp_path / "answers.npz")
    export_probes(tmp_path / "others.npz", width=4, rank=None, max_norm=None, seed=2)
    with pytest.raises(FileFormatError, match="2 files beside it"):
        recover_recorded(tmp_path / "answers.npz")
    found = recover_recorded(tmp_path / "answers.npz", probes_path=tmp_path / "probes.npz")
    assert found.status is us.Status.EXACT


def test_a_target_outside_the_family_is_never_announced(tmp_path):
    probes = export_probes(tmp_path / "probes.npz", width=5, rank=None, max_norm=None, seed=1)
    answered(tmp_path / "probes.npz", lambda X: np.tanh(head(width=5)(X)) + X[:, 0, 0] ** 2, probes)
    found = recover_recorded(tmp_path / "probes.npz")
    assert not found.status.success
    assert found.message


def test_a_change_in_the_held_out_answers_is_seen(tmp_path):
    truth = head(width=5)
    probes = export_probes(tmp_path / "probes.npz", width=5, rank=None, max_norm=None, seed=1)
    given = dict(np.load(tmp_path / "probes.npz", allow_pickle=False))
    given |= {f"Y{i}": truth(X) for i, X in enumerate(probes.arrays)}
    given[f"Y{len(probes.arrays) - 1}"] *= 1 + 1e-6
    np.savez(tmp_path / "probes.npz", **given)
    found = recover_recorded(tmp_path / "probes.npz")
    assert found.status is us.Status.NOT_IN_FAMILY
    assert "held-out" in found.message


def test_without_sequences_for_a_check_nothing_is_announced(tmp_path):
    from unsoftmax.learners.non_adaptive import NonAdaptiveLearner

    truth = head(width=4)
    bare = NonAdaptiveLearner().plan(4, np.random.default_rng(0), checks=0)
    assert isinstance(bare, FixedProbes)
    bare.save(tmp_path / "bare.npz")
    answered(tmp_path / "bare.npz", truth, bare)
    found = recover_recorded(tmp_path / "bare.npz")
    assert found.status is us.Status.NOT_IN_FAMILY
    assert "held-out check" in found.message
    assert us.distance(found.model, truth) < 1e-10  # what was found is not thrown away
