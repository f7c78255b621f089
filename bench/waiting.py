"""Rows of consumers that wait for messages while there are none."""

from __future__ import annotations

import asyncio
import json
import resource
import time

import uvloop

from bench.rows import Place, Row, Work
from bench.topics import fresh_topic
from goq.client import Client

WAITING = 5_000
PUBLISHES = 100
_WAIT_S = 60
_SETTLE_S = 2.0
_FILES_SPARE = 500
_AT_ONCE = 200


async def _wait_all(port: int, topic: str, count: int, *, streams: bool) -> list[asyncio.Transport]:
    """Open connections that each wait for a message of the topic, as one group."""
    loop = asyncio.get_running_loop()
    asked = {"max": 1, "stream": True} if streams else {"max": 1, "wait": f"{_WAIT_S}s"}
    body = json.dumps(asked).encode()
    head = (
        f"POST /v1/topics/{topic}/groups/bench/receive HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    transports: list[asyncio.Transport] = []
    for start in range(0, count, _AT_ONCE):
        opened = await asyncio.gather(
            *(
                loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
                for _ in range(min(_AT_ONCE, count - start))
            )
        )
        for transport, _ in opened:
            transport.write(head.encode() + body)
            transports.append(transport)
    return transports


def _waiting(place: Place, *, streams: bool) -> tuple[float, float, float]:
    """Return CPU of the node while nothing happens, memory by waiter, and CPU of a publish."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files < WAITING + _FILES_SPARE:
        raise RuntimeError(f"{WAITING} connections need more than {files} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (WAITING + _FILES_SPARE, files))
    topic, node = fresh_topic(place.goq), place.goq
    idle_s = place.scaled(10, 3)

    async def main() -> tuple[float, float, float]:
        before_mb = node.rss_mb()
        transports = await _wait_all(node.port, topic, WAITING, streams=streams)
        try:
            await asyncio.sleep(_SETTLE_S)
            before_s, began_s = node.cpu_s(), time.perf_counter()
            await asyncio.sleep(idle_s)
            idle = (node.cpu_s() - before_s) / (time.perf_counter() - began_s)
            kb = 1024 * (node.rss_mb() - before_mb) / WAITING
            before_s = node.cpu_s()
            await asyncio.to_thread(_publish, place, topic)
            return 100 * idle, kb, 1000 * (node.cpu_s() - before_s) / PUBLISHES
        finally:
            for transport in transports:
                transport.abort()

    return uvloop.run(main())


def _publish(place: Place, topic: str) -> None:
    with Client(place.goq.url) as client:
        for _ in range(PUBLISHES):
            client.publish(topic, b"one")


def _work(name: str, text: str, *, streams: bool) -> Work:
    return Work(
        [
            Row(f"{name}-cpu", f"{WAITING:,} {text}: CPU of the node", "% of a core", 1, at_most=True),
            Row(f"{name}-memory", f"{WAITING:,} {text}: memory of the node, each", "KB"),
            Row(f"{name}-publish", f"{WAITING:,} {text}: CPU of a publish to one", "ms"),
        ],
        lambda place: _waiting(place, streams=streams),
    )


WORKS = [
    _work("waiting-polls", "receives that wait", streams=False),
    _work("waiting-streams", "idle streams", streams=True),
]
