"""Endpoints that take embeddings: vLLM as it really answered, SGLang as its sources say, and REST by a mapping."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest

from servers import scripted
from unsoftmax.cli.targets import open_target
from unsoftmax.errors import FileFormatError, TargetError
from unsoftmax.oracles.rest import RestOracle, gathered
from unsoftmax.oracles.retry import Patience
from unsoftmax.oracles.sglang import SglangOracle
from unsoftmax.oracles.vllm import VllmOracle

torch = pytest.importorskip("torch")

KEPT = json.loads((Path(__file__).parent.parent / "peers" / "vllm.json").read_text())


def reply(status, body):
    return status, {"Content-Type": "application/json"}, json.dumps(body).encode()


class Vllm:
    """Answers with what a real vLLM 0.32.0 said, choosing by what is asked; see tests/peers/record_vllm.py."""

    def __init__(self, whole=True):
        self.whole, self.asked = whole, []

    def __call__(self, method, path, body, headers):
        if path == "/v1/models":
            return reply(200, {"data": [{"id": KEPT["models"]}]})
        asked = json.loads(body)
        self.asked.append(asked)
        tensors = [torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True) for text in asked["prompt_embeds"]]
        if asked["model"] != KEPT["models"]:
            return reply(404, {"error": {"message": "The model does not exist."}})
        if tensors[0].shape[1] == 1:
            return reply(KEPT["width"]["status"], KEPT["width"]["body"])
        if "logprob_token_ids" in asked:
            kind = "chosen" if len(asked["logprob_token_ids"]) <= 128 else "too many"
            return self._told(kind, tensors, asked["logprob_token_ids"])
        if not self.whole:
            return reply(400, {"error": {"message": "Requested sample logprobs of 128, which is greater than max allowed: 20"}})
        return self._told("all", tensors, None)

    def _told(self, kind, tensors, ids):
        kept = json.loads(json.dumps(KEPT[kind]))
        if kept["status"] == 200:
            first = KEPT["all"]["body"]["choices"][0]
            kept["body"]["choices"] = [json.loads(json.dumps(first | {"index": i})) for i in reversed(range(len(tensors)))]
            for choice in kept["body"]["choices"]:
                told = choice["logprobs"]["top_logprobs"][0]
                scale = float(tensors[choice["index"]].sum())
                choice["logprobs"]["top_logprobs"] = [
                    {name: value * scale for name, value in told.items() if ids is None or int(name.split(":")[1]) in ids}
                ]
        return reply(kept["status"], kept["body"])


def test_vllm_is_asked_for_its_width_and_answers_with_differences():
    server = Vllm()
    words = len(KEPT["all"]["body"]["choices"][0]["logprobs"]["top_logprobs"][0])
    with scripted(server) as root:
        target = open_target(f"vllm+{root}/{KEPT['models']}")
        assert target.width == 64
        X = np.zeros((3, 2, 64))
        X[:, 0, 0] = 1.0, 2.0, 4.0
        answers = target(X)
        assert answers.shape == (3, words - 1)
        assert np.allclose(answers[1], 2 * answers[0])  # the replies came in another order
        logits = torch.randn(2, 5, words, dtype=torch.float64)
        assert torch.equal(target.view(logits), logits[:, -1, 1:] - logits[:, -1, :1])
        with pytest.raises(ValueError, match="other models"):
            target.view(torch.zeros(1, 1, 50))
        target.inner.close()
    assert all(asked["max_tokens"] == 1 and asked["temperature"] == 0 for asked in server.asked)


def test_a_vllm_that_gives_few_logprobs_is_asked_for_chosen_ones():
    server = Vllm(whole=False)
    with scripted(server) as root:
        target = open_target(f"vllm+{root}/{KEPT['models']}")
        assert target(np.ones((1, 2, 64))).shape == (1, 127)
        assert server.asked[-1]["logprob_token_ids"] == list(range(128))
        target.inner.close()


def test_a_model_that_is_not_served_is_told_with_those_that_are():
    with scripted(Vllm()) as root, pytest.raises(TargetError, match=f"Models: {KEPT['models']}"):
        open_target(f"vllm+{root}/other").width  # noqa: B018 - the access asks
    with pytest.raises(ValueError, match="vllm"):
        open_target("vllm+http://127.0.0.1:1")


def test_sglang_in_both_kinds_of_answers():
    def server(method, path, body, headers):
        asked = json.loads(body)
        told = []
        for sequence in asked["input_embeds"]:
            total = float(np.sum(sequence))
            meta = {"output_token_ids_logprobs": [[[total * i, i, None] for i in asked.get("token_ids_logprob", [])]]}
            if asked.get("return_hidden_states"):
                meta = {"hidden_states": [[[total, 1.0], [total, 2.0]]]}
            told.append({"text": "", "meta_info": meta})
        return reply(200, told)

    with scripted(server) as root:
        with SglangOracle(f"sglang+{root}/m", width=2, ids=[1, 2, 4]) as oracle:
            assert np.allclose(oracle(np.ones((2, 3, 2))), [[6.0, 18.0]] * 2)
            assert torch.equal(oracle.view(torch.arange(5.0)[None, None]), torch.tensor([[1.0, 3.0]]))
        with SglangOracle(f"sglang+{root}/m", width=2, answers="hidden") as oracle:
            assert np.allclose(oracle(np.ones((1, 3, 2))), [[6.0, 2.0]])
    with pytest.raises(ValueError, match="--width"):
        SglangOracle("sglang+http://127.0.0.1:1/m").width  # noqa: B018 - the access asks


def test_rest_by_a_mapping(tmp_path, monkeypatch):
    seen = []

    def server(method, path, body, headers):
        seen.append((path, {name.lower(): value for name, value in headers.items()}, json.loads(body)))
        X = np.asarray(json.loads(body)["input"]["vectors"])
        return reply(200, {"data": [{"vector": row.tolist()} for row in X.sum(axis=1)]})

    with scripted(server) as root:
        file = tmp_path / "api.toml"
        file.write_text(
            f'url = "{root}/embed?v=1"\nwidth = 3\ntensor = "input/vectors"\nanswer = "data/*/vector"\n'
            '[headers]\nX-Key = "${MY_KEY}"\n[body]\nmodel = "m"\n'
        )
        with pytest.raises(ValueError, match="MY_KEY"):
            RestOracle(file)
        monkeypatch.setenv("MY_KEY", "s3cret")
        target = open_target(f"rest+{file}")
        assert np.array_equal(target(np.ones((2, 4, 3))), np.full((2, 3), 4.0))
        path, headers, body = seen[-1]
        assert (path, headers["x-key"], body["model"]) == ("/embed?v=1", "s3cret", "m")
        target.inner.close()
        file.write_text(f'url = "{root}/x"\nwidth = 3\nanswer = "data/0/nothing"\ntensor = "input/vectors"\n')
        with RestOracle(file) as oracle, pytest.raises(TargetError, match="nothing"):
            oracle(np.ones((1, 1, 3)))
    for text, reason in (
        ("url = 3", "lacks"),
        ('url = "ftp://x"\nanswer = "a"', "http"),
        ("=", "TOML"),
        ('url="http://h"\nanswer="a"\nodd=1', "odd"),
    ):
        file.write_text(text)
        with pytest.raises(FileFormatError, match=reason):
            RestOracle(file)
    with pytest.raises(TargetError, match="no list"):
        gathered({"a": 1}, ["a", "*"])


@pytest.mark.parametrize(
    ("settings", "body", "words"),
    [
        ({"answers": "words"}, [], "answers is 'words'"),
        ({"ids": [1, 2]}, [], "1 sequences were sent and 0 answers came back"),
        ({"ids": [1, 2]}, [{"meta_info": {"output_token_ids_logprobs": [[[None, 1, None], [0.5, 2, None]]]}}], "no numbers"),
        ({"ids": [1, 2]}, None, "no JSON"),
    ],
)
def test_an_sglang_that_answers_otherwise_is_told_so(settings, body, words):
    def server(method, path, sent, headers):
        return reply(200, body) if body is not None else (200, {"Content-Type": "application/json"}, b"{")

    haste = Patience(attempts=1, doubtful_attempts=1, total=5.0, first_pause=0.01, longest_pause=0.01)
    with scripted(server) as root, pytest.raises((ValueError, TargetError), match=words):
        SglangOracle(f"sglang+{root}/m", width=2, patience=haste, **settings)(np.ones((1, 3, 2)))


def test_what_cannot_be_asked_is_refused_before_anything_is_sent():
    for ids in ([1], range(200)):
        with pytest.raises(ValueError, match="vLLM takes 2 to 128"):
            VllmOracle("vllm+http://127.0.0.1:1/m", width=2, ids=list(ids))
    with SglangOracle("sglang+http://127.0.0.1:1/m", width=2, ids=[1, 2]) as oracle:
        with pytest.raises(ValueError, match="batch is empty"):
            oracle(np.ones((0, 1, 2)))
        with pytest.raises(ValueError, match="tokens of width 3"):
            oracle(np.ones((1, 1, 3)))
        assert (oracle.requests, oracle.repeated) == (0, 0)
    for url, words in (("sglang+http://me:word@host/m", "user name or password"), ("sglang+http://host:x/m", "is no address")):
        with pytest.raises(ValueError, match=words):
            SglangOracle(url)


def test_a_mapping_that_would_betray_a_secret_or_differs_in_width_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    file = tmp_path / "api.toml"
    file.write_text('url = "http://example.org/x"\nanswer = "a"\nwidth = 3\ntimeout = 5\n[headers]\nX-Key = "${MY_KEY}"\n')
    with pytest.raises(ValueError, match="unencrypted"):
        RestOracle(file)
    with pytest.raises(ValueError, match="says that its width is 3"):
        RestOracle(file, width=4)
    with pytest.raises(FileNotFoundError, match="no file"):
        RestOracle(tmp_path / "absent.toml")
    with scripted(lambda *_: reply(200, {"a": [["x"]]})) as root:
        file.write_text(f'url = "{root}/x"\nanswer = "a"\nwidth = 3\n')
        with RestOracle(file) as oracle, pytest.raises(TargetError, match="no array of numbers"):
            oracle(np.ones((1, 1, 3)))
