"""Rows of topics that grow: what their backlog costs an ack, and groups without consumers."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable
from statistics import median

from bench.harness import frames
from bench.harness.loader import http_answer_length, load
from bench.harness.rows import Place, Row, Work
from bench.harness.servers import GoqNode
from bench.harness.topics import fresh_topic
from goq.client import Client

SIZE_BYTES = 10
BATCH = 10_000
ACKS = 500
FEW = 1_000
MANY = 10_000_000
GROWN = 50_000_000
GROUPS = 100
CONNECTIONS = 6


def fill_small(node: GoqNode, topic: str, messages: int, *, batch: int = BATCH) -> float:
    """Publish so many values of 10 B in large batches, to all partitions; return the seconds."""
    batch = min(batch, messages)
    values = frames.values(batch, SIZE_BYTES)
    callers = []
    for number in range(CONNECTIONS):
        body = frames.anonymous_body(values, partition=number)
        callers.append(itertools.repeat((frames.request_head(topic, len(body)), body)))
    return load(node.port, callers, max(1, messages // batch), http_answer_length)


def _prepare_acks(place: Place) -> None:
    for name, messages in (("few", FEW), ("many", place.scaled(MANY))):
        with Client(place.goq.url) as client:
            client.create_topic(name)
        fill_small(place.goq, name, messages)


def _acks(place: Place) -> tuple[float, float, float]:
    """Return what one ack takes with either backlog, in turns, and how the CPU times compare."""
    group = f"g-{secrets.token_hex(4)}"
    took_s: dict[str, list[float]] = {"few": [], "many": []}
    cpu_s = {"few": 0.0, "many": 0.0}
    with Client(place.goq.url) as client:
        batches = {name: client.receive(name, group, max_messages=ACKS) for name in took_s}
        for pair in zip(*batches.values(), strict=True):
            for name, message in zip(took_s, pair, strict=True):
                before_s, began_s = place.goq.cpu_s(), time.perf_counter()
                message.ack()
                took_s[name].append(time.perf_counter() - began_s)
                cpu_s[name] += place.goq.cpu_s() - before_s
    few, many = (1e6 * median(took_s[name]) for name in ("few", "many"))
    return few, many, cpu_s["many"] / cpu_s["few"]


def _unread(groups: int) -> Callable[[Place], tuple[float, float]]:
    def measure(place: Place) -> tuple[float, float]:
        folder = place.folder / f"unread-{secrets.token_hex(4)}"
        with GoqNode(folder) as node:
            topic = fresh_topic(node)
            with Client(node.url) as client:
                for number in range(groups):
                    client.receive_batch(topic, f"group-{number}")
            fill_small(node, topic, CONNECTIONS * BATCH)  # what is kept once is not growth
            before_mb, messages = node.rss_mb(), place.scaled(GROWN)
            rate = messages / fill_small(node, topic, messages)
            return node.rss_mb() - before_mb, rate

    return measure


def _unread_both(place: Place) -> tuple[float, ...]:
    none_mb, none_rate = _unread(0)(place)
    some_mb, some_rate = _unread(GROUPS)(place)
    return none_mb, some_mb, none_rate, some_rate, some_rate / none_rate


_GROWS = f"topic grows by {GROWN // 1_000_000} million messages of {SIZE_BYTES} B"
WORKS = [
    Work(
        [
            Row("ack-few", f"ack of one message, {FEW:,} in the topic: median", "µs"),
            Row(
                "ack-many",
                f"ack of one message, {MANY // 1_000_000} million in the topic: median",
                "µs",
                1.25,
                target_of="ack-few",
                at_most=True,
            ),
            Row("ack-cpu", "the node's CPU for it, many to few", "times", 1.25, at_most=True),
        ],
        _acks,
        prepare=_prepare_acks,
    ),
    Work(
        [
            Row("unread-none", f"{_GROWS}, no group: the node grows", "MB"),
            Row("unread-some", f"the same, {GROUPS} groups without consumers", "MB"),
            Row("unread-none-rate", f"{_GROWS}, no group: publish", "msg/s"),
            Row("unread-some-rate", f"the same, {GROUPS} groups without consumers", "msg/s"),
            Row("unread-ratio", f"publish with {GROUPS} such groups to none", "times", 0.9),
        ],
        _unread_both,
    ),
]
