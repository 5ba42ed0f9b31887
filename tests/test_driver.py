import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.demo import demo_oracle
from unsoftmax.errors import BudgetExceededError, DriftingError, JournalError, NotInFamilyError, RefusalError, TargetError

RNG = np.random.default_rng(2026)
D = 12
HEAD = us.Attention.single(RNG.normal(size=(D, D)) / np.sqrt(D), RNG.normal(size=D))
OTHER = us.Attention.single(HEAD.W[0] + 1e-3 * RNG.normal(size=(D, D)), HEAD.V[0])


def attend(X, scores):
    a = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("bn,bnd->bd", a / a.sum(axis=1, keepdims=True), X) @ HEAD.V[0]


def scores(X):
    return np.einsum("bnd,bd->bn", X, X[:, -1] @ HEAD.W[0].T)


def normalised(X):
    return (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-5)


def noisy(X):
    return HEAD(X) + 1e-3 * np.random.default_rng().normal(size=len(X))


POSITIONS = RNG.normal(size=(200, D))
OUTSIDE = {
    "positions": lambda X: HEAD(X + POSITIONS[: X.shape[1]]),
    "soft-cap": lambda X: attend(X, 20 * np.tanh(scores(X) / 20)),
    "wide soft-cap": lambda X: attend(X, 50 * np.tanh(scores(X) / 50)),
    "LayerNorm before": lambda X: HEAD(normalised(X)),
    "a skip": lambda X: HEAD(X) + X[:, -1] @ HEAD.V[0],
    "a sink": lambda X: attend(
        np.concatenate([np.zeros_like(X[:, :1]), X], axis=1), np.concatenate([np.zeros((len(X), 1)), scores(X)], axis=1)
    ),
    "a window": lambda X: HEAD(X[:, -16:]),
    "linear attention": lambda X: np.einsum("bn,bn->b", scores(X), X @ HEAD.V[0]) / X.shape[1],
    "constant then not": lambda X: HEAD(X) * (X.shape[1] < 20),
}


@pytest.mark.parametrize("name", list(OUTSIDE))
def test_what_is_no_head_is_never_called_one(name):
    recovery = us.recover(OUTSIDE[name], width=D, on_failure="return", family="attention")
    assert not recovery.status.success
    assert recovery.message


def test_fresh_noise_is_never_called_exact():
    recovery = us.recover(noisy, width=D, on_failure="return", budget=20_000)
    assert recovery.status is not us.Status.EXACT
    if recovery.status.success:
        assert us.distance(recovery.model, HEAD) < 0.1


@pytest.mark.parametrize("after", [40, 100, 150, 170, 300])
def test_weights_that_change_on_the_way_are_noticed(after):
    asked = 0

    def target(X):
        nonlocal asked
        asked += len(X)
        return (HEAD if asked <= after else OTHER)(X)

    recovery = us.recover(target, width=D, on_failure="return")
    assert recovery.status is us.Status.DRIFTING


def test_the_result_tells_everything_the_contract_names():
    recovery = us.recover(HEAD)
    assert recovery.status is us.Status.EXACT
    assert us.distance(recovery.model, HEAD) < 1e-13
    assert D * D + D <= recovery.queries <= D * D + D + 16
    assert recovery.check.sequences <= 256
    assert recovery.check.relative_error < 1e-11
    assert recovery.check.max_abs_error >= 0
    assert set(recovery.check.by_length) >= {2, 64}
    assert "key bias" in recovery.ambiguity


def test_same_seed_same_questions_same_bits():
    def record(seed):
        asked = []

        def target(X):
            asked.append(X.copy())
            return HEAD(X)

        return us.recover(target, width=D, seed=seed), asked

    (a, asked_a), (b, _), (c, asked_c) = record(1), record(1), record(2)
    assert np.array_equal(a.model.W, b.model.W)
    assert not np.array_equal(asked_a[0], asked_c[0])
    assert us.distance(a.model, c.model) < 1e-13


