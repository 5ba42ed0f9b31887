"""Whole pre-norm stacks: all heads of all layers, and what is no such stack."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit

import unsoftmax as us
from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, RefusalError, TooNoisyError
from unsoftmax.learners.stack import StackLearner, mlp_values, recognised
from unsoftmax.learners.stack.circles import Circle, find_bends
from unsoftmax.learners.stack.heads import typical_score
from unsoftmax.learners.stack.known import cliff
from unsoftmax.learners.stack.least import least_squares, pieces
from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.neurons import Neurons
from unsoftmax.learners.stack.order import Order
from unsoftmax.learners.stack.polish import polished
from unsoftmax.learners.stack.recognition import behind_a_norm
from unsoftmax.learners.stack.settings import EXACT, STACK
from unsoftmax.learners.stack.sigmoids import fit_sigmoids, sigmoids
from unsoftmax.learners.stack.sphere import Sphere
from unsoftmax.learners.stack.steps import Told, fit_steps
from unsoftmax.learners.stack.whole import layers_of
from unsoftmax.models import Attention, Floats, Stack
from unsoftmax.models.stack import normalised, random_stack
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.precision.law import Floor

SMALL = (2, 2, 20, 4)  # layers, heads, width, rank


def small(seed: int = 0, norm: str = "layer", **settings: float) -> Stack:
    return random_stack(*SMALL, np.random.default_rng(seed), norm=norm, hidden=24, **settings)  # type: ignore[arg-type]


def bare(x: Floats) -> Floats:
    return normalised(x, "layer", 1e-5)


def run(target: Callable[[Floats], Floats], seed: int = 0, width: int = 20, floor: Floor | None = None) -> tuple[Stack, int]:
    oracle = Metered(CallableOracle(target, width=width))
    learned = StackLearner(floor=floor or Floor(), checks=8).run(oracle, rng=np.random.default_rng(seed))
    assert isinstance(learned.model, Stack)
    return learned.model, oracle.spent


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_head_of_every_layer_comes_back(norm: str, seed: int) -> None:
    target = small(seed, norm)
    found, spent = run(target, seed)
    assert us.distance(found, target) < 1e-8
    assert found.norm == norm
    priced = sum(count for _, count in StackLearner(checks=8).price(20, 4, 4))
    assert spent <= 1.2 * priced + 16


def test_scores_times_five() -> None:
    target = small(3, strength=5.0)
    assert us.distance(run(target)[0], target) < 1e-7


def test_a_fit_to_all_answers_finds_the_heads_from_nearby() -> None:
    rng = np.random.default_rng(5)
    target = random_stack(1, 2, 12, 3, rng, norm="rms")
    sphere, limit = Sphere(12, "rms"), Limit(CallableOracle(target))
    for keys in (1, 3):
        readers = np.stack([sphere.sparse(rng.choice(12, size=3, replace=False), rng) for _ in range(120)])
        limit.ask(sphere.dense(120 * keys, rng).reshape(120, keys, 12), readers)
    truth = target.limit()
    start = Stack([truth.shaken(1e-3, rng)], "rms", None)
    assert us.distance(start, Stack([truth], "rms", None)) > 1e-5
    found = polished(limit.batches, start.limit(), (3, 3), (3, 3), 1e-13)
    assert found is not None
    assert us.distance(Stack([found.model], "rms", None), Stack([truth], "rms", None)) < 1e-10
    assert found.misfit < 1e-12


@pytest.mark.parametrize("causal", [False, True])
def test_every_position_answered_saves_questions(causal: bool) -> None:
    target = small(4)
    oracle = Metered(CallableOracle(lambda X: target(X, "all", causal=causal), width=20))
    learned = StackLearner(checks=4, mlps=0).run(oracle, rng=np.random.default_rng(0))
    last = sum(count for _, count in StackLearner(checks=4, mlps=0).price(20, 4, 4))
    assert learned.evidence["causal"] is causal
    assert us.distance(learned.model, target) < 1e-8
    assert oracle.spent < (1.0 if causal else 0.9) * last


@pytest.mark.parametrize("causal", [False, True])
def test_a_crowd_of_last_tokens_halves_the_questions(causal: bool) -> None:
    target = random_stack(2, 2, 28, 7, np.random.default_rng(5), norm="rms", hidden=28)
    oracle = Metered(CallableOracle(lambda X: target(X, "all", causal=causal), width=28))
    learned = StackLearner(checks=4, mlps=0).run(oracle, rng=np.random.default_rng(0))
    last = sum(count for _, count in StackLearner(checks=4, mlps=0).price(28, 4, 7))
    assert us.distance(learned.model, target) < 1e-8
    assert oracle.spent < 0.65 * last


def test_learned_positions_cancel() -> None:
    target = small(5)
    places = np.random.default_rng(1).normal(size=(64, 20))
    found, _ = run(lambda X: target(X + places[: X.shape[1]]))
    assert us.distance(found, target) < 1e-8


def test_one_layer_of_parallel_blocks_is_one_layer() -> None:
    stack = small(6)

    def parallel(X: Floats) -> Floats:
        n = bare(X)
        return (X + sum(layer(n, "all") + mlp(n) for layer, mlp in zip(stack.layers, stack.mlps or (), strict=True)))[:, -1]

    found, _ = run(parallel)
    assert [layer.heads for layer in found.layers] == [4]
    assert us.distance(found, Stack([stack.limit()], "layer")) < 1e-8


def test_float32_arithmetic() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 1, 16, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
    encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    found = us.recover(encoder, seed=0)
    assert found.status is us.Status.WITHIN_TOLERANCE
    truth = _folded(encoder.layers[0], 1)
    assert us.distance(found.model, truth) < 3e-2  # type: ignore[arg-type]


def test_recover_finds_the_family_of_a_torch_encoder_by_itself() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(20, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    with torch.no_grad():
        for parameter in encoder.parameters():  # the layers are copies of one another until then
            parameter += 0.2 * torch.randn_like(parameter)
    found = us.recover(encoder, seed=0)
    assert found.status is us.Status.EXACT
    assert found.facts["family"] == "stack"
    assert isinstance(found.model, Stack)
    for one, block in zip(found.model.layers, encoder.layers, strict=True):
        assert us.distance(Stack([one], "layer"), _folded(block, 2)) < 1e-8


def _folded(block: object, heads: int) -> Stack:
    """A torch encoder layer's attention with its norm folded in."""
    norm, attention = block.norm1, block.self_attn  # type: ignore[attr-defined]
    gain, shift = (p.detach().double().numpy() for p in (norm.weight, norm.bias))
    plain = Attention.from_torch(attention.double())
    P = np.eye(len(gain)) - 1 / len(gain)
    W = P @ (gain[:, None] * plain.W * gain) @ P
    c = (gain * (plain.c + plain.W @ shift)) @ P
    assert plain.V is not None
    attention.to(norm.weight.dtype)
    assert heads == plain.heads
    return Stack([Attention(W, P @ (gain[:, None] * plain.V), c)], "layer")


