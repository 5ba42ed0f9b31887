from itertools import pairwise

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.errors import NotInFamilyError, RefusalError
from unsoftmax.learners.ffn import FFNLearner
from unsoftmax.learners.smooth import SmoothNetworkLearner, SmoothTransformerLearner
from unsoftmax.learners.smooth.bends import best_bends, profile, told_sharpness
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.fitting import fitted
from unsoftmax.learners.smooth.limit import far_scale
from unsoftmax.learners.smooth.naming import named_activation
from unsoftmax.learners.smooth.offsets import telling
from unsoftmax.learners.smooth.paths import place_of, quality
from unsoftmax.learners.smooth.places import clear_place
from unsoftmax.learners.smooth.recognition import bends_smoothly, hears_earlier_tokens, straight_from_afar
from unsoftmax.models import FFN, Attention, Transformer
from unsoftmax.models.activations import BOUNDED, SMOOTH, activation_named
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.symmetry import distance


def gaussian(d, m, p, kind, seed, skip=False):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=(p, m)) / np.sqrt(m)]
    biases = [rng.normal(size=m), rng.normal(size=p)]
    return FFN(weights, biases, rng.normal(size=(p, d)) if skip else None, activation=kind)


def learn(target, seed=0, learner=None):
    alone = isinstance(target, FFN)
    oracle = Metered(CallableOracle((lambda X: target(X[:, 0])) if alone else target, width=target.width))
    return (learner or SmoothNetworkLearner()).run(oracle, rng=np.random.default_rng(seed)), oracle


def error(found, target, seed=1):
    points = 2 * np.random.default_rng(seed).normal(size=(500, target.width))
    truth = target(points)
    return np.abs(found.model(points) - truth).max() / truth.std()


@pytest.mark.parametrize("kind", SMOOTH)
def test_every_activation_is_named_and_every_weight_found(kind):
    target = gaussian(4, 6, 1, kind, 900)
    found, _ = learn(target)
    assert found.model.activation == kind
    assert found.model.skip is None
    assert distance(found.model, target) < 1e-9
    assert error(found, target) < 1e-11


@pytest.mark.parametrize("seed", range(2))
def test_d8_m16_stays_within_the_promised_price(seed):
    target = gaussian(8, 16, 1, "gelu", 700 + seed)
    found, oracle = learn(target, seed)
    assert error(found, target) < 1e-11
    assert oracle.spent <= 2.2 * 161
    for name, (low, high), _ in SmoothNetworkLearner().price(8, 16):
        assert low <= oracle.phases[name].queries <= high, name


def test_a_limit_that_the_fit_takes_back_is_not_read_twice():
    target = gaussian(16, 32, 1, "gelu", 99305)  # its corners, read once, are right to 1.1e-9 of the answers' spread
    found, oracle = learn(target, 99305)
    assert error(found, target) < 1e-11
    assert oracle.spent <= 1.9 * 577


def test_vector_answers_cost_less_per_parameter():
    target = gaussian(8, 16, 4, "silu", 5)
    found, oracle = learn(target)
    assert error(found, target) < 1e-11
    assert oracle.spent <= 1.2 * 212


def test_a_linear_skip_is_kept_and_told():
    target = gaussian(4, 7, 1, "gelu", 3, skip=True)
    found, _ = learn(target)
    assert found.evidence["skip"]
    assert distance(found.model, target) < 1e-9


def test_swish_of_another_factor_is_silu_with_other_weights():
    target = gaussian(4, 6, 1, "silu", 4)
    (B, A), (b, c) = target.weights, target.biases

    def quick_gelu(X):
        z = X[:, 0] @ B.T + b
        return z / (1 + np.exp(-np.clip(1.702 * z, -700, 700))) @ A[0] + c[0]

    oracle = CallableOracle(quick_gelu, width=4)
    found = SmoothNetworkLearner().run(oracle, rng=np.random.default_rng(0))
    assert found.model.activation == "silu"
    assert distance(found.model, FFN([1.702 * B, A / 1.702], [1.702 * b, c], activation="silu")) < 1e-9


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_two_neurons_of_one_direction_are_told_apart(sign):
    target = gaussian(5, 6, 1, "gelu", 12)
    B = np.array(target.weights[0])
    B[1] = sign * B[0]
    target = FFN([B, target.weights[1]], target.biases, activation="gelu")
    found, _ = learn(target)
    assert found.evidence["neurons"] == 6
    assert error(found, target) < 1e-9


