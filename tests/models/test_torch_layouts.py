from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unsoftmax as us
from unsoftmax.errors import MissingExtraError
from unsoftmax.models import Attention
from unsoftmax.models.torch_layouts import LAYOUTS, attention_from_torch, to_state_dict

torch = pytest.importorskip("torch")


@st.composite
def layers(draw):
    heads, rank = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    return heads, rank, np.random.default_rng(draw(st.integers(0, 2**32 - 1)))


@given(layers())
@settings(max_examples=20, deadline=None)
def test_a_folded_mha_answers_like_torch_at_every_position(drawn):
    heads, rank, rng = drawn
    width = heads * rank
    torch.manual_seed(int(rng.integers(2**31)))
    module = torch.nn.MultiheadAttention(width, heads, batch_first=True, dtype=torch.float64)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    X = rng.normal(size=(3, 4, width))
    with torch.no_grad():
        expected = module(*(torch.tensor(X),) * 3, need_weights=False)[0].numpy()
    assert np.allclose(Attention.from_torch(module)(X, "all"), expected, atol=1e-12)
    assert np.allclose(attention_from_torch(module.state_dict(), heads=heads)(X, "all"), expected, atol=1e-12)


@given(layers())
@settings(max_examples=20, deadline=None)
def test_gpt2_and_bert_fold_as_their_formulas_say(drawn):
    heads, rank, rng = drawn
    width = heads * rank
    weights, biases = rng.normal(size=(4, width, width)), rng.normal(size=(4, width))
    names = ("query", "key", "value")
    bert = {f"encoder.layer.3.attention.self.{n}.weight": weights[i] for i, n in enumerate(names)}
    bert |= {f"encoder.layer.3.attention.self.{n}.bias": biases[i] for i, n in enumerate(names)}
    bert |= {"encoder.layer.3.attention.output.dense.weight": weights[3], "encoder.layer.3.attention.output.dense.bias": biases[3]}
    gpt2 = {
        "h.0.attn.c_attn.weight": np.concatenate(weights[:3]).T,
        "h.0.attn.c_attn.bias": np.concatenate(biases[:3]),
        "h.0.attn.c_proj.weight": weights[3].T,
        "h.0.attn.c_proj.bias": biases[3],
    }
    X = rng.normal(size=(2, 5, width))
    q, k, v = (X @ weights[i].T + biases[i] for i in range(3))
    mixed = np.empty_like(X)
    for h in range(heads):
        part = slice(h * rank, (h + 1) * rank)
        scores = q[..., part] @ k[..., part].transpose(0, 2, 1) / np.sqrt(rank)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed[..., part] = p / p.sum(-1, keepdims=True) @ v[..., part]
    expected = mixed @ weights[3].T + biases[3]
    for state in (bert, gpt2):
        assert np.allclose(attention_from_torch(state, heads=heads)(X, "all"), expected, atol=1e-11)


@given(layers(), st.sampled_from(LAYOUTS))
@settings(max_examples=30, deadline=None)
def test_layouts_give_back_the_same_function(drawn, layout):
    heads, rank, rng = drawn
    width = heads * rank
    A, B, C, D = (rng.normal(size=(heads, rank, width)) for _ in range(4))
    model = Attention(
        W=np.einsum("hrd,hre->hde", A, B),
        V=np.einsum("hrd,hre->hde", C, D),
        c=np.einsum("hrd,hr->hd", A, rng.normal(size=(heads, rank))),
        b=rng.normal(size=width),
    )
    state = to_state_dict(model, layout)
    again = attention_from_torch(state, heads=heads)
    for name in ("W", "V", "c", "b"):
        assert np.allclose(getattr(again, name), getattr(model, name), atol=1e-9 * (1 + np.abs(getattr(model, name)).max()))


def test_a_state_dict_loads_into_torch():
    rng = np.random.default_rng(3)
    A, B = rng.normal(size=(2, 2, 3, 6))
    model = Attention(W=np.einsum("hrd,hre->hde", A, B), V=np.einsum("hrd,hre->hde", B, A), b=rng.normal(size=6))
    module = torch.nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64)
    module.load_state_dict(to_state_dict(model))
    X = rng.normal(size=(2, 4, 6))
    with torch.no_grad():
        assert np.allclose(module(*(torch.tensor(X),) * 3)[0].numpy(), model(X, "all"), atol=1e-10)