def test_mlps_of_earlier_layers_can_be_read_at_any_point() -> None:
    target = random_stack(2, 2, 20, 10, np.random.default_rng(7), hidden=24)  # the second layer's heads see every direction
    rng = np.random.default_rng(0)
    points = Sphere(20, "layer").dense(2, rng)
    (read,) = mlp_values(CallableOracle(target), Stack(target.layers, "layer", None), points, rng=rng)
    for p, one, told in zip(points, read, target.mlp_values(points)[0], strict=True):
        tangential = Sphere(20, "layer").complement(p[None])
        assert np.linalg.norm(tangential @ (one - told)) < 1e-5 * np.linalg.norm(tangential @ told)
    with pytest.raises(ValueError, match="mlp_values"):
        Stack(target.layers, "layer", None).mlp_values(points)


def test_relu_mlps_make_the_stack_whole() -> None:
    target = random_stack(1, 1, 8, 8, np.random.default_rng(1), hidden=4, activation="relu")
    found = us.recover(target, seed=0)
    assert isinstance(found.model, Stack)
    assert found.status is us.Status.EXACT
    assert found.model.complete
    tokens = np.random.default_rng(2).normal(size=(50, 4, target.width))
    np.testing.assert_allclose(found.model(tokens), target(tokens), atol=1e-8)
    assert us.distance(found.model, target) < 1e-9
    assert us.verify(target, found.model, tolerance=1e-8).matches


