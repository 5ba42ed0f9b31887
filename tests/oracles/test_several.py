"""Several endpoints of one model share the questions, and must agree."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unsoftmax as us
from servers import MODEL, OpenInference, scripted
from unsoftmax.cli import run
from unsoftmax.errors import TargetError
from unsoftmax.models.attention import Floats
from unsoftmax.oracles import CallableOracle, Journal, Journaled, Metered, Several
from unsoftmax.oracles.crew import size_of_requests
from unsoftmax.oracles.http import HttpOracle

PATH = f"/v2/models/{MODEL}"


def head(seed: int, width: int = 5) -> us.Attention:
    rng = np.random.default_rng(seed)
    return us.Attention.single(W=rng.normal(size=(width, width)) / np.sqrt(width), v=rng.normal(size=width))


class Counted(CallableOracle):
    asked = 0

    def __call__(self, sequences: Floats, /) -> Floats:
        self.asked += len(sequences)
        return super().__call__(sequences)


@settings(max_examples=30, deadline=None)
@given(members=st.integers(1, 5), calls=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_every_sequence_is_asked_once_and_answered_in_its_place(members: int, calls: list[int]) -> None:
    model = head(1)
    crew = [Counted(model) for _ in range(members)]
    several, rng = Metered(Several(crew)), np.random.default_rng(0)
    for count in calls:
        X = rng.normal(size=(count, 3, 5))
        assert np.allclose(several(X), model(X), rtol=1e-13)
    assert sum(member.asked for member in crew) == several.spent == sum(calls)
    if len(calls) >= members:
        assert all(member.asked for member in crew)


def test_a_head_behind_two_endpoints_is_recovered(tmp_path) -> None:
    crew = [Counted(head(2)), Counted(head(2))]
    found = us.recover(Several(crew), seed=0, journal=tmp_path / "journal.sqlite")
    assert found.status is us.Status.EXACT
    assert us.distance(found.model, head(2)) < 1e-13
    assert min(member.asked for member in crew) > 0.4 * max(member.asked for member in crew)


@pytest.mark.parametrize("seed", range(4))
def test_other_weights_behind_one_of_them_are_no_success(seed: int) -> None:
    model = head(3)
    other = us.Attention.single(W=model.W[0] + 1e-3, v=model.V[0])
    found = us.recover(
        Several([CallableOracle(model), CallableOracle(model), CallableOracle(other)]), seed=seed, on_failure="return"
    )
    assert found.status is us.Status.DRIFTING


def test_each_share_is_a_row_of_the_journal(tmp_path) -> None:
    journal = Journal(tmp_path / "j.sqlite", {})
    asked = Journaled(Several([CallableOracle(head(4)), CallableOracle(head(4))]), journal)
    X = np.random.default_rng(0).normal(size=(7, 2, 5))
    answers = asked(X)
    assert journal.answered == 7
    crew = [Counted(head(4)), Counted(head(4))]
    assert np.array_equal(Journaled(Several(crew), journal)(X), answers)
    assert [member.asked for member in crew] == [0, 0]
    journal.close()


def test_a_member_that_fails_is_named() -> None:
    def broken(X: Floats) -> Floats:
        raise RuntimeError("out of order")

    with pytest.raises(TargetError, match=r"number 2: .*out of order"):
        Several([CallableOracle(head(5)), CallableOracle(broken, width=5)])(np.zeros((4, 1, 5)))


def test_other_widths_and_layouts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"widths \[5, 4\]"):
        Several([CallableOracle(head(1)), CallableOracle(head(1, 4))])
    vectors = us.Attention(np.zeros((1, 5, 5)), np.ones((1, 5, 2)))
    with pytest.raises(TargetError):
        Several([CallableOracle(head(1)), CallableOracle(vectors)])(np.zeros((4, 1, 5)))


def test_on_the_command_line(capsys) -> None:
    demo = "demo:attention,width=6,seed=3"
    assert run(["recover", demo, "--target", demo, "--target", demo, "--json", "--seed", "1"]) == 0
    assert run(["recover", demo, "--target", "demo:attention,width=6,seed=4", "--json", "--seed", "1"]) == 5
    assert run(["recover", demo, "--target", "demo:attention,width=7"]) == 2


class Meeting:
    """A model that answers a request only when as many others are under way as it can work on side by side."""

    def __init__(self, model: us.Attention, streams: int) -> None:
        self.model, self.met = model, threading.Barrier(streams)

    def __call__(self, X: Floats) -> Floats:
        self.met.wait(20.0)
        return self.model(X)


def test_a_call_is_divided_among_the_streams_of_one_server() -> None:
    model, X = head(2), np.random.default_rng(0).normal(size=(19, 2, 5))
    server = OpenInference(Meeting(model, 4), 5)
    with scripted(server) as root, HttpOracle(root + PATH, in_flight=4, divide=True) as oracle:
        assert np.allclose(oracle(X), model(X), rtol=1e-13)
        assert (server.posts, server.asked, oracle.repeated) == (4, 19, 0)


@pytest.mark.parametrize(
    ("questions", "largest", "streams", "size"), [(19, 64, None, 64), (19, 64, 8, 3), (400, 10, 8, 10), (3, 64, 8, 1)]
)
def test_a_request_holds_an_even_share_but_no_more_than_it_may(
    questions: int, largest: int, streams: int | None, size: int
) -> None:
    assert size_of_requests(questions, largest, streams) == size


def test_streams_on_the_command_line(capsys) -> None:
    posts = []
    for streams in ([], ["--streams", "5"]):
        server = OpenInference(head(2), 5)
        with scripted(server) as root:
            assert run(["recover", root + PATH, *streams, "--json", "--seed", "1"]) == 0
        posts.append(server.posts)
    assert posts[1] > 3 * posts[0]
    capsys.readouterr()
    assert run(["recover", "demo:attention,width=6", "--streams", "5"]) == 2
    assert "--streams" in capsys.readouterr().err


def test_one_number_may_have_an_axis_of_its_own_or_none() -> None:
    model = head(1)
    both = Several([CallableOracle(model, width=5), CallableOracle(lambda X: model(X)[:, None], width=5)])
    X = np.random.default_rng(0).normal(size=(5, 3, 5))
    for _ in range(2):
        np.testing.assert_array_equal(both(X), model(X))


@pytest.mark.parametrize("seed", range(4))
def test_one_of_several_that_changes_later_drifts(seed: int) -> None:
    """It is no stranger to every family: each is asked the same again before a verdict."""
    calls = iter(range(10**6))

    def later(X: Floats) -> Floats:
        return head(1 if next(calls) < 7 + 5 * seed else 2)(X)

    both = Several([CallableOracle(head(1), width=5), CallableOracle(later, width=5)])
    assert us.recover(both, seed=seed, on_failure="return").status is us.Status.DRIFTING
