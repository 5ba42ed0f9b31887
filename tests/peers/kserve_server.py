"""A head on KServe's own Python server, for an environment that has ``kserve``.

python kserve_server.py HEAD.npz HTTP_PORT GRPC_PORT
"""

import sys

import numpy as np

archive, http_port, grpc_port = sys.argv[1:4]
sys.argv = [sys.argv[0], f"--http_port={http_port}", f"--grpc_port={grpc_port}", "--enable_latency_logging=false"]

import kserve  # noqa: E402 - reads its options from the command line when imported

weights = np.load(archive)
W, v = weights["W"], weights["v"]


class Head(kserve.Model):
    """Answers ``sequences (batch, length, width)`` with ``answers (batch,)``."""

    def __init__(self):
        super().__init__("head")
        self.ready = True

    def get_input_types(self):
        return [{"name": "sequences", "datatype": "FP64", "shape": [-1, -1, len(v)]}]

    def get_output_types(self):
        return [{"name": "answers", "datatype": "FP64", "shape": [-1]}]

    def predict(self, payload, headers=None, response_headers=None):
        x = payload.inputs[0].as_numpy().astype(np.float64)
        scores = np.einsum("bij,bj->bi", x, x[:, -1] @ W.T)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        answers = np.einsum("bi,bij,j->b", weights / weights.sum(axis=1, keepdims=True), x, v)
        output = kserve.InferOutput(name="answers", shape=list(answers.shape), datatype="FP64")
        binary = payload.inputs[0].parameters is not None
        output.set_data_from_numpy(answers, binary_data=binary)
        return kserve.InferResponse(response_id=payload.id or "", model_name="head", infer_outputs=[output])


if __name__ == "__main__":
    kserve.ModelServer().start([Head()])