def test_mlps_of_other_kinds_leave_the_heads_alone() -> None:
    stack = random_stack(1, 1, 8, 4, np.random.default_rng(5), norm="rms", hidden=10)
    mlp = (stack.mlps or ())[0]

    def squared(X: Floats) -> Floats:
        h = X + stack.layers[0](normalised(X, "rms", 1e-5), "all")
        inner = normalised(h, "rms", 1e-5) @ mlp.first.T + mlp.first_bias
        return (h + np.maximum(inner, 0.0) ** 2 @ mlp.second.T)[:, -1]

    found = us.recover(squared, width=8, seed=0)
    assert found.status is us.Status.EXACT
    assert isinstance(found.model, Stack)
    assert not found.model.complete
    assert us.distance(found.model, stack) < 1e-8


def test_a_stack_without_mlps_is_whole_too() -> None:
    layer = random_stack(1, 1, 8, 4, np.random.default_rng(5), norm="rms").layers[0]
    found = us.recover(lambda X: X[:, -1] + layer(normalised(X, "rms", 1e-5)), width=8, seed=0)
    assert isinstance(found.model, Stack)
    assert found.model.complete
    tokens = np.random.default_rng(1).normal(size=(20, 4, 8))
    np.testing.assert_allclose(found.model(tokens), tokens[:, -1] + layer(normalised(tokens, "rms", 1e-5)), atol=1e-9)


def test_a_budget_keeps_its_share_for_the_check() -> None:
    target = random_stack(1, 1, 8, 8, np.random.default_rng(1), hidden=16, activation="relu")
    found = us.recover(target, seed=0, budget=700)
    assert found.status is us.Status.EXACT
    assert any("would take" in note for note in found.facts["notes"])


def test_a_neuron_is_told_by_its_layer() -> None:
    target = random_stack(2, 1, 12, 5, np.random.default_rng(1), norm="rms", hidden=3, activation="relu")
    assert target.mlps is not None
    into, bias = (np.concatenate([getattr(mlp, name) for mlp in target.mlps]) for name in ("first", "first_bias"))
    out = np.concatenate([mlp.second.T for mlp in target.mlps])
    constant = sum(layer.b + mlp.second_bias for layer, mlp in zip(target.layers, target.mlps, strict=True))
    shuffled = np.array([3, 0, 4, 1, 5, 2])
    neurons = Neurons(into[shuffled], bias[shuffled], out[shuffled], np.zeros((12, 12)), constant)
    sphere, order = Sphere(12, "rms"), Order(np.array([0, 1]), False, 0.0, 0.0)
    limit = Limit(CallableOracle(target))
    placed = layers_of(limit, sphere, target.limit(), order, neurons, EXACT, np.random.default_rng(0))
    assert placed is not None
    assert placed[0].tolist() == [1, 0, 1, 0, 1, 0]


def test_bends_on_circles_are_those_of_the_neurons() -> None:
    rng = np.random.default_rng(0)
    into, bias, out = rng.normal(size=(5, 6)), rng.normal(size=5), rng.normal(size=(5, 6))
    asked = []

    def value(points: Floats) -> Floats:
        asked.append(len(points))
        return np.maximum(points @ into.T + bias, 0.0) @ out

    sphere = Sphere(6, "rms")
    first, second = np.linalg.qr(rng.normal(size=(6, 2)))[0].T
    bends = find_bends(value, [Circle(first, second, sphere.radius)], 1e-12, 0.0)
    waves = np.stack([into @ first, into @ second], axis=1) * sphere.radius
    assert len(bends.points) == 2 * int((np.abs(bias) < np.linalg.norm(waves, axis=1)).sum())
    assert np.abs(bends.points @ into.T + bias).min(1).max() < 1e-8
    assert bends.gaps == 0
    assert sum(asked) < 40 * len(bends.points)


