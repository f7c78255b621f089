"""From publish to delivered: messages sent by a timetable, a consumer that waits for them.

Each message carries the moment that it was due to be sent, not the moment that it was: a sender
that falls behind, or a node that stops for a while, is seen in every message that it held up.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bench.harness import resp
from bench.harness.rows import Place, Row, Work
from bench.harness.topics import fresh_topic
from goq.client import AsyncClient

RATE = 1000
_PADDING = bytes(992)
_LEAD_S = 0.5  # before the first: everything is connected, the consumer waits

Publish = Callable[[bytes], Awaitable[object]]
Receive = Callable[[str, str, int], Coroutine[Any, Any, list[float]]]


async def publish_by_timetable(publish: Publish, count: int, rate: int = RATE) -> None:
    """Send ``count`` values, each at its due moment or as soon after as the loop can."""
    began_s = time.monotonic() + _LEAD_S
    tasks: set[asyncio.Task[Any]] = set()
    for number in range(count):
        due_s = began_s + number / rate
        delay_s = due_s - time.monotonic()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        value = int(due_s * 1e9).to_bytes(8, "little") + _PADDING
        task = asyncio.ensure_future(publish(value))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


def publish_goq(url: str, topic: str, count: int) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client:
            await client.publish(topic, b"0" * 1000)
            await publish_by_timetable(lambda value: client.publish(topic, value), count)

    asyncio.run(main())


def publish_timed(url: str, topic: str, count: int, written: str, rate: int = RATE) -> None:
    """Publish by the timetable; write down how late each was stored, in milliseconds."""
    late_ms: list[float] = []

    async def main() -> None:
        async with AsyncClient(url) as client:

            async def publish(value: bytes) -> None:
                await client.publish(topic, value)
                late_ms.append(_lateness_ms(value))

            await client.publish(topic, b"0" * 1000)
            await publish_by_timetable(publish, count, rate)

    asyncio.run(main())
    Path(written).write_text(json.dumps(late_ms))


def _publish_redis(port: int, count: int) -> None:
    import redis.asyncio

    async def main() -> None:
        pool = redis.asyncio.BlockingConnectionPool(port=port, max_connections=64, timeout=60)
        async with redis.asyncio.Redis(connection_pool=pool) as client:
            await client.xadd(resp.STREAM, {"v": b"0" * 1000})
            await publish_by_timetable(lambda value: client.xadd(resp.STREAM, {"v": value}), count)

    asyncio.run(main())


def beside(work: Callable[..., None], *arguments: object) -> BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    return process


def _lateness_ms(value: bytes) -> float:
    return (time.monotonic_ns() - int.from_bytes(value[:8], "little")) / 1e6


def quantiles(late_ms: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    late_ms.sort()
    return late_ms[len(late_ms) // 2], late_ms[len(late_ms) * 99 // 100]


class _Acks:
    """Acks under way, beside the work of a consumer."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    def begin(self, ack: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(ack)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def wait(self) -> None:
        await asyncio.gather(*self._under_way)


async def receive_goq(url: str, topic: str, count: int) -> list[float]:
    """Receive with a request always waiting: acks go beside it."""
    late_ms: list[float] = []
    acks = _Acks()
    async with AsyncClient(url) as client:
        while len(late_ms) < count + 1:
            batch = await client.receive_batch(topic, "bench", wait="10s")
            late_ms += [_lateness_ms(value) for value in batch.values() if value]
            acks.begin(batch.ack())
        await acks.wait()
    return late_ms[1:]


async def consume_goq(url: str, topic: str, count: int) -> list[float]:
    """Consume by a loop, to which the node streams messages."""
    late_ms: list[float] = []
    acks = _Acks()
    async with AsyncClient(url) as client:
        async for message in client.consume(topic, group="bench", max_messages=count + 1):
            late_ms.append(_lateness_ms(message.value or b""))
            acks.begin(message.ack())
        await acks.wait()
    return late_ms[1:]


async def _receive_redis(port: int, group: str, count: int) -> list[float]:

    import redis.asyncio

    late_ms: list[float] = []
    acks = _Acks()
    streams = {resp.STREAM: ">"}
    async with redis.asyncio.Redis(port=port, socket_timeout=30) as client:
        while len(late_ms) < count + 1:
            found = await client.xreadgroup(group, "c", streams, count=1000, block=10_000)
            entries = found[0][1] if found else []
            late_ms += [_lateness_ms(fields[b"v"]) for _, fields in entries]
            if entries:
                ids = [entry_id for entry_id, _ in entries]
                acks.begin(client.xack(resp.STREAM, group, *ids))
        await acks.wait()
    return late_ms[1:]


def _latency_of(receive: Receive) -> Callable[[Place], tuple[float, float]]:
    """Return the work whose quantiles are in milliseconds."""

    def latency(place: Place) -> tuple[float, float]:
        topic, count = fresh_topic(place.goq), place.scaled(10_000, 1000)
        sender = beside(publish_goq, place.goq.url, topic, count)
        late_ms = asyncio.run(receive(place.goq.url, topic, count))
        sender.join()
        return quantiles(late_ms)

    return latency


def latency_redis(place: Place) -> tuple[float, float]:
    """The same on a stream."""
    import redis

    assert place.redis is not None
    port, count = place.redis.port, place.scaled(10_000, 1000)
    group = secrets.token_hex(4)
    with redis.Redis(port=port) as client:
        client.xgroup_create(resp.STREAM, group, id="$", mkstream=True)
    sender = beside(_publish_redis, port, count)
    late_ms = asyncio.run(_receive_redis(port, group, count))
    sender.join()
    return quantiles(late_ms)


_TEXT = f"publish to delivered, waiting consumer, {RATE:,} msg/s"
WORKS = [
    Work(
        [
            Row("latency-p50", f"{_TEXT}: p50", "ms", 1.5, at_most=True),
            Row("latency-p99", f"{_TEXT}: p99", "ms", 10, at_most=True),
        ],
        _latency_of(receive_goq),
        latency_redis,
    ),
    Work(
        [
            Row("latency-loop-p50", f"{_TEXT} by client.consume: p50", "ms", 1.5, at_most=True),
            Row("latency-loop-p99", f"{_TEXT} by client.consume: p99", "ms", 10, at_most=True),
        ],
        _latency_of(consume_goq),
        latency_redis,
    ),
]