def test_the_check_cannot_be_foreseen():
    seen = []
    for _ in range(2):
        calls = []
        us.recover(lambda X, calls=calls: (calls.append(X.copy()), HEAD(X))[1], width=D, seed=1)
        seen.append(calls[-1])
    assert not np.array_equal(seen[0], seen[1])


def test_a_target_that_is_honest_only_on_structured_probes_is_caught():
    def liar(X):
        usual = np.abs(X).max(axis=(1, 2))
        return np.where((X.shape[1] > 2) & (usual > 1e-3) & (usual < 1e3), OTHER(X), HEAD(X))

    with pytest.raises(RefusalError):
        us.recover(liar, width=D)


@pytest.mark.parametrize("budget", [1, 4, 20, 100, 158, 170])
def test_a_budget_is_never_exceeded(budget):
    asked = 0

    def target(X):
        nonlocal asked
        asked += len(X)
        return HEAD(X)

    with pytest.raises(BudgetExceededError) as caught:
        us.recover(target, width=D, budget=budget)
    assert asked <= budget
    assert caught.value.recovery.status is us.Status.BUDGET_SPENT


def test_a_tight_budget_still_checks():
    recovery = us.recover(HEAD, budget=200)
    assert recovery.status is us.Status.EXACT
    assert recovery.facts["queries"]["total"] <= 200


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"family": "rnn"}, "family is 'rnn'"),
        ({"budget": 0}, "budget is 0"),
        ({"rank": -1}, "rank is -1"),
        ({"rank": 13}, "width is only 12"),
        ({"heads": 0}, "heads is 0"),
        ({"tolerance": -1.0}, "tolerance is -1"),
        ({"max_norm": float("nan")}, "max_norm is nan"),
        ({"grid": 1e-300}, "between 1e-15 and 1e15"),
        ({"seed": -3}, "seed is -3"),
        ({"on_failure": "ignore"}, "on_failure is 'ignore'"),
        ({"width": 5}, "says that its width is 12"),
    ],
)
def test_misuse_is_a_value_error(settings, words):
    with pytest.raises(ValueError, match=words):
        us.recover(HEAD, **settings)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (lambda X: np.full(len(X), np.nan), "nan"),
        (lambda X: HEAD(X) if X.shape[1] == 1 else np.full(len(X), np.inf), "inf"),
        (lambda X: np.zeros((len(X), 2)) if len(X) > 1 else np.zeros(1), "keep their shape"),
        (lambda X: np.zeros((len(X), 1)) if len(X) > 1 else np.zeros(1), "batch of 1"),
        (lambda X: {}["missing"], "KeyError"),
    ],
)
def test_a_failing_target_is_reported_with_the_cause(target, words):
    with pytest.raises(TargetError, match=words) as caught:
        us.recover(target, width=D)
    assert caught.value.recovery.status is us.Status.TARGET_FAILED


def test_max_norm_holds_for_every_question_the_check_included():
    longest = 0.0

    def target(X):
        nonlocal longest
        longest = max(longest, float(np.linalg.norm(X, axis=-1).max()))
        return HEAD(X)

    assert us.recover(target, width=D, max_norm=1.5).status is us.Status.EXACT
    assert longest <= 1.5


def test_float32_is_within_tolerance_never_exact():
    torch = pytest.importorskip("torch")
    layer = HEAD.to_torch().to(torch.float32).eval()
    recovery = us.recover(layer, width=D)
    assert recovery.status is us.Status.WITHIN_TOLERANCE
    assert np.linalg.norm(recovery.model.W - HEAD.W) < 1e-5 * np.linalg.norm(HEAD.W)


