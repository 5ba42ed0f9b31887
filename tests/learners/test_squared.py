"""Networks of squared ReLU neurons: recovered whole, or refused with the reason."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.errors import NotInFamilyError
from unsoftmax.families import by_law
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.squared import SquaredNetworkLearner
from unsoftmax.learners.squared.line import Line
from unsoftmax.learners.squared.pieces import Piece
from unsoftmax.learners.squared.squares import Squares
from unsoftmax.models import FFN
from unsoftmax.models.activations import activation_named
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.results import Floor


def gaussian(d, m, p, seed, skip=False):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=(p, m)) / np.sqrt(m)]
    return FFN(weights, [rng.normal(size=m), rng.normal(size=p)], rng.normal(size=(p, d)) if skip else None, activation="relu2")


def changed(target, weights=None, biases=None):
    return FFN(weights or target.weights, biases or target.biases, target.skip, activation="relu2")


def learn(target, seed=0):
    oracle = Metered(CallableOracle(lambda X: target(X[:, 0]), width=target.width))
    return SquaredNetworkLearner().run(oracle, rng=np.random.default_rng(seed)), oracle


def error(found, target):
    points = 2 * np.random.default_rng(1).normal(size=(1000, target.width))
    return np.abs(found.model(points) - target(points)).max() / target(points).std()


@pytest.mark.parametrize(("d", "m", "p", "skip"), [(1, 2, 1, False), (4, 8, 1, True), (8, 16, 1, False), (8, 16, 4, True)])
def test_networks_are_found_whole(d, m, p, skip):
    target = gaussian(d, m, p, 7, skip)
    found, _ = learn(target)
    assert found.evidence["neurons"] == m
    assert found.evidence["skip"] == skip
    assert error(found, target) < 1e-9
    assert us.distance(found.model, target) < 1e-8


@pytest.mark.parametrize(("d", "m", "p"), [(4, 8, 1), (8, 16, 1), (8, 16, 4)])
def test_the_meter_stays_within_the_price(d, m, p):
    prices = {name: queries for name, queries, _ in SquaredNetworkLearner().price(d, m, p)}
    _, oracle = learn(gaussian(d, m, p, 3))
    for name, count in oracle.phases.items():
        assert prices[name][0] <= count.queries <= prices[name][1], name
    assert set(oracle.phases) == set(prices)


@pytest.mark.parametrize("kind", ["no biases", "short rows", "long rows", "dead neuron", "duplicate", "one direction", "low rank"])
def test_awkward_networks(kind):
    target, m = gaussian(6, 8, 1, 21), 8
    (B, A), (b, c) = [w.copy() for w in target.weights], [x.copy() for x in target.biases]
    if kind == "no biases":
        b *= 0
    elif kind in ("short rows", "long rows"):
        B *= 0.05 if kind == "short rows" else 20
    elif kind == "dead neuron":
        A[0, 2], m = 0, 7
    elif kind == "duplicate":  # of another scale
        B[1], b[1], m = 2 * B[0], 2 * b[0], 7
    elif kind == "one direction":
        B[1] = -0.5 * B[0]
    elif kind == "low rank":
        B = B @ np.random.default_rng(5).normal(size=(6, 3)) @ np.random.default_rng(6).normal(size=(3, 6)) / 6
    target = changed(target, [B, A], [b, c])
    found, _ = learn(target)
    assert found.evidence["neurons"] == m
    assert error(found, target) < 1e-9


def relu(z):
    return np.maximum(z, 0)


STRANGERS = {
    "cubes": (lambda z, x: relu(z) ** 3, "no squared ReLU|curvature|bends otherwise"),
    "leaky squares": (lambda z, x: relu(z) ** 2 + 0.1 * np.minimum(z, 0) ** 2, "leaky squares"),
    "two layers": (lambda z, x: relu(relu(z) ** 2 - 0.1) ** 2, "no squared ReLU|curvature|bend"),
    "half ReLU": (lambda z, x: np.where(np.arange(6) % 2, relu(z) ** 2, relu(z)), "continuous slopes"),
    "gates of ReLU": (lambda z, x: relu(z) * np.roll(x @ np.eye(5, 6), 1, axis=1), "continuous slopes"),
    "a quadratic path": (lambda z, x: relu(z) ** 2 + 0.1 * (x**2).sum(axis=1, keepdims=True), "quadratic path"),
    "both sides of one hyperplane": (lambda z, x: np.where(z > 0, 1, [[0, 0, 2, 0, 0, 0]]) * z**2, "look opposite ways"),
}


@pytest.mark.parametrize("name", list(STRANGERS))
def test_strangers_are_refused(name):
    bend, words = STRANGERS[name]
    rng = np.random.default_rng(31)
    B, b, A = rng.normal(size=(6, 5)) / 2, rng.normal(size=6), rng.normal(size=6)
    oracle = CallableOracle(lambda X: bend(X[:, -1] @ B.T + b, X[:, -1]) @ A, width=5)
    assert us.recover(oracle, seed=2, on_failure="return").status is us.Status.NOT_IN_FAMILY
    with pytest.raises(NotInFamilyError, match=words):
        SquaredNetworkLearner().run(oracle, rng=np.random.default_rng(0))


def test_it_is_found_by_itself_named_and_planned():
    target = gaussian(5, 8, 2, 9)
    oracle = CallableOracle(target.respond, width=5)
    found = us.recover(oracle, seed=1)
    assert found.status is us.Status.EXACT
    assert us.distance(found.model, target) < 1e-9
    told = us.diagnose(oracle)
    assert told.family == "squared-ffn"
    assert "relu2" in told.reason
    bill = us.plan("demo:squared-ffn,width=5,hidden=8,outputs=2")
    assert bill.queries <= found.facts["queries"]["total"] <= bill.queries_max
    assert us.recover(oracle, seed=1, family="ffn").status is us.Status.EXACT


def test_it_stands_before_the_gates_whose_law_it_goes_beyond():
    names = [family.name for family in by_law("auto", 8)]
    assert names.index("squared-ffn") < names.index("gated-ffn")


def test_gates_are_not_taken_for_squares():
    rng = np.random.default_rng(4)
    gated = us.GatedFFN(rng.normal(size=(5, 4)), rng.normal(size=(5, 4)), rng.normal(size=(1, 5)))
    assert us.recover(gated, seed=3).model.activation == "silu"


def test_the_scale_of_a_neuron_does_not_show(tmp_path):
    target = gaussian(3, 4, 1, 5)
    (B, A), (b, c) = target.weights, target.biases
    other = changed(target, [3 * B, A / 9], [3 * b, c])
    assert us.distance(target, other) < 1e-14
    assert us.identifiability(target).nullity == 4
    twin = us.witness(target)
    points = np.random.default_rng(2).normal(size=(20, 3))
    assert np.array_equal(twin(points), target(points))
    assert not np.array_equal(twin.weights[0], B)
    target.save(tmp_path / "squares.safetensors")
    assert us.load(tmp_path / "squares.safetensors").activation == "relu2"


def test_in_torch_it_answers_alike():
    torch = pytest.importorskip("torch")
    target = gaussian(3, 4, 2, 5, skip=True)
    points = np.random.default_rng(2).normal(size=(20, 3))
    assert np.abs(target.to_torch()(torch.tensor(points)).detach().numpy() - target(points)).max() < 1e-14


def test_a_bend_is_a_perfect_square_and_two_are_not():
    network = FFN([[[1.0], [-1.0], [1.0]], [[1.0, 2.0, -3.0]]], [[0.0, 5.0, -7.0], [0.0]], activation="relu2")
    questions = Questions(CallableOracle(lambda X: network(X[:, 0]), width=1), floor=Floor(), max_norm=None)
    line = Line(questions, np.zeros(1), np.ones(1), 64.0, 3)
    first, second, third = (line.ask(np.array(places)) for places in ([-3.0, -2.0, -1.0], [1.0, 2.0, 4.0], [8.0, 9.0, 10.0]))
    place, jump, one = line.bend(first, second)
    assert one
    assert abs(place) < 1e-12
    assert np.allclose(jump, 1)
    assert not line.bend(first, third)[2]
    assert line.bend(first, line.ask(np.array([-9.0, -8.0, -7.0])).joined(first)) is None


def test_a_piece_knows_how_well_it_is_continued():
    places = np.array([0.0, 1.0, 2.0])
    piece = Piece(places, np.c_[places**2, 1 - places], np.full(3, 1e-3))
    assert np.allclose(piece(np.array([5.0])), [[25, -4]])
    assert piece.doubt(np.array([1.0]))[0] == pytest.approx(1e-3)
    assert piece.doubt(np.array([5.0]))[0] > 1e-2


def test_derivatives_leave_out_what_does_not_show():
    rng = np.random.default_rng(0)
    squares = Squares(activation_named("relu2"), *(rng.normal(size=shape) for shape in [(3, 2), (3, 4), 3, (2, 4), 2]))
    points, free = rng.normal(size=(6, 4)), squares.free(True)
    assert free.sum() == free.size - 3
    slopes = squares.derivatives(points, np.ones(6), free)
    step = 1e-6 * rng.normal(size=free.sum())
    change = squares.moved_by(step, free)(points) - squares.moved_by(-step, free)(points)
    assert np.allclose(2 * slopes @ step, change.T.ravel(), atol=1e-9)
    assert np.allclose(squares.of_unit_rows()(points), squares(points))


def test_a_function_without_bends_is_refused():
    with pytest.raises(NotInFamilyError, match="does not bend"):
        SquaredNetworkLearner().run(CallableOracle(lambda X: (X[:, 0] ** 2).sum(axis=1), width=3), rng=np.random.default_rng(0))
