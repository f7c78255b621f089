"""Traces of archived messages: whole, or with what is missing named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from goq.broker.broker import Broker
from goq.broker.search.partition_search import MessageQuery
from goq.broker.topic.topic import Topic
from goq.broker.trace.tracer import Tracer
from goq.errors import MessageNotFound
from goq.model import MessageId
from tests.support.broker.archived_topics import (
    ARCHIVE,
    World,
    flip,
    halve,
    life,
    names,
    put,
    rejected,
    retire,
    settled,
    take,
    trace_of,
)
from tests.support.broker.harness import options, receipts, run
from tests.support.broker.partition_internals import event_log


async def refuse(topic: Topic, group: str = "g") -> None:
    """Receive and reject, and have the dead letters arrive."""
    await rejected(topic, group, receipts(await topic.receiver.receive(group, options())))
    await settled(topic)


WHOLE_LIFE = ["PUBLISHED", "DELIVERED", "ACKNOWLEDGED", "ARCHIVED"]


@pytest.mark.usefixtures("_small_events")
def test_an_archived_message_is_told_of_in_full(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(12):
                await put(topic, b"%d" % number, "shop")
                await take(topic)
                await retire(broker, world.clock, topic)
            partition = topic.partitions[0]
            assert partition.log_start_offset == 12
            assert event_log(partition).start_offset > 0, "events have gone to the archive"
            for _ in range(2):
                for offset in range(12):
                    await check_whole_life(broker, offset)
        async with world.broker(**ARCHIVE) as broker:
            for offset in range(12):
                await check_whole_life(broker, offset)

    async def check_whole_life(broker: Broker, offset: int) -> None:
        trace = await trace_of(broker, offset)
        assert names(trace) == WHOLE_LIFE
        assert not trace.incomplete
        assert trace.message.state == "archived"
        assert trace.message.producer == "shop"
        assert trace.message.retained_until_us is None
        assert trace.message.message is not None
        assert trace.message.message.value == b"%d" % offset

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_the_dead_letter_of_an_archived_message_is_followed(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, b"x")
            await refuse(topic)
            await retire(broker, world.clock, topic)
            await retire(broker, world.clock, broker.topic("t.dlq"))
        async with world.broker(**ARCHIVE) as broker:
            for asked in ("t", "t.dlq"):
                trace = await trace_of(broker, 0, asked)
                assert sorted(names(trace)) == sorted(
                    ["PUBLISHED", "DELIVERED", "REJECTED", "DEAD_LETTERED", "ARCHIVED"]
                    + ["PUBLISHED"]
                    + ["ARCHIVED"] * (broker.topic("t.dlq").partitions[0].log_start_offset > 0)
                )
                assert [each.id.topic for each in trace.copies] == [
                    "t.dlq" if asked == "t" else "t"
                ]

    run(main())


@pytest.mark.usefixtures("_small_events")
@pytest.mark.parametrize("damage", ["no spans", "bad spans", "cut spans"])
def test_the_index_of_archived_events_may_be_missing_or_wrong(tmp_path: Path, damage: str) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            await life(world, broker, 8)
        found = list((tmp_path / "archive/t/0/events").glob("*.spans"))
        assert found
        for path in found:
            data = path.read_bytes()
            path.unlink()
            if damage == "bad spans":
                path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
            elif damage == "cut spans":
                path.write_bytes(data[: len(data) // 2])
        async with world.broker(**ARCHIVE) as broker:
            for offset in range(8):
                trace = await trace_of(broker, offset)
                assert names(trace) == WHOLE_LIFE
                assert not trace.incomplete

    run(main())


@pytest.mark.usefixtures("_small_events")
@pytest.mark.parametrize("harm", [flip, halve, Path.unlink])
@pytest.mark.parametrize("with_spans", [True, False])
def test_damaged_archives_of_events_leave_steps_out_and_say_so(
    tmp_path: Path, harm: Callable[[Path], object], with_spans: bool
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            await life(world, broker, 8)
        events = tmp_path / "archive/t/0/events"
        files = sorted(events.glob("*.log.zst"))
        assert len(files) >= 2
        harm(files[1])
        if not with_spans:
            for path in events.glob("*.spans"):
                path.unlink()
        async with world.broker(**ARCHIVE) as broker:
            told = 0
            for offset in range(8):
                trace = await trace_of(broker, offset)
                assert trace.message.state == "archived"
                if trace.incomplete:
                    assert set(names(trace)) <= set(WHOLE_LIFE)
                    told += 1
                else:
                    assert names(trace) == WHOLE_LIFE
            assert told

    run(main())


@pytest.mark.usefixtures("_small_events")
@pytest.mark.parametrize("harm", [flip, halve, Path.unlink])
def test_a_message_in_a_damaged_archive_is_told_of_as_damaged(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            await life(world, broker, 5)
        harm(tmp_path / "archive/t/0/messages" / f"{2:020}.log.zst")
        async with world.broker(**ARCHIVE) as broker:
            for offset in range(5):
                trace = await trace_of(broker, offset)
                if offset == 2:
                    assert trace.message.state == "damaged"
                    assert names(trace) == WHOLE_LIFE[1:]
                else:
                    assert names(trace) == WHOLE_LIFE
            found = await broker.finder.find(broker.topic("t"), MessageQuery(key=b"k0"), 10, None)
            assert [each.offset for each in found.found] == [4, 0]
            assert found.unreadable == (harm is Path.unlink)

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_what_was_deleted_before_there_was_an_archive_is_not_told_of(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**{**ARCHIVE, "archive": "false"}) as broker:
            await life(world, broker, 6)
            await broker.topic_admin.alter("t", {"archive": "true"})
            topic = broker.topic("t")
            for number in range(6, 12):
                await put(topic, b"%d" % number, "shop")
                await take(topic)
                await retire(broker, world.clock, topic)
            with pytest.raises(MessageNotFound, match="retention deleted it before"):
                await trace_of(broker, 0)
            for offset in range(6, 12):
                trace = await trace_of(broker, offset)
                assert names(trace) == WHOLE_LIFE
                assert not trace.incomplete

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_steps_that_were_deleted_while_the_archive_was_off_are_said_to_lack(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            await life(world, broker, 4)
            topic = broker.topic("t")
            kept = await put(topic, b"kept")
            await retire(broker, world.clock, topic)
            await broker.topic_admin.alter("t", {"archive": "false"})
            for number in range(8):
                gone = await put(topic, b"%d" % number)
                await take(topic)
                await retire(broker, world.clock, topic)
            await broker.topic_admin.alter("t", {"archive": "true"})
            for number in range(8):
                last = await put(topic, b"%d" % number)
                await take(topic)
                await retire(broker, world.clock, topic)
            trace = await trace_of(broker, kept)
            assert trace.message.state == "archived"
            assert names(trace) == WHOLE_LIFE or trace.incomplete
            for offset in range(kept, gone + 1):
                try:
                    trace = await trace_of(broker, offset)
                except MessageNotFound:
                    continue
                assert trace.message.state in ("deleted", "archived")
                assert trace.incomplete or "ACKNOWLEDGED" in names(trace)
            trace = await trace_of(broker, last)
            assert names(trace) == WHOLE_LIFE
            assert not trace.incomplete

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_what_is_archived_while_it_is_traced_is_not_taken_for_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, b"x")
            await take(topic)
            partition, tracing = topic.partitions[0], Tracer(broker)
            in_thread = partition.in_thread

            async def retire_first(work: Callable[[], Any]) -> Any:
                monkeypatch.undo()
                await retire(broker, world.clock, topic)
                return await in_thread(work)

            monkeypatch.setattr(partition, "in_thread", retire_first)
            trace = await tracing.trace(MessageId("t", 0, 0))
            assert partition.log_start_offset == 1
            assert (trace.message.state, names(trace)) == ("archived", WHOLE_LIFE)

    run(main())
