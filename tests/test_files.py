"""Files from outside and files of ours: bombs, odd records and foreign numbers are refused; what is written appears whole."""

import json
import os
import struct
import zipfile

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax import memory
from unsoftmax.cli import run
from unsoftmax.cli.learn import read_arrays
from unsoftmax.errors import FileFormatError
from unsoftmax.oracles import ReplayOracle
from unsoftmax.oracles.loaded import files_read, identity_of_code
from unsoftmax.probes.fixed import FixedProbes
from unsoftmax.safe_files import replacing, write_text

READERS = [FixedProbes.load, ReplayOracle.load, read_arrays]


def bomb(path, claimed):
    """A small archive of zeros, or one whose array claims more than it has."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("X0", "Y0", "X", "Y", "plan"):
            with archive.open(f"{name}.npy", "w") as file:
                count = 2**28 if claimed else 7 * 2**20
                np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (count,)})
                for _ in range(1 if claimed else count // 2**17):
                    file.write(bytes(2**20))


@pytest.mark.parametrize("claimed", [True, False])
def test_archives_that_would_fill_the_memory_are_refused(claimed, tmp_path):
    path = tmp_path / "bomb.npz"
    bomb(path, claimed)
    assert path.stat().st_size < 4 * 2**20
    for read in READERS:
        with pytest.raises(FileFormatError, match="claims the shape" if claimed else "would unpack"):
            read(path)


@pytest.mark.parametrize(
    ("content", "packing", "words"),
    [(b"no array", zipfile.ZIP_STORED, "no NumPy array"), (b"\x93NUMPY\x01\0", zipfile.ZIP_BZIP2, "packed as NumPy does not pack")],
)
def test_archives_that_numpy_did_not_write_are_refused(content, packing, words, tmp_path):
    path = tmp_path / "odd.npz"
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("notes.txt", "beside the arrays")
        archive.writestr("X0.npy", content)
    for read in READERS:
        with pytest.raises(FileFormatError, match=words):
            read(path)


@pytest.mark.parametrize("record", ["[1, 2]", "3", "null", '"words"', "{", "[" * 100_000])
def test_a_plan_record_that_is_no_object_is_refused(record, tmp_path):
    path = tmp_path / "plan.npz"
    np.savez(path, X0=np.zeros((1, 2, 3)), Y0=np.zeros(1), plan=np.array(record))
    with pytest.raises(FileFormatError, match="plan record"):
        FixedProbes.load(path)
    assert run(["recover", "--answers", str(path)]) == 2


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F4", "F6_E2M3", "F8_E8M0", "BF16", "X"])
def test_safetensors_of_numbers_that_numpy_lacks_are_refused_or_read(kind, tmp_path, capsys):
    bits = {"F4": 4, "F6_E2M3": 6, "BF16": 16}.get(kind, 8)
    raw = bytes(4 * bits // 8)
    header = {"attention.W": {"dtype": kind, "shape": [1, 2, 2], "data_offsets": [0, len(raw)]}}
    words = json.dumps(header).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(struct.pack("<Q", len(words)) + words + raw)
    assert run(["identify", str(path)]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_files_appear_whole_and_follow_no_link(tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "recovery.json"
    victim.write_text("mine")
    link.symlink_to(victim)
    write_text(link, "theirs")
    assert victim.read_text() == "mine"
    assert not link.is_symlink()
    assert link.stat().st_mode & 0o777 == 0o600
    write_text(link, "for all", public=True)
    assert link.stat().st_mode & 0o777 == 0o644

    def broken_off():
        with replacing(link) as half:
            half.write_text("half of i")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken_off()
    assert link.read_text() == "for all"
    assert sorted(os.listdir(tmp_path)) == ["recovery.json", "victim"]


def test_outputs_of_a_run_do_not_follow_links(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    for name in ("weights.safetensors", "recovery.json", "report.html"):
        (out / name).symlink_to(victim)
    found = us.recover(us.Attention.single(np.eye(2), np.ones(2)), seed=1)
    found.save(out)
    assert victim.read_text() == "mine"
    assert all(not path.is_symlink() and path.stat().st_mode & 0o777 == 0o600 for path in out.iterdir())


def test_the_identity_of_code_covers_what_it_loads(tmp_path):
    (tmp_path / "target.py").write_text("import numpy as np\nW = np.load('w.npy')\nNAMED = 'named.safetensors'\n")
    np.save(tmp_path / "w.npy", np.ones(3))
    for name in ("named.safetensors", "stranger.safetensors"):
        (tmp_path / name).write_bytes(b"one")
    with files_read() as read:
        np.load(tmp_path / "w.npy")
    assert tmp_path / "w.npy" in read

    def identity():
        return identity_of_code(tmp_path / "target.py", read)

    first = identity()
    (tmp_path / "stranger.safetensors").write_bytes(b"two")
    assert identity() == first
    (tmp_path / "named.safetensors").write_bytes(b"two")
    second = identity()
    np.save(tmp_path / "w.npy", np.zeros(3))
    third = identity()
    (tmp_path / "target.py").write_text("W = 'w.npy', 'named'\n")
    assert len({first, second, third, identity()}) == 4


def test_the_identity_of_an_onnx_file_covers_its_external_data(tmp_path):
    onnx = pytest.importorskip("onnx")
    from heads_as_onnx import save_head
    from unsoftmax.oracles.onnx_file import OnnxOracle

    rng = np.random.default_rng(1)
    path = save_head(tmp_path / "head.onnx", us.Attention.single(rng.normal(size=(8, 8)), rng.normal(size=8)))
    onnx.save_model(onnx.load(path), str(path), save_as_external_data=True, location="weights.data", size_threshold=100)
    first = OnnxOracle(path).identity
    content = bytearray((tmp_path / "weights.data").read_bytes())
    content[5] ^= 1
    (tmp_path / "weights.data").write_bytes(content)
    assert OnnxOracle(path).identity != first


def test_memory_has_a_measure():
    left = memory.memory_left()
    assert left is None or left > 2**20
    with pytest.raises(MemoryError, match="GiB are left"):
        memory.check_memory(10**8)


def test_exports_follow_no_link_and_are_for_their_owner(tmp_path):
    victim, goal = tmp_path / "victim", tmp_path / "goal.csv"
    victim.write_text("precious")
    goal.symlink_to(victim)
    assert run(["recover", "demo:attention,width=3,seed=1", "--csv", str(goal), "--json"]) == 0
    assert victim.read_text() == "precious"
    assert goal.stat().st_mode & 0o777 == 0o600
    assert run(["recover", "demo:attention,width=3,seed=1", "--csv", "/dev/null", "--json"]) == 0
    assert not os.path.isfile("/dev/null")


def test_the_same_model_is_the_same_file(tmp_path):
    model = us.Attention(np.eye(3)[None], np.ones((1, 3, 2)), np.ones((1, 3)), np.zeros(2))
    for i in range(8):
        model.save(tmp_path / f"{i}.safetensors")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert us.distance(us.load(tmp_path / "0.safetensors"), model) == 0
