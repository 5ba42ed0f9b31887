"""A proxy between client and server that breaks things, as its seed says, and keeps the history of what it broke."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

# what may happen to a question, and how often among the faults
FAULTS = {
    "reset before": 3,  # the question never arrives
    "reset after": 3,  # it is answered, and the answer is lost
    "truncated": 3,
    "slow": 2,
    "429 seconds": 2,
    "503 date": 2,
    "500": 2,
    "502": 2,
    "NaN": 1,
    "wrong shape": 1,
    "wrong datatype": 1,
    "garbage": 1,
    "gone": 1,  # everything fails for a while
}
# these may be asked for, too: silence until the client hangs up; the question asked twice; an answer that later ones overtake
OTHERS = ("stall", "duplicated", "overtaken")
DELIVERED = ("none", "slow", "duplicated", "overtaken")  # the answer reached the client
UNASKED = ("reset before", "429 seconds", "503 date", "500", "502", "gone", "refused")  # the server did not answer it


@dataclass
class History:
    """What happened: for each fault (or "none") how many requests and sequences."""

    requests: Counter[str] = field(default_factory=Counter)
    sequences: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)  # by identity of the sequence: how often its answer reached the client

    @property
    def answered(self) -> int:
        """Sequences whose answers reached the client whole."""
        return sum(self.sequences[name] for name in DELIVERED)

    @property
    def lost(self) -> int:
        """Sequences that the server answered, but whose answers did not reach the client as they were."""
        return sum(count for name, count in self.sequences.items() if name not in DELIVERED and name not in UNASKED)


class ChaosProxy:
    """Passes requests on to ``upstream`` and disturbs a share ``rate`` of the questions.

    Args:
        upstream: port of the server on loopback.
        seed: same seed, same order of faults.
        rate: share of questions that meet a fault.
        faults: the faults to choose from.
    """

    def __init__(self, upstream: int, seed: int, rate: float = 0.15, faults: dict[str, int] | None = None) -> None:
        self.upstream = upstream
        self.rate = rate
        self.history = History()
        self._rng = np.random.default_rng(seed)
        self._names = list(faults or FAULTS)
        weights = np.array([(faults or FAULTS)[name] for name in self._names], dtype=float)
        self._weights = weights / weights.sum()
        self._gone = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Yields the proxy's address."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), loop).result()
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            asyncio.run_coroutine_threadsafe(self._stop(server), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _stop(self, server: asyncio.Server) -> None:
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _draw(self) -> str:
        if self._gone > 0:
            self._gone -= 1
            return "gone"
        if self._rng.random() >= self.rate:
            return "none"
        fault = self._names[self._rng.choice(len(self._names), p=self._weights)]
        if fault == "gone":
            self._gone = int(self._rng.integers(3, 12))
        return fault

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (request := await _read_message(reader)) is not None:
                if not await self._answer(*request, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection is to end."""
        question = head.startswith(b"POST")
        asked = _sequences(head, body) if question else []
        count = len(asked)
        fault = self._draw() if question else "none"
        if fault in UNASKED:
            self._book(fault, asked)
        if fault in ("reset before", "gone"):
            return _reset(writer)
        if fault in ("429 seconds", "503 date", "500", "502"):
            status, _, kind = fault.partition(" ")
            extra = {"seconds": "Retry-After: 0\r\n", "date": "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT\r\n"}.get(kind, "")
            return await _write(writer, f"HTTP/1.1 {status} No\r\n{extra}Content-Length: 2\r\n\r\nno".encode())
        reply = await self._ask(head, body)
        if fault == "duplicated":
            await self._ask(head, body)
        if fault == "overtaken":
            await asyncio.sleep(0.05)
        if question:
            self._book(fault if reply.startswith(b"HTTP/1.1 200") else "refused", asked)
        if fault == "reset after":
            return _reset(writer)
        if fault == "truncated":
            await _write(writer, reply[: int(self._rng.integers(1, len(reply)))])
            return False
        if fault == "stall":
            await reader.read(1)
            return False
        if fault == "slow":
            middle = len(reply) // 2
            await _write(writer, reply[:middle])
            await asyncio.sleep(0.02)
            return await _write(writer, reply[middle:])
        if fault in ("NaN", "wrong shape", "wrong datatype", "garbage"):
            return await _write(writer, _lie(fault, count))
        return await _write(writer, reply)

    def _book(self, fault: str, asked: list[str]) -> None:
        self.history.requests[fault] += 1
        self.history.sequences[fault] += len(asked)
        if fault in DELIVERED:
            self.history.delivered.update(asked)

    async def _ask(self, head: bytes, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            await _write(writer, head + body)
            message = await _read_message(reader)
            if message is None:
                raise ConnectionResetError
            return b"".join(message)
        finally:
            writer.close()


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes] | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    return head, await reader.readexactly(length)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> bool:
    writer.write(data)
    await writer.drain()
    return True


def _reset(writer: asyncio.StreamWriter) -> bool:
    """Hang up with a reset, not in good order."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


def _sequences(head: bytes, body: bytes) -> list[str]:
    """The identity of each sequence in a question: a digest of its numbers."""
    marker = b"inference-header-content-length:"
    split = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(marker)), None)
    tensor = json.loads(body[:split])["inputs"][0]
    numbers = np.array(tensor["data"], dtype=np.float64) if split is None else np.frombuffer(body[split:])
    return [hashlib.blake2b(sequence.tobytes(), digest_size=8).hexdigest() for sequence in numbers.reshape(tensor["shape"])]


def _lie(fault: str, count: int) -> bytes:
    output = {"name": "answers", "datatype": "FP64", "shape": [count], "data": [1.5] * count}
    if fault == "NaN":
        output["data"] = [float("nan")] * count
    elif fault == "wrong shape":
        output["shape"] = [count + 1]
    elif fault == "wrong datatype":
        output["datatype"] = "FP32"
    body = b"<html>busy</html>" if fault == "garbage" else json.dumps({"outputs": [output]}).encode()
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
