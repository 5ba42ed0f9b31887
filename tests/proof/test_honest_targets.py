"""Ordinary targets that were refused once: float32 of PyTorch's kind, answers that jitter, small budgets under noise."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.one_head.scores import spread_keys
from unsoftmax.linalg import orthonormal


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def in_float32(W, V):
    W, V = W.astype(np.float32), V.astype(np.float32)

    def answer(X):
        X = X.astype(np.float32)
        weights = softmax(np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T))
        return np.einsum("bn,bnm->bm", weights, X @ V).astype(np.float64)

    return answer


@pytest.mark.parametrize(("width", "outputs"), [(16, 14), (32, 21), (32, 17), (24, 24)])
def test_one_head_in_float32_with_vector_answers_is_recovered(width, outputs):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        W, V = rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=(width, outputs))
        found = us.recover(in_float32(W, V), width=width, seed=seed)
        assert found.status is us.Status.WITHIN_TOLERANCE
        assert np.abs(found.model.W[0] - W).max() < 1e-4


@pytest.mark.parametrize(("width", "heads"), [(48, 1), (32, 1), (32, 4)])
def test_pytorch_attention_in_float32_with_biases_of_order_one_is_recovered(width, heads):
    torch = pytest.importorskip("torch")
    for seed in range(2):
        torch.manual_seed(seed)
        module = torch.nn.MultiheadAttention(width, heads, batch_first=True).eval()
        with torch.no_grad():
            module.in_proj_bias.normal_()
            module.out_proj.bias.normal_()

        def target(X, module=module):
            with torch.no_grad():
                x = torch.as_tensor(X, dtype=torch.float32)
                return module(x, x, x, need_weights=False)[0][:, -1].double().numpy()

        found, rng = us.recover(target, width=width, seed=seed), np.random.default_rng(seed)
        X = rng.normal(size=(200, 7, width))
        answers = target(X)
        assert np.abs(found.model(X) - answers).max() < 2e-4 * answers.std()
        if heads == 1:
            layer = us.Attention.from_torch(module.double())
            for block in ("W", "V", "c", "b"):
                apart = np.abs(getattr(found.model, block) - getattr(layer, block))
                assert np.mean(apart <= getattr(found.bounds, block)) > 0.8, block


def test_keys_of_a_whole_rotation_are_never_nearly_singular():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        width = int(rng.integers(2, 33))
        usable = int(rng.integers(1, width + 1))
        directions = np.linalg.qr(rng.normal(size=(width, usable)))[0]
        keys = spread_keys(orthonormal(width, rng), directions)
        assert np.linalg.norm(np.linalg.inv(keys), 2) < 1.0 + 1e-9
        for at in range(0, width - usable + 1, usable):  # each group tells its keys apart
            assert np.abs(np.linalg.svd(keys[at : at + usable] @ directions, compute_uv=False) - 1).max() < 1e-9


@pytest.mark.parametrize("relative", [1e-13, 1e-12])
def test_answers_that_jitter_in_their_last_digits_are_recovered(relative):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        width = int(rng.integers(3, 12))
        W = rng.normal(size=(width, width)) / np.sqrt(width)
        layers = [
            us.Attention.single(W, rng.normal(size=width)),
            us.Attention.single(W, rng.normal(size=width), b=1.5),
            us.Attention(W[None], rng.normal(size=(1, width, width))),
        ]
        layer = layers[seed % 3]

        def jittering(X, layer=layer, rng=rng):
            answers = layer(X)
            return answers * (1 + relative * rng.normal(size=answers.shape))

        found = us.recover(jittering, width=width, seed=seed)
        assert found.status is us.Status.WITHIN_TOLERANCE
        assert found.facts["floor"]["kind"] == "jittering"
        assert us.distance(found.model, layer) < 1e5 * relative


@pytest.mark.parametrize("each", [1e-12, 1e-11, 1e-10])
def test_a_target_that_changes_with_every_question_is_no_jitter(each):
    rng = np.random.default_rng(3)
    layer = us.Attention.single(rng.normal(size=(5, 5)) / 2, rng.normal(size=5))
    for seed in range(4):
        asked = 0

        def changing(X):
            nonlocal asked
            asked += len(X)
            return layer(X) * (1 + each * asked)

        found = us.recover(changing, width=5, seed=seed, on_failure="return")
        assert found.status is us.Status.DRIFTING
        assert "further off than the one before" in found.message
        assert not us.diagnose(changing, width=5, seed=seed).inside


def noisy(noise, width=8, seed=0):
    rng = np.random.default_rng(seed)
    head = us.Attention.single(rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=width))
    return head, lambda X: head(X) + noise * rng.normal(size=len(X))


def test_a_small_budget_under_noise_goes_into_learning():
    head, target = noisy(1e-2)
    found = us.recover(target, width=8, seed=0, budget=432, max_norm=4.0)
    assert found.status is us.Status.WITHIN_TOLERANCE
    assert found.facts["queries"]["total"] <= 432
    assert found.queries > 288
    assert np.abs(found.model.W - head.W).max() < 0.01


def test_where_noise_is_the_reason_it_is_named_with_the_budget_that_would_do():
    found = us.recover(noisy(30.0)[1], width=8, seed=0, budget=144, max_norm=4.0, on_failure="return")
    assert found.status is us.Status.TOO_NOISY
    assert found.facts["evidence"]["queries"] > 10_000


@pytest.mark.parametrize("seed", range(3))
def test_a_faint_bend_is_no_jitter_though_batches_sum_in_another_order(seed):
    rng = np.random.default_rng(seed)
    layer = us.Attention(rng.normal(size=(2, 6, 6)) / 2, rng.normal(size=(2, 6, 3)))

    def target(X):
        answers = layer(X) * (1 + 2.0**-52 * (len(X) == 1))
        return answers + 1e-10 * np.tanh(answers)

    found = us.recover(target, width=6, seed=seed, on_failure="return")
    assert found.status is us.Status.NOT_IN_FAMILY
    assert found.account.floor.exact


@pytest.mark.parametrize(("seed", "causal"), [(141, False), (1078, True)])
def test_scores_of_float32_layers_are_read_where_they_have_not_lost_their_digits(seed, causal):
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    layer = torch.nn.MultiheadAttention(6, 1, batch_first=True)
    with torch.no_grad():
        layer.in_proj_bias.normal_(std=0.3)
        layer.out_proj.bias.normal_(std=0.3)

    def target(X):
        x = torch.as_tensor(X, dtype=torch.float32)
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1) if causal else None
        with torch.no_grad():
            return layer(x, x, x, attn_mask=mask)[0].numpy()

    W = us.Attention.from_torch(layer).W
    for learning in (*range(5), seed):
        found = us.recover(target, width=6, seed=learning)
        assert np.linalg.norm(found.model.W - W) < 4e-5 * np.linalg.norm(W)


@pytest.mark.parametrize("number", [np.float64, np.float32])
@pytest.mark.parametrize("extra", ["", "c", "b", "cb"])
def test_a_softmax_that_overflows_on_long_tokens_is_recovered(number, extra):
    rng = np.random.default_rng(3)
    W, V = rng.normal(size=(5, 5)) / 5**0.5, rng.normal(size=(5, 2))
    c, b = rng.normal(size=5) * ("c" in extra), rng.normal(size=2) * ("b" in extra)

    def naive(X):
        X = X.astype(number)
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.exp(np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T.astype(number)) + X @ c.astype(number))
            weights /= weights.sum(axis=1, keepdims=True)
        return np.einsum("bn,bnm->bm", weights, X @ V.astype(number)) + b.astype(number)

    found = us.recover(naive, width=5, seed=1)
    assert np.linalg.norm(found.model.W[0] - W) < (1e-12 if number is np.float64 else 2e-4)


def test_a_target_that_limits_the_batch_is_asked_in_smaller_ones():
    head = us.Attention.single(np.diag([1.0, 2.0, 3.0]), [1.0, 2.0, 4.0])
    for most in (1, 3, 100):

        def limited(X, most=most):
            if len(X) > most:
                raise RuntimeError("out of memory")
            return head(X)

        assert us.recover(limited, width=3, seed=1).status is us.Status.EXACT


def test_a_target_that_fails_whatever_the_batch_says_so_with_the_first_question():
    def broken(X):
        raise ValueError(f"{len(X)} sequences")

    with pytest.raises(us.errors.TargetError, match="5 sequences"):
        us.recover(broken, width=3)


def test_functions_on_tensors_need_no_special_care():
    torch = pytest.importorskip("torch")
    head = us.Attention.single(np.diag([1.0, 2.0, 3.0]), [1.0, 2.0, 4.0])

    def in_place(X):
        answers = head(X)
        X -= X.mean(axis=1, keepdims=True)
        return torch.tensor(answers, requires_grad=True)

    assert us.recover(in_place, width=3, seed=1).status is us.Status.EXACT
    assert us.recover(lambda X: torch.tensor(head(X)).bfloat16(), width=3, max_norm=4.0, seed=1).status.success