@pytest.mark.parametrize(("kind", "length", "offset", "jump"), [("gelu", 1.0, 0.02, 0.4), ("softplus", 2.3, -1.2, -0.95)])
def test_pairs_that_lie_close_together_or_nearly_cancel(kind, length, offset, jump):
    target = gaussian(5, 6, 1, kind, 12)
    B, A, b = np.array(target.weights[0]), np.array(target.weights[1]), np.array(target.biases[0])
    B[1], b[1], A[0, 1] = length * B[0], length * (b[0] + offset * np.linalg.norm(B[0])), jump * A[0, 0] / length
    target = FFN([B, A], [b, target.biases[1]], activation=kind)
    found, _ = learn(target)
    assert found.evidence["neurons"] == 6
    assert error(found, target) < 1e-9


def test_duplicate_neurons_come_back_as_one():
    target = gaussian(5, 6, 1, "gelu", 12)
    B, b = np.array(target.weights[0]), np.array(target.biases[0])
    B[1], b[1] = B[0], b[0]
    target = FFN([B, target.weights[1]], [b, target.biases[1]], activation="gelu")
    found, _ = learn(target)
    assert found.evidence["neurons"] == 5
    assert distance(found.model, target) < 1e-9


@pytest.mark.parametrize(("factor", "bias"), [(0.05, 1.0), (20.0, 1.0), (1.0, 100.0), (1.0, 0.0)])
def test_scales_of_weights_and_biases_do_not_matter(factor, bias):
    target = gaussian(4, 6, 1, "gelu", 21)
    target = FFN([factor * target.weights[0], target.weights[1]], [bias * target.biases[0], target.biases[1]], activation="gelu")
    found, _ = learn(target)
    assert distance(found.model, target) < 1e-8


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("two layers", "one hidden layer"),
        ("other constant", "none of"),
        ("mixture", "unexplained|several activations"),
        ("one stranger", "several activations"),
        ("relu", "ReLU network"),
        ("tanh", "jump"),
    ],
)
def test_strangers_are_refused_with_the_reason(name, words):
    target = gaussian(4, 6, 1, "gelu", 8)
    (B, A), (b, c) = target.weights, target.biases
    gelu, elu = (activation_named(kind).value for kind in ("gelu", "elu"))
    C = np.random.default_rng(0).normal(size=(6, 6))
    bend = {
        "two layers": lambda z: gelu(gelu(z) @ C.T),
        "other constant": lambda z: z * (1 + np.tanh(0.8 * (z + 0.06 * z**3))) / 2,
        "mixture": lambda z: np.concatenate([gelu(z[:, ::2]), elu(z[:, 1::2])], axis=1),
        "one stranger": lambda z: np.concatenate([elu(z[:, :1]), gelu(z[:, 1:])], axis=1),
        "relu": lambda z: np.maximum(z, 0.1 * z),
        "tanh": np.tanh,
    }[name]
    oracle = CallableOracle(lambda X: bend(X[:, 0] @ B.T + b) @ A[0] + c[0], width=4)
    with pytest.raises(NotInFamilyError, match=words):
        SmoothNetworkLearner().run(oracle, rng=np.random.default_rng(0))


def test_short_tokens_are_refused_before_anything_is_asked():
    oracle = Metered(CallableOracle(lambda X: X[:, 0, 0], width=4))
    with pytest.raises(NotInFamilyError, match="max_norm"):
        SmoothNetworkLearner(max_norm=1e6).run(oracle, rng=np.random.default_rng(0))
    assert oracle.spent == 0
    assert far_scale(4, 1e15) < 1e15


