"""Fuzzing of everything that reads foreign bytes: ``python tests/fuzz.py CASES [READER]``; each is read or refused by name.

Inputs are sound examples with flipped bits, lost, repeated and foreign pieces, spliced with each other. A case that ends in an
untyped error is printed with its seed and ends the run.
"""

import io
import json
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

import unsoftmax as us
from unsoftmax.audits import parse_gate
from unsoftmax.cli.learn import read_arrays
from unsoftmax.errors import JournalError, UnsoftmaxError
from unsoftmax.oracles import CallableOracle, Journal, Journaled, ReplayOracle
from unsoftmax.oracles.grpc_messages import message
from unsoftmax.oracles.grpc_v2 import GrpcOracle
from unsoftmax.oracles.http_address import read_address
from unsoftmax.oracles.http_codec import Labels, decode_reply, read_error, read_model, read_server
from unsoftmax.oracles.journal_repair import repair
from unsoftmax.oracles.tensors import Plan
from unsoftmax.probes.fixed import FixedProbes, load_answers

PIECES = [
    b"",
    b"null",
    b"NaN",
    b"-1",
    b"9" * 30,
    b"[",
    b"{",
    b'"',
    b"\x00" * 8,
    b"\xff" * 9,
    b"1e999",
    b"[[[[[[[[",
    b"BF16",
    b"\x80",
]


def mutated(rng, samples):
    """One of the samples, changed in one to four places."""
    data = bytearray(samples[rng.integers(len(samples))])
    for _ in range(rng.integers(1, 5)):
        place, kind = int(rng.integers(len(data) + 1)), rng.integers(5)
        if kind == 0 and data:
            data[min(place, len(data) - 1)] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del data[place : place + int(rng.integers(1, 20))]
        elif kind == 2:
            data[place:place] = PIECES[rng.integers(len(PIECES))]
        elif kind == 3:
            other = samples[rng.integers(len(samples))]
            start = int(rng.integers(len(other) + 1))
            data[place:place] = other[start : start + int(rng.integers(1, 40))]
        else:
            data[place : place + 4] = data[place : place + 4] * 2
    return bytes(data)


def codec():
    tensor = {"name": "y", "datatype": "FP64", "shape": [2], "data": [1.5, None]}
    header = {"id": "7", "model_name": "m", "outputs": [tensor | {"parameters": {"binary_data_size": 16}}]}
    binary = json.dumps(header | {"outputs": [{k: v for k, v in header["outputs"][0].items() if k != "data"}]}).encode()
    spec = {"name": "m", "versions": ["1"], "platform": "p", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1, 4]}]}
    samples = [
        json.dumps({"outputs": [tensor]}).encode(),
        json.dumps({"outputs": [tensor | {"shape": [1, 2], "data": [[1, 2]]}]}).encode(),
        binary + np.ones(2).tobytes(),
        json.dumps(spec | {"outputs": [spec["inputs"][0]]}).encode(),
        b'{"name": "s", "version": "2", "extensions": ["binary_tensor_data"]}',
    ]

    def read(data, rng):
        length = str(len(binary)) if rng.random() < 0.4 else [None, "", "-3", "9" * 20, "5"][rng.integers(5)]
        labels = Labels()
        readers = (
            lambda: decode_reply(data, length, [None, "y"][rng.integers(2)], None, lambda *told: labels.check("7", *told)),
            lambda: read_model(data),
            lambda: read_server(data),
            lambda: read_error(data),
        )
        return readers[rng.integers(4)]()

    return samples, read


def grpc_messages():
    reply = message("ModelInferResponse")(model_name="m", id="7", raw_output_contents=[np.ones(2).tobytes()])
    reply.outputs.add(name="y", datatype="FP64", shape=[2])
    typed = message("ModelInferResponse")(model_name="m")
    typed.outputs.add(name="y", datatype="FP32", shape=[2]).contents.fp32_contents.extend([1.0, 2.0])
    oracle = GrpcOracle("grpc://127.0.0.1:9/m")
    oracle._plan = Plan("x", "FP64", None, None, 2)
    parse = message("ModelInferResponse").FromString

    def read(data, _):
        from google.protobuf.message import DecodeError

        try:  # what gRPC itself refuses never arrives
            found = parse(data)
        except DecodeError:
            return None
        return oracle._numbers(found)

    return [reply.SerializeToString(), typed.SerializeToString()], read


