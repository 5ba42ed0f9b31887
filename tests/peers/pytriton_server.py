"""A head on NVIDIA Triton, for an environment that has ``nvidia-pytriton``.

python pytriton_server.py HEAD.npz HTTP_PORT GRPC_PORT
"""

import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

archive, http_port, grpc_port = sys.argv[1:4]
weights = np.load(archive)
W, v = weights["W"], weights["v"]


@batch
def answer(sequences):
    """Map ``(batch, length, width)`` to ``(batch, 1)``, which Triton needs for a batch."""
    scores = np.einsum("bij,bj->bi", sequences, sequences[:, -1] @ W.T)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return {"answers": np.einsum("bi,bij,j->b", weights, sequences, v)[:, None]}


if __name__ == "__main__":
    config = TritonConfig(
        http_address="127.0.0.1", http_port=int(http_port), grpc_address="127.0.0.1", grpc_port=int(grpc_port), allow_metrics=False
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="head",
            infer_func=answer,
            inputs=[Tensor(name="sequences", dtype=np.float64, shape=(-1, len(v)))],
            outputs=[Tensor(name="answers", dtype=np.float64, shape=(1,))],
            config=ModelConfig(max_batch_size=4096),
        )
        triton.serve()
