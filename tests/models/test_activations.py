import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.models import FFN, Attention, Transformer
from unsoftmax.symmetry import canonical, distance, identifiability, witness


def network(kind, seed=0, skip=False):
    rng = np.random.default_rng(seed)
    bridge = rng.normal(size=(2, 3)) if skip else None
    return FFN([rng.normal(size=(4, 3)), rng.normal(size=(2, 4))], [rng.normal(size=4), rng.normal(size=2)], bridge, kind)


def test_an_unknown_activation_is_refused_by_name():
    with pytest.raises(ValueError, match="gelu_tanh"):
        network("gelo")


@pytest.mark.parametrize("kind", ["relu", "gelu", "mish"])
def test_files_keep_the_activation(kind, tmp_path):
    rng = np.random.default_rng(1)
    layer = Transformer(Attention(rng.normal(size=(1, 3, 3)), rng.normal(size=(1, 3, 3))), network(kind), residual=True)
    for model in (network(kind, skip=True), layer):
        model.save(tmp_path / "model.safetensors")
        again = us.load(tmp_path / "model.safetensors")
        assert distance(model, again) == 0.0
        assert getattr(again, "ffn", again).activation == kind


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "silu", "softplus", "mish", "elu"])
def test_canonical_forms_answer_alike(kind):
    model = network(kind, skip=True)
    points = np.random.default_rng(2).normal(size=(20, 3))
    assert np.allclose(canonical(model)(points), model(points), atol=1e-13)
    shuffled = FFN([model.weights[0][::-1], model.weights[1][:, ::-1]], [model.biases[0][::-1], model.biases[1]], model.skip, kind)
    assert distance(model, shuffled) < 1e-14


def test_a_turned_neuron_is_the_same_function_for_even_activations_only():
    model = network("gelu")
    other = witness(model)
    points = np.random.default_rng(2).normal(size=(20, 3))
    assert np.allclose(other(points), model(points), atol=1e-13)
    assert distance(model, other) < 1e-13
    assert witness(network("mish")) is None


def test_the_scale_of_smooth_neurons_shows_and_their_activation_counts():
    assert identifiability(network("gelu")).nullity == 0
    assert identifiability(network("relu")).nullity == 4
    assert distance(network("gelu"), network("silu")) == np.inf


def test_neurons_that_see_nothing_are_constants():
    model = FFN([[[0.0, 0.0], [1.0, 2.0]], [[2.0, 1.0]]], [[0.7, 0.1], [0.0]], activation="softplus")
    folded = canonical(model)
    assert folded.weights[0].shape == (1, 2)
    assert np.allclose(folded(np.ones((1, 2))), model(np.ones((1, 2))))
