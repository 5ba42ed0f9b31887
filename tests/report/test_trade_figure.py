"""The main picture of an audit: every mark stands where its numbers say, and every label where it can be read."""

import re
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.report.trade_figure import FOOT, HEIGHT, LEFT, RIGHT, WIDTH, Point, trade

MARK = re.compile(r'<circle class="\w+" cx="([\d.]+)" cy="([\d.]+)"|<rect class="stops" x="([\d.]+)" y="([\d.]+)"')
NUMBER = re.compile(r'<text x="([-\d.]+)" y="([-\d.]+)" text-anchor="middle" class="number">(\w+)<')


def marks(points):
    drawn = trade(points, "told", 1e-2, 0.5)
    places = [(float(a or c) + 5.5 * bool(c), float(b or d) + 5.5 * bool(d)) for a, b, c, d in MARK.findall(drawn)]
    labels = {name: (float(x), float(y) - 4) for x, y, name in NUMBER.findall(drawn)}
    assert len(places) == len(labels) == len(points)
    return places, labels


numbers = st.none() | st.just(0.0) | st.floats(-17, 2).map(lambda log: 10.0**log)


@given(st.lists(st.tuples(numbers, numbers, st.sampled_from(["stops", "spoils", "fails", "open"])), min_size=1, max_size=24))
def test_no_mark_is_pushed_from_its_place(rows):
    points = [Point(str(i), harm, error, ending) for i, (harm, error, ending) in enumerate(rows)]
    places, labels = marks(points)
    for (x, y), (lx, ly) in zip(places, labels.values(), strict=True):
        assert LEFT <= x <= RIGHT <= WIDTH
        assert 0 < y <= FOOT + 1 < HEIGHT
        assert LEFT <= lx <= RIGHT
        assert 0 < ly < HEIGHT
    alone = [(p.harm or 0.0, p.error) for p in points]
    for i, j in combinations(range(len(points)), 2):
        if alone[i] == alone[j]:  # the same numbers, the same place: nothing is moved for the sake of a neighbour
            assert places[i] == places[j]
        if alone[i][0] > alone[j][0] > 0:
            assert places[i][0] >= places[j][0]
        if alone[i][1] and alone[j][1] and alone[i][1] > alone[j][1]:
            assert places[i][1] <= places[j][1]


def test_harm_and_error_are_read_off_the_axes():
    points = [Point("1", 1e-4, 1e-14), Point("2", 2.9e-3, 1e-14), Point("3", 1.0, 1e-14), Point("4", 1e-4, 1e-2)]
    places, _ = marks(points)
    decade = (places[2][0] - places[0][0]) / 4
    assert places[1][0] == pytest.approx(places[0][0] + decade * np.log10(29.0), abs=0.2)
    assert places[0][1] - places[3][1] > 0.6 * (FOOT - 54)  # twelve of sixteen decades: nothing is clamped


def test_labels_of_a_usual_table_do_not_lie_on_each_other():
    errors = [2e-15, 4e-15, 7e-15, 5e-15, 1e-3, 7e-5, 4e-15, 6e-15, 5e-15, 4e-12, 2e-13, 6e-4, 1e-2, None, 2e-15]
    harms = [0, 4e-7, 3e-5, 4e-3, 2e-3, 2e-4, 1e-2, 1e-1, 0, 4e-3, 3e-5, 1e-2, 1e-1, 0, 0]
    points = [Point(str(i + 1), harm, error) for i, (harm, error) in enumerate(zip(harms, errors, strict=True))]
    _, labels = marks(points)
    places = list(labels.values())
    for i in range(len(places)):
        for j in range(i):
            assert abs(places[i][0] - places[j][0]) >= 17 or abs(places[i][1] - places[j][1]) >= 12.9


def test_what_stops_the_extraction_has_a_mark_of_its_own():
    drawn = trade([Point("1", 0.0, 1e-15), Point("2", 0.0, None, "stops"), Point("3", 0.1, 0.05, "spoils")], "told", 1e-2, 0.5)
    assert drawn.count('class="stops"') == drawn.count('class="spoils"') == drawn.count('class="fails"') == 1
