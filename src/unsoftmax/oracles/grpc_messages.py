"""The messages of the Open Inference Protocol's gRPC service, as far as they are needed, described by hand.

Names and numbers of the fields are the protocol's. A descriptor pool of their own keeps them apart from the generated copies
that other packages in the process may bring.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from unsoftmax.errors import MissingExtraError

SERVICE = "/inference.GRPCInferenceService/"
STRING, INT64, FLOAT, DOUBLE, BYTES = 9, 3, 2, 1, 12  # protobuf's numbers for the types
BOOL, INT32, UINT32, UINT64 = 8, 5, 13, 4

# message -> field -> (number, type or message, repeated)
Field = tuple[int, int | str, bool]
MESSAGES: dict[str, dict[str, Field]] = {
    "ModelMetadataRequest": {"name": (1, STRING, False), "version": (2, STRING, False)},
    "TensorMetadata": {"name": (1, STRING, False), "datatype": (2, STRING, False), "shape": (3, INT64, True)},
    "ModelMetadataResponse": {
        "name": (1, STRING, False),
        "versions": (2, STRING, True),
        "platform": (3, STRING, False),
        "inputs": (4, "TensorMetadata", True),
        "outputs": (5, "TensorMetadata", True),
    },
    "InferTensorContents": {
        "bool_contents": (1, BOOL, True),
        "int_contents": (2, INT32, True),
        "int64_contents": (3, INT64, True),
        "uint_contents": (4, UINT32, True),
        "uint64_contents": (5, UINT64, True),
        "fp32_contents": (6, FLOAT, True),
        "fp64_contents": (7, DOUBLE, True),
        "bytes_contents": (8, BYTES, True),
    },
    "Tensor": {
        "name": (1, STRING, False),
        "datatype": (2, STRING, False),
        "shape": (3, INT64, True),
        "contents": (5, "InferTensorContents", False),
    },
    "RequestedOutput": {"name": (1, STRING, False)},
    "ModelInferRequest": {
        "model_name": (1, STRING, False),
        "model_version": (2, STRING, False),
        "id": (3, STRING, False),
        "inputs": (5, "Tensor", True),
        "outputs": (6, "RequestedOutput", True),
        "raw_input_contents": (7, BYTES, True),
    },
    "ModelInferResponse": {
        "model_name": (1, STRING, False),
        "model_version": (2, STRING, False),
        "id": (3, STRING, False),
        "outputs": (5, "Tensor", True),
        "raw_output_contents": (6, BYTES, True),
    },
}


@cache
def message(name: str) -> Any:
    """The class of one message."""
    try:
        from google.protobuf import message_factory
    except ImportError as error:
        raise MissingExtraError("protobuf", "grpc") from error
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"inference.{name}"))


@cache
def _pool() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="unsoftmax/open_inference.proto", package="inference", syntax="proto3")
    for name, fields in MESSAGES.items():
        described = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            label = 3 if repeated else 1
            if isinstance(kind, str):
                described.field.add(name=field, number=number, label=label, type=11, type_name=f".inference.{kind}")
            else:
                described.field.add(name=field, number=number, label=label, type=kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool
