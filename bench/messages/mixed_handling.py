"""CPU of the event loop for a receive and an ack of 1000 messages of many lanes, keys and tenants.

``python -m bench.messages.mixed_handling`` publishes what :mod:`bench.messages.mixed` does, and
receives it by four consumers at once, through a node's own connections in the same process. So a
figure has no system calls of the network and no client, and says what the code costs, also on a
machine with other work.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import tempfile
import time
from pathlib import Path

import msgspec
import uvloop

from bench.harness import frames
from bench.messages.handling import OwnClient
from bench.messages.mixed import BATCH, CONSUMERS, body_of, mixed_messages
from goq.client.protocol.frames import decode_deliveries
from goq.config.sources import config_of
from goq.http.context import ServerContext
from goq.node import NodeServer

_TOPIC = "mixed"
_GROUP = f"/v1/topics/{_TOPIC}/groups/g"
_BODIES = 20
_HEAD_END = b"\r\n\r\n"


class _Caller(OwnClient):
    """A connection's transport: :meth:`ask` gives it a request and returns the answer's body."""

    def __init__(self, shared: ServerContext) -> None:
        super().__init__(shared)
        self._answer = bytearray()
        self._done: asyncio.Future[bytes] | None = None

    async def ask(self, request: bytes) -> bytes:
        self._answer.clear()
        self._done = asyncio.get_running_loop().create_future()
        self.connection.data_received(request)
        return await self._done

    async def post(self, path: str, body: bytes, accept: str = "application/json") -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Accept: {accept}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return await self.ask(head.encode() + body)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._answer += data
        head, found, body = bytes(self._answer).partition(_HEAD_END)
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
        if found and len(body) >= length and self._done is not None and not self._done.done():
            if head[9:10] != b"2":
                raise RuntimeError(self._answer.decode("latin-1"))
            self._done.set_result(body)


async def _round(callers: list[_Caller]) -> tuple[int, float, float]:
    """Receive by each caller, then ack; return how many, and the seconds of both."""
    began_s = time.thread_time()
    asked = msgspec.json.encode({"max_messages": BATCH})
    receiving = [c.post(f"{_GROUP}/receive", asked, "application/vnd.goq.frames") for c in callers]
    answers = await asyncio.gather(*receiving)
    received_s = time.thread_time() - began_s
    count, acks = 0, []
    for body in answers:
        deliveries = decode_deliveries(body)
        count += sum(delivery.message_count() for delivery in deliveries)
        acks.append([str(receipt) for each in deliveries for receipt in each.receipts()])
    began_s = time.thread_time()
    await asyncio.gather(
        *(
            caller.post(f"{_GROUP}/ack", msgspec.json.encode({"receipts": receipts}))
            for caller, receipts in zip(callers, acks, strict=True)
            if receipts
        )
    )
    return count, received_s, time.thread_time() - began_s


async def _measure(folder: Path, batches: int, size_bytes: int) -> None:
    server = NodeServer(config_of({"broker.data_dir": folder, "broker.listen": "127.0.0.1:0"}))
    await server.start()
    assert server._listeners._server is not None
    gc.disable()  # as goq serve does once its topics are open
    callers = [_Caller(server._listeners._server._shared) for _ in range(CONSUMERS)]
    draw = random.Random(20_261_121)
    bodies = [body_of(mixed_messages(draw, BATCH, size_bytes)) for _ in range(_BODIES)]
    for number in range(batches + 1):
        body = bodies[number % _BODIES]
        await callers[0].ask(frames.request_head(_TOPIC, len(body)) + body)
        if not number:
            await _round(callers)  # the group begins
    total, receive_s, ack_s = 0, 0.0, 0.0
    while (taken := await _round(callers))[0]:
        total += taken[0]
        receive_s += taken[1]
        ack_s += taken[2]
    print(f"receive: {1e6 * receive_s / total:5.1f} µs a message")
    print(f"ack:     {1e6 * ack_s / total:5.1f} µs a message", flush=True)
    await server.stop()


def main() -> None:
    """Measure, in a folder that is removed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.messages.mixed_handling", description=__doc__
    )
    parser.add_argument("--folder", help="where to put the node's data, as /dev/shm")
    parser.add_argument("--batches", type=int, default=100, help="batches of 1000 to publish")
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        uvloop.run(_measure(Path(folder) / "goq", arguments.batches, arguments.size))


if __name__ == "__main__":
    main()
