"""Random histories with an archived and a compacted topic, checked in every way to look at them."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from goq.broker.broker import Broker
from goq.broker.dlq.redrive import RemovalRequest, redrive
from goq.broker.dlq.search import DeadLetterQuery
from goq.broker.retention.tiered_log import tiered_logs
from goq.broker.topic.topic import Topic
from goq.broker.trace.tracer import Tracer
from goq.model import MessageId
from goq.storage.log.reader import LogReader
from goq.storage.log.time_range_reader import TimeRange, read_time_range
from tests.support.broker.archived_topics import (
    ARCHIVE,
    COMPACT,
    HOUR_MS,
    World,
    put,
    rejected,
    sealed_keys,
    settled,
)
from tests.support.broker.harness import options, receipts, run, settle_acked, settle_nacked
from tests.support.broker.partition_internals import state_of


def test_ranges_of_time_leave_out_what_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            times = []
            for number in range(6):
                times.append(world.clock.wall_us())
                await sealed_keys(topic, b"k", b"l%d" % number)
                world.clock.advance_ms(1000)
            await broker.compaction_manager.apply()
            reader = topic.partitions[0].message_reader
            for first in range(6):
                for last in range(first, 7):
                    until_us = times[last] if last < 6 else times[-1] + 1
                    found = read_range(reader, times[first], until_us)
                    assert [o for o in found if o % 2 or o == 10] == [
                        o for o in range(12) if first <= o // 2 < last and (o % 2 or o == 10)
                    ]
                    assert all(o % 2 or o == 10 for o in found)

    run(main())


def read_range(reader: LogReader, from_us: int, until_us: int) -> list[int]:
    """Return the offsets of all messages of a range of times."""
    found: list[int] = []
    offset, end = 0, reader.segments[-1].end_offset
    while offset < end:
        reading = read_time_range(reader, TimeRange(from_us, until_us), offset, end)
        assert not reading.damage
        for view in reading.frames:
            header = view.header
            kept = view.kept(0, header.message_count)
            found += [header.base_offset + row for row, is_kept in enumerate(kept) if is_kept]
        offset = reading.next_offset
    return found


TOPICS = ("t", "c", "t.dlq", "c.dlq")
EVERYTHING = {
    **ARCHIVE,
    "compaction__tombstone_retention": "1h",
    "delivery__max_attempts": "3",
    "delivery__visibility_timeout": "10m",
}


class Everything:
    """An archived topic ``t`` and a compacted one ``c``, and what was done to them by chance."""

    def __init__(self, seed: int, world: World) -> None:
        self.chance = random.Random(seed)
        self.world = world
        self.values: dict[MessageId, bytes] = {}
        self.acked: set[MessageId] = set()

    async def act(self, broker: Broker) -> None:
        """Do one thing."""
        topic = broker.topic(self.chance.choice(("t", "t", "c")))
        partition = topic.partitions[0]
        kind = self.chance.choice(
            ("publish",) * 6 + ("receive",) * 6 + ("seal", "keep", "compact", "reset", "redrive")
        )
        group = self.chance.choice(("g", "h"))
        if kind == "publish":
            await self.publish(topic)
        elif kind == "receive":
            await self.receive(broker, topic, group)
        elif kind == "seal":
            await partition.trimmer.roll()
        elif kind == "keep":
            self.world.clock.advance_ms(self.chance.choice((1000, HOUR_MS)))
            await broker.retention_manager.apply()
        elif kind == "compact":
            await broker.compaction_manager.apply()
        elif kind == "reset":
            end = partition.end_offset
            start = self.chance.randint(state_of(partition).start_offset, end)
            bound = self.chance.choice((None, self.chance.randint(start, end)))
            await partition.reset(group, start, bound)
        elif topic.name + ".dlq" in broker.topics:
            dead = broker.topic(topic.name + ".dlq")
            await redrive(dead, topic, 0, RemovalRequest(DeadLetterQuery(), (-1, -1), 10))
            await settled(dead)
        self.world.clock.advance_ms(self.chance.randint(1, 2000))

    async def publish(self, topic: Topic) -> None:
        value = b"%d" % len(self.values)
        chosen = self.chance.choice
        due_ms = self.world.clock.wall_ms() + 5000 if self.chance.random() < 0.2 else 0
        more = {"key": chosen((None, b"a", b"b")), "lane": chosen((None, 0, 2))}
        offset = await put(topic, value, chosen((None, "shop")), deliver_at_ms=due_ms, **more)
        self.values[MessageId(topic.name, 0, offset)] = value

    async def receive(self, broker: Broker, topic: Topic, group: str) -> None:
        found = await topic.receiver.receive(group, options(self.chance.randint(1, 5)))
        given, kind = receipts(found), self.chance.choice(("ack", "ack", "nack", "reject"))
        if kind == "ack":
            _, lost = await settle_acked(topic, group, given)
            self.acked |= {
                MessageId(topic.name, 0, offset)
                for each in given
                if each not in lost
                for offset in range(each.start, each.end)
            }
        elif kind == "nack":
            await settle_nacked(topic, group, given)
        else:
            await rejected(topic, group, given)
        await settled(topic)

    async def check(self, broker: Broker) -> None:
        """Look whether everything is told of as it was."""
        for name in TOPICS:
            if name in broker.topics:
                await settled(broker.topic(name))
        tracing = Tracer(broker)
        for message_id, value in self.values.items():
            trace = await tracing.trace(message_id)
            told, is_acked = trace.message, message_id in self.acked
            own = [str(each.step.name) for each in trace.steps if each.id == message_id]
            assert ("ACKNOWLEDGED" in own) == is_acked or told.timeline.incomplete, (
                message_id,
                own,
            )
            if told.state != "compacted":
                assert not trace.incomplete, message_id
                assert own.count("PUBLISHED") == 1
            assert told.state in ("live", "archived" if message_id.topic == "t" else "compacted")
            assert own.count("ARCHIVED") == (told.state == "archived")
            assert own.count("COMPACTED") == (told.state == "compacted")
            assert "DELETED" not in own
            if told.state != "compacted":
                assert told.message is not None
                assert told.message.value == value
        for topic in (name for name in TOPICS if name in broker.topics):
            partition = broker.topic(topic).partitions[0]
            reader = tiered_logs(broker.archive, partition).messages
            found = await broker.archive.in_thread(partial(all_values, reader))
            there = {i.offset: v for i, v in self.values.items() if i.topic == topic}
            assert set(found) <= set(range(partition.end_offset))
            if topic != "c":
                assert set(found) == set(range(partition.end_offset))
            assert {o: v for o, v in found.items() if o in there} == {
                o: v for o, v in there.items() if o in found
            }


def all_values(reader: LogReader) -> dict[int, bytes | None]:
    """Return the values of all messages that are kept, by offset."""
    found: dict[int, bytes | None] = {}
    offset, end = 0, reader.segments[-1].end_offset
    while offset < end:
        reading = reader.read(offset, end)
        assert not reading.damage
        for view in reading.frames:
            base, count = view.header.base_offset, view.header.message_count
            kept = zip(view.values(0, count), view.kept(0, count), strict=True)
            found |= {base + row: v for row, (v, is_kept) in enumerate(kept) if is_kept}
        offset = reading.next_offset
    return found


@pytest.mark.usefixtures("_small_events")
@pytest.mark.parametrize("seed", range(4))
def test_everything_is_told_of_whatever_happened(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        world = World(tmp_path)
        life = Everything(seed, world)
        for turn in range(4):
            async with world.broker(**EVERYTHING) as broker:
                if not turn:
                    await broker.topic_admin.create("t")
                    compacted = {"cleanup": "compact", "archive": "false"}
                    await broker.topic_admin.create("c", settings=compacted)
                for _ in range(40):
                    await life.act(broker)
                await life.check(broker)
        assert any(row.topic == "t" for row in world.metadata.archive.values())

    run(main())
