"""Stacks and decoders as values: what they refuse, how they are saved, what they answer everywhere, and how much of them shows."""

from dataclasses import replace

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.models import FFN, MLP, Attention, Decoder, GatedFFN, Stack, Transformer, load
from unsoftmax.models.decoder import random_decoder
from unsoftmax.models.decoder_layers import GatedMLP

RNG = np.random.default_rng(0)
WIDTH = 4
LAYER = Attention(W=RNG.normal(size=(2, WIDTH, WIDTH)), V=RNG.normal(size=(2, WIDTH, WIDTH)), b=RNG.normal(size=WIDTH))
NETWORK = MLP(RNG.normal(size=(3, WIDTH)), RNG.normal(size=3), RNG.normal(size=(WIDTH, 3)), RNG.normal(size=WIDTH), "silu")
STACK = Stack([LAYER, LAYER], "rms", 0.1, [NETWORK, MLP(*NETWORK.blocks.values(), activation="relu")])
DECODER = random_decoder(2, 2, 8, 4, np.random.default_rng(1))
ROTARY = DECODER.layers[0]
FIRST = np.zeros((3, WIDTH))


def decoder(**changed):
    parts = {"layers": DECODER.layers, "unembedding": DECODER.unembedding, "mlps": DECODER.mlps}
    return Decoder(**parts | changed)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MLP(FIRST, np.zeros(2), FIRST.T, np.zeros(WIDTH)), r"first_bias has shape \(2,\)"),
        (lambda: MLP(FIRST, np.zeros(3), FIRST.T, np.zeros(WIDTH), "swish"), "activation is 'swish'"),
        (lambda: Stack([], "rms"), "at least one layer"),
        (lambda: Stack([Attention.single(np.eye(2), np.ones(2))], "rms"), r"layers\[0\].V has shape \(1, 2\)"),
        (lambda: Stack([LAYER], "batch"), "norm is 'batch'"),
        (lambda: Stack([LAYER], "rms", -1.0), "epsilon is -1.0"),
        (lambda: Stack([LAYER], "rms", 0.1, [NETWORK, NETWORK]), "1 layers and 2 MLPs"),
        (lambda: Stack([LAYER], "rms")(np.zeros((1, 2, WIDTH))), "heads only"),
        (lambda: STACK(np.zeros((1, 2, WIDTH)), "first"), "positions is 'first'"),
        (lambda: decoder(layers=[]), "at least one layer"),
        (lambda: decoder(unembedding=np.ones((9, 5))), r"layers\[0\] has width 8; the unembedding has width 5"),
        (lambda: decoder(mlps=DECODER.mlps[:1]), "2 layers and 1 MLPs"),
        (lambda: decoder(epsilon=0.0), "epsilon is 0.0"),
        (lambda: decoder(layers=[ROTARY, replace(ROTARY, base=7.0)]), "different rotary bases"),
        (lambda: decoder(bias=np.ones(3)), "do not fit"),
        (lambda: DECODER(np.zeros((1, 2, 8)), "first"), "positions is 'first'"),
        (lambda: replace(ROTARY, key=np.ones((2, 4, 7))), r"key has shape \(2, 4, 7\)"),
        (lambda: replace(ROTARY, base=1.0), "base is 1.0"),
        (lambda: replace(ROTARY, query=np.ones((3, 4, 8)), out=np.ones((3, 8, 4))), "3 heads of rank 4 in 2 groups"),
        (lambda: GatedMLP(np.ones((3, 2)), np.ones((3, 2)), np.ones((3, 2))), "do not fit together"),
        (lambda: GatedFFN(np.ones((3, 2)), np.ones((3, 2)), np.ones((1, 3)))(np.ones((1, 3))), r"they must be \(batch, 2\)"),
        (lambda: Transformer(LAYER, FFN([np.eye(3)], [np.zeros(3)])), "takes 3 numbers"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_their_sizes(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_whole_stack_is_saved_whole(tmp_path):
    STACK.save(tmp_path / "stack.safetensors")
    found, X = load(tmp_path / "stack.safetensors"), RNG.normal(size=(3, 5, WIDTH))
    assert [mlp.activation for mlp in found.mlps] == ["silu", "relu"]
    assert np.array_equal(found(X, "all"), STACK(X, "all"))
    assert us.distance(found, STACK) == 0.0


NETWORKS = FFN([RNG.normal(size=(5, WIDTH)), RNG.normal(size=(2, 5))], [RNG.normal(size=5), RNG.normal(size=2)])
BLIND_TO_ORDER = {
    "heads": LAYER,
    "network": NETWORKS,
    "gated network": GatedFFN(RNG.normal(size=(5, WIDTH)), RNG.normal(size=(5, WIDTH)), RNG.normal(size=(2, 5))),
    "transformer": Transformer(LAYER, NETWORKS),
    "stack": STACK,
    "heads of a stack": Stack([LAYER], "rms"),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", BLIND_TO_ORDER)
def test_every_place_is_answered_as_if_it_were_last(name, causal):
    model, X = BLIND_TO_ORDER[name], RNG.normal(size=(2, 6, WIDTH))
    places, answers = model.answer_at(X, causal=causal)
    assert places[-1] == 5
    for place, told in zip(places, answers.swapaxes(0, 1), strict=True):
        seen = X[:, : place + 1] if causal else np.concatenate([np.delete(X, place, axis=1), X[:, [place]]], axis=1)
        alone = model(seen, causal=causal) if name == "stack" else model.answer(seen)  # its layers look at all of them, or back
        assert np.allclose(told, alone, rtol=1e-12, atol=1e-12)


def test_a_decoder_answers_everywhere_as_at_the_end_of_what_came_before():
    X = RNG.normal(size=(2, 5, 8))
    places, answers = DECODER.answer_at(X, causal=True)
    assert places.tolist() == [0, 1, 2, 3, 4]
    for place in places:
        assert np.allclose(answers[:, place], DECODER.respond(X[:, : place + 1]), rtol=1e-10, atol=1e-10)
    alone = Decoder(DECODER.layers, DECODER.unembedding)
    assert [part.tolist() for part in alone.answer_at(X, causal=True)] == [[4], alone.limit(X)[:, None].tolist()]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("layers", [1, 2])
def test_as_much_of_a_stack_is_known_as_changes_its_answers(layers, norm, activation):
    rng = np.random.default_rng(2)
    sizes = [(1, 3, 3), (1, 3, 3), (1, 3), (3,), (2, 3), (2,), (3, 2), (3,)] * layers
    cuts = np.cumsum([int(np.prod(size)) for size in sizes])

    def stack(numbers):
        *parts, epsilon = np.split(numbers, cuts)
        parts = [part.reshape(size) for part, size in zip(parts, sizes, strict=True)]
        heads = [Attention(*parts[at : at + 4]) for at in range(0, len(parts), 8)]
        mlps = [MLP(*parts[at + 4 : at + 8], activation=activation) for at in range(0, len(parts), 8)]
        return Stack(heads, norm, float(epsilon[0]), mlps)

    numbers = np.append(0.7 * rng.normal(size=cuts[-1]), 0.3)
    X = rng.normal(size=(60, 4, 3)) * rng.choice([0.4, 1.0, 3.0], size=(60, 1, 1))
    steps = 1e-6 * np.eye(len(numbers))
    slopes = np.array([(stack(numbers + step)(X, "all") - stack(numbers - step)(X, "all")).ravel() for step in steps])
    spread = np.linalg.svd(slopes / np.linalg.norm(slopes, axis=1, keepdims=True).clip(1e-12), compute_uv=False)
    told = us.identifiability(stack(numbers))
    assert told.dimension == np.sum(spread > 1e-7 * spread[0])
    assert told.nullity == len(numbers) - told.dimension
