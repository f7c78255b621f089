"""The topics of a node: how they are made, changed, followed and deleted, by what remains."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from goq import limits
from goq.broker.broker import Broker
from goq.broker.topic.publisher import RoutedMessage
from goq.errors import (
    GoqError,
    InvalidInput,
    NotAllowed,
    ShuttingDown,
    TopicExists,
    TopicNotFound,
)
from goq.model import Message
from goq.storage.node_db import DoubtKind, TopicDoubt, TopicRow
from tests.support.broker.harness import (
    MemoryMetadata,
    broker_on,
    leased,
    options,
    publish,
    receipts,
    run,
)
from tests.support.eventually import until

TOPIC_ID = 2**60 + 5


def test_a_topic_has_the_partitions_and_settings_that_were_asked_for_or_the_defaults(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata, partitions=2) as broker:
            plain = await broker.create_topic("plain")
            own = await broker.create_topic("own", 3, {"delivery.max_attempts": 7})
            assert (plain.partitions.count, own.partitions.count) == (2, 3)
            assert (plain.settings.attempts_max, own.settings.attempts_max) == (None, 7)
            assert metadata.rows["own"].partitions == 3
            assert metadata.rows["own"].settings["delivery.max_attempts"] == "7"
            assert broker.topic("own") is own
            assert broker.settings_for_publish("own") is own.settings
            assert broker.settings_for_publish("other") == plain.settings
            for name, error in (
                ("own", TopicExists),
                ("a b", InvalidInput),
                ("__audit", NotAllowed),
            ):
                with pytest.raises(error):
                    await broker.create_topic(name)
            for count in (0, 10**6):
                with pytest.raises(InvalidInput):
                    await broker.create_topic("many", count)
            assert broker.topics.keys() == metadata.rows.keys() == {"plain", "own"}

    run(test())


def test_a_publish_creates_a_topic_only_where_that_is_allowed(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_for_publish("t")
            assert await broker.topic_for_publish("t") is topic
            broker._auto_create = False
            assert await broker.topic_for_publish("t") is topic
            with pytest.raises(TopicNotFound):
                await broker.topic_for_publish("u")

    run(test())


def test_a_change_of_settings_holds_and_is_remembered(tmp_path: Path) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.create_topic("t", 2, {"delivery.max_attempts": 7})
            await broker.alter_topic("t", {"delivery.visibility_timeout": "9s"})
            assert (topic.settings.attempts_max, topic.settings.visibility_timeout_ms) == (7, 9_000)
            await broker.alter_topic("t", {}, partitions=4, unset=["delivery.max_attempts"])
            assert (topic.settings.attempts_max, topic.partitions.count) == (None, 4)
            await publish(topic, b"new", partition=3)
            with pytest.raises(InvalidInput):
                await broker.alter_topic("t", {}, partitions=3)
            with pytest.raises(TopicNotFound):
                await broker.alter_topic("u", {})
            with pytest.raises(NotAllowed):
                await broker.alter_topic("__audit", {})
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = broker.topic("t")
            assert topic.settings.visibility_timeout_ms == 9_000
            assert (topic.settings.attempts_max, topic.partitions.count) == (None, 4)
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"new")]

    run(test())


def test_a_change_decides_on_a_topic_in_doubt_and_keeps_its_groups(tmp_path: Path) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.create_topic("t")
            for group in ("lost", "known"):
                await broker.configure_group(topic, group, {"max_attempts": 3})
            del metadata.group_settings["t", "lost"]
            writes = list[tuple[str, str]]()
            put_group = metadata.put_group

            async def note(name: str, group: str, settings: dict[str, str]) -> None:
                writes.append((name, group))
                await put_group(name, group, settings)

            metadata.put_group = note  # type: ignore[method-assign, assignment]
            await broker.alter_topic("t", {})
            assert writes == []
            topic.set_doubt(TopicDoubt(DoubtKind.ADOPTED, "the settings are lost"))
            await broker.alter_topic("t", {})
            assert topic.doubt is None
            assert writes == [("t", "lost")]
            assert metadata.group_settings["t", "lost"] == metadata.group_settings["t", "known"]

    run(test())


def test_settings_of_a_group_change_one_by_one(tmp_path: Path) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.create_topic("t")
            await broker.remember_group(topic, "g")
            assert metadata.group_settings["t", "g"] == {}
            await broker.configure_group(topic, "g", {"max_attempts": 3})
            await broker.configure_group(topic, "g", {"visibility_timeout": "9s"})
            await broker.remember_group(topic, "g")
            settings = topic.settings_of("g")
            assert (settings.attempts_max, settings.visibility_timeout_ms) == (3, 9_000)
            assert topic.settings_of("h").attempts_max is None
            assert metadata.group_settings["t", "g"].keys() == {
                "max_attempts",
                "visibility_timeout",
            }
            with pytest.raises(InvalidInput):
                await broker.configure_group(topic, "a b", {})
            with pytest.raises(InvalidInput):
                await broker.remember_group(topic, "a b")

    run(test())


def test_a_deleted_group_has_no_settings_and_begins_anew(tmp_path: Path) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.create_topic("t", 1, {"delivery.ordering": "none"})
            await publish(topic, b"v")
            await broker.configure_group(topic, "g", {"max_attempts": 3})
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"v")]
            await broker.delete_group(topic, "g")
            assert "g" not in topic.groups
            assert ("t", "g") not in metadata.group_settings
            assert topic.settings_of("g").attempts_max is None
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"v")]

    run(test())


def test_a_deleted_topic_leaves_nothing_and_a_new_one_of_its_name_is_empty(tmp_path: Path) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.create_topic("t")
            await publish(topic, b"old")
            folder = topic.directory
            await broker.delete_topic("t")
            assert topic.is_closed
            assert "t" not in broker.topics
            assert "t" not in metadata.rows
            assert not folder.exists()
            with pytest.raises(TopicNotFound):
                await broker.delete_topic("t")
            with pytest.raises(NotAllowed):
                await broker.delete_topic("__audit")
            again = await broker.create_topic("t")
            assert leased(await again.receiver.receive("g", options())) == []

    run(test())


async def dies(broker: Broker, name: str, partition: int) -> None:
    """Have a message of a partition rejected, and wait for its copy."""
    topic = broker.topic(name)
    await topic.publisher.publish_messages([RoutedMessage(partition, Message(b"dead"))])
    (batch,) = await topic.receiver.receive("g", options())
    dying = topic.partitions[batch.partition]
    await topic.settler.reject("g", receipts([batch], topic.id), "no")
    await until(lambda: not dying.outbox_entries)


def test_a_dead_letter_topic_is_made_after_its_source_and_grows_with_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.create_topic("t", 2, {"retention.age": "90d"})
            await dies(broker, "t", 1)
            dead = broker.topic("t.dlq")
            assert dead.partitions.count == 2
            assert dead.partitions[1].end_offset == 1
            await broker.alter_topic("t", {}, partitions=5)
            await dies(broker, "t", 1)
            assert dead.partitions.count == 2
            await dies(broker, "t", 3)
            assert dead.partitions.count == 5
            assert dead.partitions[3].end_offset == 1

    run(test())


def test_a_shared_dead_letter_topic_has_the_one_partition_that_is_needed(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.create_topic("t", 3, {"dead_letters.topic": "graves"})
            await dies(broker, "t", 1)
            graves = broker.topic("graves").partitions
            assert (graves.count, graves[0].end_offset) == (1, 1)

    run(test())


def test_the_topics_of_the_cluster_are_followed(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker_on(tmp_path) as broker:
            row = TopicRow("t", 1, {"delivery.max_attempts": "3"}, id=TOPIC_ID)
            await broker.take_up(row, {"g": {"max_attempts": "5"}}, has_replicas=True)
            topic = broker.topic("t")
            assert (topic.id, topic.partitions.count, topic.settings.attempts_max) == (
                TOPIC_ID,
                1,
                3,
            )
            changed = row._replace(partitions=3, settings={"delivery.max_attempts": "4"})
            groups = {"g": {"max_attempts": "6"}, "h": {}}
            await broker.take_up(changed, groups, has_replicas=False)
            assert broker.topic("t") is topic
            assert (topic.partitions.count, topic.settings.attempts_max) == (3, 4)
            assert topic.groups == groups
            assert topic.settings_of("g").attempts_max == 6
            fewer = changed._replace(partitions=2)
            await broker.take_up(fewer, {"h": {}}, has_replicas=False)
            assert topic.groups == {"h": {}}
            assert topic.settings_of("g").attempts_max == 4
            assert topic.partitions.count == 3
            other = row._replace(id=TOPIC_ID + 1, settings={"delivery.max_attempts": "9"})
            await broker.take_up(other, {}, has_replicas=True)
            assert (broker.topic("t").id, topic.settings.attempts_max) == (TOPIC_ID, 4)

    run(test())


def test_only_the_topic_that_is_meant_is_dropped(tmp_path: Path) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            metadata.rows["t"] = row = TopicRow("t", 1, {}, id=TOPIC_ID)
            await broker.take_up(row, {}, has_replicas=True)
            folder = broker.topic("t").directory
            await broker.drop("t", TOPIC_ID - 1)
            assert broker.topic("t").id == TOPIC_ID
            assert folder.exists()
            await broker.drop("t", TOPIC_ID)
            assert "t" not in broker.topics
            assert not folder.exists()

    run(test())


def test_a_broker_that_was_closed_leaves_no_thread_and_takes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        before = set(threading.enumerate())
        async with broker_on(tmp_path, journaled=True) as broker:
            topic = await broker.create_topic("t")
            await publish(topic, b"v")
            assert await broker.background.run(lambda: 1) == 1
            assert await broker.archive.in_thread(lambda: 2) == 2
            waiting = asyncio.ensure_future(topic.receiver.receive("h", options(wait_ms=60_000)))
            assert leased(await waiting) == [(0, 1, b"v")]
            waiting = asyncio.ensure_future(topic.receiver.receive("h", options(wait_ms=60_000)))
            await until(lambda: topic.receiver.waiters.count("h"))
        with pytest.raises(ShuttingDown):
            await waiting
        with pytest.raises(GoqError):
            await publish(topic, b"late")
        names = {each.name for each in set(threading.enumerate()) - before}
        assert not [name for name in names if name.startswith("goq")]

    run(test())


def test_a_group_takes_its_share_of_memory_in_each_partition(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.create_topic("t", 3)
            before = broker.capacity.used_bytes
            assert before == 3 * limits.PARTITION_BYTES
            await broker.remember_group(topic, "g")
            assert broker.capacity.used_bytes == before + 3 * limits.GROUP_BYTES

    run(test())