def test_heads_alone_are_verified_on_very_long_tokens() -> None:
    target, other = small(10), small(11)
    heads = Stack(target.layers, "layer", None)
    assert us.verify(target, heads, check=40).matches
    assert not us.verify(other, heads, check=40).matches


def test_what_can_be_known_of_a_stack() -> None:
    heads = Stack(small(12).layers, "layer", None)
    told = us.identifiability(heads)
    assert told.dimension == 4 * (19 * 19 + 19 + 19 * 20)
    other = us.witness(heads)
    tokens = np.random.default_rng(0).normal(size=(4, 3, 20))
    assert isinstance(other, Stack)
    assert np.abs(other.layers[0].W - heads.layers[0].W).max() > 0.1
    np.testing.assert_allclose(other.answer(tokens), heads.answer(tokens), atol=1e-12)


def test_the_bill_of_a_stack_of_ours_is_counted() -> None:
    bill = us.plan(small(13))
    assert 300 < bill.queries == bill.queries_max < 900  # ranks and heads are known, so one total


def strangers(stack: Stack) -> dict[str, Callable[[Floats], Floats]]:
    pairs = list(zip(stack.layers, stack.mlps or (), strict=True))
    noise = np.random.default_rng(0)

    def blocks(attend: Callable[[int, Attention, Floats], Floats], shift: float = 0.0) -> Callable[[Floats], Floats]:
        def answer(X: Floats) -> Floats:
            h = X
            for i, (layer, mlp) in enumerate(pairs):
                h = h + attend(i, layer, bare(h))
                n = bare(h)
                h = h + mlp(n + shift * np.roll(n, 1, axis=1))
            return h[:, -1]

        return answer

    def post(X: Floats) -> Floats:
        h = X
        for layer, mlp in pairs:
            h = bare(h + layer(h, "all"))
            h = bare(h + mlp(h))
        return h[:, -1]

    def capped(i: int, layer: Attention, n: Floats) -> Floats:
        if i == 0 or layer.V is None:
            return layer(n, "all")
        out = np.zeros_like(n)
        for W, V, c in zip(layer.W, layer.V, layer.c, strict=True):
            scores = np.exp(2 * np.tanh((n @ W.T + c) @ n.swapaxes(1, 2) / 2))
            out += scores / scores.sum(-1, keepdims=True) @ n @ V
        return out

    def near(i: int, layer: Attention, n: Floats) -> Floats:
        return layer(n + 0.1 * np.arange(n.shape[1])[:, None], "all")

    return {
        "post-norm": post,
        "final norm": lambda X: bare(stack(X)),
        "sandwich": blocks(lambda i, layer, n: bare(layer(n, "all"))),
        "neighbours": blocks(lambda i, layer, n: layer(n, "all"), shift=0.5),
        "dropout": blocks(lambda i, layer, n: layer(n, "all") * (noise.random(n.shape) > 0.1)),
        "capped last block": blocks(capped),
        "positions behind the norm": blocks(near) if stack.norm == "rms" else blocks(lambda i, la, n: la(np.cumsum(n, 1), "all")),
        "no norm": lambda X: X[:, -1] + stack.layers[0](X),
        "no attention": lambda X: X[:, -1] + pairs[0][1](bare(X[:, -1])),
    }


@pytest.mark.parametrize("name", strangers(small()))
def test_strangers_are_refused_early(name: str) -> None:
    oracle = Metered(CallableOracle(strangers(small(8))[name], width=20))
    with pytest.raises((NotInFamilyError, NotIdentifiableError)):
        StackLearner().run(oracle, rng=np.random.default_rng(0))
    assert oracle.spent <= 400


