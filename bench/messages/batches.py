"""Rows that publish batches: by the client, and by a loader that leaves encoding out."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable

from bench.harness import frames, resp
from bench.harness.loader import http_answer_length, load
from bench.harness.rows import Measure, Place, Row, Work
from bench.harness.topics import fresh_topic, numbered_callers
from goq.client import AsyncClient

CONNECTIONS = 8


def client_rate(batch: int, size_bytes: int, messages: int) -> Measure:
    """Eight producers of one ``AsyncClient`` in one process."""

    def measure(place: Place) -> float:
        topic = fresh_topic(place.goq)
        values = frames.values(batch, size_bytes)
        each = place.scaled(messages // batch // CONNECTIONS, 5)

        async def produce(client: AsyncClient) -> None:
            async with client.producer(topic, batch=batch, batch_bytes="8MiB") as producer:
                for _ in range(each):
                    await producer.send_values(values)

        async def main() -> float:
            async with AsyncClient(place.goq.url) as client:
                began_s = time.perf_counter()
                await asyncio.gather(*(produce(client) for _ in range(CONNECTIONS)))
                return CONNECTIONS * each * batch / (time.perf_counter() - began_s)

        return asyncio.run(main())

    return measure


def client_rate_redis(batch: int, size_bytes: int, messages: int) -> Measure:
    """Eight threads, each with a connection, and pipelines of XADD."""

    def measure(place: Place) -> float:
        import redis

        assert place.redis is not None
        port, values = place.redis.port, frames.values(batch, size_bytes)
        each = place.scaled(messages // batch // CONNECTIONS, 2)

        def produce() -> None:
            with redis.Redis(port=port) as client:
                for _ in range(each):
                    pipeline = client.pipeline(transaction=False)
                    for value in values:
                        pipeline.xadd(resp.STREAM, {"v": value})
                    pipeline.execute()

        rate = CONNECTIONS * each * batch / _together(produce)
        _empty(place)
        return rate

    return measure


def _together(work: Callable[[], None]) -> float:
    threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began_s


def raw_rate(batch: int, size_bytes: int, messages: int) -> Measure:
    """Eight sockets in one loop, frames made beforehand, eight producers that count up."""

    def measure(place: Place) -> float:
        topic = fresh_topic(place.goq)
        count = place.scaled(messages // batch, 10)
        callers = numbered_callers(topic, CONNECTIONS, batch, size_bytes)
        return count * batch / load(place.goq.port, callers, count, http_answer_length)

    return measure


def raw_rate_redis(batch: int, size_bytes: int, messages: int) -> Measure:
    """Eight sockets in one loop, pipelines made beforehand."""

    def measure(place: Place) -> float:
        assert place.redis is not None
        count = place.scaled(messages // batch, 10)
        commands = (resp.pipeline(frames.values(batch, size_bytes)),)
        callers = [itertools.repeat(commands)] * CONNECTIONS
        seconds = load(place.redis.port, callers, count, resp.answers_length(batch))
        _empty(place)
        return count * batch / seconds

    return measure


def _empty(place: Place) -> None:
    import redis

    assert place.redis is not None
    with redis.Redis(port=place.redis.port) as client:
        client.flushall()


def _works(name: str, batch: int, size_bytes: int, messages: int, target: float) -> list[Work]:
    size = "1 KB" if size_bytes == 1000 else f"{size_bytes} B"
    text = f"batches of {batch}, {CONNECTIONS} connections, {size}"
    few = 240_000 if size_bytes == 1000 else 480_000  # Redis keeps them in memory
    return [
        Work(
            [Row(f"{name}-client", f"{text}: AsyncClient", "msg/s", target)],
            client_rate(batch, size_bytes, messages),
            client_rate_redis(batch, size_bytes, few // 2),
        ),
        Work(
            [Row(f"{name}-raw", f"{text}: raw sockets", "msg/s", target)],
            raw_rate(batch, size_bytes, messages),
            raw_rate_redis(batch, size_bytes, few),
        ),
    ]


WORKS = [
    *_works("batch-100", 100, 1000, 1_000_000, 300_000),
    *_works("batch-1000", 1000, 1000, 2_000_000, 500_000),
    *_works("batch-1000-100b", 1000, 100, 4_000_000, 1_500_000),
]
