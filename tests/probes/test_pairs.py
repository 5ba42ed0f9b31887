"""Every pair of a group of keys and a last token is asked exactly once, whichever way the sequences are built."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.probes.pairs import all_pairs


@settings(deadline=None, max_examples=40)
@given(
    groups=st.sampled_from([1, 3, 200, 450]),
    tokens=st.sampled_from([1, 2, 230, 600]),
    keys=st.integers(1, 3),
    copies=st.integers(1, 2),
    share=st.booleans(),
    device=st.booleans(),
)
def test_every_pair_once_and_in_its_place(groups, tokens, keys, copies, share, device):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(groups + tokens)
    P, X = rng.normal(size=(groups, keys, 4)), rng.normal(size=(tokens, 4))
    kind = torch.asarray if device else np.asarray
    seen = np.zeros((tokens, groups), dtype=int)
    for which, some, sequences in all_pairs(kind(P), kind(X), copies, share=share):
        j, i = np.arange(tokens)[which], np.arange(groups)[some]
        if isinstance(which, slice):
            j, i = (index.ravel() for index in np.meshgrid(j, i, indexing="ij"))
        asked = np.asarray(sequences)
        assert np.array_equal(asked[:, :keys], P[i])
        assert np.array_equal(asked[:, keys:], np.repeat(X[j][:, None], copies, axis=1))
        seen[j, i] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("share", [False, True])
def test_a_target_that_keeps_its_questions_finds_them_unchanged(share):
    rng = np.random.default_rng(0)
    P, X = rng.normal(size=(3000, 1, 4)), rng.normal(size=(20, 4))
    kept, sums = [], []
    for _, _, sequences in all_pairs(P, X, 1, share=share):
        kept.append(sequences)
        sums.append(sequences.sum())
    assert len(kept) > 1
    assert [sequences.sum() for sequences in kept] == sums


def test_shared_sequences_cannot_be_written_to():
    rng = np.random.default_rng(0)
    _, _, sequences = next(all_pairs(rng.normal(size=(300, 1, 4)), rng.normal(size=(20, 4)), 1, share=True))
    with pytest.raises(ValueError, match="read-only"):
        sequences += 1.0
