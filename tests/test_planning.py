import pytest

import unsoftmax as us
from unsoftmax.demo import demo_oracle
from unsoftmax.planning import plan_attention


@pytest.mark.parametrize(
    ("width", "rank", "outputs"), [(8, 8, 0), (24, 24, 0), (32, 3, 0), (40, 1, 0), (24, 24, 5), (20, 20, 20), (30, 4, 7)]
)
def test_the_run_keeps_to_the_plan(width, rank, outputs):
    told = plan_attention(width, outputs=outputs or 1, rank=rank, heads=1)
    run = us.recover(demo_oracle("attention", width=width, rank=rank, outputs=outputs), rank=rank, heads=1)
    assert told.queries == told.queries_max == sum(queries for _, queries, _ in told.phases)
    assert abs(run.facts["queries"]["total"] - told.queries) <= 0.02 * told.queries + 16
    found = us.recover(demo_oracle("attention", width=width, rank=rank, outputs=outputs))
    open_plan = plan_attention(width, outputs=outputs or 1)
    assert open_plan.queries - 16 <= found.facts["queries"]["total"] <= open_plan.queries_max + 16
