import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import attention, network, seeds, transformer

from unsoftmax.errors import FileFormatError
from unsoftmax.models import FFN, Attention, Transformer, load


def slow_answer(model, sequence):
    """The definition, written out token by token."""
    V = model.V if model.V.ndim == 3 else model.V[:, :, None]
    total = np.zeros(V.shape[2]) + model.b
    for W, values, c in zip(model.W, V, model.c, strict=True):
        scores = np.array([x @ W @ sequence[-1] + c @ x for x in sequence])
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        for weight, x in zip(weights, sequence, strict=True):
            total = total + weight * (values.T @ x)
    return total


@given(model=attention(), length=st.integers(1, 5), seed=seeds)
def test_the_forward_pass_is_the_definition(model, length, seed):
    X = np.random.default_rng(seed).normal(size=(3, length, model.width))
    found = model(X).reshape(3, -1)
    assert np.allclose(found, [slow_answer(model, x) for x in X], rtol=1e-12, atol=1e-12)


@given(model=attention(), length=st.integers(1, 5), seed=seeds, causal=st.booleans())
def test_all_positions_answer_as_if_each_were_last(model, length, seed, causal):
    X = np.random.default_rng(seed).normal(size=(2, length, model.width))
    everywhere = model(X, "all", causal=causal)
    for place in range(length):
        seen = X[:, : place + 1] if causal else np.concatenate([np.delete(X, place, axis=1), X[:, place : place + 1]], axis=1)
        assert np.allclose(everywhere[:, place], model(seen).reshape(2, -1), atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_a_batch_that_is_answered_in_parts_is_answered_alike(causal):
    rng = np.random.default_rng(0)
    layer, X = Attention(rng.normal(size=(2, 3, 3)), rng.normal(size=(2, 3, 3))), rng.normal(size=(5, 600, 3))  # 1.8 million scores
    alone = np.concatenate([layer(one[None], "all", causal=causal) for one in X])
    assert np.allclose(layer(X, "all", causal=causal), alone, rtol=1e-12, atol=1e-12)


@given(model=st.one_of(attention(), network(), transformer()))
def test_a_saved_model_comes_back_to_the_bit(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("m") / "weights.safetensors"
    model.save(path)
    again = load(path)
    assert type(again) is type(model)
    parts = lambda m: [m.attention, m.ffn] if isinstance(m, Transformer) else [m]  # noqa: E731
    for a, b in zip(parts(model), parts(again), strict=True):
        for name in ("W", "V", "c", "b") if isinstance(a, Attention) else ("skip",):
            x, y = getattr(a, name), getattr(b, name)
            assert (x is None and y is None) or np.array_equal(x, y)
        if isinstance(a, FFN):
            assert all(np.array_equal(x, y) for x, y in zip([*a.weights, *a.biases], [*b.weights, *b.biases], strict=True))
        else:
            assert (a.has_c, a.has_b) == (b.has_c, b.has_b)


def test_files_that_are_not_ours_are_refused_with_the_reason(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        load(tmp_path / "absent.safetensors")
    junk = tmp_path / "junk.safetensors"
    junk.write_bytes(b"not a tensor file at all")
    with pytest.raises(FileFormatError, match="not a safetensors file"):
        load(junk)
    from safetensors.numpy import save_file

    other = tmp_path / "other.safetensors"
    save_file({"embedding.weight": np.zeros((2, 2))}, str(other))
    with pytest.raises(FileFormatError, match=r"embedding\.weight"):
        load(other)
    wrong = tmp_path / "wrong.safetensors"
    save_file({"attention.W": np.zeros((2, 2))}, str(wrong))
    with pytest.raises(FileFormatError, match="3"):
        load(wrong)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Attention(np.zeros((1, 2, 3)), np.zeros((1, 2))), "W has shape"),
        (lambda: Attention(np.zeros((1, 2, 2)), np.zeros((2, 2))), "V has shape"),
        (lambda: Attention(np.full((1, 2, 2), np.nan), np.zeros((1, 2))), "NaN"),
        (lambda: Attention(np.zeros((1, 2, 2)), np.zeros((1, 2)), np.zeros((1, 3))), "c has shape"),
        (lambda: Attention(np.zeros((1, 2, 2)), np.zeros((1, 2)), None, np.zeros(2)), "b has shape"),
        (lambda: Attention(np.zeros((1, 2, 2)), None)(np.zeros((1, 1, 2))), "values were not learned"),
        (lambda: Attention.single(np.eye(2), [1.0, 1.0])(np.zeros((1, 2, 3))), "Sequences have shape"),
        (lambda: Attention.single(np.eye(2), [1.0, 1.0])(np.zeros((1, 2, 2)), "first"), "positions"),
        (lambda: FFN([np.zeros((2, 2))], []), "pair up"),
        (lambda: FFN([np.zeros((2, 2)), np.zeros((1, 3))], [np.zeros(2), np.zeros(1)]), "does not take"),
        (lambda: FFN([np.zeros((2, 2))], [np.zeros(3)]), "biases"),
        (lambda: FFN([np.zeros((2, 2))], [np.zeros(2)], np.zeros((1, 2))), "skip has shape"),
        (lambda: FFN([np.zeros((2, 2))], [np.zeros(2)])(np.zeros((1, 3))), "Points have shape"),
        (lambda: Transformer(Attention.single(np.eye(2), [1.0, 1.0]), FFN([np.eye(2)], [np.zeros(2)])), "Transformer needs"),
    ],
)
def test_impossible_parameters_are_refused(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_parameters_cannot_be_changed():
    head = Attention.single(np.eye(2), [1.0, 2.0])
    with pytest.raises(ValueError, match="read-only"):
        head.W[0, 0, 0] = 3.0


def test_parameters_are_copied_unless_nobody_can_change_them():
    W = np.ones((1, 2, 2))
    view = W.view()
    view.flags.writeable = False
    assert not np.shares_memory(Attention(view, np.ones((1, 2))).W, W)
    W.flags.writeable = False
    assert Attention(W, np.ones((1, 2))).W is W


def test_infinite_parameters_are_refused_and_large_ones_are_not():
    assert Attention(np.full((1, 2, 2), 1e308), np.ones((1, 2))).width == 2
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="finite"):
            Attention(np.array([[[bad, 1.0], [-bad, 1.0]]]), np.ones((1, 2)))


def test_no_sequences_get_no_answers():
    head = Attention.single(np.eye(2), [1.0, 2.0])
    assert head(np.zeros((0, 3, 2))).shape == (0,)
    assert head(np.zeros((0, 3, 2)), "all").shape == (0, 3, 1)
