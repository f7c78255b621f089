"""Rows that receive and ack what a topic was filled with beforehand."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from bench.harness import frames, resp
from bench.harness.rows import Measure, Place, Row, Work
from bench.harness.topics import fill
from goq.client import AsyncClient, Client

TOPIC = "filled"
BATCH = 1000
MESSAGES = 600_000
MESSAGES_REDIS = 100_000


def _fill(place: Place) -> None:
    with Client(place.goq.url) as client:
        client.create_topic(TOPIC)
    fill(place.goq, TOPIC, place.scaled(MESSAGES, 30_000))


def _fill_redis(place: Place) -> None:
    import redis

    assert place.redis is not None
    values = frames.values(BATCH, 1000)
    with redis.Redis(port=place.redis.port) as client:
        for _ in range(place.scaled(MESSAGES_REDIS, 10_000) // BATCH):
            pipeline = client.pipeline(transaction=False)
            for value in values:
                pipeline.xadd(resp.STREAM, {"v": value})
            pipeline.execute()


def rate(consumers: int, *, split: bool) -> Measure:
    """Receive and ack all there is, as a new group; with ``split`` have each value as bytes."""

    def measure(place: Place) -> float:
        group = f"g-{secrets.token_hex(4)}"

        async def consume(client: AsyncClient) -> int:
            done = 0
            while len(batch := await client.receive_batch(TOPIC, group, max_messages=BATCH)):
                if split:
                    assert len(list(batch.values())) == len(batch)
                done += (await batch.ack()).done
            return done

        async def main() -> float:
            async with AsyncClient(place.goq.url) as client:
                began_s = time.perf_counter()
                done = sum(await asyncio.gather(*(consume(client) for _ in range(consumers))))
                return done / (time.perf_counter() - began_s)

        return asyncio.run(main())

    return measure


def rate_redis(consumers: int) -> Measure:
    """XREADGROUP and XACK, a thousand at a time."""

    def measure(place: Place) -> float:
        import redis.asyncio

        assert place.redis is not None
        port, group = place.redis.port, f"g-{secrets.token_hex(4)}"

        async def consume(client: Any, name: str) -> int:
            done = 0
            streams = {resp.STREAM: ">"}
            while found := await client.xreadgroup(group, name, streams, count=BATCH):
                ids = [entry_id for entry_id, _ in found[0][1]]
                done += await client.xack(resp.STREAM, group, *ids)
            return done

        async def main() -> float:
            async with redis.asyncio.Redis(port=port) as client:
                await client.xgroup_create(resp.STREAM, group, id="0")
                began_s = time.perf_counter()
                counts = await asyncio.gather(
                    *(consume(client, f"c{number}") for number in range(consumers))
                )
                return sum(counts) / (time.perf_counter() - began_s)

        return asyncio.run(main())

    return measure


def in_turn(by: int, count: int) -> Measure:
    """Receive and ack ``by`` messages at a time, one request after the other."""

    def measure(place: Place) -> float:
        group, rounds = f"g-{secrets.token_hex(4)}", place.scaled(count, 100)
        with Client(place.goq.url) as client:
            client.receive_batch(TOPIC, group, max_messages=by).ack()
            began_s = time.perf_counter()
            for _ in range(rounds):
                batch = client.receive_batch(TOPIC, group, max_messages=by)
                assert len(batch) == by
                assert batch.ack().done == by
            return rounds * by / (time.perf_counter() - began_s)

    return measure


def in_turn_redis(by: int, count: int) -> Measure:
    """XREADGROUP and XACK, the same."""

    def measure(place: Place) -> float:
        import redis

        assert place.redis is not None
        group, rounds = f"g-{secrets.token_hex(4)}", place.scaled(count, 100)
        with redis.Redis(port=place.redis.port) as client:
            client.xgroup_create(resp.STREAM, group, id="0")
            began_s = time.perf_counter()
            for _ in range(rounds):
                found = client.xreadgroup(group, "c", {resp.STREAM: ">"}, count=by)
                ids = [entry_id for entry_id, _ in found[0][1]]
                assert client.xack(resp.STREAM, group, *ids) == by
            return rounds * by / (time.perf_counter() - began_s)

    return measure


def _in_turn(by: int, count: int) -> Work:
    return Work(
        [Row(f"receive-by-{by}", f"receive + ack by {by}, one consumer: goq.Client", "msg/s")],
        in_turn(by, count),
        in_turn_redis(by, count),
        prepare=_fill,
        prepare_redis=_fill_redis,
    )


def _work(name: str, text: str, consumers: int, *, split: bool) -> Work:
    return Work(
        [Row(name, f"receive + ack, batches of {BATCH}, {text}", "msg/s", 500_000)],
        rate(consumers, split=split),
        rate_redis(consumers),
        prepare=_fill,
        prepare_redis=_fill_redis,
    )


WORKS = [
    _in_turn(1, 3000),
    _in_turn(100, 800),
    _work("receive-1", "1 consumer, unsplit", 1, split=False),
    _work("receive-4", "4 consumers, unsplit", 4, split=False),
    _work("receive-1-values", "1 consumer, each value as bytes", 1, split=True),
    _work("receive-4-values", "4 consumers, each value as bytes", 4, split=True),
]
