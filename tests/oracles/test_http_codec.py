"""The V2 codec: exact both ways, and unharmed by anything that a server may send."""

import contextlib
import json
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.errors import TargetError
from unsoftmax.oracles.http_codec import (
    HEADER_LENGTH,
    Question,
    decode_reply,
    encode_request,
    from_bytes,
    read_error,
    read_model,
    read_server,
    to_datatype,
)

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def reply(values, *, binary=False, datatype="FP64", shape=None, name="y"):
    """A reply as a correct server writes it."""
    array = np.asarray(values)
    output = {"name": name, "datatype": datatype, "shape": list(array.shape) if shape is None else shape}
    if not binary:
        return json.dumps({"outputs": [output | {"data": array.tolist()}]}).encode(), None
    raw = array.tobytes()
    header = json.dumps({"outputs": [output | {"parameters": {"binary_data_size": len(raw)}}]}).encode()
    return header + raw, str(len(header))


@given(values=st.lists(FLOATS, min_size=1, max_size=24), binary=st.booleans())
def test_numbers_arrive_to_the_last_bit(values, binary):
    X = np.array(values).reshape(-1, 1, 1)
    body, headers = encode_request(X, Question("x", "FP64", "y"), binary=binary)
    if binary:
        header = json.loads(body[: int(headers[HEADER_LENGTH])])
        sent = np.frombuffer(body[int(headers[HEADER_LENGTH]) :], "<f8")
        assert header["inputs"][0]["parameters"]["binary_data_size"] == sent.nbytes
    else:
        sent = np.array(json.loads(body)["inputs"][0]["data"])
    assert sent.tobytes() == X.tobytes()
    back = decode_reply(*reply(values, binary=binary), "y", "FP64")
    assert back.tobytes() == np.array(values, dtype=float).tobytes()


def test_binary_questions_ask_for_binary_answers():
    for output, key, wanted in (
        ("y", "outputs", [{"name": "y", "parameters": {"binary_data": True}}]),
        (None, "parameters", {"binary_data_output": True}),
    ):
        body, headers = encode_request(np.ones((1, 1, 1)), Question("x", "FP64", output), binary=True)
        assert json.loads(body[: int(headers[HEADER_LENGTH])])[key] == wanted


@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_bfloat16_rounds_to_nearest_even(values):
    array = np.array(values)
    with np.errstate(over="ignore"):
        near = np.abs(array) < 3e38
    there = from_bytes(to_datatype(array[near], "BF16").tobytes(), "BF16")
    assert np.all(np.abs(there - array[near]) <= np.abs(array[near]) * 2.0**-8 + 1e-40)


def test_nested_flat_and_integer_data_are_the_same_numbers():
    nested = b'{"outputs":[{"name":"y","datatype":"FP64","shape":[2,2],"data":[[1,2],[3,4.5]]}]}'
    flat = b'{"outputs":[{"name":"y","datatype":"FP64","shape":[2,2],"data":[1,2,3,4.5]}]}'
    assert np.array_equal(decode_reply(nested, None, None), decode_reply(flat, None, "y"))


