"""Endpoints held against a checkpoint: what matches, what differs, where and how, and replicas that do."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_transformer import HEADS, WIDTH, Endpoint, checkpoint, off  # noqa: E402 - needs torch
from unsoftmax.deployment import Verdict, verify_deployment  # noqa: E402
from unsoftmax.deployment.kinds import grid, pruned, shifted_grid  # noqa: E402
from unsoftmax.deployment.modules import checkpoint_of  # noqa: E402
from unsoftmax.report.deployment import deployment_record, deployment_report  # noqa: E402
from unsoftmax.report.page import page  # noqa: E402

QUERIES = 480


@pytest.fixture(scope="module")
def weights():
    return checkpoint()


@pytest.mark.parametrize("seed", range(3))
def test_an_honest_endpoint_matches_and_says_what_would_have_shown(weights, seed):
    result = verify_deployment(Endpoint(rng=np.random.default_rng(seed)), weights, queries=QUERIES, seed=seed)
    assert result.verdict is Verdict.MATCHES
    assert (result.precision, result.verdict.code) == ("float32", 0)
    assert result.queries == QUERIES + 1
    assert result.unseen == [f"layers.{i}.k_proj.bias" for i in range(2)]  # the softmax forgets it
    assert set(result.smallest) == {"layer 0", "layer 1", "head.weight", "head.bias"}
    shown = max(size for size in result.smallest.values() if size is not None)
    assert shown < 1e-4
    # what it says would show does show
    name = result.weakest["layer 0"]
    changed = Endpoint(change=off(name, 3 * result.smallest["layer 0"]))
    assert verify_deployment(changed, weights, queries=QUERIES, seed=seed, explain=False).verdict is Verdict.DIFFERS


@pytest.mark.parametrize("name", ["layers.0.down.weight", "head.weight"])
def test_a_tensor_that_is_off_is_named_with_its_size(weights, name):
    result = verify_deployment(Endpoint(change=off(name, 1e-3)), weights, queries=240, seed=4)
    assert result.verdict is Verdict.DIFFERS
    assert result.change.where == [name]
    assert result.change.layer == weights.layer_of(name)
    assert result.change.kind == "one tensor changed"
    assert result.change.size == pytest.approx(1e-3, rel=0.3)
    record = deployment_record(result, command="test")
    assert name in record["sentence"]
    assert name in record["next"][0]  # the file to compare
    assert sum(count for _, count in record["histogram"]) == 240
    assert "threshold" in page(deployment_report(record))
    assert name in page(deployment_report(record))


def inner(change):
    def edit(model):
        for name, tensor in model.named_parameters():
            if tensor.ndim == 2 and name.startswith("layers"):
                tensor.copy_(change(tensor))

    return edit


def swapped(model):
    model.layers[0], model.layers[1] = model.layers[1], model.layers[0]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (inner(lambda t: grid(t, 8, None)), "rounded to int8"),
        (inner(lambda t: t.bfloat16().float()), "rounded to bfloat16"),
        (inner(lambda t: pruned(t, 0.05)), "pruned"),
        (lambda model: model.layers[1].o_proj.weight[:, 8:].zero_(), "head switched off"),
        (swapped, "layers swapped"),
    ],
)
def test_changes_that_can_be_tried_are_told_exactly(weights, change, kind):
    result = verify_deployment(Endpoint(change=change), weights, queries=160, seed=5)
    assert (result.verdict, result.change.kind, result.change.exact) == (Verdict.DIFFERS, kind, True)
    assert result.change.explained > 0.999


def test_an_adapter_of_low_rank_is_told_with_its_rank(weights):
    def adapted(model):
        rng = torch.Generator().manual_seed(1)
        tensor = model.layers[1].v_proj.weight
        tensor += 0.01 * torch.randn(WIDTH, 1, generator=rng) @ torch.randn(1, WIDTH, generator=rng) / 4

    result = verify_deployment(Endpoint(change=adapted), weights, queries=160, seed=6)
    assert (result.change.kind, result.change.rank, result.change.layer) == ("low-rank update", 1, "layer 1")


def test_other_weights_are_told_apart(weights):
    result = verify_deployment(Endpoint(seed=1), weights, queries=160, seed=7)
    assert (result.verdict, result.change.kind) == (Verdict.DIFFERS, "other weights")


class Encoder:
    """A torch encoder that answers every position, whose rows are longer for longer sequences; perhaps changed."""

    width = 32

    def __init__(self, change=None):
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(self.width, HEADS, 64, dropout=0.0, batch_first=True)
        self.module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        with torch.no_grad():
            for parameter in self.module.parameters():
                if parameter.ndim == 2:
                    torch.nn.init.normal_(parameter, std=0.2)
                    if change is not None:
                        change(parameter)

    @torch.no_grad()
    def __call__(self, sequences):
        return self.module(torch.as_tensor(sequences).float()).double().numpy()


def held_against_encoder(change):
    weights = checkpoint_of(Encoder().module, width=Encoder.width, heads=HEADS)
    return verify_deployment(Encoder(change), weights, queries=240, seed=9)


def test_weights_set_to_zero_at_random_are_told_with_their_share():
    share = 0.2  # of matrices as small as these, fewer zeros look like any other change
    rng = torch.Generator().manual_seed(1)
    result = held_against_encoder(lambda tensor: tensor.mul_(torch.rand(tensor.shape, generator=rng) >= share))
    assert (result.verdict, result.change.kind, result.change.layer) == (Verdict.DIFFERS, "pruned", None)
    assert result.change.size**2 == pytest.approx(share, rel=0.5)
    assert result.outputs == Encoder.width


def test_other_changes_of_that_size_are_not_told_as_weights_set_to_zero():
    rng = torch.Generator().manual_seed(2)
    for change in (
        lambda tensor: tensor.add_(0.3 * tensor.std() * torch.randn(tensor.shape, generator=rng)),
        lambda tensor: tensor.mul_(0.9),
    ):
        result = held_against_encoder(change)
        assert result.verdict is Verdict.DIFFERS
        assert result.change.kind != "pruned"


def test_half_precision_matches_and_says_what_it_hides(weights):
    result = verify_deployment(Endpoint(dtype=torch.bfloat16), weights, queries=160, seed=8)
    assert (result.verdict, result.precision) == (Verdict.MATCHES, "bfloat16")
    assert "bfloat16" in " ".join(result.notes)
    assert all(size is None or size > 1e-4 for size in result.smallest.values())
    strict = verify_deployment(Endpoint(dtype=torch.bfloat16), weights, queries=160, seed=8, precision="float32")
    assert (strict.verdict, strict.change.kind) == (Verdict.DIFFERS, "lower precision")


class Balanced:
    """Twenty replicas behind one address, one of them changed; each call goes to one of them."""

    width = WIDTH

    def __init__(self, change, seed):
        self.good, self.bad, self.rng = Endpoint(), Endpoint(change=change), np.random.default_rng(seed)

    def __call__(self, sequences):
        return (self.bad if self.rng.integers(20) == 0 else self.good)(sequences)


@pytest.mark.parametrize("seed", range(3))
def test_one_bad_replica_of_twenty_is_found(weights, seed):
    result = verify_deployment(Balanced(off("layers.1.up.weight", 1e-2), seed), weights, seed=seed)
    assert result.verdict is Verdict.REPLICAS_DIFFER
    assert result.verdict.code == 5
    assert [version.matches for version in result.versions] == [True, False]
    assert 0.8 < result.versions[0].share < 1.0
    page(deployment_report(deployment_record(result, command="test")))


def test_what_does_not_fit_together_is_told_with_both_sides(weights):
    endpoint = Endpoint()
    endpoint.width = 20
    with pytest.raises(ValueError, match=r"width 20.*width 16"):
        verify_deployment(endpoint, weights)
    with pytest.raises(ValueError, match=r"3 numbers a sequence.*12"):
        verify_deployment(lambda X: X[:, -1, :3], weights)
    with pytest.raises(ValueError, match="at least 8"):
        verify_deployment(Endpoint(), weights, queries=3)


def test_roundings_round():
    tensor = torch.tensor([[1.0, -0.3, 0.26, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert torch.allclose(grid(tensor, 4, None)[0] * 7, torch.round(tensor[0] * 7))
    assert torch.equal(grid(tensor, 8, 2)[1], tensor[1])
    assert float((shifted_grid(tensor, 8, None) - tensor).abs().max()) < 1.3 / 255
    assert torch.equal(pruned(tensor[:1], 0.5), torch.tensor([[1.0, -0.3, 0.0, 0.0]]))
