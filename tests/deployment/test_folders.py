"""Folders in Hugging Face layout: read without running their code, and refused by name where something is wrong."""

import json
import os
import sys
from importlib import resources
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("transformers")

from unsoftmax.cli import run
from unsoftmax.cli.targets import open_target
from unsoftmax.deployment import Verdict
from unsoftmax.deployment.asking import Desk
from unsoftmax.deployment.exam import exam_on
from unsoftmax.deployment.folders import folder_checkpoint
from unsoftmax.deployment.verify import judged
from unsoftmax.errors import FileFormatError
from unsoftmax.report.exports import kind

PEERS = Path(__file__).parent.parent / "peers"
sys.path.insert(0, str(PEERS))
from llama_folder import write_folder  # noqa: E402 - beside the recordings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("tiny"))


def edited(folder, goal, **settings):
    """A copy of a folder with other settings in its configuration."""
    goal.mkdir()
    config = json.loads((folder / "config.json").read_text())
    (goal / "config.json").write_text(json.dumps({k: v for k, v in (config | settings).items() if v is not None}))
    save_file(load_file(folder / "model.safetensors"), goal / "model.safetensors", metadata={"format": "pt"})
    return goal


class Recorded:
    """Plays the answers of a real vLLM back, call by call."""

    def __init__(self):
        kept = np.load(PEERS / "vllm.npz")
        calls = range(len(kept.files) // 2)
        self.batches = [(kept[f"X{i}"].astype(np.uint32) << 16).view(np.float32).astype(np.float64) for i in calls]
        self.answers = [kept[f"Y{i}"] for i in calls]
        self.width = self.batches[0].shape[2]

    @staticmethod
    def view(logits):
        seen = logits[:, -1]
        return seen[:, 1:] - seen[:, :1]

    def __call__(self, sequences):
        for batch, told in zip(self.batches, self.answers, strict=True):
            if sequences.shape[1:] == batch.shape[1:]:
                rows = [i for s in sequences for i in np.flatnonzero((batch == s).all(axis=(1, 2)))[:1]]
                if len(rows) == len(sequences):
                    return told[rows]
        raise AssertionError("this was not asked")


def held_against(folder):
    recorded = Recorded()
    checkpoint = folder_checkpoint(str(folder))
    exam = exam_on(checkpoint, recorded.view, recorded.batches, seed=1)
    return judged(Desk(recorded, "vLLM 0.32.0", recorded.view, outputs=recorded.answers[0].shape[1]), exam)


def test_a_real_vllm_matches_its_folder(folder):
    result = held_against(folder)
    assert result.verdict is Verdict.MATCHES
    assert result.precision == "float32"
    assert result.unseen == ["model.embed_tokens.weight"]


def test_a_real_vllm_differs_from_a_folder_with_one_matrix_off(folder, tmp_path):
    goal = edited(folder, tmp_path / "off")
    state = load_file(goal / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    rng = np.random.default_rng(0)
    state[name] = state[name] + (1e-3 * state[name].std() * rng.normal(size=state[name].shape)).astype(np.float32)
    save_file(state, goal / "model.safetensors", metadata={"format": "pt"})
    result = held_against(goal)
    assert result.verdict is Verdict.DIFFERS
    assert (result.change.layer, result.change.where) == ("layer 1", [name])
    assert result.change.size == pytest.approx(1e-3, rel=0.4)


def test_a_part_and_the_whole_as_targets(folder):
    whole = open_target(str(folder))
    assert whole(np.ones((1, 3, 64))).shape == (1, 3, 128)
    mlp = open_target(f"{folder}#model.layers.1.mlp", 64)
    assert mlp(np.ones((2, 3, 64))).shape == (2, 3, 64)
    assert folder_checkpoint(f"{folder}#model.layers.1.mlp")(np.ones((2, 3, 64))).shape == (2, 192)
    with pytest.raises(FileFormatError, match=r"no part 'model\.layers\.9'"):
        open_target(f"{folder}#model.layers.9")


def test_what_is_wrong_with_a_folder_is_told_by_name(folder, tmp_path):
    corrupt = edited(folder, tmp_path / "corrupt")
    content = (corrupt / "model.safetensors").read_bytes()
    (corrupt / "model.safetensors").write_bytes(content[: len(content) // 2])
    missing = edited(folder, tmp_path / "missing")
    state = load_file(missing / "model.safetensors")
    del state["model.layers.1.self_attn.k_proj.weight"]
    save_file(state, missing / "model.safetensors", metadata={"format": "pt"})
    index = edited(folder, tmp_path / "index")
    (index / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-2-of-2.safetensors"}}))
    pickled = edited(folder, tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    empty = edited(folder, tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    for path, reason in (
        (corrupt, "corrupt"),
        (missing, "k_proj"),
        (index, "model-2-of-2"),
        (pickled, "--trust-pickle"),
        (empty, "no weights"),
        (edited(folder, tmp_path / "code", auto_map={"AutoModel": "x.Y"}), "never run"),
        (edited(folder, tmp_path / "strange", architectures=["StrangeModel"]), "StrangeModel"),
        (edited(folder, tmp_path / "nameless", architectures=None, model_type=None), "no architecture"),
        (tmp_path, "config.json"),
    ):
        with pytest.raises(FileFormatError, match=reason):
            folder_checkpoint(str(path))


def indexed(folder, goal, shard):
    """A copy of a folder whose index says that its tensors lie in this shard."""
    copy = edited(folder, goal)
    names = list(load_file(copy / "model.safetensors"))
    (copy / "model.safetensors").rename(copy / "a.safetensors")
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, shard)}))
    return copy


def test_hostile_folders_are_refused_in_one_line(folder, tmp_path, capsys):
    broken = edited(folder, tmp_path / "broken")
    state = load_file(broken / "model.safetensors")
    state["model.norm.weight"][0] = np.nan
    save_file(state, broken / "model.safetensors", metadata={"format": "pt"})
    shape = edited(folder, tmp_path / "shape")
    state = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    save_file({**state, name: state[name][:-1].copy()}, shape / "model.safetensors", metadata={"format": "pt"})
    header = edited(folder, tmp_path / "header")
    (header / "model.safetensors").write_bytes(b"\xff" * 7 + (folder / "model.safetensors").read_bytes()[7:])
    deep = edited(folder, tmp_path / "deep")
    (deep / "config.json").write_text("[" * 100_000)
    pipe, link = edited(folder, tmp_path / "pipe"), edited(folder, tmp_path / "link")
    for copy in (pipe, link):
        (copy / "model.safetensors").unlink()
    os.mkfifo(pipe / "model.safetensors")
    (link / "model.safetensors").symlink_to(link / "model.safetensors")
    adapter = edited(folder, tmp_path / "adapter")
    (adapter / "adapter_config.json").write_text("{}")
    for path, reason in (
        (broken, "model.norm.weight holds numbers that are not finite"),
        (shape, f"{name} 31x64 in model.safetensors, 32x64 by config.json"),
        (header, "corrupt"),
        (deep, "no JSON document"),
        (pipe, "is no file"),
        (link, "is no file"),
        (adapter, "adapter_config.json"),
        (indexed(folder, tmp_path / "outside", "../../etc/passwd"), "outside of the folder"),
        (indexed(folder, tmp_path / "root", "/etc/passwd"), "outside of the folder"),
        (indexed(folder, tmp_path / "bin", "a.bin"), "no shard"),
        (edited(folder, tmp_path / "wide", hidden_size=128), r"width 128 (hidden_size), but model.safetensors holds"),
        (edited(folder, tmp_path / "tall", num_hidden_layers=10**6), "1000000 layers"),
        (edited(folder, tmp_path / "inner", text_config={"auto_map": {"AutoConfig": "evil.C"}}), "never run"),
        (edited(folder, tmp_path / "number", architectures=[3]), "list of names"),
        (edited(folder, tmp_path / "text", architectures="LlamaForCausalLM"), "list of names"),
        (edited(folder, tmp_path / "function", architectures=["pipeline"]), "no architecture pipeline"),
    ):
        assert run(["verify", str(folder), str(path)]) == 2
        told = capsys.readouterr().err.strip()
        assert reason in told
        assert len(told.splitlines()) == 1


class Evil:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_a_pickle_that_would_run_code_is_not_opened(folder, tmp_path, capsys, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    pickled = edited(folder, tmp_path / "pickled")
    (pickled / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Evil()}, pickled / "pytorch_model.bin")
    assert run(["verify", str(folder), str(pickled), "--trust-pickle"]) == 2
    assert "more than tensors" in capsys.readouterr().err
    state = {name: torch.as_tensor(value) for name, value in load_file(folder / "model.safetensors").items()}
    torch.save(state, pickled / "pytorch_model.bin")
    assert run(["verify", str(folder), str(pickled)]) == 2
    assert "--trust-pickle" in capsys.readouterr().err
    assert run(["verify", str(folder), str(pickled), "--trust-pickle", "--queries", "16"]) == 0
    assert not (tmp_path / "ran").exists()


def test_verify_and_watch_on_the_command_line(folder, tmp_path, capsys):
    wide = write_folder(tmp_path / "wide", width=128)
    assert run(["verify", str(folder), str(wide)]) == 2
    told = capsys.readouterr().err
    assert "width 64" in told
    assert "width 128" in told
    assert (
        run(["verify", str(folder), str(folder), "--queries", "64", "--seed", "1", "--out", str(tmp_path / "out"), "--json"]) == 0
    )
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "MATCHES"
    assert json.loads((tmp_path / "out" / "verification.json").read_text())["smallest"] == record["smallest"]
    assert "Not seen here" in (tmp_path / "out" / "report.html").read_text()
    changed = write_folder(tmp_path / "changed", seed=1)
    watched = ["--every", "1s", "--queries", "16", "--out", str(tmp_path / "watch"), "--on-change", str(tmp_path / "alarm.json")]
    assert run(["watch", str(folder), str(folder), "--times", "2", *watched]) == 0
    assert not (tmp_path / "alarm.json").exists()
    gate = ["--check", "16", "--max-time", "600", "--authorised-by", "me", "--junit", str(tmp_path / "gate.xml")]
    assert run(["watch", str(folder), str(changed), *watched, *gate]) == 1
    assert 'failures="1"' in (tmp_path / "gate.xml").read_text()
    assert json.loads((tmp_path / "alarm.json").read_text())["verdict"] == "DIFFERS"
    timeline = json.loads((tmp_path / "watch" / "watch.json").read_text())
    assert (timeline["count"], timeline["checks"][0]["verdict"]) == (1, "DIFFERS")
    assert timeline["authorised_by"] == "me"
    for document in (record, timeline):
        schema = resources.files("unsoftmax.report").joinpath(f"schemas/{kind(document)}.json").read_text()
        jsonschema.validate(document, json.loads(schema), jsonschema.Draft202012Validator)
    assert run(["figure", str(tmp_path / "watch")]) == 1  # its pictures are bars
    assert run(["figure", str(tmp_path / "out")]) == 1
    assert run(["watch", str(folder), str(folder), "--every", "soon"]) == 2