def test_a_step_network_is_not_asked_nan_by_the_relu_learner():
    rng = np.random.default_rng(0)
    B, A, b = rng.normal(size=(8, 4)), rng.normal(size=8), rng.normal(size=8)
    asked = []

    def steps(X):
        asked.append(np.isfinite(X).all())
        return np.sign(X[:, 0] @ B.T + b) @ A

    with pytest.raises(NotInFamilyError):
        FFNLearner().run(CallableOracle(steps, width=4), rng=np.random.default_rng(0))
    assert all(asked)


@pytest.mark.parametrize(("kind", "bias", "residual"), [("gelu", False, False), ("silu", True, True)])
def test_whole_transformers(kind, bias, residual):
    rng = np.random.default_rng(31)
    d = 5
    W, V = rng.normal(size=(2, 1, d, d)) / np.sqrt(d)
    attention = Attention(W, V, rng.normal(size=(1, d)) / 2 if bias else None)
    target = Transformer(attention, gaussian(d, 8, 1, kind, 32), residual=residual)
    found, oracle = learn(target, learner=SmoothTransformerLearner())
    assert (found.evidence["query_bias"], found.evidence["residual"]) == (bias, residual)
    assert distance(found.model, target) < 1e-9
    prices = {name: bounds for name, bounds, _ in SmoothTransformerLearner().price(d, 8)}
    for name in ("residual", "scores"):
        assert prices[name][0] <= oracle.phases[name].queries <= prices[name][1], name


def test_the_first_questions_tell_smooth_networks_from_others():
    smooth, corners = gaussian(5, 8, 1, "gelu", 2), gaussian(5, 8, 1, "relu", 2)
    rng = np.random.default_rng(0)
    for target, bends in ((smooth, True), (corners, False)):
        oracle = CallableOracle(lambda X, target=target: target(X[:, -1]), width=5)
        assert bends_smoothly(oracle, rng=rng).passed is bends
        assert straight_from_afar(oracle, rng=rng).passed
    bounded = CallableOracle(lambda X: np.tanh(X[:, -1]).sum(axis=1), width=5)
    assert not straight_from_afar(bounded, rng=rng).passed
    pair = rng.normal(size=(2, 5))
    heard = hears_earlier_tokens(CallableOracle(lambda X: X.sum(axis=(1, 2)), width=5), pair, pair[1:].sum(axis=1))
    assert heard.passed


@pytest.mark.parametrize("kind", SMOOTH)
def test_slopes_are_derivatives_and_limits_are_limits(kind):
    phi = activation_named(kind)
    z = np.linspace(-6.0, 6.0, 41) + 0.01
    assert np.allclose(phi.slope(z), (phi.value(z + 1e-5) - phi.value(z - 1e-5)) / 2e-5, atol=1e-8)
    assert phi.value(np.array([-60.0]))[0] == pytest.approx(phi.low, abs=1e-12)
    assert phi.value(np.array([60.0]))[0] - 60.0 == pytest.approx(phi.high, abs=1e-12)
    assert np.allclose(phi.value(z) - phi.value(-z), z) == phi.even


@pytest.mark.parametrize("kind", SMOOTH)
def test_a_bend_is_named_from_its_profile(kind):
    along = np.array([4.0, -1.3, 0.45, -0.15, 0.05, -2.5, 1.0])
    phi = activation_named(kind)
    best = best_bends(along, profile(phi, 1.7, along))
    assert best[0].phi.name == kind
    assert best[0].sharp == pytest.approx(1.7, rel=1e-6)
    assert told_sharpness(phi, 0.5, float(profile(phi, 1.7, np.array([-0.5]))[0])) == pytest.approx(1.7, rel=1e-9)


def test_derivatives_of_curves_in_their_parameters():
    rng = np.random.default_rng(0)
    curves = Curves(
        activation_named("mish"),
        rng.normal(size=(3, 2)),
        rng.normal(size=(3, 4)),
        rng.normal(size=3),
        rng.normal(size=(2, 4)),
        rng.normal(size=2),
    )
    points = rng.normal(size=(5, 4))
    rows = curves.derivatives(points, np.ones(5), True)
    step = 1e-6 * rng.normal(size=rows.shape[1])
    change = curves.moved_by(step, True)(points) - curves.moved_by(-step, True)(points)
    assert np.allclose(2 * rows @ step, change.T.ravel(), atol=1e-12)


