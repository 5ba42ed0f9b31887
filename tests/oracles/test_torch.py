"""PyTorch targets: layers as they come, in evaluation mode, in their own precision."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.errors import BudgetExceededError, FileFormatError, TargetError
from unsoftmax.oracles.torch_module import TorchOracle, refuse_pickle

torch = pytest.importorskip("torch")
nn = torch.nn


def tokens(batch=3, length=4, width=8, seed=0):
    return np.random.default_rng(seed).normal(size=(batch, length, width))


class HiddenStates(nn.Module):
    """An attention block in the manner of Hugging Face: ``hidden_states`` first, a tuple out."""

    def __init__(self, width, dtype=torch.float64):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width, dtype=dtype) for _ in range(3))

    def forward(self, hidden_states, attention_mask=None, output_attentions=False):
        scores = self.query(hidden_states) @ self.key(hidden_states).transpose(1, 2)
        mixed = torch.softmax(scores, -1) @ self.value(hidden_states)
        return mixed, None


class Embeds(nn.Module):
    """A model in the manner of Hugging Face: ids or ``inputs_embeds``, a configuration, a dict out."""

    def __init__(self, width):
        super().__init__()
        self.config = type("Config", (), {"hidden_size": width})()
        self.layer = HiddenStates(width)

    def forward(self, input_ids=None, inputs_embeds=None):
        assert input_ids is None
        return {"last_hidden_state": self.layer(inputs_embeds)[0]}


@settings(deadline=None, max_examples=10)
@given(heads=st.sampled_from([1, 2, 4]), batch_first=st.booleans(), batch=st.integers(1, 5), length=st.integers(1, 5))
def test_multihead_attention_attends_to_itself(heads, batch_first, batch, length):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, heads, batch_first=batch_first, dtype=torch.float64).eval()
    X = tokens(batch, length)
    oracle = TorchOracle(layer)
    assert oracle.width == 8
    x = torch.as_tensor(X)
    same = x if batch_first else x.transpose(0, 1)
    expected = layer(same, same, same)[0].detach()
    expected = expected if batch_first else expected.transpose(0, 1)
    assert np.allclose(oracle(X), expected.numpy(), atol=1e-13)


@pytest.mark.parametrize("module", [HiddenStates(8), Embeds(8)])
def test_hugging_face_manners(module):
    oracle = TorchOracle(module.eval())
    assert oracle.width == 8
    assert oracle(tokens()).shape == (3, 4, 8)


@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_layers_and_plain_networks(batch_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first, dtype=torch.float64).eval()
    X = tokens()
    x = torch.as_tensor(X) if batch_first else torch.as_tensor(X).transpose(0, 1)
    expected = layer(x) if batch_first else layer(x).transpose(0, 1)
    assert np.allclose(TorchOracle(layer)(X), expected.detach().numpy(), atol=1e-12)
    network = nn.Sequential(nn.Linear(8, 5, dtype=torch.float64), nn.ReLU(), nn.Linear(5, 1, dtype=torch.float64)).eval()
    oracle = TorchOracle(network)
    assert oracle.width == 8
    assert oracle(tokens(length=1)).shape == (3, 1, 1)


def test_training_mode_warns_is_left_out_and_comes_back():
    module = nn.Sequential(nn.Linear(8, 8, dtype=torch.float64), nn.Dropout(0.5))
    frozen = module[0].eval()
    with pytest.warns(UserWarning, match="training mode"):
        oracle = TorchOracle(module)
    assert np.array_equal(oracle(tokens()), oracle(tokens()))
    assert module.training
    assert module[1].training
    assert not frozen.training


def test_evaluation_mode_does_not_warn_and_keeps_no_gradient():
    module = nn.Linear(8, 1, dtype=torch.float64).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TorchOracle(module)(tokens())
    assert module.weight.grad is None


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_modules_precision_is_kept_and_told(dtype):
    module = nn.Linear(8, 2, dtype=getattr(torch, dtype)).eval()
    oracle = TorchOracle(module)
    assert oracle.precision == dtype
    expected = module(torch.as_tensor(tokens()).to(getattr(torch, dtype))).to(torch.float64).detach().numpy()
    assert np.array_equal(oracle(tokens()), expected)


def test_functions_on_tensors():
    oracle = TorchOracle(lambda x: x.sum(dim=(1, 2)), width=8)
    assert np.allclose(oracle(tokens()), tokens().sum(axis=(1, 2)))
    with pytest.raises(ValueError, match="width"):
        TorchOracle(lambda x: x)


def test_a_module_that_raises_or_returns_nothing_is_a_target_error():
    def fail(x):
        raise RuntimeError("out of luck")

    for function in (fail, lambda x: None, lambda x: x * float("nan"), lambda x: x[0]):
        with pytest.raises(TargetError):
            TorchOracle(function, width=8)(tokens())


def test_keys_of_another_width_are_refused():
    with pytest.raises(ValueError, match="own input"):
        TorchOracle(nn.MultiheadAttention(8, 1, kdim=4, vdim=4))


def test_the_identity_follows_the_weights():
    first, second = (TorchOracle(nn.Linear(8, 1).eval()) for _ in range(2))
    assert first.identity == first.identity
    assert first.identity != second.identity


@pytest.mark.parametrize("name", ["a.pt", "b.PTH", "c.ckpt", "d.pkl"])
def test_pickled_files_are_refused_with_the_way_out(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"\x80\x04cos\nsystem\n.")
    with pytest.raises(FileFormatError, match=r"torch\.onnx\.export"):
        refuse_pickle(path)
    with pytest.raises(FileFormatError, match="safetensors"):
        TorchOracle(path)
    refuse_pickle(tmp_path / "fine.onnx")


def test_a_path_is_no_module(tmp_path):
    with pytest.raises(ValueError, match="takes a module"):
        TorchOracle(str(tmp_path / "model.bin"), width=8)


def test_any_first_tensor_will_do_as_an_answer():
    class Output:
        last_hidden_state = torch.ones(3, dtype=torch.float64)

    for answer in ({"logits": torch.ones(3)}, (torch.ones(3), "more"), [[torch.ones(3)]], Output()):
        assert np.array_equal(TorchOracle(lambda x, answer=answer: answer, width=8)(tokens()), np.ones(3))
    with pytest.raises(TargetError, match="no tensor"):
        TorchOracle(lambda x: {}, width=8)(tokens())


def test_a_refusal_inside_a_module_is_handed_on_as_it_is():
    def spent(x):
        raise BudgetExceededError("spent")

    with pytest.raises(BudgetExceededError, match="spent"):
        TorchOracle(spent, width=8)(tokens())


def test_the_width_is_told_by_the_deepest_layer_or_must_be_given():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 1, dtype=torch.float64)

        def forward(self, x):
            return self.layer(x[:, -1])[:, 0]

    assert TorchOracle(Inner().eval()).width == 6
    with pytest.raises(ValueError, match="width"):
        TorchOracle(nn.ReLU().eval())


class Centred(nn.Module):
    """Works in the memory of its questions, as layers with ``inplace=True`` do."""

    def __init__(self, width):
        super().__init__()
        self.layer = HiddenStates(width)

    def forward(self, x):
        answers = self.layer(x)[0]
        x.zero_()
        return answers


def test_a_module_that_works_in_place_gets_a_copy():
    module, X = Centred(8).eval(), tokens()
    kept = X.copy()
    told = TorchOracle(module, width=8)(X)
    np.testing.assert_array_equal(X, kept)
    np.testing.assert_array_equal(told, TorchOracle(module, width=8)(X))


@pytest.mark.parametrize("wrap", [lambda y: {"loss": None, "logits": y}, lambda y: (None, y)])
def test_what_was_left_out_of_an_answer_is_passed_over(wrap):
    layer = HiddenStates(8).eval()
    told = TorchOracle(lambda x: wrap(layer(x)[0]), width=8)(tokens())
    np.testing.assert_array_equal(told, TorchOracle(layer, width=8)(tokens()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_layers_are_asked_in_the_default_precision():
    layer = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 3)), {nn.Linear}, dtype=torch.qint8)
    oracle = TorchOracle(layer, width=8)
    assert oracle.precision == "float32"
    assert oracle(tokens()).shape == (3, 4, 3)