def test_tied_layers_are_not_told_as_two() -> None:
    stack = small(9)
    tied = Stack([stack.layers[0]] * 2, "layer", 1e-5, stack.mlps)
    with pytest.raises(NotIdentifiableError, match="tied"):
        run(tied)


def test_tied_layers_are_refused_within_400_questions() -> None:
    stack = random_stack(2, 4, 32, 8, np.random.default_rng(9))
    oracle = Metered(CallableOracle(Stack([stack.layers[0]] * 2, "layer", 1e-5, stack.mlps)))
    with pytest.raises(NotIdentifiableError, match="tied"):
        StackLearner().run(oracle, rng=np.random.default_rng(0))
    assert oracle.spent <= 400


def test_heads_behind_a_final_norm_are_read_as_those_of_a_decoder() -> None:
    target = small(14)
    found = us.recover(strangers(target)["final norm"], width=20, seed=0)
    assert found.facts["family"] == "decoder"
    for layer, true in zip(found.model.layers, target.layers, strict=True):
        for W in layer.attention.W:
            assert min(np.abs(W - other).max() / np.abs(other).max() for other in true.W) < 1e-7


@pytest.mark.parametrize(("name", "words"), [("post-norm", "behind the last block"), ("dropout", "dropout")])
def test_recover_names_what_comes_after_a_norm_and_what_is_random(name: str, words: str) -> None:
    found = us.recover(strangers(small(14))[name], width=20, seed=0, on_failure="return")
    assert not found.status.success
    assert words in found.message
    assert found.facts["queries"]["total"] <= 120


def test_bounded_answers_without_a_norm_lie_on_no_ellipsoid() -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(12, 12))
    assert behind_a_norm(CallableOracle(lambda X: np.sin(X[:, -1] @ weights), width=12), rng=rng) > 0.05
    norm = CallableOracle(lambda X: weights[0] + weights[1] * normalised(X[:, -1], "rms", 1e-5), width=12)
    assert behind_a_norm(norm, rng=rng) < 1e-6


def test_two_heads_at_width_eight() -> None:
    target = random_stack(1, 2, 8, 4, np.random.default_rng(3), hidden=8)
    found, _ = run(target, width=8)
    assert us.distance(found, target) < 1e-6


def test_a_refusal_of_the_learner_is_the_last_word() -> None:
    stack = small(15)
    tied = Stack([stack.layers[0]] * 2, "layer", 1e-5, stack.mlps)
    found = us.recover(tied, seed=0, on_failure="return")
    assert found.status is us.Status.NOT_IDENTIFIABLE
    assert "tied" in found.message
    assert found.facts["queries"]["total"] < 400


def test_recognition_names_the_norm() -> None:
    for norm, words in (("layer", "LayerNorm"), ("rms", "RMSNorm")):
        oracle = Metered(CallableOracle(small(1, norm)))
        told = recognised(oracle, rng=np.random.default_rng(0))
        assert told.holds
        assert words in told.words
        assert oracle.spent <= 12


@pytest.mark.parametrize("max_norm", [3e6, 1e12])
def test_tokens_of_bounded_length_are_enough(max_norm: float) -> None:
    target, longest = small(15), []

    def watched(X: Floats) -> Floats:
        longest.append(np.linalg.norm(X, axis=2).max())
        return target(X)

    found = us.recover(watched, width=20, seed=0, max_norm=max_norm)
    assert found.status is us.Status.EXACT
    assert us.distance(found.model, target) < 1e-8
    assert max(longest) <= max_norm


def test_short_tokens_are_refused_with_the_reason() -> None:
    with pytest.raises(TooNoisyError, match="max_norm"):
        StackLearner(max_norm=10.0).run(CallableOracle(small()), rng=np.random.default_rng(0))


