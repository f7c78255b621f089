"""Topics of a node for one measurement each: made with the client, filled with the raw loader."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from bench.harness import frames
from bench.harness.loader import Request, http_answer_length, load
from bench.harness.servers import GoqNode
from goq.client import Client


def fresh_topic(node: GoqNode, partitions: int | None = None) -> str:
    """Make a topic with the default settings; return its name."""
    name = f"bench-{secrets.token_hex(4)}"
    with Client(node.url) as client:
        client.create_topic(name, partitions)
    return name


def numbered_callers(
    topic: str, connections: int, batch: int, size_bytes: int
) -> list[Iterator[Request]]:
    """Return what so many connections send, each as a producer of its own."""
    values = frames.values(batch, size_bytes)
    return [
        frames.numbered_requests(topic, values, partition=number % 6, producer_id=number + 1)
        for number in range(connections)
    ]


def fill(node: GoqNode, topic: str, messages: int, size_bytes: int = 1000) -> None:
    """Publish so many messages in batches of 1000."""
    callers = numbered_callers(topic, 6, 1000, size_bytes)
    load(node.port, callers, messages // 1000, http_answer_length)
