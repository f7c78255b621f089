"""A node with something of everything that a backup must keep, and a view of it to compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import goq
from goq.client import Client
from goq.errors import TopicNotFound
from tests.support.eventually import eventually

SETTINGS = {"defaults.topic.partitions": 2, "defaults.delivery.backoff.initial": "1ms"}
TOPICS = ("orders", "orders.dlq", "payments")


def fill(q: Client) -> None:
    """Publish, lease, settle, delay and give up messages."""
    segments = {"segment.bytes": "64KiB"}
    q.create_topic("orders", partitions=2, settings=segments)
    q.create_topic("payments", partitions=1)
    for number in range(60):
        q.publish("orders", bytes([number]) * 4000, key=f"order-{number}")
    q.publish("orders", b"later", key="late", delay="30d")
    q.publish("orders", b"once", key="once", dedup_id="once")
    q.set_group_config("orders", "billing", {"max_attempts": 7})
    first = q.receive("orders", "billing", max_messages=20, visibility="1h")
    for message in first[:10]:
        message.ack()
    first[10].nack(delay="1h", reason="busy")
    first[11].reject("broken")
    eventually(lambda: dead_letter_count(q, "orders") == 1, seconds=30)
    q.publish_many("payments", [b"a", b"b", b"c"])
    for message in q.receive("payments", "books", max_messages=2):
        message.ack()


def dead_letter_count(q: Client, topic: str) -> int:
    """Return the number of dead letters of a topic."""
    try:
        return len(q.list_dead_letters(topic).messages)
    except TopicNotFound:  # their topic is created with the first
        return 0


def view(q: Client, topics: Sequence[str] = TOPICS) -> dict[str, Any]:
    """Return what clients see of the topics."""
    seen: dict[str, Any] = {}
    for name in topics:
        topic = q.describe_topic(name)
        messages = [(str(m.id), bytes(m.value or b""), m.key) for m in q.read_log(name)]
        groups = {}
        for listed in q.list_groups(name):
            group = q.describe_group(name, listed.group)
            groups[group.group] = (group.lag, group.scheduled, group.dead)
        scheduled = [str(m.id) for m in q.list_scheduled(name).messages]
        seen[name] = (topic.settings, sorted(messages), groups, scheduled)
    return seen


def stopped_source(data_dir: Path) -> dict[str, Any]:
    """Fill a data folder, stop its node, and return the view of it."""
    with goq.Node(data_dir, settings=SETTINGS) as node, node.client() as q:
        fill(q)
        return view(q)


def view_of(data_dir: Path, topics: Sequence[str] = TOPICS) -> dict[str, Any]:
    """Start a node on a folder and return the view of it."""
    with goq.Node(data_dir, settings=SETTINGS) as node, node.client() as q:
        return view(q, topics)
