from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.gated import GatedNetworkLearner, GatedTransformerLearner
from unsoftmax.learners.gated.arcs import Arc, ArcSearch, crossings
from unsoftmax.learners.gated.forms import without_trifles
from unsoftmax.learners.gated.gates import Gates
from unsoftmax.learners.gated.plane import circle, read_plane
from unsoftmax.learners.gated.settings import GATES
from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.naming import named_activation
from unsoftmax.learners.smooth.recognition import quadratic_from_afar, straight_from_afar
from unsoftmax.models import FFN, Attention, GatedFFN, Transformer
from unsoftmax.models.activations import activation_named
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.results import Floor
from unsoftmax.symmetry import canonical, distance, identifiability, witness


def gaussian(d, m, p, kind, seed, biased=False, skip=False):
    rng = np.random.default_rng(seed)
    gate, up = rng.normal(size=(2, m, d)) / np.sqrt(d)
    biases = rng.normal(size=(2, m)) if biased else (None, None)
    down, constant = rng.normal(size=(p, m)) / np.sqrt(m), rng.normal(size=p)
    return GatedFFN(gate, up, down, *biases, constant, rng.normal(size=(p, d)) if skip else None, activation=kind)


def learn(target, seed=0):
    oracle = Metered(CallableOracle(target.respond, width=target.width))
    return GatedNetworkLearner().run(oracle, rng=np.random.default_rng(seed)), oracle


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "softplus"])
@pytest.mark.parametrize("biased", [False, True])
def test_every_kind_of_gate_is_named_and_every_weight_found(kind, biased):
    target = gaussian(4, 6, 1, kind, 40, biased)
    found, oracle = learn(target)
    assert found.model.activation == kind
    assert (found.model.gate_bias is not None, found.model.up_bias is not None) == (biased, biased)
    assert found.model.skip is None
    assert distance(found.model, target) < 1e-10
    for name, (low, high), _ in GatedNetworkLearner().price(4, 6):
        assert low <= oracle.phases[name].queries <= high, name


def test_d8_m16_stays_within_the_promised_price():
    target = gaussian(8, 16, 1, "silu", 7)
    found, oracle = learn(target)
    assert distance(found.model, target) < 1e-10
    assert oracle.spent <= 2.8 * 257


@pytest.mark.parametrize("skip", [False, True])
def test_vector_answers_and_a_linear_skip(skip):
    target = gaussian(5, 7, 3, "gelu", 8, biased=True, skip=skip)
    found, _ = learn(target)
    assert (found.model.skip is not None) is skip
    assert distance(found.model, target) < 1e-10


def test_more_gates_than_quadratic_forms_are_independent():
    target = gaussian(3, 9, 1, "silu", 9)
    found, _ = learn(target)
    assert distance(found.model, target) < 1e-8


@pytest.mark.parametrize(("factor", "bias"), [(0.05, 1.0), (20.0, 1.0), (1.0, 100.0)])
def test_scales_of_weights_and_biases_do_not_matter(factor, bias):
    target = gaussian(4, 5, 1, "silu", 21, biased=True)
    target = GatedFFN(factor * target.gate, target.up, target.down, bias * target.gate_bias, target.up_bias, target.down_bias)
    found, _ = learn(target)
    assert distance(found.model, target) < 1e-8


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        (lambda z: np.maximum(z, 0.0), "ReGLU"),
        (activation_named("mish").value, "mirror image"),
        (lambda z: z * (1 + np.tanh(0.8 * (z + 0.06 * z**3))) / 2, "none of"),
        (lambda z: z, "without bends"),
    ],
)
def test_strangers_are_refused_with_the_reason(gate, words):
    target = gaussian(4, 5, 1, "silu", 3)

    def answer(X):
        x = X[:, 0]
        return (gate(x @ target.gate.T) * (x @ target.up.T)) @ target.down[0]

    with pytest.raises(NotInFamilyError, match=words):
        GatedNetworkLearner().run(CallableOracle(answer, width=4), rng=np.random.default_rng(0))