def test_rounded_answers_are_refused() -> None:
    with pytest.raises(TooNoisyError, match="rounded"):
        StackLearner(floor=Floor(kind="rounded", absolute=1e-3, step=2e-3)).run(
            CallableOracle(small()), rng=np.random.default_rng(0)
        )


def test_ordinary_heads_pay_nothing_for_the_family() -> None:
    rng = np.random.default_rng(0)
    head = Attention(rng.normal(size=(2, 8, 8)) / 3, rng.normal(size=(2, 8, 8)))
    found = us.recover(head, seed=0)
    assert found.status is us.Status.EXACT
    assert "recognition" not in found.facts["phases"]


def test_a_spent_budget_says_so() -> None:
    with pytest.raises(RefusalError) as caught:
        us.recover(small(), budget=200, seed=0)
    assert caught.value.recovery.status is us.Status.BUDGET_SPENT


def test_the_cliff_of_a_spectrum() -> None:
    assert cliff(np.array([3.0, 2.0, 1.0, 1e-9, 1e-10]), 1e-6) == 3
    assert cliff(np.array([3.0, 2.0, 1.0]), 1e-6) == 3


def test_sums_of_sigmoids_are_fitted_from_near() -> None:
    rng = np.random.default_rng(0)
    z, A, ratios = rng.normal(size=(6, 3)), rng.normal(size=(3, 9)), np.array([0.25, 1.0, 4.0])
    answers = sigmoids(z, ratios) @ A
    fit = fit_sigmoids(answers, ratios, [z + 0.3 * rng.normal(size=z.shape)], floor=1e-14, accept=1e-9, rng=rng)
    assert fit.residual < 1e-12
    np.testing.assert_allclose(fit.A, A, atol=1e-9)


def test_heads_that_the_first_start_missed_are_looked_for() -> None:
    rng = np.random.default_rng(1)
    heads, readers, ratios = 12, 16, np.array([0.25, 4.0])
    z, A = rng.normal(size=(readers, heads)), rng.normal(size=(heads, 20))
    start = z.copy()
    start[:, 3] = z[:, 5]  # two starts lead to one head
    fit = fit_sigmoids(sigmoids(z, ratios) @ A, ratios, [start, z + 0.2], floor=1e-14, accept=1e-9, rng=rng)
    assert fit.residual < 1e-12
    far = np.abs(fit.z[:, :, None] - z[:, None, :]).max(0)
    assert far.min(0).max() < 1e-8


def test_fewer_heads_than_there_are_are_no_fit() -> None:
    rng, ratios = np.random.default_rng(1), np.array([0.25, 4.0])
    z, A = 6 * rng.normal(size=(16, 12)), rng.normal(size=(12, 20))
    fit = fit_sigmoids(sigmoids(z, ratios) @ A, ratios, [np.tile(z[:, :1], 12)], floor=1e-14, accept=1e-9, rng=rng)
    assert 0 < fit.z.shape[1] < 12
    assert fit.residual == np.inf


def test_steps_that_explain_the_answers_are_exact() -> None:
    """Also where scores move far: conjugate gradients that all share one matrix end with errors of 1e-7 here."""
    rng = np.random.default_rng(3)
    heads, readers, steps = 10, 5, 12
    ranges = [np.linalg.qr(rng.normal(size=(60, 6)))[0] for _ in range(heads)]
    sizes = 10.0 ** rng.uniform(-1, 0.5, size=(heads, 1))
    truth = np.einsum("hor,mhr->mho", ranges, 0.5 * sizes * rng.normal(size=(steps, heads, 6)))
    start = np.einsum("hor,nhr->nho", ranges, sizes * rng.normal(size=(readers, heads, 6)))
    z, shift = rng.normal(size=(readers, heads)), 1.4 * rng.normal(size=(steps, readers, heads))
    moved = np.einsum("mnh,mnho->mno", expit(z + shift), start + truth[:, None])
    clean = np.ones((readers, 60), dtype=bool)
    clean[:, 0] = False
    values, _, left = fit_steps(Told(moved, start, z, 1.0), clean, ranges, EXACT)
    good = left < EXACT.explained  # other steps are asked anew, towards another side
    assert good.sum() >= steps / 2
    np.testing.assert_allclose(values[good], truth[good], atol=1e-11)


