"""``unsoftmax identify``: the story for people, the facts as JSON, the witness as a file."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from unsoftmax.cli.identify import identify
from unsoftmax.errors import FileFormatError
from unsoftmax.models import FFN, Attention, Transformer, load
from unsoftmax.symmetry import distance


@pytest.fixture
def twins(tmp_path):
    rng = np.random.default_rng(0)
    W = rng.normal(size=(3, 4, 4))
    W[1] = W[0]
    model = Attention(W, rng.normal(size=(3, 4)))
    model.save(tmp_path / "twins.safetensors")
    return model, tmp_path / "twins.safetensors"


def facts_of(*arguments):
    result = CliRunner().invoke(identify, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.output)


def test_json_names_what_cannot_be_known(twins, tmp_path):
    model, path = twins
    facts = facts_of(path, "--witness-out", tmp_path / "other.safetensors")
    assert facts["heads"] == 3
    assert facts["canonical"]["heads"] == 2
    assert facts["nullity"] == 4 + 4
    assert facts["dimension"] + facts["nullity"] == facts["parameters"] == 60
    assert facts["witness"]["same_answers"]
    assert facts["witness"]["parameters_differ_by"] > 0.1
    other = load(tmp_path / "other.safetensors")
    assert np.abs(other.V - model.V).max() > 0.1
    assert distance(other, model) < 1e-12


def test_the_story_shows_both_side_by_side(twins):
    result = CliRunner().invoke(identify, [str(twins[1])], catch_exceptions=False)
    assert "52 of 60 numbers can be known" in result.output
    assert "share their W" in result.output
    assert "witness" in result.output
    assert "V[1]" in result.output


def test_identifiable_layers_have_no_witness(tmp_path):
    rng = np.random.default_rng(1)
    Attention(rng.normal(size=(2, 3, 3)), rng.normal(size=(2, 3, 2))).save(tmp_path / "a.safetensors")
    facts = facts_of(tmp_path / "a.safetensors")
    assert facts["nullity"] == 0
    assert facts["witness"] is None
    assert "none" in CliRunner().invoke(identify, [str(tmp_path / "a.safetensors")]).output
    short = facts_of(tmp_path / "a.safetensors", "--max-length", "2")
    assert short["witness"]["heads"] == 3
    assert short["witness"]["same_answers"]


def test_networks_and_transformers(tmp_path):
    rng = np.random.default_rng(2)
    net = FFN([rng.normal(size=(5, 3)), rng.normal(size=(1, 5))], [0.3 * rng.normal(size=5), rng.normal(size=1)])
    net.save(tmp_path / "net.safetensors")
    assert facts_of(tmp_path / "net.safetensors")["nullity"] == 5
    head = Attention(rng.normal(size=(1, 3, 3)), rng.normal(size=(1, 3, 3)))
    Transformer(head, net).save(tmp_path / "t.safetensors")
    facts = facts_of(tmp_path / "t.safetensors")
    assert facts["kind"] == "transformer"
    assert facts["witness"]["same_answers"]
    assert "weights.0" in CliRunner().invoke(identify, [str(tmp_path / "t.safetensors")]).output


def test_bad_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        CliRunner().invoke(identify, [str(tmp_path / "absent")], catch_exceptions=False)
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(FileFormatError, match="not a safetensors"):
        CliRunner().invoke(identify, [str(tmp_path / "junk")], catch_exceptions=False)
