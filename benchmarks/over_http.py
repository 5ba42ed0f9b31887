"""What asking over a network costs, against a bare client that sends the same bytes.

    python benchmarks/over_http.py [--quick]

Starts MLServer on loopback. Rows: answers per second at batch 4096 (width 64, two tokens) over JSON and gRPC, and a whole `recover`
over JSON (rank 8 and full rank), each beside an httpx client that posts the recorded request bodies in turn; a `recover`
through one, two and four servers that each let 500 queries a second pass, and one through 1 to 8 streams to a server whose workers
take four milliseconds a question (they sleep, so that two cores hold eight of them). Times are the best of several interleaved
rounds, since the machine is shared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import unsoftmax as us
from servers import MODEL, OpenInference, mlserver, scripted
from unsoftmax.oracles import Several
from unsoftmax.oracles import http as http_oracle
from unsoftmax.oracles.grpc_v2 import GrpcOracle
from unsoftmax.oracles.http import HttpOracle

WIDTH = 64


def head(rank: int, seed: int) -> us.Attention:
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(WIDTH, rank)) @ rng.normal(size=(rank, WIDTH)) / WIDTH
    return us.Attention.single(W=W, v=rng.normal(size=WIDTH))


def bodies_of(run: Callable[[], Any]) -> list[bytes]:
    """The request bodies that ``run`` sends over HTTP as JSON."""
    sent: list[bytes] = []
    encode = http_oracle.encode_request

    def listen(*arguments: Any, binary: bool, **named: Any) -> Any:
        body, headers = encode(*arguments, binary=binary, **named)
        if not binary:
            sent.append(body)
        return body, headers

    http_oracle.encode_request = listen
    try:
        run()
    finally:
        http_oracle.encode_request = encode
    return sent


def bare(url: str, bodies: list[bytes]) -> None:
    """Post the bodies one after the other on one connection, and read the replies."""
    with httpx.Client(trust_env=False, timeout=60) as client:
        for body in bodies:
            client.post(url + "/infer", content=body, headers={"Content-Type": "application/json"}).raise_for_status().read()


def best(rounds: int, *works: Callable[[], Any]) -> list[float]:
    """The shortest time of each work, over interleaved rounds."""
    times = [[0.0] * rounds for _ in works]
    for turn in range(rounds):
        for i, work in enumerate(works):
            began = time.perf_counter()
            work()
            times[i][turn] = time.perf_counter() - began
    return [min(own) for own in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    rounds = 3 if parser.parse_args().quick else 7
    print("| what | queries | unsoftmax | bare client, same bytes | ratio |\n|---|---|---|---|---|")
    for rank, seed in ((8, 21), (WIDTH, 22)):
        model = head(rank, seed)
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / "head.safetensors")
            with mlserver(Path(folder) / "head.safetensors") as hosted:
                if rank == 8:
                    throughput(hosted, rounds)
                whole_run(hosted, rank, rounds)
    together()
    side_by_side()


def throughput(hosted: Any, rounds: int) -> None:
    X = np.random.default_rng(0).normal(size=(4 * 4096, 2, WIDTH))
    with HttpOracle(hosted.http, encoding="json") as json, GrpcOracle(hosted.grpc) as grpc:
        bodies = bodies_of(lambda: json(X))
        ours, theirs, over_grpc = best(rounds, lambda: json(X), lambda: bare(hosted.http, bodies), lambda: grpc(X))
    print(f"| JSON, batch 4096 | {len(X)} | {len(X) / ours:,.0f}/s | {len(X) / theirs:,.0f}/s | {theirs / ours:.2f} of its rate |")
    print(f"| gRPC, 3 MiB requests | {len(X)} | {len(X) / over_grpc:,.0f}/s | | |")


def whole_run(hosted: Any, rank: int, rounds: int) -> None:
    found: list[us.Recovery] = []

    def recover() -> None:
        with HttpOracle(hosted.http) as oracle:
            found.append(us.recover(oracle, seed=rank))

    bodies = bodies_of(recover)
    ours, theirs = best(rounds, recover, lambda: bare(hosted.http, bodies))
    asked = found[-1].facts["queries"]["total"]
    print(f"| recover, width {WIDTH}, rank {rank} | {asked} | {ours:.2f} s | {theirs:.2f} s | {ours / theirs:.2f} times |")


def together(rate: float = 500.0) -> None:
    """A whole run through one, two and four endpoints of the same model, each with a limit on its rate."""
    print("\n| endpoints | queries | seconds | times as fast |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "head.safetensors"
        head(WIDTH, 23).save(path)
        hosted = [stack.enter_context(mlserver(path, rate=rate)) for _ in range(4)]
        alone = 0.0
        for count in (1, 2, 4):
            with ExitStack() as opened:
                members = [opened.enter_context(HttpOracle(server.http)) for server in hosted[:count]]
                began = time.perf_counter()
                found = us.recover(Several(members) if count > 1 else members[0], seed=0)
                took = time.perf_counter() - began
            alone = alone or took
            print(f"| {count} | {found.facts['queries']['total']} | {took:.1f} | {alone / took:.2f} |", flush=True)


def side_by_side(pause: float = 4e-3) -> None:
    """A whole run through several streams to one server that works on requests side by side."""
    model = head(WIDTH, 24)

    def slowly(X: np.ndarray) -> np.ndarray:
        time.sleep(pause * len(X))
        return model(X)

    print("\n| streams | queries | seconds | times as fast |\n|---|---|---|---|")
    with scripted(OpenInference(slowly, WIDTH)) as root:
        alone = 0.0
        for streams in (1, 2, 4, 8):
            with HttpOracle(f"{root}/v2/models/{MODEL}", in_flight=streams, divide=True) as oracle:
                began = time.perf_counter()
                found = us.recover(oracle, seed=0)
                took = time.perf_counter() - began
            alone = alone or took
            print(f"| {streams} | {found.facts['queries']['total']} | {took:.1f} | {alone / took:.2f} |", flush=True)


if __name__ == "__main__":
    main()
