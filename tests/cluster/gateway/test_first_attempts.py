"""Where nothing fails each message comes once, at its first attempt, whatever asks for it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from goq.client import AsyncClient, Client
from tests.support.cluster.running_cluster import RunningCluster
from tests.support.effort import first_of
from tests.support.node.running_node import RunningNode

MESSAGES = 60
PATIENCE_S = 60.0


class Seen:
    """What consumers got, until there is enough."""

    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        self.ids = Counter[str]()
        self.attempts = Counter[int]()
        self.is_enough = threading.Event()
        self._lock = threading.Lock()

    def add(self, message_id: str, attempt: int) -> None:
        with self._lock:
            self.ids[message_id] += 1
            self.attempts[attempt] += 1

    @property
    def path(self) -> str:
        return f"/v1/topics/{self.topic}/groups/{self.group}"


def _by_polls(node: RunningNode, seen: Seen, asked: int = 10) -> None:
    while not seen.is_enough.is_set():
        body = {"max_messages": asked, "wait": "300ms"}
        messages = node.call("POST", f"{seen.path}/receive", body)["messages"]
        _take(node, seen, messages)


def _by_single_polls(node: RunningNode, seen: Seen) -> None:
    _by_polls(node, seen, 1)


def _by_streams_with_a_limit(node: RunningNode, seen: Seen) -> None:
    while not seen.is_enough.is_set():
        connection = http.client.HTTPConnection(*node.address, timeout=60)
        body = json.dumps({"stream": True, "limit": 1, "max_in_flight": 1})
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"{seen.path}/receive", body, headers)
        lines = connection.getresponse().read().split()
        connection.close()
        _take(node, seen, [json.loads(line) for line in lines])


def _take(node: RunningNode, seen: Seen, messages: list[dict[str, object]]) -> None:
    for message in messages:
        seen.add(str(message["id"]), int(str(message["attempt"])))
    if messages:
        receipts = {"receipts": [message["receipt"] for message in messages]}
        settled = node.call("POST", f"{seen.path}/ack", receipts)
        assert settled == {"settled": len(messages), "failed": []}


def _by_client(node: RunningNode, seen: Seen) -> None:
    with Client(node.url) as client:
        while not seen.is_enough.is_set():
            for message in client.consume(seen.topic, group=seen.group, timeout="300ms"):
                seen.add(str(message.id), message.attempt)
                message.ack()


def _by_async_client(node: RunningNode, seen: Seen) -> None:
    async def consume() -> None:
        async with AsyncClient(node.url) as client:
            while not seen.is_enough.is_set():
                async for message in client.consume(seen.topic, group=seen.group, timeout="300ms"):
                    seen.add(str(message.id), message.attempt)
                    await message.ack()

    asyncio.run(consume())


@pytest.mark.parametrize(
    "consume",
    first_of(
        [_by_streams_with_a_limit, _by_async_client, _by_polls, _by_single_polls, _by_client],
        quick=2,
    ),
)
def test_each_message_comes_once_and_at_its_first_attempt_through_any_node(
    cluster: RunningCluster,
    topic: str,
    consume: Callable[[RunningNode, Seen], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Tried again with another group if not: a node that stands still loses its streams."""
    settings = {"delivery": {"visibility_timeout": f"{2 * PATIENCE_S}s"}}
    cluster.nodes[0].call("PATCH", f"/v1/topics/{topic}", {"settings": settings})
    quiet = 0
    for number in range(10):
        caplog.clear()
        if _comes_once(cluster, Seen(topic, f"g{number}"), consume):
            return
        quiet += not any(record.name.startswith("goq.cluster") for record in caplog.records)
        assert quiet < 3, "though all nodes heard each other"
    pytest.fail("not in any of ten groups")


def _comes_once(
    cluster: RunningCluster, seen: Seen, consume: Callable[[RunningNode, Seen], None]
) -> bool:
    with ThreadPoolExecutor(3) as threads:
        consuming = [threads.submit(consume, node, seen) for node in cluster.nodes]
        sent = set[str]()
        until_s = time.monotonic() + PATIENCE_S
        try:
            for number in range(MESSAGES):
                sent.add(_published(cluster.nodes[number // 6 % 3], seen.topic, number % 6))
            while sent - seen.ids.keys() and time.monotonic() < until_s:
                time.sleep(0.05)
        finally:
            is_whole = not sent - seen.ids.keys()
            seen.is_enough.set()
            for number in range(2 * len(consuming)):  # the last that each may wait for
                _published(cluster.nodes[0], seen.topic, number % 6)
        for each in consuming:
            each.result()
    return is_whole and set(seen.ids.values()) == set(seen.attempts) == {1}


def _published(node: RunningNode, topic: str, partition: int) -> str:
    messages = {"messages": [{"value": "v", "partition": partition}]}
    answer = node.call("POST", f"/v1/topics/{topic}/messages", messages)
    return str(answer["results"][0]["id"])