def test_gates_of_two_activations_are_refused():
    a, b = gaussian(4, 4, 1, "silu", 5), gaussian(4, 3, 1, "gelu", 6)
    oracle = CallableOracle(lambda X: a.respond(X) + b.respond(X), width=4)
    with pytest.raises(NotInFamilyError):
        GatedNetworkLearner().run(oracle, rng=np.random.default_rng(0))


def pieces(m, seed):
    rng = np.random.default_rng(seed)
    normal, up = rng.normal(size=(2, m, 5))
    out = rng.normal(size=(m, 2))
    return normal / np.linalg.norm(normal, axis=1, keepdims=True), up, out


def test_bends_on_a_half_circle():
    normal, up, out = pieces(9, 0)

    def ask(t):
        x = np.pad(circle(t), ((0, 0), (0, 3)))
        return (np.maximum(x @ normal.T, 0) * (x @ up.T)) @ out

    search = ArcSearch(ask, 1e-15)
    arcs = search.run(search.begun([0.0, 1.0, 2.0, np.pi - 2 * GATES.step]))
    found = [crossings(left, right)[0][0] for left, right in pairwise(arcs)]
    assert np.allclose(found, np.sort(np.arctan2(-normal[:, 0], normal[:, 1]) % np.pi), atol=1e-9)


def test_an_arc_is_continued_exactly():
    places = [0.3, 0.4, 0.6]
    arc = Arc(places, [np.array([1 + 2 * np.cos(2 * t) - np.sin(2 * t)]) for t in places], [1e-16] * 3)
    assert arc.value(2.0)[0] == pytest.approx(1 + 2 * np.cos(4.0) - np.sin(4.0))
    assert np.allclose(arc.form(0.0, 0.2)[:, 0], [1, 2, -1])
    assert not arc.holds(2.0, arc.value(2.0) + 1e-9, 1e-16)


def test_one_plane_tells_every_gate():
    normal, up, out = pieces(7, 1)
    out /= np.linalg.norm(out, axis=1, keepdims=True)
    basis = np.linalg.qr(np.random.default_rng(2).normal(size=(5, 5)))[0].T
    factors = read_plane(lambda x: (np.maximum(x @ normal.T, 0) * (x @ up.T)) @ out, basis, 3.0, 1e-15, np.random.default_rng(3))
    for n, u, o in zip(normal, up, out, strict=True):
        products = np.einsum("jw,jv,jo->jwvo", factors.normal, factors.up, factors.out)
        assert np.abs(np.abs(products) - np.abs(np.einsum("w,v,o->wvo", n, u, o))).max(axis=(1, 2, 3)).min() < 1e-6


def test_derivatives_of_gates_in_their_parameters():
    rng = np.random.default_rng(0)
    shapes = [(3, 4), (3,), (3, 4), (3,), (3, 2), (2, 4), (2,)]
    gates = Gates(activation_named("gelu"), *(rng.normal(size=shape) for shape in shapes))
    points = rng.normal(size=(5, 4))
    free = gates.free("normal", "shift", "up", "lift", "out", "linear", "constant")
    assert free.sum() == sum(np.prod(shape) for shape in shapes) - 3
    rows = gates.derivatives(points, np.ones(5), free)
    step = 1e-6 * rng.normal(size=rows.shape[1])
    change = gates.moved_by(step, free)(points) - gates.moved_by(-step, free)(points)
    assert np.allclose(2 * rows @ step, change.T.ravel(), atol=1e-12)