def test_typical_scores_are_estimated_from_few_answers() -> None:
    rng, ratios = np.random.default_rng(2), np.array([0.25, 4.0])
    values = rng.normal(size=(40, 200))
    for strength in (0.5, 2.0, 6.0):
        answers = sigmoids(strength * rng.normal(size=(8, 40)), ratios) @ values
        assert 0.6 * strength < typical_score(answers, ratios) < 1.7 * strength


def test_many_systems_are_solved_at_once() -> None:
    rng = np.random.default_rng(3)
    design, truth = rng.normal(size=(5, 30, 12)) * 10.0 ** rng.uniform(-3, 3, size=12), rng.normal(size=(5, 12, 2))
    solved, inverse = least_squares(design, design @ truth)
    np.testing.assert_allclose(solved, truth, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(inverse[0] @ design[0].T @ design[0], np.eye(12), atol=1e-5)
    assert [(p.start, p.stop) for p in pieces(5, int(STACK.memory) // 2)] == [(0, 2), (2, 4), (4, 5)]


def test_fits_are_done_where_the_target_lives() -> None:
    torch = pytest.importorskip("torch")
    target = small(7)
    there = us.oracles.TorchOracle(lambda X: torch.as_tensor(target(X.numpy())), width=20, build_there=True)
    learned = StackLearner(checks=8, mlps=0).run(Metered(there), rng=np.random.default_rng(0))
    assert us.distance(learned.model, target) < 1e-8


@pytest.mark.parametrize("max_norm", [1e3, 1e6])
def test_tokens_too_short_for_a_stack_are_refused_before_much_is_asked(max_norm: float) -> None:
    oracle = Metered(CallableOracle(small(3)))
    with pytest.raises(TooNoisyError, match=r"as in a pre-norm stack.*Raise `max_norm`"):
        us.recover(oracle, max_norm=max_norm, seed=0)
    assert oracle.spent < 60


def test_a_target_that_clips_says_at_which_norm_to_stay() -> None:
    target = small(3)
    oracle = Metered(CallableOracle(lambda X: target(np.clip(X, -1e4, 1e4)), width=20))
    with pytest.raises(NotInFamilyError, match=r"clips its inputs.*max_norm=1e\+04"):
        us.recover(oracle, seed=0)
    assert oracle.spent < 80


def saturated(rng: np.random.Generator) -> tuple[Told, list[Floats], Floats]:
    """Answers along twenty directions, where one weight is nearly one and hardly tells its score; and the true values."""
    heads, readers, width, rank, step = 6, 8, 16, 3, 1.5
    ranges = [np.linalg.qr(rng.normal(size=(width, rank)))[0] for _ in range(heads)]
    z, start = rng.normal(size=(readers, heads)), rng.normal(size=(readers, heads, width))
    z[0, 0] = 12.0
    values = np.stack([rng.normal(size=(20, rank)) @ block.T for block in ranges], axis=1)
    shift = 0.5 * rng.normal(size=(20, readers, heads))
    weights = 1 / (1 + np.exp(-(z + step * shift)))
    moved = np.einsum("mnh,mnho->mno", weights, start + step * values[:, None])
    return Told(moved, start, z, step), ranges, values


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_weight_of_nearly_one_does_not_stop_a_fit(seed: int) -> None:
    told, ranges, values = saturated(np.random.default_rng(seed))
    found, _, left = fit_steps(told, np.ones(told.moved.shape[1:], dtype=bool), ranges, EXACT)
    arrived = left < 1e-10
    assert arrived.sum() >= 18  # undamped, some 10 of 20; those that are left are asked again
    assert np.abs(found - values)[arrived].max() < 1e-8
