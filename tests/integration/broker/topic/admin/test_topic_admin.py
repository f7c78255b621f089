"""The topics of a node: how they are made, changed, followed and deleted, by what remains."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from goq.broker.broker import Broker
from goq.broker.topic.publisher import RoutedMessage
from goq.errors import (
    InvalidInput,
    NotAllowed,
    StorageFull,
    TimedOut,
    TopicExists,
    TopicNotFound,
)
from goq.model import Message
from goq.storage.catalog.rows import DoubtKind, TopicDoubt, TopicRow
from goq.storage.catalog.topic_file import read_topic_file
from goq.storage.disk import RealDisk
from tests.support.broker.harness import (
    BrokenDisk,
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
            plain = await broker.topic_admin.create("plain")
            own = await broker.topic_admin.create("own", 3, {"delivery.max_attempts": 7})
            assert (plain.partitions.count, own.partitions.count) == (2, 3)
            assert (plain.settings.attempts_max, own.settings.attempts_max) == (None, 7)
            assert metadata.rows["own"].partitions == 3
            assert metadata.rows["own"].settings["delivery.max_attempts"] == "7"
            assert broker.topic("own") is own
            assert broker.topic_admin.settings_for_publish("own") is own.settings
            assert broker.topic_admin.settings_for_publish("other") == plain.settings
            for name, error in (
                ("own", TopicExists),
                ("a b", InvalidInput),
                ("__audit", NotAllowed),
            ):
                with pytest.raises(error):
                    await broker.topic_admin.create(name)
            for count in (0, 10**6):
                with pytest.raises(InvalidInput):
                    await broker.topic_admin.create("many", count)
            assert broker.topics.keys() == metadata.rows.keys() == {"plain", "own"}

    run(test())


def test_a_full_disk_takes_no_new_topic_and_no_new_group(tmp_path: Path) -> None:
    async def test() -> None:
        metadata, is_full = MemoryMetadata(), False
        async with broker_on(tmp_path, metadata=metadata, is_disk_full=lambda: is_full) as broker:
            topic = await broker.topic_admin.create("t")
            await broker.group_admin.remember(topic, "g")
            is_full = True
            for refused in (
                broker.topic_admin.topic_for_publish("u"),
                broker.topic_admin.target(topic, "t.dlq", 0),
                broker.group_admin.remember(topic, "h"),
            ):
                with pytest.raises(StorageFull):
                    await refused
            await broker.group_admin.remember(topic, "g")
            assert metadata.rows.keys() == {"t"}
            assert metadata.group_settings.keys() == {("t", "g")}
            is_full = False
            await broker.topic_admin.topic_for_publish("u")

    run(test())


def test_a_topic_that_finds_no_room_leaves_nothing_behind(tmp_path: Path) -> None:
    async def test() -> None:
        metadata, disk = MemoryMetadata(keeps_ids=True), BrokenDisk()
        async with broker_on(tmp_path, metadata=metadata, disk=disk, journaled=True) as broker:
            disk.fail("open", "/1/messages")
            for _ in range(2):
                with pytest.raises(StorageFull):
                    await broker.topic_admin.create("t", 2)
            assert not metadata.rows
            assert not list((tmp_path / "topics").iterdir())
            assert broker.journal is not None
            assert not broker.journal._logs, "what was opened is closed"
            metadata.before = _refuse_deletion
            with pytest.raises(TimedOut):
                await broker.topic_admin.create("t", 2)
            metadata.before = lambda _change: None
            disk.heal()
            topic = await broker.topic_admin.create("t", 2)
            await publish(topic, b"a", partition=1)
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"a")]

    run(test())


def _refuse_deletion(change: str) -> None:
    if change == "delete_topic":
        raise StorageFull("no room")


def test_a_publish_creates_a_topic_only_where_that_is_allowed(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.topic_for_publish("t")
            assert await broker.topic_admin.topic_for_publish("t") is topic
            broker.topic_admin._auto_create = False
            assert await broker.topic_admin.topic_for_publish("t") is topic
            with pytest.raises(TopicNotFound):
                await broker.topic_admin.topic_for_publish("u")

    run(test())


def test_a_change_of_settings_holds_and_is_remembered(tmp_path: Path) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t", 2, {"delivery.max_attempts": 7})
            await broker.topic_admin.alter("t", {"delivery.visibility_timeout": "9s"})
            assert (topic.settings.attempts_max, topic.settings.visibility_timeout_ms) == (7, 9_000)
            await broker.topic_admin.alter("t", {}, partitions=4, unset=["delivery.max_attempts"])
            assert (topic.settings.attempts_max, topic.partitions.count) == (None, 4)
            await publish(topic, b"new", partition=3)
            with pytest.raises(InvalidInput):
                await broker.topic_admin.alter("t", {}, partitions=3)
            with pytest.raises(TopicNotFound):
                await broker.topic_admin.alter("u", {})
            with pytest.raises(NotAllowed):
                await broker.topic_admin.alter("__audit", {})
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
            topic = await broker.topic_admin.create("t")
            for group in ("lost", "known"):
                await broker.group_admin.configure(topic, group, {"max_attempts": 3})
            del metadata.group_settings["t", "lost"]
            writes = list[tuple[str, str]]()
            put_group = metadata.put_group

            async def note(name: str, group: str, settings: dict[str, str]) -> None:
                writes.append((name, group))
                await put_group(name, group, settings)

            metadata.put_group = note
            await broker.topic_admin.alter("t", {})
            assert writes == []
            topic.set_doubt(TopicDoubt(DoubtKind.ADOPTED, "the settings are lost"))
            await broker.topic_admin.alter("t", {})
            assert topic.doubt is None
            assert writes == [("t", "lost")]
            assert metadata.group_settings["t", "lost"] == metadata.group_settings["t", "known"]

    run(test())


def test_a_deleted_topic_leaves_nothing_and_a_new_one_of_its_name_is_empty(tmp_path: Path) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"old")
            folder = topic.directory
            await broker.topic_admin.delete("t")
            assert topic.is_closed
            assert "t" not in broker.topics
            assert "t" not in metadata.rows
            assert not folder.exists()
            with pytest.raises(TopicNotFound):
                await broker.topic_admin.delete("t")
            with pytest.raises(NotAllowed):
                await broker.topic_admin.delete("__audit")
            again = await broker.topic_admin.create("t")
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
            await broker.topic_admin.create("t", 2, {"retention.age": "90d"})
            await dies(broker, "t", 1)
            dead = broker.topic("t.dlq")
            assert dead.partitions.count == 2
            assert dead.partitions[1].end_offset == 1
            await broker.topic_admin.alter("t", {}, partitions=5)
            await dies(broker, "t", 1)
            assert dead.partitions.count == 2
            await dies(broker, "t", 3)
            assert dead.partitions.count == 5
            assert dead.partitions[3].end_offset == 1

    run(test())


def test_a_topic_for_copies_is_made_only_once_all_topics_of_the_node_are_known(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with broker_on(tmp_path) as broker:
            source = await broker.topic_admin.create("t", 1)
            broker._started.clear()  # as while the topics are opened
            making = asyncio.ensure_future(broker.topic_admin.target(source, "t.dlq", 0))
            await asyncio.wait([making], timeout=0.2)  # it would take a hundredth of a second
            assert not making.done()
            assert "t.dlq" not in broker.topics
            broker._started.set()
            await making
            assert "t.dlq" in broker.topics

    run(test())


def test_a_shared_dead_letter_topic_has_the_one_partition_that_is_needed(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_admin.create("t", 3, {"dead_letters.topic": "graves"})
            await dies(broker, "t", 1)
            graves = broker.topic("graves").partitions
            assert (graves.count, graves[0].end_offset) == (1, 1)

    run(test())


def test_the_topics_of_the_cluster_are_followed(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker_on(tmp_path) as broker:
            row = TopicRow("t", 1, {"delivery.max_attempts": "3"}, id=TOPIC_ID)
            await broker.topic_admin.take_up(row, {"g": {"max_attempts": "5"}}, has_replicas=True)
            topic = broker.topic("t")
            assert (topic.id, topic.partitions.count, topic.settings.attempts_max) == (
                TOPIC_ID,
                1,
                3,
            )
            written = read_topic_file(RealDisk(), tmp_path / "topics" / row.folder)
            assert written is not None
            assert (written.name, written.settings) == ("t", row.settings)
            changed = row._replace(partitions=3, settings={"delivery.max_attempts": "4"})
            groups = {"g": {"max_attempts": "6"}, "h": {}}
            await broker.topic_admin.take_up(changed, groups, has_replicas=False)
            assert broker.topic("t") is topic
            assert (topic.partitions.count, topic.settings.attempts_max) == (3, 4)
            assert topic.groups == groups
            assert topic.settings_of("g").attempts_max == 6
            fewer = changed._replace(partitions=2)
            await broker.topic_admin.take_up(fewer, {"h": {}}, has_replicas=False)
            assert topic.groups == {"h": {}}
            assert topic.settings_of("g").attempts_max == 4
            assert topic.partitions.count == 3
            other = row._replace(id=TOPIC_ID + 1, settings={"delivery.max_attempts": "9"})
            await broker.topic_admin.take_up(other, {}, has_replicas=True)
            assert (broker.topic("t").id, topic.settings.attempts_max) == (TOPIC_ID, 4)

    run(test())


def test_only_the_topic_that_is_meant_is_dropped(tmp_path: Path) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            metadata.rows["t"] = row = TopicRow("t", 1, {}, id=TOPIC_ID)
            await broker.topic_admin.take_up(row, {}, has_replicas=True)
            folder = broker.topic("t").directory
            await broker.topic_admin.drop("t", TOPIC_ID - 1)
            assert broker.topic("t").id == TOPIC_ID
            assert folder.exists()
            await broker.topic_admin.drop("t", TOPIC_ID)
            assert "t" not in broker.topics
            assert not folder.exists()

    run(test())


class _AdoptingMetadata(MemoryMetadata):
    """A metadata store that takes topics with their groups."""

    async def adopt_topic(
        self, topic: TopicRow, groups: Mapping[str, Mapping[str, str]], epoch: int
    ) -> None:
        self.epoch = max(self.epoch, epoch)
        await self.put_topic(topic)
        for name, own in groups.items():
            await self.put_group(topic.name, name, own)


def test_a_topic_is_adopted_with_its_files_groups_and_messages_and_only_once(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        elsewhere = MemoryMetadata()
        async with broker_on(tmp_path / "from", metadata=elsewhere) as broker:
            await publish(await broker.topic_admin.create("t"), b"a", b"b")
        row = elsewhere.rows["t"]
        metadata = _AdoptingMetadata()
        async with broker_on(tmp_path / "to", metadata=metadata) as broker:
            admin, target = broker.topic_admin, tmp_path / "to" / "topics" / row.folder
            put = partial((tmp_path / "from" / "topics" / row.folder).rename, target)
            with pytest.raises(NotAllowed):
                await admin.adopt(row._replace(name="__audit"), {}, 9, put)
            await admin.adopt(row, {"g": {"visibility_timeout": "7s"}}, 9, put)
            topic = broker.topic("t")
            assert (topic.id, topic.groups["g"], metadata.epoch) == (
                row.id,
                {"visibility_timeout": "7s"},
                9,
            )
            found = await topic.receiver.receive("g", options())
            assert [value for _, _, value in leased(found)] == [b"a", b"b"]
            with pytest.raises(TopicExists):
                await admin.adopt(row, {}, 9, put)
            assert broker.topic("t") is topic

    run(test())


def test_an_adopted_topic_that_cannot_be_opened_may_be_there_nevertheless(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        metadata, disk = _AdoptingMetadata(), BrokenDisk()
        row = TopicRow("t", 1, {}, id=TOPIC_ID)
        async with broker_on(tmp_path, metadata=metadata, disk=disk) as broker:
            disk.fail("open", row.folder, errno.EIO)
            with pytest.raises(TimedOut):
                await broker.topic_admin.adopt(row, {}, 1, lambda: None)
            assert "t" in metadata.rows
            disk.heal()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            assert broker.topic("t").id == TOPIC_ID

    run(test())


def test_the_topic_of_the_audit_trail_is_made_once_and_clients_cannot_make_it(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata, partitions=4) as broker:
            admin = broker.topic_admin
            first, second = await asyncio.gather(admin.audit_topic(), admin.audit_topic())
            assert first is second is await admin.audit_topic() is broker.topics["__audit"]
            assert metadata.created == first.partitions.count == 1
            assert first.settings.attempts_max is None
        async with broker_on(tmp_path, metadata=metadata) as broker:
            assert await broker.topic_admin.audit_topic() is broker.topics["__audit"]
            assert metadata.created == 1

    run(test())


def test_a_topic_from_before_ids_gets_one_for_good_unless_a_user_is_to_decide(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            for name in ("plain", "doubtful"):
                await broker.topic_admin.create(name)
        doubt = TopicDoubt(DoubtKind.READ_ONLY, "its file is lost")
        for row in list(metadata.rows.values()):
            target = tmp_path / "topics" / row.name
            metadata.rows[row.name] = row._replace(id=0, doubt=None)
            folder = tmp_path / "topics" / row.folder
            if folder != target:
                folder.rename(target)
        metadata.rows["doubtful"] = metadata.rows["doubtful"]._replace(doubt=doubt)
        ids = set[int]()
        for _ in range(2):
            async with broker_on(tmp_path, metadata=metadata) as broker:
                ids.add(broker.topic("plain").id)
                assert broker.topic("doubtful").id != 0
        assert ids == {metadata.rows["plain"].id}
        assert metadata.rows["plain"].id != 0
        assert metadata.rows["doubtful"].id == 0

    run(test())


def test_settings_that_cannot_be_read_leave_the_topic_readable_and_in_doubt(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            for name in ("group", "own", "sound"):
                await publish(await broker.topic_admin.create(name), b"v")
        metadata.group_settings["group", "g"] = {"delivery.max_attempts": "of a later version"}
        row = metadata.rows["own"]
        metadata.rows["own"] = row._replace(settings={"retention.age": "of a later version"})
        async with broker_on(tmp_path, metadata=metadata) as broker:
            doubts = {name: topic.doubt for name, topic in broker.topics.items()}
            assert doubts["sound"] is None
            for name in ("group", "own"):
                doubt = doubts[name]
                assert doubt is not None
                assert f"{name} " in f"{doubt.reason} "
                assert broker.topic(name).partitions[0].end_offset == 1
            assert broker.topic("own").settings.retention_age_ms is None
            assert broker.topic("group").groups == {"g": {}}

    run(test())


@pytest.mark.parametrize("change", ["create", "alter", "delete"])
def test_a_change_goes_on_to_its_end_when_its_client_is_gone(tmp_path: Path, change: str) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            admin, topics = broker.topic_admin, broker.topics
            if change != "create":
                await publish(await admin.create("t", 2), b"one")
            changing = asyncio.ensure_future(
                {
                    "create": partial(admin.create, "t", 2),
                    "alter": partial(admin.alter, "t", {"retention.age": "1h"}, 4),
                    "delete": partial(admin.delete, "t"),
                }[change]()
            )
            metadata.before = lambda _change: changing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await changing
            metadata.before = lambda _change: None
            if change == "create":
                await until(lambda: "t" in topics)
                assert topics["t"].partitions.count == 2
            elif change == "alter":
                await until(lambda: topics["t"].partitions.count == 4)
                assert topics["t"].settings.retention_age_ms == 3_600_000
            else:
                await until(lambda: not any((tmp_path / "topics").iterdir()))
                assert "t" not in topics
            assert await publish(await admin.topic_for_publish("t"), b"more") == [
                1 if change == "alter" else 0
            ]

    run(test())