def test_the_model_is_saved_compared_and_counted(tmp_path):
    target = gaussian(4, 5, 3, "gelu", 1, biased=True, skip=True)
    target.save(tmp_path / "gated.safetensors")
    again = us.load(tmp_path / "gated.safetensors")
    assert isinstance(again, GatedFFN)
    assert distance(again, target) == 0.0
    other = witness(target)
    points = np.random.default_rng(0).normal(size=(9, 4))
    assert np.array_equal(other(points), target(points))
    assert not np.array_equal(other.up, target.up)
    assert distance(other, target) < 1e-14
    assert np.allclose(canonical(target)(points), target(points))
    assert np.allclose(np.linalg.norm(canonical(target).down, axis=0), 1)
    assert identifiability(target).nullity == 5
    assert identifiability(target).dimension == target.freedom
    assert distance(target, gaussian(4, 5, 3, "silu", 1)) == np.inf


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="twice"):
        GatedFFN(np.ones((2, 3)), np.ones((2, 2)), np.ones((1, 2)))
    with pytest.raises(ValueError, match="up_bias"):
        GatedFFN(np.ones((2, 3)), np.ones((2, 3)), np.ones((1, 2)), up_bias=np.ones(3))


@pytest.mark.parametrize("family", ["auto", "ffn", "gated-ffn"])
def test_recover_finds_gated_networks(family):
    target = gaussian(4, 5, 2, "silu", 11)
    found = us.recover(target, family=family, seed=1)
    assert found.status.name == "EXACT"
    assert found.facts["family"] == "gated-ffn"
    assert distance(found.model, target) < 1e-10


def test_diagnose_names_the_gates():
    told = us.diagnose(gaussian(4, 5, 1, "gelu", 12))
    assert (told.family, told.inside) == ("gated-ffn", True)
    assert "bends as gelu does" in told.reason
    assert told.queries <= 200 + 4 * 4


def test_the_first_questions_tell_gates_from_others():
    rng = np.random.default_rng(0)
    gated, plain = (
        gaussian(5, 8, 1, "silu", 2),
        FFN([rng.normal(size=(6, 5)), np.ones((1, 6))], [np.ones(6), [0]], activation="gelu"),
    )
    for target, quadratic in ((gated, True), (plain, False)):
        oracle = CallableOracle(target.respond, width=5)
        assert quadratic_from_afar(oracle, rng=rng).passed is quadratic
        assert straight_from_afar(oracle, rng=rng).passed is not quadratic
        assert named_activation(oracle, degree=1 + quadratic, rng=rng).sentence.startswith(f"A neuron bends as {target.activation}")


def test_saturated_neurons_that_cancel_are_no_gates():
    signs = np.array([1.0, -1.0])
    oracle = CallableOracle(lambda X: np.tanh(X[:, -1, :1] + [[0.3, -0.2]]) @ signs, width=3)
    assert not quadratic_from_afar(oracle, rng=np.random.default_rng(0)).passed


def test_the_demo_and_its_bill():
    oracle = us.open("demo:gated-ffn,width=4,hidden=5,activation=gelu")
    bill = us.plan("demo:gated-ffn,width=4,hidden=5,activation=gelu")
    found = us.recover(oracle, seed=2)
    assert found.model.activation == "gelu"
    assert bill.low <= found.facts["queries"]["total"] <= bill.high


def test_the_torch_module_answers_alike():
    torch = pytest.importorskip("torch")
    target = gaussian(4, 5, 3, "gelu_tanh", 1, biased=True, skip=True)
    points = 3 * np.random.default_rng(0).normal(size=(7, 4))
    module = target.to_torch()
    assert np.allclose(module(torch.tensor(points)).detach().numpy(), target(points), atol=1e-13)
    assert distance(module.network, target) == 0.0


def behind_head(d, m, p, kind, seed, *, biased=False, residual=False):
    rng = np.random.default_rng(seed + 1000)
    W, V = rng.normal(size=(2, 1, d, d)) / np.sqrt(d)
    c = rng.normal(size=(1, d)) / np.sqrt(d) if biased else None
    return Transformer(Attention(W, V, c), gaussian(d, m, p, kind, seed, biased=biased), residual=residual)