def test_a_journal_resumes_with_a_larger_budget_and_the_same_bits(tmp_path):
    asked = 0

    def target(X):
        nonlocal asked
        asked += len(X)
        return HEAD(X)

    whole = us.recover(target, width=D, journal=tmp_path / "whole.sqlite")
    expected, asked = asked, 0
    with pytest.raises(BudgetExceededError):
        us.recover(target, width=D, journal=tmp_path / "cut.sqlite", budget=90)
    resumed = us.recover(target, width=D, journal=tmp_path / "cut.sqlite")
    assert abs(asked - resumed.facts["queries"]["confirm"] - expected) <= 4  # sentinels come at moments of their own
    assert np.array_equal(resumed.model.W, whole.model.W)
    asked = 0
    again = us.recover(target, width=D, journal=tmp_path / "cut.sqlite")
    assert asked == again.facts["queries"]["confirm"] == 32  # fresh words for old answers
    with pytest.raises(JournalError, match="seed"):
        us.recover(target, width=D, journal=tmp_path / "cut.sqlite", seed=5)


TARGET_FILE = """
import os, time
import numpy as np
rng = np.random.default_rng(4)
W, v = rng.normal(size=(24, 24)) / 5, rng.normal(size=24)
width = 24

def head(X):
    with open({log!r}, "a") as log:
        log.write(f"{{len(X)}}\\n")
    time.sleep(0.002)
    s = np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T)
    a = np.exp(s - s.max(axis=1, keepdims=True))
    return np.einsum("bn,bnd->bd", a / a.sum(axis=1, keepdims=True), X) @ v
"""


def test_kill_minus_nine_at_random_moments_loses_nothing(tmp_path):
    log = tmp_path / "asked.log"
    (tmp_path / "target.py").write_text(TARGET_FILE.format(log=str(log)))
    command = [
        sys.executable,
        "-m",
        "unsoftmax",
        "recover",
        f"{tmp_path}/target.py:head",
        "--width",
        "24",
        "--seed",
        "1",
        "--json",
        "--out",
    ]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    whole = sum(map(int, log.read_text().split()))
    log.unlink()
    largest = 24 * 24
    rng = np.random.default_rng(int.from_bytes(os.urandom(4), "big"))
    kills = 0
    for _ in range(12):
        process = subprocess.Popen([*command, str(tmp_path / "cut")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.poll() is None and not log.exists():
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.12))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
    subprocess.run([*command, str(tmp_path / "cut")], check=True, capture_output=True)
    assert kills > 0
    total = sum(map(int, log.read_text().split()))
    assert total <= whole + kills * largest + 4
    a, b = us.load(tmp_path / "whole" / "weights.safetensors"), us.load(tmp_path / "cut" / "weights.safetensors")
    assert np.array_equal(a.W, b.W)
    assert np.array_equal(a.V, b.V)


def test_every_refusal_carries_its_recovery():
    with pytest.raises(NotInFamilyError) as caught:
        us.recover(OUTSIDE["soft-cap"], width=D, family="attention")
    assert caught.value.recovery.status is us.Status.NOT_IN_FAMILY
    assert DriftingError.status_name in us.Status.__members__


def test_a_constant_does_not_pass_a_wrong_head_for_a_right_one():
    rng = np.random.default_rng([102125, 15])  # one head fits the first questions, and tokens of its size get the constant alone
    W, V, c = rng.normal(size=(4, 2, 2)) / np.sqrt(2), rng.normal(size=(4, 2)), rng.normal(size=(4, 2))
    layer = us.Attention(W, V, c, rng.normal())
    found = us.recover(layer, seed=15)
    assert us.distance(found.model, layer) < 1e-9


def test_a_head_that_drowns_in_a_constant_is_known_as_far_as_its_error_bars_say():
    rng = np.random.default_rng(31777 + 31)
    head = us.Attention.single(rng.normal(size=(4, 4)), 0.01 * rng.normal(size=4), c=3 * rng.normal(size=4), b=1e6)
    found = us.recover(head)
    assert found.status is us.Status.WITHIN_TOLERANCE
    assert 1e-8 < found.check.relative_error <= found.facts["tolerance"] < 1e-2
    assert (np.abs(found.model.W - head.W) <= 2 * found.bounds.W).mean() > 0.9


