"""Rows of the past: how long it takes to tell of a group as it was, after a day of traffic."""

from __future__ import annotations

import asyncio
import itertools
import time
from statistics import median

from bench.harness import frames
from bench.harness.loader import http_answer_length, load
from bench.harness.rows import Place, Row, Work
from goq.client import AsyncClient, AsyncReceivedMessage, Client

TOPIC, GROUP = "day", "g"
PUBLISHED = 5_000_000
BATCH, SIZE_BYTES = 1000, 100
PARTITIONS = 6
SINGLES = 100_000
ROUNDS = 20
CONNECTIONS = 6
MOMENTS = 5
_NACKED_EVERY = 10

_moments_us: list[int] = []


def _prepare(place: Place) -> None:
    """Publish in batches and settle one by one, in turns, and note some moments."""
    published, singles = place.scaled(PUBLISHED // ROUNDS), place.scaled(SINGLES // ROUNDS)
    with Client(place.goq.url) as client:
        client.create_topic(TOPIC, PARTITIONS)
    _moments_us.clear()
    for _ in range(ROUNDS):
        _publish(place, published)
        asyncio.run(_settle_singly(place.goq.url, singles))
        _moments_us.append(time.time_ns() // 1000)


def _publish(place: Place, messages: int) -> None:
    values = frames.values(BATCH, SIZE_BYTES)
    callers = []
    for number in range(CONNECTIONS):
        body = frames.anonymous_body(values, partition=number % PARTITIONS)
        callers.append(itertools.repeat((frames.request_head(TOPIC, len(body)), body)))
    load(place.goq.port, callers, messages // BATCH, http_answer_length)


async def _settle_singly(url: str, count: int) -> None:
    async def settle(client: AsyncClient, messages: list[AsyncReceivedMessage]) -> None:
        for number, message in enumerate(messages):
            if number % _NACKED_EVERY:
                await message.ack()
            else:
                await message.nack(delay="1h")

    async with AsyncClient(url) as client:
        while count > 0:
            found = list(await client.receive(TOPIC, GROUP, max_messages=min(count, 1000)))
            count -= len(found)
            some = [found[number::CONNECTIONS] for number in range(CONNECTIONS)]
            await asyncio.gather(*(settle(client, each) for each in some))


def _ask(place: Place) -> tuple[float, float]:
    """Return the median and the longest time that an answer took, in milliseconds."""
    took_ms: list[float] = []
    with Client(place.goq.url) as client:
        for at_us in _moments_us[:: max(1, ROUNDS // MOMENTS)] + _moments_us[-1:]:
            began_s = time.perf_counter()
            client.describe_group(TOPIC, GROUP, as_of=at_us // 1000)
            took_ms.append(1000 * (time.perf_counter() - began_s))
    return median(took_ms), max(took_ms)


WORKS = [
    Work(
        (
            Row(
                "past_group",
                "a group as it was, 5 M messages and 100 k acks",
                "ms",
                1000.0,
                at_most=True,
            ),
            Row("past_group_worst", "the slowest of some moments", "ms", 1000.0, at_most=True),
        ),
        _ask,
        prepare=_prepare,
    )
]
