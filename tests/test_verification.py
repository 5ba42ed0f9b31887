import numpy as np
import pytest
from hypothesis import given

import unsoftmax as us
from tests.strategies import one_head, transformer
from unsoftmax.report.verification import sentence, verification_record

RNG = np.random.default_rng(3)
HEAD = us.Attention.single(RNG.normal(size=(6, 6)) / 2, RNG.normal(size=6))


@given(model=one_head())
def test_a_model_matches_itself(model):
    result = us.verify(model, model)
    assert result.matches
    assert result.sequences <= 256


@given(model=transformer())
def test_a_transformer_matches_itself(model):
    assert us.verify(model, model).matches


@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e-2])
def test_one_changed_entry_is_noticed(size):
    W = HEAD.W[0].copy()
    W[2, 3] += size
    result = us.verify(us.Attention.single(W, HEAD.V[0]), HEAD)
    assert not result.matches
    assert result.relative_deviation > result.threshold


def test_float32_is_not_accused_and_a_float32_change_is_noticed():
    single = us.oracles.LowPrecision(HEAD, "float32")
    assert us.verify(single, HEAD, width=6).matches
    other = us.Attention.single(HEAD.W[0] * 1.01, HEAD.V[0])
    assert not us.verify(single, other, width=6).matches


def four_digits(X):
    return np.array([float(f"{answer:.4g}") for answer in HEAD(X)])


CHANGED = us.Attention.single(HEAD.W[0] * 1.05, HEAD.V[0])


@pytest.mark.parametrize(
    ("kind", "coarse"),
    [
        ("rounded", us.oracles.Rounded(us.oracles.CallableOracle(HEAD), decimals=2)),
        ("digits", us.oracles.CallableOracle(four_digits, 6)),
        ("float16", us.oracles.CallableOracle(lambda X: HEAD(X).astype(np.float16), 6)),
        ("float32", us.oracles.CallableOracle(lambda X: HEAD(X).astype(np.float32), 6)),
        ("float16", us.oracles.LowPrecision(HEAD, "float16")),
        ("noisy", us.oracles.Noisy(us.oracles.CallableOracle(HEAD), 0.005, seed=1)),
        ("noisy", us.oracles.Rounded(us.oracles.Noisy(us.oracles.CallableOracle(HEAD), 0.01, seed=2), decimals=2)),
    ],
)
def test_coarse_answers_are_not_accused_and_other_weights_are_noticed_behind_them(kind, coarse):
    same = us.verify(coarse, HEAD)
    assert same.matches
    assert same.relative_deviation <= same.threshold
    assert same.floor.kind == kind
    assert same.queries <= 242 + (960 if kind == "float16" else 64 + 12)
    other = us.verify(coarse, CHANGED)
    assert not other.matches
    assert other.relative_deviation > other.threshold


@pytest.mark.parametrize("seed", range(6))
def test_two_models_that_take_turns_are_not_taken_for_noise_around_one(seed):
    rng = np.random.default_rng(seed)
    one = us.Attention.single(rng.normal(size=(6, 6)) / 2, rng.normal(size=6))
    other = us.Attention.single(-one.W[0], one.V[0])
    calls = []

    def turns(X):
        calls.append(len(X))
        return (one if len(calls) % 2 else other)(X)

    assert not us.verify(turns, one, width=6).matches


@given(model=transformer())
def test_a_transformer_in_single_precision_matches_itself(model):
    assert us.verify(us.oracles.CallableOracle(lambda X: model(X).astype(np.float32), model.width), model).matches


@pytest.mark.parametrize("seed", range(3))
def test_one_percent_is_noticed_behind_bfloat16(seed):
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    with torch.no_grad():
        layer.in_proj_weight *= 2.5
    model = us.Attention.from_torch(layer)
    half = layer.to(torch.bfloat16)

    def target(X):
        tokens = torch.tensor(X).to(torch.bfloat16)
        with torch.no_grad():
            return half(tokens, tokens, tokens, need_weights=False)[0][:, -1].double().numpy()

    assert us.verify(target, model, width=16).matches
    rng = np.random.default_rng(seed)
    scaled = us.Attention(model.W * 1.01, model.V, model.c, model.b)
    moved = us.Attention(model.W + 0.01 * model.W.std() * rng.normal(size=model.W.shape), model.V, model.c, model.b)
    assert not us.verify(target, scaled, width=16).matches
    assert not us.verify(target, moved, width=16).matches


@pytest.mark.parametrize("seed", range(3))
def test_scores_scaled_by_one_percent_are_noticed_behind_bfloat16_and_a_match_says_what_it_cannot_see(seed):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    model = us.Attention.single(rng.normal(size=(16, 16)) / 4, rng.normal(size=16) / 4)  # large scores select one token
    W, v = (torch.tensor(block[0]).to(torch.bfloat16) for block in (model.W, model.V))

    def target(X):
        tokens = torch.tensor(X).to(torch.bfloat16)
        scores = (tokens @ (tokens[:, -1] @ W.T)[:, :, None])[..., 0]
        return (scores.softmax(-1) * (tokens @ v)).sum(-1).double().numpy()

    result = us.verify(target, model, width=16)
    assert result.matches
    assert set(result.would_show) == {"attention.W", "attention.V", "scores"}
    assert 0.003 < result.would_show["scores"] < 0.01
    assert not us.verify(target, us.Attention(model.W * 1.01, model.V), width=16).matches
    larger = model.V * (1.0 + 1.5 * result.would_show["attention.V"] * rng.normal(size=model.V.shape))
    assert not us.verify(target, us.Attention(model.W, larger), width=16).matches
    record = verification_record(result, model, target="t", weights="w", command="c")
    assert "scores by 0.00" in sentence(record)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="were not learned"):
        us.verify(HEAD, us.Attention(HEAD.W, None))
    with pytest.raises(ValueError, match="width 6, the weights are for width 2"):
        us.verify(HEAD, us.Attention.single(np.eye(2), [1.0, 1.0]))
    with pytest.raises(ValueError, match="answers with 1 numbers, a model of these weights with 2"):
        us.verify(HEAD, us.Attention.single(HEAD.W[0], np.ones((6, 2))))


def test_a_network_is_compared_on_single_tokens():
    network = us.FFN([RNG.normal(size=(5, 3)), RNG.normal(size=(1, 5))], [RNG.normal(size=5), RNG.normal(size=1)])
    assert us.verify(network, network).matches