def test_a_recovered_layer_loads_back_into_the_block_it_came_from():
    torch.manual_seed(5)
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    recovered = us.recover(module).model
    again = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    again.load_state_dict(recovered.to_state_dict("mha"))
    X = torch.randn(3, 5, 8, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(again(X, X, X)[0], module(X, X, X)[0], atol=1e-9)
    for layout in LAYOUTS:
        folded = Attention.from_torch(recovered.to_state_dict(layout), heads=2)
        assert us.distance(folded, recovered) < 1e-9


def test_a_given_rank_cuts_off_what_coarse_answers_leave():
    rng = np.random.default_rng(4)
    A, B, C, D = rng.normal(size=(4, 2, 3, 6))
    model = Attention(W=np.einsum("hrd,hre->hde", A, B), V=np.einsum("hrd,hre->hde", C, D))
    blurred = Attention(W=model.W + 1e-6 * rng.normal(size=model.W.shape), V=model.V)
    assert blurred.to_state_dict()["in_proj_weight"].shape == (3 * 2 * 6, 6)
    cut = blurred.to_state_dict(rank=3)
    assert cut["in_proj_weight"].shape == (3 * 6, 6)
    assert us.distance(Attention.from_torch(cut, heads=2), model) < 1e-4
    with pytest.raises(ValueError, match="at least one"):
        blurred.to_state_dict(rank=0)


@pytest.mark.parametrize("tail", [(), (3,)])
def test_to_torch_answers_the_same_and_folds_back(tail):
    rng = np.random.default_rng(0)
    model = Attention(W=rng.normal(size=(2, 4, 4)), V=rng.normal(size=(2, 4, *tail)), c=rng.normal(size=(2, 4)))
    module = model.to_torch()
    X = rng.normal(size=(3, 5, 4))
    with torch.no_grad():
        assert np.allclose(module(torch.tensor(X)).numpy(), model(X), atol=1e-12)
        for causal in (False, True):
            ours = model(X, "all", causal=causal)
            assert np.allclose(module(torch.tensor(X), "all", causal).numpy().reshape(ours.shape), ours, atol=1e-12)
    again = Attention.from_torch(module)
    assert np.array_equal(again.W, model.W)
    assert again.has_c
    assert not again.has_b


def test_modules_pickle_and_answer_every_position():
    rng = np.random.default_rng(1)
    head = Attention(W=rng.normal(size=(1, 3, 3)), V=np.eye(3)[None], c=rng.normal(size=(1, 3)))
    network = us.FFN(
        [rng.normal(size=(5, 3)), rng.normal(size=(2, 5))], [rng.normal(size=5), rng.normal(size=2)], rng.normal(size=(2, 3))
    )
    block = us.Transformer(head, network, residual=True)
    X = rng.normal(size=(2, 4, 3))
    module, layer, body = block.to_torch(), head.to_torch(positions="all", causal=True), network.to_torch()
    with torch.no_grad():
        for asked in (module, pickle.loads(pickle.dumps(module))):
            assert np.allclose(asked(torch.tensor(X)).numpy(), block(X), atol=1e-12)
            everywhere = asked(torch.tensor(X), "all", True).numpy()
            assert np.allclose(everywhere[:, 1], block(X[:, :2]), atol=1e-12)
        assert np.allclose(pickle.loads(pickle.dumps(layer))(torch.tensor(X)).numpy(), head(X, "all", causal=True), atol=1e-12)
        assert np.allclose(pickle.loads(pickle.dumps(body))(torch.tensor(X[:, 0])).numpy(), network(X[:, 0]), atol=1e-12)
    assert us.distance(module.transformer, block) < 1e-12
    with pytest.raises(ValueError, match="positions"):
        head.to_torch(positions="first")


def test_an_absent_torch_is_reported_with_its_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"unsoftmax\[torch\]"):
        Attention(W=np.ones((1, 2, 2)), V=np.ones((1, 2))).to_torch()


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="known layouts"):
        attention_from_torch({"weight": np.eye(2)}, heads=1)
    state = to_state_dict(Attention(W=np.ones((1, 2, 2)), V=np.ones((1, 2, 2))))
    with pytest.raises(ValueError, match="heads="):
        attention_from_torch(state)
    with pytest.raises(ValueError, match="divide"):
        attention_from_torch(state, heads=3)
    with pytest.raises(ValueError, match="2 attention layers"):
        attention_from_torch({f"{i}.{name}": array for name, array in state.items() for i in range(2)}, heads=1)
    with pytest.raises(ValueError, match="layout is 'x'"):
        to_state_dict(Attention(W=np.ones((1, 2, 2)), V=np.ones((1, 2, 2))), "x")
    with pytest.raises(ValueError, match="vector answers"):
        to_state_dict(Attention(W=np.ones((1, 2, 2)), V=np.ones((1, 2))))
