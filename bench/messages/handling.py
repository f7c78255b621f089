"""CPU of the event loop for a request, without sockets: ``python -m bench.messages.handling``.

A node's own connections get requests from transports in the same process, which send the next
request once they have their answer. So a figure has no system calls of the network, and no client:
it says what the code costs, also on a machine with other work. Threads of the node do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import time
from pathlib import Path

import uvloop

from bench.harness import frames
from goq.config.sources import config_of
from goq.http.connection import Connection
from goq.http.context import ServerContext
from goq.node import NodeServer

_VALUE = frames.values(1, 1000)
_TOPIC, _WIDE = "handling", "wide"
_WIDE_COUNT = 1000
_CONNECTIONS = (64, 1)
_RECEIPT = re.compile(rb'"receipt":"([^"]*)"')


class OwnClient(asyncio.Transport):
    """A connection's transport that is its own client: ``write`` gets the answers."""

    def __init__(self, shared: ServerContext) -> None:
        super().__init__()
        self.connection = Connection(shared)
        self.connection.connection_made(self)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close


class _Caller(OwnClient):
    def __init__(self, calls: _Calls, shared: ServerContext) -> None:
        super().__init__(shared)
        self._calls = calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._calls.answered(self, bytes(data))


class _Calls:
    """Sends one request over and over; :meth:`run` returns its CPU in microseconds."""

    def __init__(self, shared: ServerContext, request: bytes, connections: int) -> None:
        self.request = request
        self._callers = [_Caller(self, shared) for _ in range(connections)]
        self._waiting: list[_Caller] = []
        self._to_send = self._to_answer = 0

    async def run(self, count: int) -> float:
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        self._to_send, self._to_answer = count, count
        began_s = time.thread_time()
        self._send(self._callers)
        await self._done
        return 1e6 * (time.thread_time() - began_s) / count

    def _send(self, callers: list[_Caller]) -> None:
        some = callers[: self._to_send]
        self._to_send -= len(some)
        for caller in some:
            caller.connection.data_received(self.request)

    def answered(self, caller: _Caller, data: bytes) -> None:
        if data[9:10] != b"2":
            raise RuntimeError(data.decode("latin-1"))
        self._to_answer -= 1
        if not self._to_answer:
            self._done.set_result(None)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting.append(caller)

    def _next(self) -> None:
        callers, self._waiting = self._waiting, []
        self._send(callers)


class _Pairs(_Calls):
    """Receives one message and acks it, in turn; each of the two counts as half."""

    def __init__(self, shared: ServerContext, topic: str = _TOPIC) -> None:
        body = b'{"max_messages":1}'
        self._topic = topic
        self._receive = _group_head(topic, "receive", len(body)) + body
        super().__init__(shared, self._receive, 1)

    def answered(self, caller: _Caller, data: bytes) -> None:
        found = _RECEIPT.search(data)
        body = b'{"receipts":["%b"]}' % found[1] if found else b""
        ack = _group_head(self._topic, "ack", len(body)) + body
        self.request = ack if found else self._receive
        super().answered(caller, data)


def _group_head(topic: str, verb: str, body_bytes: int) -> bytes:
    return _head(f"/v1/topics/{topic}/groups/workers/{verb}", body_bytes)


def _head(path: str, body_bytes: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {body_bytes}\r\n\r\n"
    ).encode()


async def _fill_wide(shared: ServerContext) -> None:
    """Make a topic of 1,000 partitions, and put 100 messages into every tenth."""
    made = json.dumps({"name": _WIDE, "partitions": 1000}).encode()
    await _Calls(shared, _head("/v1/topics", len(made)) + made, 1).run(1)
    for partition in range(0, 1000, 10):
        given = {"messages": [{"value": "x" * 1000, "partition": partition}] * 100}
        body = json.dumps(given).encode()
        publish = _Calls(
            shared, frames.request_head(_WIDE, len(body), "application/json") + body, 1
        )
        await publish.run(1)


def _requests() -> dict[str, bytes]:
    plain = json.dumps({"messages": [{"value": "x" * 1000}]}).encode()
    keyed = json.dumps({"messages": [{"value": "x" * 1000, "key": "order-17"}]}).encode()
    frame = frames.anonymous_body(_VALUE)
    return {
        "/livez": b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "publish of 1 KB, JSON": frames.request_head(_TOPIC, len(plain), "application/json")
        + plain,
        "the same with a key": frames.request_head(_TOPIC, len(keyed), "application/json") + keyed,
        "publish of 1 KB, a frame": frames.request_head(_TOPIC, len(frame)) + frame,
    }


async def _measure(folder: Path, count: int) -> None:
    server = NodeServer(config_of({"broker.data_dir": folder, "broker.listen": "127.0.0.1:0"}))
    await server.start()
    assert server._listeners._server is not None
    shared = server._listeners._server._shared
    for name, request in _requests().items():
        for connections in _CONNECTIONS:
            calls = _Calls(shared, request, connections)
            await calls.run(500)
            best_us = min([await calls.run(count) for _ in range(5)])
            print(f"{name + ',':<26} {connections:>2} at once: {best_us:6.1f} µs", flush=True)
    pairs = _Pairs(shared)
    await pairs.run(500)
    best_us = 2 * min([await pairs.run(count) for _ in range(5)])
    print(f"{'receive and ack of one,':<26}  1 at once: {best_us:6.1f} µs", flush=True)
    await _fill_wide(shared)
    pairs = _Pairs(shared, _WIDE)
    await pairs.run(2 * _WIDE_COUNT)
    best_us = 2 * min([await pairs.run(_WIDE_COUNT) for _ in range(5)])
    print(f"{'the same, 1,000 partitions,':<26} 1 at once: {best_us:6.1f} µs", flush=True)
    await server.stop()


def main() -> None:
    """Measure, in a folder that is removed."""
    parser = argparse.ArgumentParser(prog="python -m bench.messages.handling", description=__doc__)
    parser.add_argument("--folder", help="where to put the node's data, as /dev/shm")
    parser.add_argument("--count", type=int, default=10_000, help="requests a figure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        uvloop.run(_measure(Path(folder) / "goq", arguments.count))


if __name__ == "__main__":
    main()