def test_a_fit_with_few_factorisations_reaches_rounding():
    rng = np.random.default_rng(0)
    x, truth = rng.normal(size=60), np.array([1.0, 2.0])
    y = np.tanh(truth[0] * x) * truth[1]
    found, misfit = fitted(
        truth + 0.1,
        lambda m: (y - np.tanh(m[0] * x) * m[1]) * 1e15,
        lambda m: np.stack([m[1] * x / np.cosh(m[0] * x) ** 2, np.tanh(m[0] * x)], axis=1) * 1e15,
        lambda m, step: m + step,
    )
    assert np.allclose(found, truth, atol=1e-13)
    assert misfit < 10


def test_places_lie_in_their_hyperplane_and_far_from_the_others():
    rng = np.random.default_rng(0)
    units = rng.normal(size=(6, 4))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    place, margin = clear_place(units, 2, rng)
    assert abs(place @ units[2]) < 1e-12
    assert np.abs(np.delete(units, 2, axis=0) @ place).min() == pytest.approx(margin)


def test_equations_are_chosen_until_every_unknown_is_told():
    rows = np.random.default_rng(0).integers(0, 2, size=(40, 1, 5)).astype(float)
    chosen = telling(rows, 5)
    assert len(chosen) == 5
    assert np.linalg.matrix_rank(rows[chosen, 0]) == 5


def test_places_on_a_path_are_found_to_the_last_digits():
    target = gaussian(4, 6, 1, "gelu", 1)
    curves = Curves(
        activation_named("gelu"), target.weights[1].T, target.weights[0], target.biases[0], np.zeros((1, 4)), target.biases[1]
    )
    rng = np.random.default_rng(3)
    starts, moves = rng.normal(size=(40, 4)), rng.normal(size=(40, 4))
    good = quality(curves, starts, moves) > 0
    assert 5 < good.sum() < 40
    truth = rng.uniform(0.1, 0.9, size=40)
    answers = curves(starts + truth[:, None] * moves)
    assert np.allclose(place_of(curves, starts, moves, answers)[good], truth[good], atol=1e-12)
    grid = np.linspace(0, 1, 200)
    for k in np.flatnonzero(good):
        values = curves(starts[k] + grid[:, None] * moves[k])[:, 0]
        steps = [b - a for a, b in pairwise(values)]
        assert min(steps) > 0 or max(steps) < 0


@pytest.mark.parametrize("kind", [*SMOOTH, *BOUNDED])
def test_torch_modules_keep_the_activation(kind):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    network = gaussian(4, 6, 2, kind, 1, skip=True)
    points = 3 * rng.normal(size=(7, 4))
    module = network.to_torch()
    assert np.allclose(module(torch.tensor(points)).detach().numpy(), network(points), atol=1e-13)
    assert distance(module.network, network) == 0.0
    W, V = rng.normal(size=(2, 1, 4, 4))
    transformer = Transformer(Attention(W, V), network, residual=True)
    X = rng.normal(size=(3, 5, 4))
    assert np.allclose(transformer.to_torch()(torch.tensor(X)).detach().numpy(), transformer(X), atol=1e-12)


@pytest.mark.parametrize(("name", "family"), [("ffn", "auto"), ("ffn", "ffn"), ("transformer", "transformer")])
def test_recover_takes_smooth_targets_under_every_name(name, family):
    found = us.recover(us.open(f"demo:{name},width=4,hidden=5,activation=gelu,seed=3"), family=family, seed=1)
    assert found.status.name == "EXACT"
    assert found.facts["family"] == f"smooth-{name}"


@pytest.mark.parametrize(("bend", "status"), [(np.sign, "NOT_IN_FAMILY"), (np.tanh, "NOT_IDENTIFIABLE")])
def test_a_step_network_is_not_blamed(bend, status):
    rng = np.random.default_rng(0)
    B, A, b = rng.normal(size=(8, 4)), rng.normal(size=8), rng.normal(size=8)
    found = us.recover(lambda X: bend(X[:, -1] @ B.T + b) @ A, width=4, family="ffn", seed=0, on_failure="return")
    assert found.status.name == status  # 8 neurons of tanh are too many to be told apart from near by in width 4


