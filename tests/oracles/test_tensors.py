"""Choosing tensors from what a server tells about its model."""

import numpy as np
import pytest

from unsoftmax.errors import TargetError
from unsoftmax.oracles.http_codec import ModelSpec, TensorSpec
from unsoftmax.oracles.tensors import Wishes, plan_tensors


def tensor(name="x", datatype="FP64", shape=(-1, -1, 4)):
    return TensorSpec(name=name, datatype=datatype, shape=shape)


def spec(*inputs, outputs=()):
    return ModelSpec(name="model", platform="", inputs=list(inputs), outputs=list(outputs))


def test_one_input_and_one_output_need_no_wishes():
    plan = plan_tensors(spec(tensor(), outputs=[tensor("y", "FP32", (-1,))]), Wishes())
    assert (plan.input, plan.datatype, plan.width, plan.batch, plan.length) == ("x", "FP64", 4, None, None)
    assert (plan.output, plan.promised) == ("y", "FP32")


def test_a_batch_of_vectors_is_a_batch_of_single_tokens():
    plan = plan_tensors(spec(tensor(shape=(16, 4))), Wishes())
    assert (plan.batch, plan.length, plan.axes) == (16, 1, 2)


def test_a_silent_server_needs_name_and_width():
    plan = plan_tensors(spec(), Wishes(input="x", width=3))
    assert (plan.input, plan.datatype, plan.width, plan.output, plan.promised) == ("x", "FP64", 3, None, None)
    assert plan_tensors(spec(), Wishes(input="x", width=3, datatype="FP32")).datatype == "FP32"


@pytest.mark.parametrize(
    ("told", "wishes", "reason"),
    [
        (spec(), Wishes(), "tells nothing about the inputs"),
        (spec(), Wishes(input="x"), "tells nothing about the inputs"),
        (spec(), Wishes(input="x", width=0), "at least 1"),
        (spec(tensor(), tensor("z")), Wishes(), "several inputs"),
        (spec(tensor()), Wishes(input="z"), "no input 'z'"),
        (spec(tensor(), outputs=[tensor("a"), tensor("b")]), Wishes(), "several outputs"),
        (spec(tensor(datatype="FP32")), Wishes(datatype="FP64"), "never cast silently"),
        (spec(tensor(datatype="BYTES")), Wishes(), "BYTES"),
        (spec(tensor(shape=(-1,))), Wishes(), "shape"),
        (spec(tensor(shape=(1, 2, 3, 4))), Wishes(), "shape"),
        (spec(tensor()), Wishes(width=5), "Leave `width` out"),
        (spec(tensor(shape=(-1, -1, -1))), Wishes(), "Pass `width=`"),
    ],
)
def test_an_open_choice_is_refused_with_what_there_is(told, wishes, reason):
    with pytest.raises(ValueError, match=reason):
        plan_tensors(told, wishes)


def test_a_model_of_one_length_says_so_when_asked_for_another():
    plan = plan_tensors(spec(tensor(shape=(-1, 2, 4))), Wishes())
    assert plan.length == 2
    assert plan.fit(np.ones((3, 2, 4))).shape == (3, 2, 4)
    with pytest.raises(TargetError, match="2 tokens only, not of 5"):
        plan.fit(np.ones((3, 5, 4)))
    flat = plan_tensors(spec(tensor(shape=(-1, 4))), Wishes())
    assert flat.fit(np.ones((3, 1, 4))).shape == (3, 4)
    with pytest.raises(TargetError, match="1 tokens only"):
        flat.fit(np.ones((3, 2, 4)))
