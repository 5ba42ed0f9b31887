"""Comparing audits that ran in other places."""

import pytest


def assert_same_table(one, other):
    """The same cells, but for the last bits of errors: other processes may count on another number of threads."""
    for a, b in zip(one.cells, other.cells, strict=True):
        assert (a.defence, a.status, a.honest_cost, a.measured) == (b.defence, b.status, b.honest_cost, b.measured)
        assert (a.queries, a.total_queries) == (b.queries, b.total_queries)
        for ours, theirs in ((a.error, b.error), (a.check_error, b.check_error)):
            assert ours == theirs or ours == pytest.approx(theirs, rel=1e-6, abs=1e-10)
