"""Groups that begin before what the ready queues hold."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from pathlib import Path

import pytest

from goq.broker.group.message_changes import MessageChanges
from goq.broker.partition.delayed_reader import DelayedReader
from goq.broker.partition.ready_state import ready_state_manager
from goq.broker.partition.ready_state.ready_state import ReadyState
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from tests.support.broker.harness import (
    BrokenDisk,
    MemoryMetadata,
    ack,
    broker_on,
    leased,
    options,
    publish,
    quiet,
    reopened,
    run,
    trim,
)
from tests.support.broker.partition_internals import message_log, ready_state, state_of
from tests.support.effort import first_of
from tests.support.eventually import until
from tests.support.storage.folder_copy import copy_in_use

HIGH, NORMAL, LOW = 0, 1, 2


async def put(topic: Topic, *values: bytes, **columns: list[int] | list[str | None]) -> None:
    frame = encode_frame(Columns(list(values), **columns))
    await topic.publisher.publish_frames([(0, FrameView.parse(frame))])


async def drain(topic: Topic, group: str, count: int = 1000) -> list[bytes]:
    """Receive and ack everything."""
    values = []
    while found := await topic.receiver.receive(group, options(count)):
        values += [value for _, _, value in leased(found)]
        await ack(topic, group, found)
    return values


def test_delayed_messages_of_two_segments_are_one_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 1)
            (partition,) = topic.partitions
            for _ in range(2):
                await put(topic, b"x", b"x", deliver_at_ms=[2**42] * 2)
                await partition.trimmer.roll()
            await publish(topic, b"now")
            await put(topic, b"x", b"x", deliver_at_ms=[2**42] * 2)
            delayed = DelayedReader(message_log(partition).reader, state_of(partition))
            assert delayed.runs(0, 7) == [(0, 4), (5, 7)]
            assert delayed.runs(1, 6) == [(1, 4), (5, 6)]

    run(main())


def test_a_group_that_begins_after_a_restart_gets_everything(tmp_path: Path) -> None:
    async def main() -> None:
        metadata, clock = MemoryMetadata(), ManualClock()
        async with broker_on(tmp_path, metadata=metadata, clock=clock) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await publish(topic, b"a")
            await put(topic, b"b", b"c", lanes=[LOW, HIGH])
            await put(topic, b"later", deliver_at_ms=[clock.wall_ms() + 60_000])
            await publish(topic, b"d")
            await MessageChanges(topic.partitions[0], 4, ()).move(HIGH)
            assert sorted(await drain(topic, "early")) == [b"a", b"b", b"c", b"d"]
        async with broker_on(tmp_path, metadata=metadata, clock=clock) as broker:
            topic = broker.topic("t")
            assert await drain(topic, "early") == []
            await publish(topic, b"e")
            assert await drain(topic, "new") == [b"c", b"d", b"a", b"e", b"b"]
            assert await drain(topic, "early") == [b"e"]
            clock.advance_ms(60_000)
            await until(lambda: topic.partitions[0].delayed_count == 0)
            assert await drain(topic, "new") == await drain(topic, "early") == [b"later"]

    run(main())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_group_that_goes_back_gets_everything_again(tmp_path: Path, restarted: bool) -> None:
    async def main() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t", 1)
            for number in range(50):
                await put(topic, b"%d" % number, lanes=[number % 3], tenants=[f"t{number % 5}"])
            before = await drain(topic, "g")
            if not restarted:
                ready_state(topic.partitions[0]).release()
                await topic.partitions[0].reset("g", 0)
                assert sorted(await drain(topic, "g")) == sorted(before)
                return
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = broker.topic("t")
            await topic.partitions[0].reset("g", 0)
            assert sorted(await drain(topic, "g")) == sorted(before)

    run(main())


def test_what_is_published_moved_or_due_meanwhile_is_not_missed(tmp_path: Path) -> None:
    async def main() -> None:
        metadata, disk, clock = MemoryMetadata(), BrokenDisk(), ManualClock()
        async with broker_on(tmp_path, metadata=metadata, clock=clock) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await put(topic, b"a", b"b", lanes=[NORMAL, NORMAL])
            await put(topic, b"later", deliver_at_ms=[clock.wall_ms() + 1000])
        async with broker_on(tmp_path, metadata=metadata, disk=disk, clock=clock) as broker:
            topic = broker.topic("t")
            (partition,) = topic.partitions
            disk.hold("messages", operation="read")
            receiving = asyncio.create_task(topic.receiver.receive("g", options(1)))
            await until(disk.holding.is_set)
            await publish(topic, b"meanwhile")
            clock.advance_ms(1000)
            marking = asyncio.create_task(MessageChanges(partition, 1, ()).move(HIGH))
            disk.release()
            found = leased(await receiving)
            await marking
            await until(lambda: partition.delayed_count == 0)
            rest = await drain(topic, "g")
            values = [value for _, _, value in found] + rest
            assert sorted(values) == [b"a", b"b", b"later", b"meanwhile"]

    run(main())


def test_many_groups_that_begin_at_once_share_the_work(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await put(topic, b"a", b"b", lanes=[LOW, HIGH])
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = broker.topic("t")
            groups = [f"g{number}" for number in range(20)]
            found = await asyncio.gather(*(drain(topic, group) for group in groups))
            assert found == [[b"b", b"a"]] * len(groups)

    run(main())


@pytest.mark.parametrize("seed", first_of(range(10), quick=2))
def test_groups_get_each_message_once_however_often_queues_are_made_anew(
    tmp_path: Path, seed: int
) -> None:
    async def main() -> None:
        rng, metadata, clock = random.Random(seed), MemoryMetadata(), ManualClock()
        got: dict[str, list[bytes]] = {}
        published: list[bytes] = []
        for _ in range(4):
            async with broker_on(tmp_path, metadata=metadata, clock=clock) as broker:
                topic = await broker.topic_admin.topic_for_publish("t")
                for _ in range(30):
                    kind = rng.random()
                    if kind < 0.4:
                        values = [b"%d" % (len(published) + n) for n in range(rng.randrange(1, 4))]
                        published += values
                        count = len(values)
                        await put(
                            topic,
                            *values,
                            lanes=[rng.randrange(3) for _ in range(count)],
                            tenants=[rng.choice(["x", "y", None]) for _ in range(count)],
                        )
                    elif kind < 0.5 and published:
                        moved = topic.partitions[0]
                        moved.marks.move(rng.randrange(len(published)), rng.randrange(3), 0)
                        await quiet(moved)
                    elif kind < 0.6:
                        ready_state(topic.partitions[0]).release()
                    else:
                        group = f"g{rng.randrange(6)}"
                        found = await topic.receiver.receive(group, options(1))
                        got.setdefault(group, []).extend(v for _, _, v in leased(found))
                        await ack(topic, group, found)
                for group, values in got.items():
                    values += await drain(topic, group, 1)
                    assert sorted(values) == sorted(published), group

    run(main())


def test_a_maturing_that_a_crash_took_back_happens_again(tmp_path: Path) -> None:
    clock = ManualClock()

    async def main() -> None:
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t", 1)
            due_ms = clock.wall_ms() + 1000
            frame = encode_frame(Columns([b"late"], deliver_at_ms=[due_ms]))
            await topic.publisher.publish_frames([(0, FrameView.parse(frame))])
            assert not await topic.receiver.receive("g", options())
            clock.advance_ms(1000)
            topic.partitions[0]._timers._on_time()
            copy = tmp_path / "copy"
            copy_in_use(tmp_path / "topics/t/0", copy)
            assert not reopened(copy).state.maturity.pairs
            assert [v for _, _, v in leased(await topic.receiver.receive("g", options()))] == [
                b"late"
            ]
            await quiet(topic.partitions[0])
            shutil.rmtree(copy)
            copy_in_use(tmp_path / "topics/t/0", copy)
            assert reopened(copy).state.maturity.pairs

    run(main())


def test_what_retention_deleted_stands_in_no_queue_though_a_group_never_took_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 1)
            (partition,) = topic.partitions
            await publish(topic, b"first")
            await topic.receiver.receive("g", options(1))
            for number in range(20):  # each alone in its lane's run
                await put(topic, b"x", b"y", lanes=[number % 2, 2])
            await partition.trimmer.roll()
            await put(topic, b"last", lanes=[HIGH])
            before = ready_state(partition).ready.entry_count
            await trim(partition, partition.end_offset - 1)
            assert ready_state(partition).ready.entry_count < before - 30
            assert await drain(topic, "g") == [b"last"]

    run(main())


def test_what_is_published_during_a_rebuild_is_entered_by_threads_but_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[tuple[bool, int]] = []
    extend = ReadyState.extend

    def noting(
        self: ReadyState, messages: Log, start: int, end: int, *args: int, **more: int
    ) -> None:
        entered.append((threading.current_thread() is threading.main_thread(), end - start))
        extend(self, messages, start, end, *args, **more)

    async def main() -> None:
        metadata, disk = MemoryMetadata(), BrokenDisk()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await put(topic, b"a", b"b", lanes=[LOW, HIGH])
        async with broker_on(tmp_path, metadata=metadata, disk=disk) as broker:
            topic = broker.topic("t")
            disk.hold("messages", operation="read")
            receiving = asyncio.create_task(topic.receiver.receive("g", options(1)))
            await until(disk.holding.is_set)
            monkeypatch.setattr(ReadyState, "extend", noting)
            await publish(topic, *[b"c"] * 30)
            disk.release()
            await receiving
            assert len(await drain(topic, "g")) == 31

    monkeypatch.setattr(ready_state_manager, "_ENTERED_AT_ONCE", 10)
    run(main())
    assert entered == [(False, 2), (False, 30), (True, 0)] or entered == [(False, 30), (True, 0)]


def test_the_queues_from_before_a_rebuild_are_emptied(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 1)
            assert await drain(topic, "g") == []
            await put(topic, *[b"x"] * 20, tenants=[f"t{n}" for n in range(20)])
            (partition,) = topic.partitions
            before = ready_state(partition).ready
            assert len(before) == len(before.slots) == 20
            await broker.topic_admin.alter("t", {"tenants.weights": "t3=5"})
            await until(lambda: ready_state(partition).ready is not before)
            await until(lambda: not len(before) and not before.slots)
            assert len(await drain(topic, "g")) == 20

    run(main())