def test_diagnose_names_the_activation():
    assert "bends as silu does" in us.diagnose(gaussian(4, 6, 1, "silu", 2)).reason


@pytest.mark.parametrize("kind", ["gelu", "elu"])
def test_one_bend_far_out_tells_the_activation(kind):
    oracle = Metered(CallableOracle(gaussian(8, 40, 2, kind, 5).respond, width=8))
    assert named_activation(oracle, degree=1, rng=np.random.default_rng(0)).sentence == f"A neuron bends as {kind} does."
    assert oracle.spent < 90


def test_a_bend_below_rounding_has_no_activation():
    rng = np.random.default_rng(7)
    straight, bent = rng.normal(size=(2, 3))
    oracle = CallableOracle(lambda X: X[:, -1] @ straight + 1e-9 * np.maximum(X[:, -1] @ bent, 0.0), width=3)
    told = named_activation(oracle, degree=1, rng=np.random.default_rng(7))  # divided by nothing once, which was a crash
    assert told.passed is None
    assert "no activation known" not in told.sentence


def test_noise_does_not_bend_evenly():
    oracle = CallableOracle(lambda X: X[:, -1, 0] + 1e-5 * np.sin(1e9 * X[:, -1].sum(axis=1)), width=4)
    assert not bends_smoothly(oracle, rng=np.random.default_rng(0)).passed


def in_single(target):
    """The target computing in float32, of the last token."""
    torch = pytest.importorskip("torch")
    module = target.to_torch().float()

    def answer(X):
        with torch.no_grad():
            return module(torch.tensor(X[:, -1], dtype=torch.float32)).numpy()[:, 0]

    return answer


@pytest.mark.parametrize("kind", ["gelu", "silu"])
def test_networks_in_float32_are_recovered_to_that_precision(kind):
    target = gaussian(5, 6, 1, kind, 3)
    found = us.recover(in_single(target), width=5, seed=1)
    assert (found.status.name, found.facts["family"]) == ("WITHIN_TOLERANCE", "smooth-ffn")
    assert (found.model.activation, len(found.model.biases[0])) == (kind, 6)
    assert error(found, target) < 3e-6


def test_strangers_in_float32_are_refused():
    B, A = (np.random.default_rng(4).normal(size=shape).astype(np.float32) for shape in ((8, 5), (8,)))

    def rational(X):
        z = X[:, -1].astype(np.float32) @ B.T
        return (z * (1 + z / (1 + np.abs(z)))) @ A

    with pytest.raises(RefusalError) as caught:
        us.recover(rational, width=5, seed=1)
    assert caught.value.recovery.status.name in ("INCONCLUSIVE", "TOO_NOISY")


def test_corners_in_float32_do_not_bend_smoothly():
    target = gaussian(5, 40, 1, "relu", 5)
    oracle = CallableOracle(in_single(target), width=5)
    told = [bends_smoothly(oracle, rng=np.random.default_rng(seed), relative=2.0**-22).passed for seed in range(10)]
    assert sum(told) <= 1
    smooth = CallableOracle(in_single(gaussian(5, 40, 1, "gelu", 5)), width=5)
    assert all(bends_smoothly(smooth, rng=np.random.default_rng(seed), relative=2.0**-22).passed for seed in range(10))


@pytest.mark.parametrize("relative", [2.0**-50, 2.0**-22])
def test_the_first_questions_about_bends_keep_to_a_bound(relative):
    class Bounded:
        width = 5

        def __call__(self, X):
            assert np.linalg.norm(X, axis=-1).max() <= 0.7
            return np.tanh(X.sum(axis=(1, 2)))

    fact = bends_smoothly(Bounded(), rng=np.random.default_rng(0), relative=relative, max_norm=0.7)
    assert fact.passed or relative > 2.0**-50
