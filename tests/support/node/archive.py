"""Bringing messages of a running node into its archive, or past it, when a test wants that."""

from __future__ import annotations

from collections.abc import Sequence

from goq.client import Client
from tests.support.node.running_node import RunningNode

VALUE_BYTES = 40_000  # more than half of the least that a topic keeps: so only the last one stays


def value_of(number: int) -> bytes:
    """Return the value of the message with that number."""
    return b"%d " % number + b"x" * VALUE_BYTES


def publish_segments(
    node: RunningNode, topic: str, numbers: Sequence[int], *, partition: int = 0, each: int = 1
) -> None:
    """Publish messages, so many ``each`` into a segment of their own."""
    with Client(node.url) as client:
        for place, number in enumerate(numbers, start=1):
            client.publish(topic, value_of(number), key=f"k{number}", partition=partition)
            if place % each == 0:
                roll(node, topic, partition)


def roll(node: RunningNode, topic: str, partition: int = 0) -> None:
    """Seal the segments that are written to."""
    broker = node.node.broker
    assert broker is not None
    node.on_loop(broker.topics[topic].partitions[partition].trimmer.roll)


def retire(node: RunningNode, topic: str, *, archive: bool) -> None:
    """Let retention have all segments but the last, and the archive if it is to have them."""
    settings = {"archive": archive, "retention.bytes": "64KiB", "retention.age": None}
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": settings})
    broker = node.node.broker
    assert broker is not None
    node.on_loop(broker.retention_manager.apply)
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": {"retention.bytes": None}})
