"""Rows of consumers that wait for messages while there are none."""

from __future__ import annotations

import asyncio
import json
import resource
import time

import uvloop

from bench.harness.rows import Place, Row, Work
from bench.harness.topics import fresh_topic
from goq.client import Client

WAITING = 5_000
PUBLISHES = 100
_WAIT_S = 60
_SETTLE_S = 2.0
_FILES_SPARE = 500
_AT_ONCE = 200


class _Waiter(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.has_answer = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.has_answer = True


async def _wait_all(port: int, topic: str, count: int, *, streams: bool) -> list[_Waiter]:
    """Open connections that each wait for a message of the topic, as one group."""
    loop = asyncio.get_running_loop()
    asked = (
        {"max_in_flight": 1, "stream": True}
        if streams
        else {"max_messages": 1, "wait": f"{_WAIT_S}s"}
    )
    body = json.dumps(asked).encode()
    head = (
        f"POST /v1/topics/{topic}/groups/bench/receive HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    waiters: list[_Waiter] = []
    for start in range(0, count, _AT_ONCE):
        opened = await asyncio.gather(
            *(
                loop.create_connection(_Waiter, "127.0.0.1", port)
                for _ in range(min(_AT_ONCE, count - start))
            )
        )
        for _, waiter in opened:
            waiter.transport.write(head.encode() + body)
            waiters.append(waiter)
    return waiters


def _waiting(place: Place, *, streams: bool) -> tuple[float, float, float]:
    """Return CPU of the node while nothing happens, memory by waiter, and CPU of a publish."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files < WAITING + _FILES_SPARE:
        raise RuntimeError(f"{WAITING} connections need more than {files} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (WAITING + _FILES_SPARE, files))
    topic, node = fresh_topic(place.goq), place.goq
    idle_s = place.scaled(30, 16)  # of a stream's heartbeats at least one

    async def main() -> tuple[float, float, float]:
        before_mb = node.rss_mb()
        waiters = await _wait_all(node.port, topic, WAITING, streams=streams)
        try:
            await asyncio.sleep(_SETTLE_S)
            before_s, began_s = node.cpu_s(), time.perf_counter()
            await asyncio.sleep(idle_s)
            idle = (node.cpu_s() - before_s) / (time.perf_counter() - began_s)
            kb = 1024 * (node.rss_mb() - before_mb) / WAITING
            before_s = node.cpu_s()
            await asyncio.to_thread(_publish, place, topic)
            cpu_ms = 1000 * (node.cpu_s() - before_s) / PUBLISHES
            await asyncio.sleep(_SETTLE_S)
            _check_answers(waiters, WAITING if streams else PUBLISHES)
            return 100 * idle, kb, cpu_ms
        finally:
            for waiter in waiters:
                waiter.transport.abort()

    return uvloop.run(main())


def _check_answers(waiters: list[_Waiter], expected: int) -> None:
    """Raise unless so many were answered: each stream at once, of the others one a message."""
    answered = sum(waiter.has_answer for waiter in waiters)
    if answered != expected:
        raise RuntimeError(f"{answered} of {len(waiters)} were answered, not {expected}")


def _publish(place: Place, topic: str) -> None:
    with Client(place.goq.url) as client:
        for _ in range(PUBLISHES):
            client.publish(topic, b"one")


def _work(name: str, text: str, *, streams: bool) -> Work:
    return Work(
        [
            Row(
                f"{name}-cpu",
                f"{WAITING:,} {text}: CPU of the node",
                "% of a core",
                1,
                at_most=True,
            ),
            Row(f"{name}-memory", f"{WAITING:,} {text}: memory of the node, each", "KB"),
            Row(f"{name}-publish", f"{WAITING:,} {text}: CPU of a publish to one", "ms"),
        ],
        lambda place: _waiting(place, streams=streams),
    )


WORKS = [
    _work("waiting-polls", "receives that wait", streams=False),
    _work("waiting-streams", "idle streams", streams=True),
]
