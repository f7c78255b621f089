"""Partitions added under a client that goes on publishing, on a node as users run it."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

from goq.broker.topic.partition_opener import _OPENED_AT_ONCE
from goq.client import AsyncClient, Client
from goq.frame.hashes import partition_of
from goq.model import Message
from tests.support.node.running_node import running_node

KEYS = [f"key-{n}" for n in range(40)]


def test_a_client_divides_by_the_new_number_from_its_second_request_on() -> None:
    with running_node() as node, Client(node.url) as client, Client(node.url) as reader:
        client.create_topic("t", partitions=2)
        producer = client.producer("t", linger=0)
        client.publish_many("t", [Message(b"0", key.encode()) for key in KEYS])
        producer.send(b"p", key="other")
        producer.flush()
        client.alter_topic("t", partitions=7)
        for number in (1, 2, 3):
            for key in KEYS:
                published = client.publish("t", str(number), key=key)
                count = 2 if (number, key) == (1, KEYS[0]) else 7
                assert published.id.partition == partition_of(key.encode(), count)
        producer.send(b"p", key="other")
        producer.flush()
        producer.send(b"q", key="other")
        producer.close()

        found = defaultdict(list)
        for partition in range(7):
            for message in reader.read_log("t", partition=partition):
                found[message.key, partition].append(message.value)
        for (key, partition), values in found.items():
            assert values == sorted(values)  # a moved key keeps its order in each partition
            assert partition in (partition_of(key, 2), partition_of(key, 7))
        assert found[b"other", partition_of(b"other", 7)][-1:] == [b"q"]


def test_a_key_moves_once_while_partitions_are_added_under_publishers() -> None:
    """More are added than a node opens at once: publishers see the old number, then the new one."""
    with running_node() as node, Client(node.url) as client:
        client.create_topic("t", partitions=2)
        altered = threading.Event()

        def alter() -> None:
            client.alter_topic("t", partitions=2 + 4 * _OPENED_AT_ONCE)
            altered.set()

        used = defaultdict[str, set[int]](set)
        with ThreadPoolExecutor() as pool, Client(node.url) as publisher:
            altering = pool.submit(alter)
            last = False
            while not last:
                last = altered.is_set()  # one round more
                for key in KEYS:
                    used[key].add(publisher.publish("t", b"", key=key).id.partition)
            altering.result()
        for key, partitions in used.items():
            counts = (2, 2 + 4 * _OPENED_AT_ONCE)
            assert partitions <= {partition_of(key.encode(), count) for count in counts}


def test_an_asynchronous_client_learns_the_number_too() -> None:
    async def scenario(url: str) -> None:
        async with AsyncClient(url) as client:
            await client.create_topic("t", partitions=1)
            await client.publish("t", b"a")
            await client.alter_topic("t", partitions=5)
            await client.publish("t", b"b")
            for key in KEYS:
                published = await client.publish("t", b"", key=key)
                assert published.id.partition == partition_of(key.encode(), 5)

    with running_node() as node:
        asyncio.run(scenario(node.url))


def test_keyless_messages_use_all_partitions_evenly() -> None:
    with running_node() as node, Client(node.url) as client:
        client.create_topic("t", partitions=4)
        counts = [0] * 4
        for result in client.publish_many("t", [b"x" * 200] * 20_000):
            counts[result.id.partition] += 1
        assert min(counts) > 4_000
        client.create_topic("few", partitions=4)
        used = {client.publish_many("few", [b"x"])[0].id.partition for _ in range(4)}
        assert used == {0, 1, 2, 3}
