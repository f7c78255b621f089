"""Rows of a topic that uses everything at once: three lanes, keys and a thousand tenants.

The same loaders publish to and receive from a plain topic in the same repetition: what the mixture
costs is the ratio, which a machine that drifts leaves alone.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import time
from collections.abc import Iterator

from bench.harness import frames
from bench.harness.loader import http_answer_length, load
from bench.harness.rows import Measure, Place, Row, Work
from bench.harness.topics import fresh_topic
from goq.client import AsyncClient, Client
from goq.client.delivery_options import TopicPublishSettings
from goq.client.message_batch import MessageBatch
from goq.frame.encoder import encode_frame
from goq.model import Message

BATCH = 1000
CONNECTIONS = 8
CONSUMERS = 4
LANES = 3
TENANTS = 1000
KEYS = 100_000
PARTITIONS = 6
_BODIES = 20


def mixed_messages(draw: random.Random, count: int, size_bytes: int) -> list[Message]:
    """Return messages of random lanes, keys and tenants."""
    return [
        Message(
            value,
            key=f"key-{draw.randrange(KEYS)}".encode(),
            lane=draw.randrange(LANES),
            tenant=f"tenant-{draw.randrange(TENANTS)}",
        )
        for value in frames.values(count, size_bytes)
    ]


def body_of(messages: list[Message]) -> bytes:
    """Return the body that publishes messages, each in the partition of its key."""
    batch = MessageBatch()
    batch.add_messages(messages, 0)
    return b"".join(
        share.partition.to_bytes(4, "little") + encode_frame(share.columns)
        for share in batch.divide(PARTITIONS, keyless_to=0, topic=TopicPublishSettings())
    )


def requests(topic: str, bodies: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield requests that publish these bodies in turn, for ever."""
    return itertools.cycle([(frames.request_head(topic, len(body)), body) for body in bodies])


def _publish(place: Place, topic: str, bodies: list[bytes], batches: int) -> float:
    """Publish over eight connections, each with another of the bodies first; return the rate."""
    callers = []
    for number in range(CONNECTIONS):
        first = number * len(bodies) // CONNECTIONS
        callers.append(requests(topic, bodies[first:] + bodies[:first]))
    return batches * BATCH / load(place.goq.port, callers, batches, http_answer_length)


def _begin_group(place: Place, topic: str) -> str:
    """Let a group begin, so that publishing has to keep what it will receive; return its name."""
    group = f"g-{secrets.token_hex(4)}"
    with Client(place.goq.url) as client:
        client.receive_batch(topic, group)
    return group


def _receive(place: Place, topic: str, group: str, count: int) -> float:
    """Receive and ack all there is, by four consumers; return the rate."""

    async def consume(client: AsyncClient) -> int:
        done = 0
        while len(batch := await client.receive_batch(topic, group, max_messages=BATCH)):
            done += (await batch.ack()).done
        return done

    async def main() -> float:
        async with AsyncClient(place.goq.url) as client:
            began_s = time.perf_counter()
            done = sum(await asyncio.gather(*(consume(client) for _ in range(CONSUMERS))))
            seconds = time.perf_counter() - began_s
            while done < count:  # what was behind a key that another consumer had, at the end
                done += await consume(client)
        return count / seconds

    return asyncio.run(main())


def _rates(size_bytes: int, messages: int) -> Measure:
    def measure(place: Place) -> tuple[float, ...]:
        batches = place.scaled(messages // BATCH, 50)
        draw = random.Random(20_261_121)
        mixed = [body_of(mixed_messages(draw, BATCH, size_bytes)) for _ in range(_BODIES)]
        plain = [frames.anonymous_body(frames.values(BATCH, size_bytes))] * CONNECTIONS
        rates = []
        for bodies in (plain, mixed):
            topic = fresh_topic(place.goq)
            group = _begin_group(place, topic)
            rates.append(_publish(place, topic, bodies, batches))
            rates.append(_receive(place, topic, group, batches * BATCH))
        plain_in, plain_out, mixed_in, mixed_out = rates
        return mixed_in, plain_in, mixed_in / plain_in, mixed_out, plain_out, mixed_out / plain_out

    return measure


def _work(name: str, size_bytes: int, messages: int) -> Work:
    size = "1 KB" if size_bytes == 1000 else f"{size_bytes} B"
    mixture = f"{LANES} lanes, keys, {TENANTS:,} tenants, batches of {BATCH}, {size}"
    given = f"{mixture}: publish, {CONNECTIONS} connections"
    taken = f"{mixture}: receive + ack, {CONSUMERS} consumers"
    return Work(
        [
            Row(f"{name}-publish", given, "msg/s", 200_000),
            Row(f"{name}-publish-plain", f"plain, {size}: publish", "msg/s"),
            Row(f"{name}-publish-ratio", f"{given}: to plain", "of plain"),
            Row(f"{name}-receive", taken, "msg/s", 100_000),
            Row(f"{name}-receive-plain", f"plain, {size}: receive + ack", "msg/s"),
            Row(f"{name}-receive-ratio", f"{taken}: to plain", "of plain"),
        ],
        _rates(size_bytes, messages),
    )


WORKS = [_work("mixed-100b", 100, 1_000_000), _work("mixed-1kb", 1000, 400_000)]
