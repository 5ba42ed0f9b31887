import numpy as np  # loads the library whose threads are counted
import pytest
from threadpoolctl import threadpool_info

from unsoftmax.learners.threads import FEW, threads_for


def threads():
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}


@pytest.mark.parametrize("unknowns", [1, FEW, FEW + 1])
def test_small_systems_are_solved_on_one_thread_and_the_setting_comes_back(unknowns):
    assert np.linalg.solve(np.eye(2), np.ones(2)).sum() == 2.0
    before = threads()
    with threads_for(unknowns):
        inside = threads()
    assert inside == (dict.fromkeys(before, 1) if unknowns <= FEW else before)
    assert threads() == before