def archives(folder):
    samples = []
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raw = io.BytesIO()
        with zipfile.ZipFile(raw, "w", compression) as archive:
            arrays = {
                "X": np.ones((2, 2, 2)),
                "Y": np.ones(2),
                "X0": np.ones((2, 2, 2)),
                "Y0": np.ones(2),
                "plan": np.array('{"rank": 1}'),
            }
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
        samples.append(raw.getvalue())
    path = folder / "f.npz"

    def read(data, rng):
        path.write_bytes(data)
        readers = (FixedProbes.load, ReplayOracle.load, read_arrays, lambda p: load_answers(p, FixedProbes.load(p)))
        return readers[rng.integers(4)](path)

    return samples, read


def weights(folder):
    path = folder / "w.safetensors"
    us.Attention.single(np.eye(2), np.ones(2), b=1.0).save(path)
    samples = [path.read_bytes()]
    us.FFN([np.eye(2), np.ones((1, 2))], [np.zeros(2), np.zeros(1)]).save(path)
    samples.append(path.read_bytes())

    def read(data, _):
        path.write_bytes(data)
        return us.load(path)

    return samples, read


def journals(folder):
    path = folder / "j.sqlite"
    calls = [np.random.default_rng(i).normal(size=(2, 2, 2)) for i in range(4)]

    def play():
        journal = Journal(path, {"seed": 1})
        try:
            oracle = Journaled(CallableOracle(lambda X: X.sum(axis=(1, 2)), width=2), journal)
            for call in calls:
                assert np.array_equal(oracle(call), call.sum(axis=(1, 2))), "a damaged answer was used"
        finally:
            journal.close()

    play()
    samples = [path.read_bytes()]

    def read(data, _):
        for file in folder.glob("j.sqlite*"):
            file.unlink()
        path.write_bytes(data)
        try:
            play()
        except JournalError:
            repair(path)
            play()

    return samples, read


def words():
    samples = [
        b"queries<100000 and error<1e-3",
        b"http://127.0.0.1:80/v2/models/m/versions/1",
        b"grpc://[::1]:1/m",
        b"time >= 3 or price==1",
    ]

    def read(data, rng):
        text = data.decode("utf-8", "surrogateescape" if rng.random() < 0.2 else "replace")
        return (parse_gate, read_address)[rng.integers(2)](text)

    return samples, read


def readers(folder):
    """Each reader by name: sound samples, and the function that reads what became of them."""
    return {
        "http codec": codec(),
        "grpc messages": grpc_messages(),
        "npz files": archives(folder),
        "safetensors": weights(folder),
        "words": words(),
        "journals": journals(folder),
    }


def fuzz(name, samples, read, cases, seed=0):
    """Read ``cases`` changed samples; the number that were refused."""
    refused = 0
    for case in range(cases):
        rng = np.random.default_rng([seed, case])
        data = mutated(rng, samples)
        try:
            read(data, rng)
        except (UnsoftmaxError, ValueError) as error:
            if isinstance(error, ValueError) and name != "words":
                raise AssertionError(f"{name}, case {case}: {type(error).__name__}: {error}") from error
            refused += 1
        except Exception as error:
            raise AssertionError(f"{name}, case {case}: {type(error).__name__}: {error}") from error
    return refused


if __name__ == "__main__":
    count, only = int(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as place:
        for reader, (sound, act) in readers(Path(place)).items():
            if not only or reader in only:
                began = time.perf_counter()
                print(
                    f"{reader}: {fuzz(reader, sound, act, count)} of {count} refused, {time.perf_counter() - began:.0f} s",
                    flush=True,
                )