def test_a_head_of_low_rank_that_drowns_in_a_constant_is_not_promised():
    rng = np.random.default_rng(180074)  # errors grow where W is known through a basis of its range
    d, r = int(rng.integers(12, 120)), int(rng.integers(1, 22))
    W = rng.normal(size=(d, r)) @ rng.normal(size=(r, d)) * 10 ** rng.uniform(-3, 3)
    head = us.Attention.single(W, rng.normal(size=d), c=np.abs(W).max() * rng.normal(size=d), b=10 ** rng.uniform(-2, 4))
    found = us.recover(head, seed=180074, entropy=180074, on_failure="return")
    assert found.status is us.Status.TOO_NOISY  # natural tokens that nearly tie may differ by several percent
    assert "rounding hides the head" in found.message


@pytest.mark.parametrize("size", [1e12, 1e14])
def test_a_score_matrix_that_a_huge_bias_hides_is_not_promised(size):
    rng = np.random.default_rng(8)
    head = us.Attention.single(size * rng.normal(size=(D, D)), rng.normal(size=D), c=size * rng.normal(size=D))
    found = us.recover(head, on_failure="return")
    assert found.status is us.Status.NOT_IDENTIFIABLE
    assert "saturates the softmax" in found.message
    short = us.recover(head, max_norm=1.0 / size)
    assert short.status is us.Status.EXACT


def test_a_score_matrix_too_small_to_show_has_error_bars():
    rng = np.random.default_rng(5)
    head = us.Attention.single(1e-13 * rng.normal(size=(4, 4)), rng.normal(size=4), c=3 * rng.normal(size=4))
    found = us.recover(head)
    assert not found.model.W.any()
    assert np.abs(head.W).max() <= found.bounds.W.max() < 1e-9
    assert "does not show" in found.facts["notes"][0]


@pytest.mark.parametrize(
    ("family", "settings", "max_norm"),
    [
        ("attention", {"width": 5, "outputs": 5, "positions": 1, "seed": 5500045}, 0.23),
        ("attention", {"width": 4, "heads": 2, "seed": 5500073}, 0.65),
        ("attention", {"width": 5, "heads": 2, "outputs": 5, "causal": 1, "seed": 5500086}, 1.25),
        ("attention", {"width": 5, "heads": 2, "outputs": 5, "causal": 1, "seed": 6600026}, 21.299840917828686),
        ("transformer", {"width": 4, "hidden": 6, "seed": 5500167}, 0.98),
        ("transformer", {"width": 4, "hidden": 6, "residual": 1, "outputs": 5, "seed": 5500048}, 0.24),
        ("ffn", {"width": 4, "hidden": 5, "seed": 5500049}, 0.5),
    ],
)
def test_no_token_is_longer_than_allowed_whatever_is_looked_for(family, settings, max_norm):
    inner = demo_oracle(family, **settings)
    longest = 0.0

    def target(X):
        nonlocal longest
        longest = max(longest, float(np.linalg.norm(X, axis=-1).max()))
        return inner(X)

    found = us.recover(target, width=inner.width, max_norm=max_norm, seed=settings["seed"], budget=20_000, on_failure="return")
    assert 0.5 * max_norm < longest <= max_norm
    assert not found.status.success or found.check.relative_error < 1e-8


@pytest.mark.parametrize("seed", [4, 15, 33])
def test_a_small_network_that_is_straight_where_first_questions_lie_is_no_stranger(seed):
    """Scores that saturate wherever tokens are longer than 1e-30 are no head's: what else it may be is looked for."""
    rng = np.random.default_rng(seed)
    layer = us.Attention(rng.normal(size=(1, 3, 3)), np.eye(3)[None])
    B, beta, A = rng.normal(size=(2, 3)), rng.normal(size=2), rng.normal(size=(2, 2))

    def target(X):
        return np.maximum(layer(X, "all", causal=bool(seed % 2)) @ B.T + beta, 0) @ A.T

    found = us.recover(target, width=3, seed=0)
    assert found.status is us.Status.EXACT
    assert found.account.family == "transformer"