@pytest.mark.parametrize(("outputs", "biased", "residual"), [(1, False, False), (1, True, True), (3, True, False)])
def test_a_head_in_front_of_gates_is_read_through_them(outputs, biased, residual):
    target = behind_head(5, 7, outputs, "silu", 21, biased=biased, residual=residual)
    oracle = Metered(CallableOracle(target.respond, width=5))
    learner = GatedTransformerLearner()
    found = learner.run(oracle, rng=np.random.default_rng(3))
    assert (found.evidence["residual"], found.evidence["query_bias"]) == (residual, biased)
    assert distance(found.model, target) < 1e-10
    phases = learner.price(5, 7, outputs)
    assert sum(low for _, (low, _), _ in phases) <= oracle.spent <= sum(high for _, (_, high), _ in phases)


def test_recover_finds_gates_behind_a_head_and_keeps_them(tmp_path):
    torch = pytest.importorskip("torch")
    target = behind_head(4, 5, 1, "gelu", 22, residual=True)
    found = us.recover(target, seed=1)
    assert (found.status.name, found.facts["family"]) == ("EXACT", "gated-transformer")
    found.model.save(tmp_path / "whole.safetensors")
    again = us.load(tmp_path / "whole.safetensors")
    sequences = np.random.default_rng(0).normal(size=(6, 5, 4))
    assert distance(again, target) < 1e-10
    assert np.allclose(again.to_torch()(torch.tensor(sequences)).detach().numpy()[:, 0], target(sequences), atol=1e-12)
    other = witness(target)
    assert np.array_equal(other(sequences), target(sequences))
    assert not np.array_equal(other.ffn.up, target.ffn.up)
    assert identifiability(target).nullity == 5


def test_two_heads_in_front_of_gates_are_refused():
    network, rng = gaussian(4, 5, 1, "silu", 23), np.random.default_rng(5)
    heads = Attention(rng.normal(size=(2, 4, 4)) / 2, rng.normal(size=(2, 4, 4)) / 2)
    oracle = CallableOracle(lambda X: network(heads(X)), width=4)
    with pytest.raises(NotInFamilyError, match="several heads"):
        GatedTransformerLearner().run(oracle, rng=np.random.default_rng(0))


def test_bends_that_lie_close_together_are_not_taken_for_one():
    normal, up, out = pieces(9, 4)
    turn = np.arctan2(-normal[0, 0], normal[0, 1]) + 4e-6
    normal[1, :2] = -np.sin(turn), np.cos(turn)

    def ask(t):
        x = np.pad(circle(t), ((0, 0), (0, 3)))
        return (np.maximum(x @ normal.T, 0) * (x @ up.T)) @ out[:, :1]

    search = ArcSearch(ask, 1e-15)
    assert len(search.run(search.begun([0.0, 1.0, 2.0, np.pi - 2 * GATES.step]))) == 10


def test_biases_of_a_faint_gate_are_told_by_what_they_add():
    """Errors of theirs that no answer shows are no biases; what answers do show stays."""
    rng = np.random.default_rng(8)
    normal, up = rng.normal(size=(2, 5, 4))
    out = np.array([[1.0], [1.0], [1.0], [1.0], [1e-6]])
    zero = np.zeros(5)
    plain = Gates(activation_named("silu"), normal, zero, up, zero, out, np.zeros((1, 4)), np.zeros(1))
    points = 2 * rng.normal(size=(150, 4))
    answers = Answers(points, plain(points), Floor())
    strayed = replace(plain, shift=np.array([0, 0, 0, 0, 1e-7]))
    assert not without_trifles(strayed, 0.05, answers).shift.any()
    biased = replace(plain, shift=np.array([0, 0, 0, 0, 1e-3]))
    kept = without_trifles(biased, 0.05, Answers(points, biased(points), Floor()))
    assert kept.shift[4] == 1e-3
