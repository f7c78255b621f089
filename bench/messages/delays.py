"""Rows of messages that wait for their time: how late they come, and what many far ones cost."""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import struct
import time
from collections.abc import Iterator
from typing import Any

from bench.harness import frames
from bench.harness.loader import Request, http_answer_length, load
from bench.harness.rows import Place, Row, Work
from bench.harness.servers import GoqNode
from bench.harness.topics import fresh_topic
from goq.client import AsyncClient
from goq.frame.encoder import Columns, encode_frame

PENDING = 100_000
PENDING_PER_S = 2_000
FAR = 10_000_000
CONSUMERS = 4
PARTITIONS = 6
_BATCH = 1000
_FAR_BATCH = 10_000
_LEAD_S = 5.0  # to publish them all before the first is due
_DAY_MS = 86_400_000
_DUE = struct.Struct("<q")


def _body(partition: int, values: list[bytes], due_ms: list[int]) -> bytes:
    return partition.to_bytes(4, "little") + encode_frame(Columns(values, deliver_at_ms=due_ms))


def _due_batches(topic: str, due_ms: list[int]) -> Iterator[Request]:
    """Yield requests of messages whose value says when they are due."""
    for number, start in enumerate(range(0, len(due_ms), _BATCH)):
        some = due_ms[start : start + _BATCH]
        body = _body(number % PARTITIONS, [_DUE.pack(due) for due in some], some)
        yield frames.request_head(topic, len(body)), body


async def _lateness_ms(url: str, topic: str, count: int) -> list[float]:
    """Receive so many with requests that wait, acks beside them; return how late each came."""
    late_ms: list[float] = []
    acks: set[asyncio.Task[Any]] = set()

    async def consume(client: AsyncClient) -> None:
        while len(late_ms) < count:
            batch = await client.receive_batch(topic, "bench", max_messages=_BATCH, wait="1s")
            now_ms = time.time_ns() / 1e6
            late_ms.extend(now_ms - _DUE.unpack(value)[0] for value in batch.values() if value)
            ack = asyncio.ensure_future(batch.ack())
            acks.add(ack)
            ack.add_done_callback(acks.discard)

    async with AsyncClient(url) as client:
        await asyncio.gather(*(consume(client) for _ in range(CONSUMERS)))
        await asyncio.gather(*acks)
    return late_ms


def _lateness(place: Place) -> tuple[float, float, float]:
    """Return the median, the 99th percentile and the earliest, in milliseconds."""
    topic, count = fresh_topic(place.goq), place.scaled(PENDING, 20_000)
    first_ms = time.time_ns() // 1_000_000 + round(1000 * _LEAD_S)
    due_ms = [first_ms + number * 1000 // PENDING_PER_S for number in range(count)]
    random.Random(20_261_121).shuffle(due_ms)
    requests = _due_batches(topic, due_ms)
    load(place.goq.port, [requests] * PARTITIONS, -(-count // _BATCH), http_answer_length)
    if time.time_ns() // 1_000_000 >= first_ms:
        raise RuntimeError("the first was due before the last was published")
    late_ms = sorted(asyncio.run(_lateness_ms(place.goq.url, topic, count)))
    return late_ms[count // 2], late_ms[count * 99 // 100], max(0.0, -late_ms[0])


def _far(place: Place) -> tuple[float, float, float, float]:
    """Return growth while publishing, the whole start after it, growth then, the publish rate."""
    folder = place.folder / f"far-{secrets.token_hex(4)}"
    count = place.scaled(FAR)
    draw, now_ms = random.Random(20_261_121), time.time_ns() // 1_000_000
    values = frames.values(_FAR_BATCH, 10)
    with GoqNode(folder) as node:
        topic, before_mb = fresh_topic(node), node.rss_mb()
        callers = []
        for number in range(PARTITIONS):
            due_ms = [now_ms + draw.randrange(25 * _DAY_MS, 35 * _DAY_MS) for _ in values]
            body = _body(number, values, due_ms)
            callers.append(itertools.repeat((frames.request_head(topic, len(body)), body)))
        seconds = load(node.port, callers, count // _FAR_BATCH, http_answer_length)
        grown_mb = node.rss_mb() - before_mb
    began_s = time.perf_counter()
    with GoqNode(folder) as node:
        opened_s = time.perf_counter() - began_s
        return grown_mb, opened_s, node.rss_mb() - before_mb, count / seconds


_NEAR = f"{PENDING:,} delayed messages, {PENDING_PER_S:,} due a second"
_MONTH = f"{FAR // 1_000_000} million messages delayed by about a month"
WORKS = [
    Work(
        [
            Row("delayed-p50", f"{_NEAR}: due to delivered, p50", "ms"),
            Row("delayed-p99", f"{_NEAR}: due to delivered, p99", "ms", 20, at_most=True),
            Row("delayed-early", f"{_NEAR}: the one that came earliest, early by", "ms"),
        ],
        _lateness,
    ),
    Work(
        [
            Row("far-rss", f"{_MONTH}: the node grows", "MB", 200, at_most=True),
            Row("far-open", f"{_MONTH}: the whole start of a node", "s", 2, at_most=True),
            Row("far-open-rss", f"{_MONTH}: memory after it", "MB", 200, at_most=True),
            Row("far-publish", f"{_MONTH}: publish, batches of {_FAR_BATCH}", "msg/s"),
        ],
        _far,
    ),
]