@pytest.mark.parametrize("word", ["null", "NaN", "Infinity", "-Infinity", "1e999"])
def test_non_finite_answers_are_seen_as_such(word):
    body = f'{{"outputs":[{{"name":"y","datatype":"FP64","shape":[2],"data":[1.0,{word}]}}]}}'.encode()
    try:
        back = decode_reply(body, None, "y")
    except TargetError:
        return  # refused is as good
    assert not math.isfinite(back[1])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"outputs":[]}',
        b'{"outputs":[{"name":"y","datatype":"FP64","shape":[2],"data":[1.0]}]}',
        b'{"outputs":[{"name":"y","datatype":"FP64","shape":[-1],"data":[1.0]}]}',
        b'{"outputs":[{"name":"y","datatype":"FP64","shape":[1],"data":["1.0"]}]}',
        b'{"outputs":[{"name":"y","datatype":"FP64","shape":[1],"data":[true]}]}',
        b'{"outputs":[{"name":"y","datatype":"FP64","shape":[1],"data":{"a":1}}]}',
        b'{"outputs":[{"name":"y","datatype":"FP64","shape":[1]}]}',
        b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":[1.0]}]}',
        b'{"outputs":[{"name":"z","datatype":"FP64","shape":[1],"data":[1.0]}]}',
        b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[1.0]}]}',
        b'{"outputs":[{"name":"y","datatype":"FP64","shape":[1],"data":[' + b"9" * 400 + b"]}]}",
        b'{"outputs":[{"name":"y","datatype":"FP64","shape":[1],"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b"[" * 1_000_000,
        b'{"a":' * 300_000,
        b'{"outputs":[{"name":"y","datatype":"FP64","shape":[1],"parameters":{"binary_data_size":8}}]}',
        b'{"outputs":[{"name":"y","datatype":"FP64","shape":[1],"parameters":{"binary_data_size":-8}}]}',
        b'{"outputs":[{"name":"y","datatype":"FP64","shape":[1],"parameters":{"binary_data_size":true}}]}',
        b"\xff\xfe\x00",
    ],
)
def test_malformed_replies_are_typed_errors(body):
    for header_length in (None, "0", "5", str(len(body)), "99999999999", "-1", "١"):
        with pytest.raises(TargetError):
            decode_reply(body, header_length, "y", "FP64")


@pytest.mark.parametrize("read", [read_model, read_server])
@pytest.mark.parametrize("body", [b"", b"{}x", b"[" * 200_000, b'{"name":1}', b"\xff"])
def test_malformed_metadata_is_a_typed_error(read, body):
    with pytest.raises(TargetError):
        read(body)


@given(body=st.binary(max_size=400))
def test_error_texts_are_one_printable_line(body):
    text = read_error(body)
    assert text.isprintable() or text == ""
    assert len(text) <= 300


def test_hostile_error_text_loses_its_escapes():
    text = read_error(json.dumps({"error": "\x1b[2J\x1b]0;owned\x07<script>\r\n" + "a" * 10_000}).encode())
    assert "\x1b" not in text
    assert "\n" not in text
    assert len(text) <= 300


def test_the_codec_survives_ten_thousand_damaged_replies():
    rng = np.random.default_rng(20261116)
    whole = [reply(rng.normal(size=(3, 2)), binary=binary) for binary in (False, True)]
    spare = [b'"', b"{", b"[", b"]", b"null", b"NaN", b"-", b"1e9999", b"\x00", b"binary_data_size", b"shape", b"9" * 30]
    survived = 0
    for _ in range(10_000):
        body, header_length = whole[rng.integers(2)]
        damaged = bytearray(body)
        for _ in range(rng.integers(1, 5)):
            place = int(rng.integers(len(damaged) + 1))
            kind = rng.integers(4)
            if kind == 0 and place < len(damaged):
                damaged[place] = rng.integers(256)
            elif kind == 1:
                del damaged[place : place + int(rng.integers(1, 20))]
            elif kind == 2:
                damaged[place:place] = spare[rng.integers(len(spare))]
            else:
                damaged = damaged[: max(1, place)]
        if header_length is not None and rng.random() < 0.3:
            header_length = str(rng.integers(-5, 2 * len(body)))
        try:
            back = decode_reply(bytes(damaged), header_length, "y", "FP64")
            assert back.dtype == np.float64
            survived += 1
        except TargetError:
            pass
    assert 0 < survived < 10_000


@settings(max_examples=50)
@given(
    content=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["outputs", "name", "datatype", "shape", "data", "parameters"]), inner)
        ),
    )
)
def test_any_json_is_read_or_refused(content):
    for body in (msgspec.json.encode(content), json.dumps({"outputs": [content]}).encode()):
        with contextlib.suppress(TargetError):
            decode_reply(body, None, None)


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16"])
def test_numbers_beyond_the_range_are_refused(datatype):
    with pytest.raises(ValueError, match="max_norm"):
        to_datatype(np.array([1e300]), datatype)


def test_real_numbers_do_not_pass_as_integers():
    with pytest.raises(ValueError, match="whole numbers"):
        to_datatype(np.array([0.5]), "INT64")
    with pytest.raises(ValueError, match="binary"):
        encode_request(np.ones((1, 1, 1)), Question("x", "FP16", None), binary=False)
